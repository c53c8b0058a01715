"""May these tensors meet? CUDA's rules for arguments on different devices, in CUDA's order and words.

Three kinds of operators are judged here by what they are: those whose generated wrapper compares devices, those that
hand their arguments to one of these, and elementwise ones, which take a 0-dimensional CPU tensor for a number.
Operators with rules of their own are in `mixtures.py`, lists of tensors in `lists.py`.
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Iterator
from typing import Any, Final

import torch

from graders.bench.virtual.tensor import VIRTUAL
from graders.bench.virtual.wording import argument_elsewhere, label_of, out_elsewhere, too_many_scalars, two_devices

ALLOWED: Final = object()

# Reductions give their output its place before the elementwise machinery looks at it.
_OUT_FIRST: Final = frozenset(
    {"all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "mean", "norm", "prod", "sum"}
)
# The probe met these with dimensions only; the rest is from the sources of the operators.
_STRICT: Final = {
    "aten.addcdiv.default": ["self", "tensor1", "tensor2"],
    "aten.addcdiv_.default": ["self", "tensor1", "tensor2"],
    "aten.logical_and.default": ["self"],
}


def _facts(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((pathlib.Path(__file__).with_name("facts") / name).read_text())
    return facts


@functools.cache
def _checks() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """{overload: (wrapper, [(argument, its name in the message), ...])}, in the order of comparison."""
    checks = {
        key: (method, [(n, n) for n in names]) for key, (method, names) in _facts("operators.json")["checks"].items()
    }
    checks.update({key: (method, names) for key, (method, names) in _facts("placement.json")["delegated"].items()})
    return checks


@functools.cache
def _strict() -> dict[str, list[str]]:
    """{overload: arguments that may not be CPU numbers}."""
    return {**_facts("placement.json")["strict"], **_STRICT}


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def on_host(tensor: Any) -> bool:
    return type(tensor) not in VIRTUAL


def named_arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    given = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)}
    given.update(kwargs)
    return given


def compare(method: str, order: Any, given: dict[str, Any]) -> None:
    """What torch's generated wrappers do first: every tensor is compared with the first one met."""
    common = None
    for name, said in order:
        for tensor in tensors_in(given.get(name)):
            if common is None:
                common = tensor.device
            elif tensor.device != common:
                raise argument_elsewhere(said, label_of(tensor), str(common), method)


def elementwise(func: Any, given: dict[str, Any], strict: Any = ()) -> list[tuple[int, str]]:
    """TensorIterator's rule; says which operands are taken for numbers: (operand, argument), the output being 0."""
    arguments = func._schema.arguments
    written = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    outputs = [(a.name, t) for a in written for t in tensors_in(given.get(a.name))]
    inputs = [(a.name, t) for a in arguments if a not in written for t in tensors_in(given.get(a.name))]
    common = next((label_of(t) for _, t in [*outputs, *inputs] if not on_host(t)), "cpu")
    for _, tensor in outputs:
        if label_of(tensor) != common:
            raise two_devices(common, label_of(tensor))
    # In place, the first argument is an input as well, so operands are counted from the output that is made.
    before = 1 if not outputs or written[0].kwarg_only else 2
    numbers: list[tuple[int, str]] = []
    for operand, (name, tensor) in enumerate(inputs, before):
        if label_of(tensor) == common:
            continue
        if not on_host(tensor) or tensor.dim() > 0 or name in strict:
            raise two_devices(common, label_of(tensor))
        if numbers:
            raise too_many_scalars()
        numbers.append((operand, name))
    return numbers


def _outputs_first(func: Any, given: dict[str, Any]) -> None:
    written = [a.name for a in func._schema.arguments if a.kwarg_only and a.alias_info is not None]
    source = next((t for name, v in given.items() if name not in written for t in tensors_in(v)), None)
    for name in written:
        for tensor in tensors_in(given.get(name)):
            if source is not None and tensor.device != source.device:
                raise out_elsewhere(label_of(tensor), label_of(source))


def judge(func: Any, args: Any, kwargs: Any, seen: Any) -> Any:
    """ALLOWED if the call may go on, or its finished result; raises CUDA's error if it may not."""
    from graders.bench.virtual import lists, mixtures

    given = named_arguments(func, args, kwargs)
    packet = func._schema.name.partition("::")[2]
    by_hand = mixtures.BY_HAND.get(packet)
    if by_hand is not None:
        decided = by_hand(func, args, kwargs, given)
        if decided is not None:
            return decided
    elif packet.startswith("_foreach_"):
        return lists.one_by_one(func, args, kwargs)
    key = str(func)
    check = _checks().get(key)
    if check is not None:
        compare(*check, given)
        return ALLOWED
    if packet in _OUT_FIRST:
        _outputs_first(func, given)
    numbers = elementwise(func, given, _strict().get(key, ()))
    mixtures.as_numbers(packet, numbers)
    return ALLOWED
