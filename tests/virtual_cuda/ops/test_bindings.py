"""Python's bindings, which the device calls for frequent operators, give what operators give."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import virtual_cuda.devices  # noqa: F401  (its operators are declared when it is imported)
from virtual_cuda.ops import registry

BOUND = {name for name, facts in registry.declared_operators().items() if facts.binding}

Sample = tuple[tuple[Any, ...], dict[str, Any]]


def sample(*args: Any, **kwargs: Any) -> Sample:
    return args, kwargs


random = torch.Generator().manual_seed(11)
M = torch.rand(3, 3, generator=random) + 0.5
N = torch.rand(3, 3, generator=random) + 0.5
V = torch.rand(3, generator=random) + 0.5
B = torch.rand(2, 3, 3, generator=random)
I = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])  # noqa: E741
IMAGE = torch.rand(1, 2, 6, 6, generator=random)
PAIR = [M, N]

UNARY = [sample(M), sample(I), sample(M.half()), sample(M.t())]
BINARY = [
    sample(M, N),
    sample(M, 2),
    sample(M, 2.5),
    sample(I, 2),
    sample(M, I),
    sample(M, V),
    sample(2, M),
    sample(V, M),
]
WITH_ALPHA = [*BINARY, sample(M, N, alpha=2), sample(M, 2, 3), sample(M, 2, alpha=2)]
REDUCED = [
    sample(M),
    sample(M, 0),
    sample(M, [0]),
    sample(M, [0, 1], True),
    sample(M, None, False),
    sample(I, dtype=torch.float64),
    sample(M, [1], dtype=torch.float64),
    sample(M, 1, True),
]
LIKE = [
    sample(M),
    sample(I, dtype=torch.float64),
    sample(M.t(), memory_format=torch.contiguous_format),
    sample(M.half()),
]
LISTS = [
    sample(PAIR, 2.0),
    sample(PAIR, [2.0, 3.0]),
    sample(PAIR, [N, M]),
    sample(PAIR, [N, M], alpha=2),
    sample(PAIR, torch.tensor(2.0)),
    sample(PAIR, torch.tensor(2.0), alpha=2),
    sample(PAIR, [N, M], 0.5),
    sample(PAIR, [N, M], [0.5, 0.25]),
    sample(PAIR, [N, M], [M, N]),
    sample(PAIR, [N, M], [M, N], 0.5),
    sample(PAIR, [N, M], [M, N], [0.5, 0.25]),
    sample(PAIR, [N, M], [M, N], torch.tensor([0.5, 0.25])),
    sample(PAIR, [N, M], [torch.tensor(0.5), torch.tensor(0.25)]),
    sample(PAIR),
]
SAMPLES: dict[str, list[Sample]] = {
    "pow": [sample(M, N), sample(M, 2), sample(2, M), sample(I, 2), sample(M, 0.5)],
    "clone": [sample(M.t()), sample(M.t(), memory_format=torch.contiguous_format)],
    "lerp_": [sample(M, N, 0.25), sample(M, N, V)],
    "addcmul_": [sample(M, N, V), sample(M, N, V, value=0.5)],
    "addcdiv_": [sample(M, N, V), sample(M, N, V, value=0.5)],
    "div": [*BINARY, sample(M, N, rounding_mode="floor"), sample(I, 2, rounding_mode="trunc")],
    "div_": [*BINARY, sample(M, N, rounding_mode="floor"), sample(I, 2, rounding_mode="trunc")],
    "mm": [sample(M, N), sample(M.t(), N)],
    "addmm": [sample(V, M, N), sample(M, M, N, beta=0.5, alpha=2)],
    "bmm": [sample(B, B)],
    "baddbmm": [sample(B, B, B), sample(M, B, B, beta=0.5, alpha=2)],
    "mv": [sample(M, V)],
    "dot": [sample(V, V)],
    "t": [sample(M), sample(V)],
    "transpose": [sample(B, 0, 2), sample(B, -1, 1)],
    "permute": [sample(B, [2, 0, 1])],
    "view": [sample(B, [3, -1]), sample(M, torch.int32)],
    "expand": [sample(V, [2, 3]), sample(V, [2, 3], implicit=False)],
    "unsqueeze": [sample(M, 1), sample(M, -1)],
    "select": [sample(B, 1, 2), sample(B, -1, -1)],
    "gelu": [sample(M), sample(M, approximate="tanh")],
    "leaky_relu": [sample(-M), sample(-M, 0.2)],
    "native_layer_norm": [sample(M, [3], V, V, 1e-5), sample(M, [3], None, None, 1e-5)],
    "max_pool2d_with_indices": [
        sample(IMAGE, [2, 2]),
        sample(IMAGE, [3, 3], [2, 2], [1, 1], [1, 1], True),
    ],
    "_log_softmax": [sample(M, 1, False), sample(M, 0, False)],
    "_log_softmax_backward_data": [sample(M, N, 1, torch.float32)],
    "_softmax": [sample(M, 1, False)],
    "_softmax_backward_data": [sample(M, N, 1, torch.float32)],
    "max": [sample(M), sample(M, N), sample(M, 1), sample(M, 1, True)],
    "min": [sample(M), sample(M, N), sample(M, 1), sample(M, 1, True)],
    "argmax": [sample(M), sample(M, 1), sample(M, 1, True)],
    "where": [
        sample(M > 1, M, N),
        sample(M > 1, M, 2.0),
        sample(M > 1, 2.0, M),
        sample(M > 1, 1.0, 2.0),
        sample(M > 1),
    ],
    "fill_": [sample(M, 2), sample(M, torch.tensor(3.0)), sample(I, 2)],
}
for _name in sorted(BOUND):
    if _name not in SAMPLES:
        SAMPLES[_name] = (
            LISTS
            if _name.startswith("_foreach")
            else LIKE
            if _name.endswith("_like")
            else WITH_ALPHA
            if _name.rstrip("_") in ("add", "sub")
            else BINARY
            if _name.rstrip("_") in ("mul", "eq", "ne", "lt", "le", "gt", "ge")
            else REDUCED
            if _name in ("sum", "mean")
            else UNARY
        )

# Overloads that cannot be compared: named dimensions are gone before a dispatcher is asked, lists
# are compared in TorchScript only, and products with a dtype of their own have no kernel on the
# CPU.
NOT_HERE = {"Tensor_list", "dtype"}


def overloads() -> list[Any]:
    """Every overload that goes through a binding."""
    found = []
    for name in sorted(BOUND):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            func = getattr(packet, overload)
            kinds = [str(argument.type) for argument in func._schema.arguments]
            if registry.binding_of(func) is func or not any("Tensor" in kind for kind in kinds):
                continue
            if (
                "Dimname" in str(func._schema)
                or overload.startswith("names")
                or overload in NOT_HERE
            ):
                continue
            found.append(func)
    return found


def fits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        func(*copy.deepcopy(args), **kwargs)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False
    return True


def flat(value: Any) -> list[Any]:
    return (
        [part for item in value for part in flat(item)]
        if isinstance(value, (list, tuple))
        else [value]
    )


@pytest.mark.parametrize("func", overloads(), ids=str)
def test_a_binding_is_its_operator(func: Any) -> None:
    name = func._schema.name.partition("::")[2]
    tried = [(args, kwargs) for args, kwargs in SAMPLES[name] if fits(func, args, kwargs)]
    assert tried, f"no sample for {func._schema}"
    call = registry.binding_of(func)
    for args, kwargs in tried:
        ours = copy.deepcopy(args)
        theirs = copy.deepcopy(args)
        given = call(*ours, **kwargs)
        expected = func(*theirs, **kwargs)
        if not func._schema.returns:
            given = expected = (
                None  # `_foreach_mul_` gives its list in Python and nothing in the dispatcher
            )
        pairs = zip(flat([given, *ours]), flat([expected, *theirs]), strict=True)
        for one, other in pairs:  # the results, and the arguments, which it may have changed
            if not isinstance(other, torch.Tensor):
                assert one == other
                continue
            assert (one.dtype, one.shape, one.stride()) == (
                other.dtype,
                other.shape,
                other.stride(),
            )
            assert one.storage_offset() == other.storage_offset()
            assert name == "empty_like" or torch.equal(one, other)
        assert (given is ours[0]) is (expected is theirs[0])


def test_every_name_is_a_name_of_an_operator_with_a_binding() -> None:
    bound = {func._schema.name.partition("::")[2] for func in overloads()}
    assert bound == BOUND
    assert SAMPLES.keys() == BOUND


def test_other_operators_are_called_as_they_are() -> None:
    aten = torch.ops.aten
    for func in (aten.sort.default, aten.add.out, aten.add.Scalar, aten.max.dim, aten.cat.default):
        assert registry.binding_of(func) is func
