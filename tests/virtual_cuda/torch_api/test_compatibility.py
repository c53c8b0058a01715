"""A torch that has changed an internal the device needs is refused with one clear sentence."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from virtual_cuda import internals, virtual_cuda
from virtual_cuda.device import tensor
from virtual_cuda.errors import TorchLacks, TorchUnsupported, torch_lacks
from virtual_cuda.torch_api import compatibility

from tests.sharing import WarmPython


@pytest.fixture(autouse=True)
def _look_again() -> Iterator[None]:
    compatibility.check_torch.cache_clear()
    yield
    compatibility.check_torch.cache_clear()


def refused(part: str) -> None:
    before = (nn.Module._apply, nn.Module.__call__, torch.cuda.is_available, list(sys.meta_path))
    with pytest.raises(TorchUnsupported) as caught, virtual_cuda():
        pytest.fail("entered")
    assert str(caught.value) == (
        f"this torch ({torch.__version__}) has changed {part}, which the virtual CUDA device is "
        "built on; "
        "install the torch that constraints.txt names, or a newer gpudojo"
    )
    assert before == (
        nn.Module._apply,
        nn.Module.__call__,
        torch.cuda.is_available,
        list(sys.meta_path),
    )
    assert not torch.cuda.is_available()


def test_this_torch_is_fit_and_is_asked_once() -> None:
    compatibility.check_torch()
    start = time.process_time()
    for _ in range(100):
        compatibility.check_torch()
    assert (time.process_time() - start) / 100 < 0.3e-3


@pytest.mark.parametrize("path", internals.INDISPENSABLE)
def test_without_an_indispensable_name_the_device_refuses_to_open(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = path + "_that_is_absent"
    monkeypatch.setattr(compatibility, "INDISPENSABLE", (gone,))
    monkeypatch.setattr(internals, "INDISPENSABLE", (gone,))
    refused(gone)


def test_a_feature_that_this_torch_lacks_is_refused_when_it_is_used() -> None:
    lacking = internals.find_internal("torch._C._no_such_name", "flying")
    sentence = (
        f"flying cannot be used on the virtual CUDA device with torch {torch.__version__}, "
        "which has no torch._C._no_such_name"
    )
    for use in (lambda: lacking(1), lambda: lacking.part):
        with pytest.raises(TorchLacks) as caught:
            use()
        assert str(caught.value) == sentence


def test_a_name_that_is_lacking_may_have_a_substitute() -> None:
    assert internals.find_internal("torch._C._no_such_name", otherwise=len) is len
    assert internals.find_internal("torch._no_such_module.name", otherwise=None) is None


def test_a_patch_of_what_this_torch_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "ctc_loss")
    with virtual_cuda():
        assert not hasattr(torch, "ctc_loss")


def test_another_order_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    def reordered(
        cls: Any, size: Any, strides: Any, offset: Any, memory_format: Any, dtype: Any, *rest: Any
    ) -> Any:
        return original(cls, size, strides, offset, memory_format, torch.float32, *rest)

    original = tensor.make_shell
    monkeypatch.setattr(compatibility, "make_shell", reordered)
    refused("the arguments of Tensor._make_wrapper_subclass")


def test_an_argument_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def stricter(cls: Any, size: Any, *, strides: Any = None) -> Any:
        raise AssertionError("not reached")

    monkeypatch.setattr(compatibility, "make_shell", stricter)
    refused("the arguments of Tensor._make_wrapper_subclass")


def test_a_device_without_a_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    def event(device: Any) -> Any:
        raise RuntimeError("PyTorch is not linked with support for lazy devices")

    monkeypatch.setattr(torch, "Event", event)
    refused("the device guard of lazy tensors")


def test_a_swap_that_swaps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils, "swap_tensors", lambda one, other: None)
    refused("torch.utils.swap_tensors")


def test_a_library_without_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.library.Library, "fallback")
    refused("torch.library.Library")


def test_a_torch_that_the_modules_cannot_even_be_loaded_with(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    lines = (
        "import torch",
        "del torch._C._disabled_torch_function_impl",
        "from virtual_cuda.errors import TorchUnsupported",
        "try:",
        "    from virtual_cuda import virtual_cuda",
        "except TorchUnsupported as error:",
        "    print(error)",
    )
    script = tmp_path / "load.py"
    script.write_text("\n".join(lines), encoding="utf-8")
    done = warm_python.run(str(script), cwd=tmp_path, env=os.environ)
    assert done.stdout.startswith(
        f"this torch ({torch.__version__}) has changed torch._C._disabled_torch_function_impl, "
        "which"
    ), done


def test_our_own_mistakes_are_not_blamed_on_torch() -> None:
    with pytest.raises(AttributeError) as attribute:
        _ = compatibility.no_such_name  # type: ignore[attr-defined]
    with pytest.raises(ImportError) as module:
        import gpudojo.no_such_module  # noqa: F401
    assert torch_lacks(attribute.value) is torch_lacks(module.value) is None


def test_a_module_that_keeps_its_parameters_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            del self.__dict__["_buffers"]

    monkeypatch.setattr(torch.nn, "Module", Module)
    with pytest.raises(TorchUnsupported, match=r"has changed autocast and Module\._apply"):
        compatibility.check_torch()


# What differs between releases: each is asked for here as an older or newer release has it.


class Settings:
    """Stands for `torch.backends.cuda.matmul` before torch 2.9."""

    allow_tf32 = True


def test_tf32_by_its_name_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not compatibility.allows_tf32()
    monkeypatch.setattr(torch.backends.cuda, "matmul", Settings())
    assert compatibility.allows_tf32()


def test_the_check_before_a_step_by_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def _cuda_graph_capture_health_check(self) -> None: ...

    class New(Old):
        def _accelerator_graph_capture_health_check(self) -> None: ...

    for optimizer in (Old, New):
        monkeypatch.setattr(torch.optim, "Optimizer", optimizer)
        own_names = [name for name in vars(optimizer) if name.endswith("health_check")]
        assert [compatibility.name_of_capture_check()] == own_names


def test_sparse_tensors_wait_in_the_list_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    of_thread: list[Any] = []
    monkeypatch.setattr(
        torch._utils, "_get_sparse_tensors_to_validate", lambda: of_thread, raising=False
    )
    assert compatibility.sparse_tensors_to_validate() is of_thread
    monkeypatch.delattr(torch._utils, "_get_sparse_tensors_to_validate")
    monkeypatch.setattr(torch._utils, "_sparse_tensors_to_validate", of_thread, raising=False)
    assert compatibility.sparse_tensors_to_validate() is of_thread


def test_without_a_work_that_calls_python_there_is_no_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    internals_of_c10d = internals.find_internal("torch._C._distributed_c10d")
    monkeypatch.setattr(internals_of_c10d, "PythonCallbackWork", str, raising=False)
    assert compatibility.class_of_work_with_callback() is str
    monkeypatch.delattr(internals_of_c10d, "PythonCallbackWork")
    assert compatibility.class_of_work_with_callback() is None


def test_a_default_device_that_was_reset_is_the_cpu() -> None:
    with virtual_cuda():
        torch.set_default_device("cuda")
        assert compatibility.default_device().type == "cuda"
        torch.set_default_device(None)
        assert compatibility.default_device() == torch.device("cpu")
        generator = torch.Generator("cuda")
        out = torch.empty(2, device="cuda")
        assert torch.rand(2, generator=generator, out=out) is out


def test_a_default_tensor_type_leaves_no_default_device_behind() -> None:
    with virtual_cuda(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        torch.set_default_tensor_type("torch.cuda.FloatTensor")  # type: ignore[no-untyped-call]
        assert torch.get_default_device().type == "cuda"
    assert torch.get_default_device() == torch.device("cpu")


def test_without_a_method_for_it_the_store_of_a_group_is_in_torchs_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = internals.find_internal("torch.distributed.distributed_c10d")
    monkeypatch.setattr(module, "_pg_map", {"group": ("nccl", "store")})
    assert compatibility.store_of_group("group") == "store"
    group = SimpleNamespace(get_group_store=lambda: "its own store")
    assert compatibility.store_of_group(group) == "its own store"
