"""Who registers kernels for operators of torch is noticed; operators of one's own are free."""

from __future__ import annotations

import os

import pytest

from tests.gpudojo.sandbox.tampering.watched import run_watched
from tests.sharing import once

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="each snippet runs in a fork")
WHAT = "registered kernels for operators of torch (torch.library)"
SNIPPETS = {
    "by a function": (
        "import torch\n"
        "def solve():\n"
        "    library = torch.library.Library('aten', 'IMPL', 'CPU')  # here\n"
        "    solve.kept = library",
        # Such a kernel stays, so it holds for every function after it.
        f"assert [each.what for each in watch.end_function()] == [{WHAT!r}]",
    ),
    "by a file": ("import torch\nkept = torch.library.Library('aten', 'IMPL', 'CPU')  # here", ""),
    "under another's file name": (
        "import torch\n"
        "def solve():\n"
        "    return torch._C._dispatch_library('IMPL', 'aten', 'CPU', torch.__file__, 1)  # here",
        "",
    ),
    "operators of its own": (
        "import torch\n"
        "library = torch.library.Library('mine', 'DEF')\n"
        "library.define('twice(Tensor x) -> Tensor')\n"
        "def solve():\n"
        "    library.impl('twice', lambda x: x * 2, 'CompositeExplicitAutograd')\n"
        "    assert torch.ops.mine.twice(torch.ones(1)).item() == 2",
        "assert watch.end_function() == []",
    ),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return once(tmp_path_factory, "operators", lambda folder: run_watched(SNIPPETS))


@pytest.mark.parametrize("name", SNIPPETS)
def test_kernels_for_operators_of_torch_are_noticed_with_their_line(
    found: dict[str, list[str]], name: str
) -> None:
    lines = SNIPPETS[name][0].splitlines()
    expected = []
    for number, line in enumerate(lines, 1):
        if "# here" in line:
            expected.append(f"could not be measured student.py:{number} {WHAT}")
    assert found[name] == expected
