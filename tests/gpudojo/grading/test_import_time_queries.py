"""Files that ask at import which machine they are on are detected, and no others."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from gpudojo.grading.load import load_again, load_submission
from gpudojo.grading.machine_questions import asks_about_machine, mentions_machine

REMEMBERING = {
    "a constant": "import torch\nCUDA = torch.cuda.is_available()\n",
    "in a condition": "if torch.accelerator.is_available():\n    name = 'gpu'\n",
    "a default": "def f(x, gpus=torch.cuda.device_count()):\n    return gpus\n",
    "a default of a lambda": "f = lambda gpus=torch.cuda.device_count(): gpus\n",
    "a decorator": "@torch.autocast('cuda')\ndef f(x):\n    return x\n",
    "in a class": "class Settings:\n    gpus = torch.cuda.device_count()\n",
    "by a function": "def best():\n    return torch.cuda.is_available()\nBEST = best()\n",
    "by two": "def a():\n    return b()\ndef b():\n    return is_available()\nBEST = a()\n",
    "cached": "@functools.cache\ndef gpus():\n    return torch.cuda.device_count()\n",
    "in a global name": (
        "N = None\n"
        "def gpus():\n"
        "    global N\n"
        "    N = N or torch.cuda.device_count()\n"
        "    return N\n"
    ),
    "functions in a list": "WAITS = [torch.cuda.synchronize, torch.mps.synchronize]\n",
    "a function as a default": "def f(wait=torch.cuda.synchronize):\n    wait()\n",
    "an imported one in a dict": (
        "from torch.cuda import synchronize as wait\nWAITS = {'cuda': wait}\n"
    ),
    "of an imported module": "from torch import cuda\nwait = partial(cuda.synchronize, 0)\n",
}
NOT_REMEMBERING = {
    "asks when called": "def f(x):\n    return x.cuda() if torch.cuda.is_available() else x\n",
    "only imports": "from torch.cuda import is_available\ndef f():\n    return is_available()\n",
    "caches something else": (
        "@cache\ndef f(n):\n    return n * 2\ndef g():\n    return torch.cuda.device_count()\n"
    ),
    "names a device": "DEVICE = torch.device('cuda')\ndef f():\n    torch.cuda.synchronize()\n",
    "as a type": "def f(stream: torch.cuda.Stream | None = None):\n    pass\n",
    "imports a module": (
        "import torch.cuda\nfrom torch import cuda\ndef f():\n    cuda.synchronize()\n"
    ),
    "replaces": "torch.cuda.synchronize = print\ntorch.cuda.Event.record = lambda self: None\n",
    "a lambda": "gpus = lambda: torch.cuda.device_count()\n",
}


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_file_that_remembers_its_machine(name: str) -> None:
    assert mentions_machine(REMEMBERING[name])
    assert asks_about_machine(ast.parse(REMEMBERING[name]).body)


@pytest.mark.parametrize("name", NOT_REMEMBERING)
def test_a_file_that_asks_each_time(name: str) -> None:
    assert not asks_about_machine(ast.parse(NOT_REMEMBERING[name]).body)


def test_a_file_is_run_again_as_it_was_read(tmp_path: Path) -> None:
    """In a module of its own.

    What it finds there, and whether it fails, may be something else than before.
    """
    path = tmp_path / "answer.ipynb"
    machine = tmp_path / "machine"
    read = f"import pathlib\nMACHINE = pathlib.Path({str(machine)!r}).read_text()"
    sources = [
        f"seen = []\n{read}",
        "def f():\n    seen.append(1)\n    return MACHINE, seen",
        "return 1",
        "def g(: pass",
    ]
    cells = [
        {"cell_type": "code", "source": source, "metadata": {}, "outputs": []} for source in sources
    ]
    path.write_text(
        json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}),
        encoding="utf-8",
    )
    first = load_submission(path)
    assert first.broken is not None
    assert first.broken.type == "SyntaxError", "a cell that was to define something says more"
    assert set(first.names) >= {"f", "seen"}
    assert "MACHINE" not in first.names
    path.unlink()
    machine.write_text("another", encoding="utf-8")
    again = load_again(first)
    assert again.names["f"]() == ("another", [1])
    assert first.names["seen"] == []
    assert (again.lines, again.cells, again.todo, again.broken) == (
        first.lines,
        first.cells,
        first.todo,
        first.broken,
    )


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("return 5", "'return' outside function"),
        ("def g(a, a): pass", "duplicate argument 'a'"),
        ("nonlocal a", "nonlocal declaration not allowed at module level"),
        ("await a", "'await' outside function"),
        ("from __future__ import annotations", "from __future__ imports must occur"),
        ("break", "'break' outside loop"),
    ],
)
@pytest.mark.parametrize("suffix", [".py", ".ipynb"])
def test_what_only_the_compiler_refuses_has_its_line(
    tmp_path: Path, suffix: str, mistake: str, message: str
) -> None:
    """The tree of such a file is fine; the line is that of the file, or of the whole notebook."""
    source = f"import torch\n\n\ndef f():\n    return 1\n\n\n{mistake}\n"
    path = tmp_path / f"one{suffix}"
    line = 8
    text = source
    if suffix == ".ipynb":
        cells = [
            {"cell_type": "code", "source": each, "metadata": {}, "outputs": []}
            for each in ("first = 1\n", source)
        ]
        text = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    path.write_text(text, encoding="utf-8")
    loaded = load_submission(path)
    if loaded.cells:
        line += loaded.cells[1] - 1
    assert loaded.broken is not None
    assert (loaded.broken.type, loaded.broken.line) == ("SyntaxError", line)
    assert message in loaded.broken.message
    assert "line" not in loaded.broken.message, "it would be another number"
