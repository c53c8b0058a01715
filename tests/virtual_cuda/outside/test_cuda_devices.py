"""Copies among several devices (`torch.cuda.comm`), typed storages, and modules imported while the
device is open.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.cuda import comm
from virtual_cuda import virtual_cuda

from tests.sharing import WarmPython

Out = list[torch.Tensor]


@pytest.fixture
def two() -> Iterator[None]:
    with virtual_cuda(devices=2):
        yield


def outputs(*shapes: tuple[int, ...]) -> Out:
    return [torch.zeros(shape, device=index) for index, shape in enumerate(shapes)]


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("source", ["cpu", "cuda:0"])
def test_pieces_are_written_where_they_are_wanted(source: str) -> None:
    x = torch.arange(12.0, device=source).view(6, 2)
    for result in (comm.scatter(x, (0, 1), (2, 4)), comm.scatter(x, out=outputs((2, 2), (4, 2)))):
        assert [t.device.index for t in result] == [0, 1]
        assert torch.equal(torch.cat([t.cpu() for t in result]), x.cpu())
    for result in (comm.broadcast(x, (0, 1)), comm.broadcast(x, out=outputs((6, 2), (6, 2)))):
        assert [t.device.index for t in result] == [0, 1]
        assert all(torch.equal(t.cpu(), x.cpu()) for t in result)


@pytest.mark.usefixtures("two")
def test_pieces_are_gathered_and_added() -> None:
    parts = [torch.ones(2, 3, device=0), torch.full((2, 3), 2.0, device=1)]
    out = torch.zeros(2, 6)
    assert comm.gather(parts, 1, out=out) is out
    assert torch.equal(out, comm.gather(parts, -1, destination="cpu"))
    with torch.cuda.device(1):
        assert comm.gather(parts).device.index == 1
    assert comm.reduce_add(parts, 1).tolist() == [[3.0] * 3] * 2
    first, second = comm.broadcast_coalesced(parts[:1], (0, 1))
    assert first[0] is parts[0]
    assert second[0].device.index == 1


REFUSED: dict[str, tuple[str, Callable[[Out], Any]]] = {
    "host output": (
        "output tensor at index 1 has device 'cpu'",
        lambda p: comm.broadcast(p[0], out=[p[0], p[0].cpu()]),
    ),
    "shape": ("to have same shape as the source", lambda p: comm.broadcast(p[0], out=[p[0][:1]])),
    "sizes": ("along scatter dim 0 does not match", lambda p: comm.scatter(p[0], out=[p[0][:1]])),
    "no output": ("at least one output tensor", lambda p: comm.scatter(p[0], out=[])),
    "no device": ("at least one device", lambda p: comm.scatter(p[0], ())),
    "lengths": (
        "devices and chunk_sizes to be of same length",
        lambda p: comm.scatter(p[0], (0,), (1, 1)),
    ),
    "host input": ("tensor at index 0 has device 'cpu'", lambda p: comm.gather([p[0].cpu(), p[1]])),
    "dimensions": ("the same number of dimensions", lambda p: comm.gather([p[0], p[1][0]])),
    "input": (
        "Input tensor at index 1 has invalid shape",
        lambda p: comm.gather([p[0], p[1][:, 1:]]),
    ),
    "out": ("Expected out tensor to have shape", lambda p: comm.gather(p, out=torch.zeros(3))),
    "elsewhere": (
        r"All tensors must be on devices\[0\]",
        lambda p: comm.broadcast_coalesced(p, (0, 1)),
    ),
}


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    said, call = REFUSED[name]
    with pytest.raises(RuntimeError, match=said):
        call([torch.ones(2, 3, device=index) for index in range(2)])


@pytest.mark.usefixtures("two")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storages_are_copied_on_their_device() -> None:
    x = torch.arange(3.0, device="cuda:1")
    for storage in (x.storage(), x.untyped_storage()):
        for twin in (copy.deepcopy(storage), storage.clone()):
            assert type(twin) is type(storage)
            assert str(twin.device) == "cuda:1"
            assert twin.data_ptr() != storage.data_ptr()
            assert twin.tolist() == storage.tolist()


@pytest.mark.usefixtures("two")
def test_a_dual_tensor_is_copied_to_the_host() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(
            torch.ones(2, device="cuda"), torch.full((2,), 5.0, device="cuda")
        )
        tangent = forward_ad.unpack_dual(torch.zeros(2).copy_(dual)).tangent
    assert tangent is not None
    assert tangent.tolist() == [5, 5]


def test_modules_of_torch_imported_meanwhile_see_the_device(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    """A module that asks while it is imported, and one that keeps a function that asks."""
    asking = (
        "import sys, types, importlib.abc, importlib.util, torch",
        "CODE = 'import torch\\nfrom torch.cuda import is_available\\nfrom torch.cuda import "
        "Stream\\n"
        "HERE = torch.cuda.is_available(), torch.cuda.device_count(), torch.version.cuda is not "
        "None\\n'",
        "class Made(importlib.abc.MetaPathFinder, importlib.abc.Loader):",
        "    def find_spec(self, name, path, target=None):",
        (
            "        return importlib.util.spec_from_loader(name, self) if name == 'torch.late' "
            "else None"
        ),
        "    def exec_module(self, module): exec(CODE, vars(module))",
        "sys.meta_path.append(Made())",
        "from virtual_cuda import virtual_cuda",
        "original = torch.cuda.is_available, torch.cuda.Stream",
        "with virtual_cuda(devices=2):",
        "    import torch.late",
        "    assert torch.late.HERE == (True, 2, True)",
        "    assert torch.late.is_available()",
        "    assert torch.ones(2, device='cuda').sum().item() == 2",
        "assert (torch.late.is_available, torch.late.Stream) == original",
        "assert not torch.late.is_available()",
    )
    script = tmp_path / "script.py"
    script.write_text("\n".join(asking), encoding="utf-8")
    done = warm_python.run(str(script), cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr[-1500:]
