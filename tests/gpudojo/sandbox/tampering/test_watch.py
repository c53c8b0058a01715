"""The watch calls student code, cleans up after it, and tells what it replaced, and where."""

from __future__ import annotations

import os
from typing import NamedTuple

import pytest

from tests.gpudojo.sandbox.tampering.watched import run_watched
from tests.sharing import once

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="each snippet runs in a fork")


class Case(NamedTuple):
    """A student's text, what is found in it, and what must be true afterwards."""

    text: str
    found: list[str]
    after: str = ""


CASES = {
    "a file that replaces a name of torch": Case(
        "import torch\n"
        "torch.cuda.synchronize = lambda *args: None\n"
        "def solve():\n"
        "    assert 'student' not in torch.cuda.synchronize.__module__",
        ["put back student.py:2 replaced torch.cuda.synchronize"],
        "import torch\nassert torch.cuda.synchronize.__module__ == 'torch.cuda'",
    ),
    "a file that replaces a name and raises": Case(
        "import torch\ntorch.is_tensor = lambda *args: True\nraise KeyError('after it')",
        [
            "put back student.py:2 replaced torch.is_tensor",
            "raised KeyError: 'after it'",
        ],
    ),
    "a function that replaces a name of torch": Case(
        "import torch\ndef solve():\n    torch.Tensor.to = lambda self, *args: self",
        ["put back student.py:3 replaced torch.Tensor.to"],
        "import torch\nassert torch.ones(1).to(torch.int64).dtype == torch.int64",
    ),
    "a function that replaces a name and puts it back": Case(
        "import torch\n"
        "def solve():\n"
        "    before = torch.is_tensor\n"
        "    torch.is_tensor = lambda *args: True\n"
        "    torch.is_tensor = before",
        [],
    ),
    "a recorder in a call that has replaced names": Case(
        "import builtins, torch\n"
        "def solve():\n"
        "    real = len, torch.is_tensor\n"
        "    builtins.len, torch.is_tensor = lambda *args: 9, lambda *args: True\n"
        "    seen = call_recorder(lambda: (len([]), torch.is_tensor(1)), ())\n"
        "    builtins_now = len([]), torch.is_tensor(1)\n"
        "    builtins.len, torch.is_tensor = real\n"
        "    assert seen == (0, False)\n"
        "    assert builtins_now == (9, True)",
        [],
    ),
    "a recorder in a call that has deleted a name": Case(
        "import builtins\n"
        "def solve():\n"
        "    real = len\n"
        "    del builtins.len\n"
        "    seen = call_recorder(lambda: len([]), ())\n"
        "    assert seen == 0 and not hasattr(builtins, 'len')\n"
        "    builtins.len = real",
        [],
    ),
    "a recorder that raises": Case(
        "import torch\n"
        "def solve():\n"
        "    torch.is_tensor = lambda *args: 9\n"
        "    try: call_recorder(lambda: torch.is_tensor(1) or 1 / 0, ())\n"
        "    except ZeroDivisionError: assert torch.is_tensor(1) == 9\n"
        "    else: raise AssertionError",
        ["put back student.py:3 replaced torch.is_tensor"],
        "import torch\nassert not torch.is_tensor(1)",
    ),
    "a function that replaces a name of torch while a device is open": Case(
        "import torch, virtual_cuda\n"
        "def solve():\n"
        "    with virtual_cuda.virtual_cuda():\n"
        "        torch.ones = lambda *args: 1",
        ["put back student.py:4 replaced torch.ones"],
        "import torch\nassert torch.ones(1).item() == 1",
    ),
    "a function that replaces a name of Python": Case(
        "import time\ndef solve():\n    time.perf_counter = lambda: 0.0",
        ["put back student.py:3 replaced time.perf_counter"],
        "import time\nassert time.perf_counter() > 0",
    ),
    "a file that replaces built-in functions": Case(
        "import builtins\n"
        "builtins.len = builtins.isinstance = builtins.zip = builtins.dict = lambda *args: 0\n"
        "builtins.object = builtins.type = builtins.any = builtins.set = None\n"
        "del builtins.map\n"
        "builtins.profile = lambda function: function\n"
        "def solve():\n"
        "    assert len([1]) == len(list(map(str, [1])))\n"
        "    profile(solve)",
        [],  # see below
    ),
    "a function that replaces a built-in function": Case(
        "import builtins\ndef solve():\n    builtins.isinstance = lambda *args: True",
        ["put back student.py:3 replaced builtins.isinstance"],
        "assert not isinstance(1, str)",
    ),
    "a function of its own for `print`": Case(
        "import builtins\nbuiltins.print = lambda *args: None\ndef solve():\n    print()",
        [],
    ),
    "a function that replaces a name of ours": Case(
        "from virtual_cuda.ledger import Ledger\ndef solve():\n    Ledger.mark = lambda self: 0",
        ["forged student.py:3 replaced virtual_cuda.ledger.ledger.Ledger.mark"],
        "from virtual_cuda.ledger import Ledger\nassert Ledger.mark.__qualname__ == 'Ledger.mark'",
    ),
    "a file that replaces a name of ours": Case(
        "from virtual_cuda.ledger import Ledger\nLedger.mark = lambda self: 0",
        ["forged student.py:2 replaced virtual_cuda.ledger.ledger.Ledger.mark"],
        "from virtual_cuda.ledger import Ledger\nassert Ledger.mark.__qualname__ == 'Ledger.mark'",
    ),
    "a builtin that is hidden from ours": Case(
        "import sys\n"
        "def solve():\n"
        "    sys.modules['gpudojo.grading.' + str('call')].len = lambda x: 0",
        ["forged student.py:3 replaced gpudojo.grading.call.len"],
        "from gpudojo.grading import call\nassert 'len' not in vars(call)",
    ),
    "other bases for a class of torch": Case(
        "import torch\n"
        "class Base(torch.nn.Module): pass\n"
        "def solve():\n"
        "    torch.nn.Linear.__bases__ = (Base,)",
        ["could not be measured student.py:4 replaced the bases of torch.nn.modules.linear.Linear"],
    ),
    "a tracer that stays": Case(
        "import sys\ndef solve():\n    sys.settrace(lambda *args: None)",
        [],
        "import sys\nassert sys.gettrace() is None",
    ),
    "a device that is used": Case(
        "import torch, virtual_cuda\n"
        "def solve():\n"
        "    with virtual_cuda.virtual_cuda():\n"
        "        x = torch.ones(2, device='cuda', requires_grad=True)\n"
        "        (x @ x).backward()\n"
        "        torch.optim.SGD([x]).step()",
        [],
    ),
    "modules of torch that are imported late": Case(
        "import torch\ndef solve():\n    import torch._dynamo, torch.distributed.tensor",
        [],
    ),
    "a function that was compiled": Case(
        "import torch\n"
        "def solve():\n"
        "    torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2))",
        [],
    ),
    "a mock around a name of torch": Case(
        "import torch, unittest.mock\n"
        "def solve():\n"
        "    with unittest.mock.patch.object(torch.Tensor, 'to', autospec=True):\n"
        "        torch.ones(1).to('cpu')",
        [],
    ),
    "too many names": Case(
        "import torch\n"
        "def solve():\n"
        "    for name in 'ones zeros rand randn add mul'.split():\n"
        "        setattr(torch, name, lambda *args: None)",
        [],  # see below
        "import torch\nassert torch.ones(1).item() == 1",
    ),
}


MANY = ("too many names", "a file that replaces built-in functions")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    snippets = {name: (case.text, case.after) for name, case in CASES.items()}
    return once(tmp_path_factory, "watch", lambda folder: run_watched(snippets))


@pytest.mark.parametrize("name", [name for name in CASES if name not in MANY])
def test_what_was_replaced_is_told_and_put_back(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == CASES[name].found


def test_of_many_names_some_are_told_and_all_are_put_back(found: dict[str, list[str]]) -> None:
    lines = found["too many names"]
    assert len(lines) == 4
    start = "put back student.py:4 replaced torch."
    assert all(each.startswith(start) for each in lines)


def test_built_in_functions_are_put_back_first(found: dict[str, list[str]]) -> None:
    lines = found["a file that replaces built-in functions"]
    assert len(lines) == 4
    assert all(each.startswith("put back ") and " replaced builtins." in each for each in lines)
