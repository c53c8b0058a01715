"""Every operator that PyTorch describes for its own tests (`op_db`): the virtual device gives what
the CPU gives.

Compared are values, gradients, dtypes, shapes, layouts, strides and devices. Where CUDA itself
differs from the CPU, `left_out.toml` says so, with the reason; an entry that no longer differs
fails.
"""

from __future__ import annotations

import functools
import itertools
import sys
import tomllib
import types
import unittest
import warnings
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map
from virtual_cuda import virtual_cuda

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "bool", "complex64")
PARTS = 4
SAMPLES = 60  # of one operator; more are of the same kind
# Of dtypes that only CUDA has, the CPU computes the wider one; and of half precision, which CUDA
# sums up in single.
WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.bool: torch.uint8,
    torch.int64: torch.float64,
}
TOLERANCES = {
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 5e-3,
    torch.complex32: 5e-3,
    torch.bfloat16: 3e-2,
}
# A few of each kind: arithmetic, views, reductions, indexing, linear algebra, layers, random
# numbers.
FEW = """
    add div.trunc_rounding pow where cat as_strided permute sum var cumsum index_put gather
    scatter_add masked_select einsum matmul linalg.solve fft.rfft nn.functional.conv2d
    nn.functional.layer_norm nn.functional.embedding_bag
    nn.functional.silu nn.functional.cross_entropy bernoulli vdot to
""".split()


@functools.cache
def operators() -> dict[str, Any]:
    """The operators by name. torch's helpers derive test cases of `expecttest`, which nobody uses
    here.
    """
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    try:
        import expecttest  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ModuleNotFoundError:
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

        # That import forbids to set flags of backends in this process, which other tests do.
        torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    if sys.modules["expecttest"] is stand_in:
        del sys.modules["expecttest"]
    assert not torch.cuda.is_available()  # functions of torch as they are without the device
    for op in op_db:
        op.follows = (
            functools.reduce(lambda at, name: getattr(at, name, None), op.name.split("."), torch)
            is op.op
        )
    return {
        op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op for op in op_db
    }


def function_of(op: Any) -> Any:
    """What a program calls now: `op_db` holds the functions of torch from before the device was
    opened.
    """
    return attrgetter(op.name)(torch) if op.follows else op


@functools.cache
def left_out(key: str = "differ") -> dict[tuple[str, str], set[str]]:
    """{(operator, dtype): what differs}.

    With the key "may_differ", what differs on some machines.
    """
    listed: dict[tuple[str, str], set[str]] = {}
    for entry in tomllib.loads((Path(__file__).parent / "left_out.toml").read_text())["operators"]:
        assert entry["reason"]
        for name in entry["names"]:
            for dtype in entry["dtypes"]:
                listed.setdefault((name, dtype), set()).update(entry.get(key, ()))
    return listed


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def moved(value: Any, device: str, dtypes: dict[torch.dtype, torch.dtype]) -> Any:
    """The arguments of a sample on a device: tensors, and what names a device."""
    if isinstance(value, torch.device) or value == "cpu":
        return torch.device(device)
    if not isinstance(value, torch.Tensor):
        return dtypes.get(value, value) if isinstance(value, torch.dtype) else value
    plain = value.detach()
    if (
        plain.layout is torch.strided
        and plain.untyped_storage().nbytes() > plain.numel() * plain.itemsize
    ):
        # a view, which the operator may look beyond; a copy alone would leave the rest behind
        whole = plain.as_strided((plain.untyped_storage().nbytes() // plain.itemsize,), (1,), 0)
        there = whole.to(device).as_strided(plain.shape, plain.stride(), plain.storage_offset())
    else:
        there = plain.to(device, copy=True)  # which resolves a conjugate, wherever it goes
    return there.to(dtypes.get(plain.dtype, plain.dtype)).requires_grad_(value.requires_grad)


def computed(
    op: Any, sample: Any, device: str, dtypes: dict[torch.dtype, torch.dtype]
) -> tuple[list[Any], list[Any], bool]:
    """The results, the gradients, and whether the results have to be on the device."""
    args, kwargs = tree_map(
        lambda value: moved(value, device, dtypes), ((sample.input, *sample.args), sample.kwargs)
    )
    torch.manual_seed(0)
    made = sample.output_process_fn_grad(function_of(op)(*args, **kwargs))
    outs = tensors(made)
    inputs = [each for each in tensors([args, kwargs]) if each.requires_grad]
    ends = [out for out in outs if out.requires_grad and out.layout is torch.strided]
    gradients: Any = []
    if inputs and ends:
        draw = torch.Generator().manual_seed(1)
        # Numbers that every dtype has.
        drawn = [
            (torch.complex64, torch.complex64)
            if out.is_complex()
            else (torch.float32, torch.bfloat16)
            for out in ends
        ]
        seeds = [
            torch.randn(out.shape, generator=draw, dtype=dtype).to(rounded).to(out)
            for out, (dtype, rounded) in zip(ends, drawn, strict=True)
        ]
        gradients = torch.autograd.grad(ends, inputs, seeds, allow_unused=True)
    here = bool(tensors([args, kwargs])) or any(
        isinstance(leaf, torch.device) for leaf in tree_leaves([args, kwargs])
    )
    return outs, list(gradients), here


def form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.layout, tensor.is_conj(), tensor.is_neg()


def strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    return tensor.stride() if tensor.layout is torch.strided else None


def close(mine: Any, theirs: Any) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    mine, theirs = (each.detach().cpu() for each in (mine, theirs))
    if mine.layout is not torch.strided:
        mine = mine.to_dense()
        theirs = theirs.to_dense()
    tolerance = TOLERANCES.get(mine.dtype)
    if mine.dtype is torch.complex32:  # too few functions take it
        mine = mine.to(torch.complex64)
    if mine.dtype == theirs.dtype and mine.shape == theirs.shape and torch.equal(mine, theirs):
        return True  # most are, and `assert_close` takes ten times as long
    try:
        torch.testing.assert_close(
            mine, theirs.to(mine.dtype), rtol=tolerance, atol=tolerance, equal_nan=True
        )
    except AssertionError:
        return False
    return True


def agree(mine: list[Any], theirs: list[Any], wide: list[Any] | None) -> bool:
    """Whether each is the CPU's, or what the CPU computes in the wider dtype."""
    if len(mine) != len(theirs):
        return False
    others = wide if wide is not None and len(wide) == len(mine) else theirs
    return all(
        close(*pair) or close(pair[0], other)
        for *pair, other in zip(mine, theirs, others, strict=True)
    )


def differences(op: Any, dtype: torch.dtype, samples: int) -> dict[str, str]:
    """What differs, each kind with its first example."""
    found: dict[str, str] = {}
    exact = op.supports_dtype(dtype, "cpu")
    half = dtype in (torch.float16, torch.bfloat16)
    trained = dtype.is_floating_point or dtype.is_complex
    trained = trained and op.supports_autograd and dtype in op.supported_backward_dtypes("cuda")
    torch.manual_seed(0)
    for sample in list(
        itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=trained), samples)
    ):
        try:
            outs, gradients, _ = computed(op, sample, "cpu", {} if exact else WIDER)
        except Exception:
            if exact:
                continue  # a sample for other devices
            outs = gradients = None
        kinds: dict[str, bool] = {}
        try:
            mine, my_gradients, here = computed(op, sample, "cuda", {})
            if outs is None:
                continue
            wide: tuple[list[Any], list[Any], bool] | None = None
            if exact and half and not all(map(close, [*mine, *my_gradients], [*outs, *gradients])):
                wide = computed(op, sample, "cpu", WIDER)
            kinds |= {
                "devices": here and any(each.device.type != "cuda" for each in mine),
                "forms": exact and [form(each) for each in mine] != [form(each) for each in outs],
                "strides": exact
                and [strides(each) for each in mine] != [strides(each) for each in outs],
                "values": "empty" not in op.name and not agree(mine, outs, wide and wide[0]),
                "gradients": not agree(my_gradients, gradients, wide and wide[1]),
            }
        except Exception as error:
            found.setdefault(
                "raises",
                f"{type(error).__name__}: {str(error)[:200]} for {sample.summary()!s:.200}",
            )
        for kind, differs in kinds.items():
            if differs and kind not in found:
                found[kind] = str(sample.summary())[:200]
    return found


def swept(names: list[str], dtypes: tuple[str, ...], samples: int = SAMPLES) -> str:
    """One line for each difference that is not listed, and for each listed one that is none."""
    lines = []
    _ = operators()
    with virtual_cuda() as gpu, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, dtype in itertools.product(names, dtypes):
            op = operators()[name]
            if op.supports_dtype(getattr(torch, dtype), "cuda"):
                gpu.ledger.rows.clear()
                found = differences(op, getattr(torch, dtype), samples)
                listed = left_out().get((name, dtype), set())
                known = listed | left_out("may_differ").get((name, dtype), set())
                lines += [
                    f"{name} {dtype} {kind}: {found[kind]}" for kind in sorted(found.keys() - known)
                ]
                lines += [
                    f"{name} {dtype} {kind}: no longer differs"
                    for kind in sorted(listed - found.keys())
                ]
    return "\n".join(lines)


def test_some_operators() -> None:
    assert swept(FEW, ("float32", "int64", "complex64"), samples=4) == ""
    assert {name for name, _ in left_out()} <= set(operators())
    assert {dtype for _, dtype in left_out()} <= set(DTYPES)
    kinds = {"raises", "devices", "forms", "strides", "values", "gradients"}
    assert set().union(*left_out().values(), *left_out("may_differ").values()) <= kinds


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_operators(dtype: str, part: int) -> None:
    assert swept(sorted(operators())[part::PARTS], (dtype,)) == ""
