"""Functions that replace torch's are called what torch's are called, and take what they take."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest
import torch
import virtual_cuda
from virtual_cuda.patching import patches_in_force

TOLD = ("__name__", "__qualname__", "__module__", "__doc__")


@pytest.fixture
def replaced() -> Iterator[dict[str, tuple[Any, Any]]]:
    """By name, each function of torch in Python, and what is there while a device is open."""
    with virtual_cuda.virtual_cuda(devices=2):
        found = {}
        for owner, name, before, _ in patches_in_force():
            key = f"{getattr(owner, '__name__', owner)}.{name}"
            if isinstance(before, FunctionType) and before.__module__.startswith("torch"):
                found.setdefault(key, (before, vars(owner)[name]))
        del found["torch.multiprocessing.spawn._wrap"]  # which is sent to another process
        yield found


def test_names_and_documentation_are_those_of_torch(replaced: dict[str, tuple[Any, Any]]) -> None:
    assert len(replaced) > 100
    for key, (before, now) in replaced.items():
        assert [getattr(now, each) for each in TOLD] == [getattr(before, each) for each in TOLD], (
            key
        )


def test_methods_in_c_have_their_names_and_documentation() -> None:
    names = ("to", "cuda", "numpy", "tolist", "type", "new_ones", "record_stream", "pin_memory")
    wanted = [
        getattr(getattr(torch.Tensor, name), each)
        for name in names
        for each in ("__qualname__", "__doc__")
    ]
    with virtual_cuda.virtual_cuda():
        for again in range(2):
            found = [
                getattr(getattr(torch.Tensor, name), each)
                for name in names
                for each in ("__qualname__", "__doc__")
            ]
            assert found == wanted, again


def test_signatures_are_those_of_torch(replaced: dict[str, tuple[Any, Any]]) -> None:
    for key, (before, now) in replaced.items():
        assert inspect.signature(now) == inspect.signature(before), key


def test_public_functions_can_be_pickled(replaced: dict[str, tuple[Any, Any]]) -> None:
    cuda = torch.cuda
    functions: list[Any] = [
        cuda.is_available,
        cuda.synchronize,
        cuda.set_device,
        cuda.get_device_properties,
    ]
    functions += [torch.ones, torch.tensor, torch.sparse_coo_tensor, torch.accelerator.synchronize]
    for function in functions:
        assert pickle.loads(pickle.dumps(function)) is function


def test_a_function_with_two_names_is_one(replaced: dict[str, tuple[Any, Any]]) -> None:
    assert torch.cuda.memory_allocated is torch.cuda.memory.memory_allocated
    assert torch.cuda.get_rng_state is torch.cuda.random.get_rng_state
    (one, now), (other, also) = replaced["torch.manual_seed"], replaced["torch.random.manual_seed"]
    assert (now is also) is (one is other)  # two, as soon as dynamo is imported


@pytest.mark.skipif(
    not hasattr(torch.accelerator, "memory"),
    reason="torch 2.8 tells no accelerator's memory",
)
def test_memory_of_the_accelerator_is_that_of_the_device(
    replaced: dict[str, tuple[Any, Any]],
) -> None:
    assert torch.accelerator.memory_stats is torch.accelerator.memory.memory_stats
    block = torch.ones(128, device="cuda")
    assert (
        torch.accelerator.memory.memory_allocated() == torch.cuda.memory_allocated() == block.nbytes
    )
    function = torch.accelerator.memory_allocated
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_arguments_have_the_names_of_torch(replaced: dict[str, tuple[Any, Any]]) -> None:
    state = torch.cuda.get_rng_state(device=1)
    torch.cuda.manual_seed_all(seed=3)
    torch.cuda.set_rng_state(new_state=state, device=1)
    assert torch.equal(torch.cuda.get_rng_state(1), state)
    torch.cuda.set_rng_state_all(new_states=[state, state])
    assert torch.equal(torch.cuda.get_rng_state(0), state)
    torch.cuda.set_sync_debug_mode(debug_mode="error")
    assert torch.cuda.get_sync_debug_mode() == 2
    torch.cuda.set_sync_debug_mode(debug_mode=0)
    pieces = [torch.ones(2, device="cuda"), torch.ones(3, device="cuda")]
    assert torch.nested.nested_tensor(tensor_list=pieces).device == torch.device("cuda:0")
    assert torch.nested.as_nested_tensor(ts=pieces).device == torch.device("cuda:0")
    pieces[0].record_stream(s=torch.cuda.Stream())
    assert torch.utils.data._utils.pin_memory.pin_memory(
        data=torch.ones(2), device="cuda"
    ).is_pinned()


def test_a_copy_like_another_tensor_takes_it_by_the_name_of_torch() -> None:
    with virtual_cuda.virtual_cuda():
        like = torch.ones(1, device="cuda", dtype=torch.float64)
        turned = torch.ones(2, 3).t()
        moved = turned.to(tensor=like)
        assert (moved.device, moved.dtype, moved.stride()) == (
            like.device,
            like.dtype,
            turned.stride(),
        )
        with pytest.raises(
            TypeError,
            match=r"to\(\) received an invalid combination of arguments - got \(other=Tensor",
        ):
            turned.to(other=like)


@pytest.mark.skipif(
    not hasattr(torch.accelerator, "empty_host_cache"), reason="this torch has no such function"
)
def test_pinned_memory_that_is_not_used_is_given_back_by_either_name() -> None:
    with virtual_cuda.virtual_cuda():
        torch.ones(4, device="cuda")
        for give_back in (torch._C._host_emptyCache, torch.accelerator.empty_host_cache):
            torch.ones(1000).pin_memory()
            assert torch.cuda.host_memory_stats()["allocated_bytes.current"] > 0
            give_back()
            assert torch.cuda.host_memory_stats()["allocated_bytes.current"] == 0


def test_no_function_of_ours_is_given_other_code_or_defaults() -> None:
    """A sandbox that is told of such a change takes it for a student's."""
    code = """
        import os, sys, torch, virtual_cuda
        ours, changed = os.path.dirname(virtual_cuda.__file__), []
        names = ("__code__", "__defaults__", "__kwdefaults__")
        def hook(event, args):
            if event == "object.__setattr__" and args[1] in names:
                changed.append(args[0])
        sys.addaudithook(hook)
        with virtual_cuda.virtual_cuda(): ...
        print([f.__qualname__ for f in changed if f.__code__.co_filename.startswith(ours)])
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[]\n"
