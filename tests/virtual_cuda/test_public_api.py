"""The public names of virtual_cuda: all there, sorted, lazy, and usable without gpudojo."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import virtual_cuda
import virtual_cuda.hooks
import virtual_cuda.ledger

from tests.sharing import WarmPython


@pytest.mark.parametrize(
    "module",
    [virtual_cuda, virtual_cuda.ledger, virtual_cuda.hooks],
    ids=lambda module: module.__name__,
)
def test_every_public_name_exists(module: object) -> None:
    names = vars(module)["__all__"]
    assert len(names) == len(set(names))
    assert all(getattr(module, name) is not None for name in names)


@pytest.mark.parametrize("module", [virtual_cuda, virtual_cuda.hooks], ids=lambda m: m.__name__)
def test_every_public_name_is_documented(module: object) -> None:
    page = (Path(__file__).parents[2] / "docs" / "virtual-cuda.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`(\w+)", page))
    assert set(vars(module)["__all__"]) <= documented


@pytest.mark.parametrize("module", [virtual_cuda, virtual_cuda.hooks], ids=lambda m: m.__name__)
def test_type_checkers_know_the_names_that_are_there(module: ModuleType) -> None:
    """The imports for type checkers stand beside the table of names."""
    imported = re.findall(r"import \w+ as (\w+)", inspect.getsource(module))
    assert sorted(imported) == sorted(vars(module)["__all__"])


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(
        AttributeError, match="module 'virtual_cuda' has no attribute 'no_such_name'"
    ):
        _ = virtual_cuda.no_such_name


def test_importing_it_imports_neither_torch_nor_numpy() -> None:
    script = (
        "import sys, virtual_cuda, virtual_cuda.ledger, virtual_cuda.errors, virtual_cuda.hooks\n"
        "assert not {'torch', 'numpy', 'pytest', 'gpudojo'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_using_it_needs_no_gpudojo(warm_python: WarmPython, tmp_path: Path) -> None:
    script = tmp_path / "use.py"
    script.write_text(
        "import sys, torch, virtual_cuda\n"
        "with virtual_cuda.virtual_cuda() as gpu:\n"
        "    torch.ones(3).to('cuda').sum().item()\n"
        "assert gpu.ledger.sync_counts() == {'copy': 1, 'item': 1}\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'gpudojo']\n",
        encoding="utf-8",
    )
    done = warm_python.run(str(script), cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
