"""torch is exactly as before once the device is closed, and a tensor that outlives it says so."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.cuda.amp
import torch.nn.parallel.comm
import torch.optim.optimizer as optimizer_module
import torch.utils._foreach_utils as foreach_module
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F
from virtual_cuda import VirtualGpu, virtual_cuda
from virtual_cuda.errors import (
    AlreadyOpen,
    BadDeviceCount,
    BadSize,
    DeviceClosed,
    DeviceError,
    RealDeviceInUse,
)
from virtual_cuda.torch_api import compatibility

from tests.sharing import WarmPython

# torch's own doing, with or without a device: caches and counters.
OWN = {
    "__slotnames__",
    "__abstractmethods__",
    "_abc_impl",
    "next_id",
    "__annotations__",
    "__doc__",
    "__annotations_cache__",
}


def owners() -> dict[str, Any]:
    """Every module and class of torch that is loaded. (`type(value)`: to ask `isinstance` makes old
    names warn.)
    """
    modules = {
        n: m
        for n, m in sys.modules.items()
        if n.split(".")[0] == "torch" and isinstance(m, types.ModuleType)
    }
    found: dict[str, Any] = dict(modules)
    for module in modules.values():
        for value in list(vars(module).values()):
            if issubclass(type(value), type):
                found[f"{value.__module__}.{value.__qualname__} {id(value)}"] = value
    return found


def picture() -> dict[str, tuple[Any, dict[str, Any]]]:
    return {name: (owner, dict(vars(owner))) for name, owner in owners().items()}


def differences(before: dict[str, tuple[Any, dict[str, Any]]]) -> list[str]:
    """What is not the very same object as before.

    A module that was imported meanwhile is no difference.
    """
    found = []
    for name, (owner, attributes) in before.items():
        now = dict(vars(owner))
        for key in attributes.keys() | now.keys():
            if key in OWN or issubclass(type(now.get(key)), types.ModuleType):
                continue
            if key not in now or key not in attributes or now[key] is not attributes[key]:
                found.append(f"{name}.{key}")
    return sorted(found)


def registries() -> list[Any]:
    """What torch keeps in lists and hooks rather than in attributes."""
    return [
        list(torch.serialization._package_registry),
        dict(optimizer_module._global_optimizer_pre_hooks),
        dict(optimizer_module._global_optimizer_post_hooks),
        list(optimizer_module._foreach_supported_types),
        list(foreach_module._foreach_supported_types),
        list(sys.meta_path),
        compatibility.default_device(),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch.is_autocast_enabled("cuda"),
        torch.cuda.is_available(),
        torch.accelerator.is_available(),
    ]


def work() -> None:
    """A bit of everything that is patched."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LSTM(4, 4)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda"):
        loss = model(torch.rand(3, 4).pin_memory().cuda())[0].sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    nn.DataParallel(nn.Linear(4, 4).cuda())(torch.ones(4, 4, device="cuda")).sum().item()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    torch.load(file)
    copy.deepcopy(model).cpu()
    torch.eye(3).to_sparse().cuda().to_dense()
    torch.cuda.synchronize()
    torch.ones(2, device="cuda").as_subclass(Tagged)
    F.scaled_dot_product_attention(*[torch.ones(1, 1, 2, 2, device="cuda")] * 3)


class Tagged(torch.Tensor):
    """A student's own class."""


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    with virtual_cuda(devices=2):
        work()  # torch's own caches and late imports, once
    before = picture()
    kept = registries()
    yield
    assert differences(before) == []
    assert registries() == kept


def test_the_picture_sees_a_device_that_is_open() -> None:
    """The meta-test: a comparison that cannot fail proves nothing."""
    before = picture()
    with virtual_cuda():
        found = differences(before)
    names = {
        name.partition(" ")[0] + "." + name.rpartition(".")[2] if " " in name else name
        for name in found
    }
    assert {
        "torch.cuda.is_available",
        "torch.nn.modules.module.Module._apply",
        "torch.Tensor.to",
    } <= names
    assert len(found) > 100


def test_everything_is_as_before() -> None:
    with unchanged(), virtual_cuda(devices=2):
        work()


def test_everything_is_as_before_after_an_exception() -> None:
    def fail() -> None:
        work()
        with torch.autocast("cuda"), torch.cuda.device(1), torch.cuda.stream(torch.cuda.Stream()):
            raise KeyError

    with unchanged(), pytest.raises(KeyError), virtual_cuda(devices=2):
        fail()


def test_everything_is_as_before_after_misuse() -> None:
    with unchanged():
        with virtual_cuda():
            for _ in range(2):
                with (
                    pytest.raises(AlreadyOpen, match="is already open in this process"),
                    virtual_cuda(),
                ):
                    pass
            work_is_possible = torch.ones(2, device="cuda").sum().item()
        assert work_is_possible == 2
        with virtual_cuda():
            torch.cuda.set_sync_debug_mode("error")
            torch.set_default_device("cuda")
            torch.set_default_device(None)
            torch.cuda.set_device(0)


def test_what_torch_imports_meanwhile_sees_the_real_torch(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    """`torch._dynamo`, which the first optimizer of a process imports, copies what it finds."""
    lines = (
        "import sys, torch",
        "from virtual_cuda import virtual_cuda",
        "real = torch.device, torch.nn.Module.__call__, torch.cuda.current_device, torch.Tensor.to",
        "assert 'torch._dynamo' not in sys.modules",
        "with virtual_cuda():",
        "    import torch._dynamo",
        "    assert torch.cuda.is_available()",
        "    torch.optim.SGD([torch.nn.Parameter(torch.ones(2, device='cuda'))]).step()",
        (
            "import torch._dynamo.source, torch._dynamo.utils, torch._dynamo.variables.tensor as "
            "tensor"
        ),
        "device_type = getattr(torch._dynamo.source, 'device_type', real[0])  # not in torch 2.8",
        "assert device_type is real[0]",
        "assert torch._dynamo.utils.unpatched_nn_module_call is real[1]",
        "assert tensor.all_tensor_attrs['to'] is real[3]",
        "assert type(torch._dynamo.__spec__.loader).__module__ != 'virtual_cuda.torch_api.imports'",
    )
    script = tmp_path / "imports.py"
    script.write_text("\n".join(lines), encoding="utf-8")
    done = warm_python.run(str(script), cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr[-1500:]


def test_entering_again_starts_afresh() -> None:
    with virtual_cuda() as first:
        torch.ones(1000, device="cuda").sum().item()
    with virtual_cuda(name="Another") as second:
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.get_device_name() == "Another"
        assert not second.ledger.syncs()
        torch.ones(2, device="cuda")
    assert len(first.ledger.syncs()) == 1
    assert first.ledger.peak_bytes() >= 4096
    assert first.ledger.operation_counts()["aten.sum.default"] == 1
    assert "aten.sum.default" not in second.ledger.operation_counts()


def test_torch_finds_no_device_afterwards() -> None:
    """In its own words, but for one: C++ remembers that CUDA was initialised once, and then blames
    the link.
    """
    with virtual_cuda():
        torch.ones(2).cuda()
    assert not torch.cuda.is_available()
    for ask in (
        lambda: torch.ones(2, device="cuda"),
        lambda: torch.ones(2).cuda(),
        lambda: nn.Linear(2, 2).cuda(),
    ):
        with pytest.raises(
            (AssertionError, RuntimeError), match=r"CUDA|NVIDIA|not linked with support for cuda"
        ):
            ask()


# ---- tensors that outlive their device -----------------------------------------------------------


class Left:
    """What somebody still holds when the `with` block has ended."""

    def __init__(self) -> None:
        self.model = nn.Linear(3, 3).cuda()
        self.lstm = nn.LSTM(3, 3).cuda()
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.adam = torch.optim.Adam(self.model.parameters())
        self.x = torch.ones(3, 3, device="cuda")
        self.number = torch.tensor(3.0, device="cuda")
        self.mask = self.x > 0
        self.loss = self.model(self.x).sum()
        self.model(self.x).sum().backward()
        self.tagged = self.x.as_subclass(Tagged)
        self.sparse = torch.eye(3).to_sparse().cuda()
        self.scaler = torch.amp.GradScaler("cuda")
        self.scaled = self.scaler.scale(self.model(self.x).sum())
        self.host = torch.ones(3, 3)


def in_inference_mode(left: Left) -> Any:
    with torch.inference_mode():
        return left.x + 1


def assign(left: Left) -> None:
    left.x[0] = 1


USES: dict[str, Callable[[Left], Any]] = {
    "add": lambda s: s.x + 1,
    "add two": lambda s: s.x + s.x,
    "add to host": lambda s: s.host + s.x,
    "product": lambda s: s.x @ s.x,
    "in place": lambda s: s.x.add_(1),
    "assign": assign,
    "fill": lambda s: s.x.zero_(),
    "index": lambda s: s.x[0],
    "mask": lambda s: s.x[s.mask],
    "where": lambda s: torch.where(s.mask, 1.0, 0.0),
    "view": lambda s: s.x.view(-1),
    "transpose": lambda s: s.x.t(),
    "detach": lambda s: s.x.detach(),
    "clone": lambda s: s.x.clone(),
    "zeros_like": lambda s: torch.zeros_like(s.x),
    "new_zeros": lambda s: s.x.new_zeros(2),
    "cat": lambda s: torch.cat([s.x, s.x]),
    "item": lambda s: s.number.item(),
    "float": lambda s: float(s.number),
    "bool": lambda s: bool(s.number),
    "format": lambda s: f"{s.number:.2f}",
    "tolist": lambda s: s.x.tolist(),
    "iterate": lambda s: list(s.x),
    "equal": lambda s: torch.equal(s.x, s.x),
    "cpu": lambda s: s.x.cpu(),
    "to cpu": lambda s: s.x.to("cpu"),
    "to cuda": lambda s: s.x.to("cuda"),
    "cuda": lambda s: s.x.cuda(),
    "to dtype": lambda s: s.x.half(),
    "to like": lambda s: s.x.to(s.host),
    "numpy by force": lambda s: s.x.numpy(force=True),
    "copy to host": lambda s: s.host.copy_(s.x),
    "copy from host": lambda s: s.x.copy_(s.host),
    "forward": lambda s: s.model(s.x),
    "forward of host data": lambda s: s.model(s.host),
    "lstm": lambda s: s.lstm(s.x),
    "rms_norm": lambda s: F.rms_norm(s.x, (3,)),
    "attention": lambda s: F.scaled_dot_product_attention(s.x, s.x, s.x),
    "embedding": lambda s: F.embedding(torch.tensor([1]), s.x),
    "backward": lambda s: s.loss.backward(),
    "autograd.grad": lambda s: torch.autograd.grad(s.loss, s.model.weight),
    "backward of a scaled loss": lambda s: s.scaled.backward(),
    "checkpoint": lambda s: torch.utils.checkpoint.checkpoint(s.model, s.x, use_reentrant=False),
    "sgd": lambda s: s.sgd.step(),
    "adam": lambda s: s.adam.step(),
    "zero_grad": lambda s: s.sgd.zero_grad(set_to_none=False),
    "scaler": lambda s: s.scaler.step(s.sgd),
    "get_scale": lambda s: s.scaler.get_scale(),
    "clip": lambda s: nn.utils.clip_grad_norm_(s.model.parameters(), 1.0),
    "module to cpu": lambda s: s.model.cpu(),
    "state_dict": lambda s: s.model.state_dict(),
    "deepcopy": lambda s: copy.deepcopy(s.model),
    "save": lambda s: torch.save(s.x, io.BytesIO()),
    "pickle": lambda s: pickle.dumps(s.x),
    "subclass": lambda s: s.tagged + 1,
    "sparse": lambda s: s.sparse.to_dense(),
    "foreach": lambda s: torch._foreach_add_([s.x], 1),
    "inference mode": in_inference_mode,
    "set_": lambda s: s.x.set_(s.x),
    "vmap": lambda s: torch.vmap(lambda v: v + 1)(s.x),
}


@pytest.mark.parametrize("second", [False, True], ids=["outside", "in another device"])
@pytest.mark.parametrize("name", USES)
def test_a_tensor_that_outlives_its_device_says_so(name: str, second: bool) -> None:
    if name == "checkpoint" and torch.__version__ < "2.13":
        pytest.skip("this torch leaves checkpoint's hooks behind when the function raises")
    with virtual_cuda():
        left = Left()
    with (
        virtual_cuda() if second else contextlib.nullcontext(),
        pytest.raises(DeviceClosed) as caught,
    ):
        USES[name](left)
    assert str(caught.value) == (
        "this tensor is on the virtual device 'cuda:0', whose `with` block has ended; "
        "move it with .cpu() before the block ends"
    )


def test_what_can_still_be_asked() -> None:
    with virtual_cuda() as gpu:
        left = Left()
        rows = len(gpu.ledger.rows)
    assert (left.x.shape, left.x.dtype, str(left.x.device), left.x.is_cuda) == (
        (3, 3),
        torch.float32,
        "cuda:0",
        True,
    )
    assert repr(left.x) == "<tensor of shape (3, 3) on a virtual device that is closed>"
    assert repr(left.model) == "Linear(in_features=3, out_features=3, bias=True)"
    with pytest.raises(DeviceClosed):
        left.x + 1
    assert len(gpu.ledger.rows) == rows


def test_memory_given_back_later_does_not_disturb_another_device() -> None:
    with virtual_cuda():
        x = torch.ones(10_000, device="cuda")
    with virtual_cuda():
        del x
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.memory_stats()["allocation.all.current"] == 0


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"memory": "lots"}, BadSize),
        ({"memory": "8 parsecs"}, BadSize),
        ({"memory": ""}, BadSize),
        ({"memory": -1}, BadSize),
        ({"memory": 0}, BadSize),
        ({"memory": [8]}, BadSize),
        ({"devices": 0}, BadDeviceCount),
        ({"devices": -2}, BadDeviceCount),
        ({"devices": 1000}, BadDeviceCount),
        ({"devices": True}, BadDeviceCount),
        ({"devices": 1.0}, BadDeviceCount),
        ({"devices": "2"}, BadDeviceCount),
    ],
    ids=str,
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    options: dict[str, Any], error: type[DeviceError]
) -> None:
    before = picture()
    kept = registries()
    with pytest.raises(error) as caught, virtual_cuda(**options):
        pytest.fail("entered")
    assert "\n" not in str(caught.value)
    assert differences(before) == []
    assert registries() == kept
    with virtual_cuda():
        assert torch.ones(1, device="cuda").item() == 1


def test_a_real_device_in_use_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    before = picture()
    kept = registries()
    with (
        pytest.raises(RealDeviceInUse, match="already uses the real device 'cuda'"),
        virtual_cuda(),
    ):
        pytest.fail("entered")
    assert differences(before) == []
    assert registries() == kept


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.usefixtures("gpu")
def test_a_forked_child_of_an_open_parent_cannot_enter_or_use_it(gpu: VirtualGpu) -> None:
    x = torch.ones(2, device="cuda")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for use in (
            lambda: virtual_cuda().__enter__(),
            lambda: x + 1,
            lambda: torch.ones(1, device="cuda"),
            lambda: torch.cuda.set_device(0),
        ):
            try:
                use()
                said.append("nothing")
            except BaseException as error:
                said.append(f"{type(error).__name__}: {error}".splitlines()[0])
        os.write(writing, "\n".join(said).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    entering, *others = os.read(reading, 10_000).decode().splitlines()
    os.close(reading)
    assert entering.startswith("AlreadyOpen: ")
    assert len(others) == 3
    assert all(
        said.startswith("RuntimeError: Cannot re-initialize CUDA in forked subprocess")
        for said in others
    )
    assert x.sum().item() == 2
