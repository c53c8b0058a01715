"""Keeps the values of small tensors known, in a run without values.

A hook around every operator: where the values of all that it is given are known, it is computed on
the host as well, and the values of its results are known, too. What is written from unknown values
is forgotten.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

import torch

from virtual_cuda.device.known_values import (
    FEW,
    Certainty,
    assume_zeros,
    doubt_values,
    forget_known_values,
    is_small,
    known_values,
    learn_values,
)
from virtual_cuda.device.no_values import lacks_values
from virtual_cuda.device.state import CPU, now
from virtual_cuda.device.tensor import VIRTUAL, Plan, operator_hooks
from virtual_cuda.identity import identity
from virtual_cuda.trees import leaves_of, map_leaves

aten: Final = torch.ops.aten
# Their results do not depend on what was in the tensor that they write to.
_OVERWRITING: Final = frozenset({"aten::zero_", "aten::fill_", "aten::copy_"})
# What compares an unknown whole number (a token, a class) with another one: they are not equal.
_COMPARISONS: Final = {"aten::eq": False, "aten::isin": False, "aten::ne": True}
# They give a number or copy between host and device, where their plans see to the values.
_OWN_WAY: Final = frozenset({"aten::_local_scalar_dense", "aten::_to_copy", "aten::copy_"})


class _OperatorForm:
    """What the hook has to know of an operator."""

    def __init__(self, func: Any) -> None:
        """Look at the schema of an operator."""
        self.func = func  # kept, so that its identity stays its own
        self.name: str = func._schema.name
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.written: list[tuple[int, str]] = []  # arguments: position and name
        for position, argument in enumerate(func._schema.arguments):
            alias = argument.alias_info
            if alias is not None and alias.is_write:
                self.written.append((position, argument.name))
        returns = func._schema.returns
        alias = returns[0].alias_info if returns else None
        is_view = alias is not None and not alias.is_write
        self.is_view = is_view or torch.Tag.inplace_view in func.tags

    def written_among(self, args: Any, kwargs: Any) -> list[Any]:
        """The device tensors among the arguments that the operator writes to."""
        found = []
        for position, name in self.written:
            if position < len(args):
                found.append(args[position])
            elif name in kwargs:
                found.append(kwargs[name])
        return [leaf for leaf in leaves_of(found) if type(leaf) in VIRTUAL]


_WHOLE_NUMBERS: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_forms: Final[dict[int, _OperatorForm]] = {}


class _ValueUnknown(Exception):
    """A value is not known."""


class _FollowingOfThread(threading.local):
    """Whether an operator of this thread is under way: what it is made of is not looked at."""

    is_inside = False


_thread: Final = _FollowingOfThread()


@contextlib.contextmanager
def following_values() -> Iterator[None]:
    """Keep the values of small tensors known inside the `with` block."""
    operator_hooks.append(_run_and_follow)
    try:
        yield
    finally:
        operator_hooks.remove(_run_and_follow)


def _run_and_follow(func: Any, plan: Plan, args: Any, kwargs: Any) -> Any:
    """Run an operator by its plan, and note the values of what it makes or writes.

    Gives and raises what the plan does.
    """
    if _thread.is_inside or now.gpu is None or now.gpu.values:
        return plan(args, kwargs)
    _thread.is_inside = True
    try:
        results = plan(args, kwargs)
        form = _forms.get(identity(func))
        if form is None:
            form = _forms[identity(func)] = _OperatorForm(func)
        if not form.is_view:
            _follow(form, args, kwargs, results)
        return results
    finally:
        _thread.is_inside = False


def _follow(form: _OperatorForm, args: Any, kwargs: Any, results: Any) -> None:
    """Note the values of what an operator has made or written, or that they are unknown."""
    written = form.written_among(args, kwargs)
    if form.name in _OWN_WAY and not _is_on_device(args[0], results):
        return
    try:
        if form.is_random:
            raise _ValueUnknown
        _compute(form, args, kwargs, results, written)
    except _ValueUnknown:
        for tensor in written:
            forget_known_values(tensor._virtual_inner)


def _is_on_device(*values: Any) -> bool:
    """True if all of these are device tensors."""
    return all(type(value) in VIRTUAL for value in values)


def _compute(form: _OperatorForm, args: Any, kwargs: Any, results: Any, written: list[Any]) -> None:
    """Compute an operator on the host, and note the values of its results.

    What is written to is computed in place, and counts as uncertain where an argument is. Raises
    _ValueUnknown where the values of an argument are unknown or the kernel cannot compute.
    """
    new = [leaf for leaf in leaves_of(results) if type(leaf) in VIRTUAL]
    for tensor in new:
        if not is_small(tensor._virtual_inner):
            raise _ValueUnknown
    overwrites = form.name in _OVERWRITING or form.func._schema.overload_name.endswith("out")
    given = _GivenValues(written if overwrites else [])
    inner = map_leaves(given.values_of, tuple(args))
    named = map_leaves(given.values_of, kwargs)
    if named.get("device") is not None:
        named["device"] = CPU
    named.pop("pin_memory", None)
    named.pop("non_blocking", None)
    try:
        computed = form.func(*inner, **named)
    except (RuntimeError, NotImplementedError, IndexError) as error:
        raise _ValueUnknown from error  # what the host cannot compute so is not known
    certainty = given.certainty()
    if form.name in _COMPARISONS and given.has_unknown_number and args[0] is not args[1]:
        computed = torch.full_like(computed, _COMPARISONS[form.name])
        certainty = Certainty.DERIVED
    if certainty is not Certainty.CERTAIN:
        for tensor in written:
            doubt_values(tensor._virtual_inner)
    changed = {identity(tensor) for tensor in written}
    for tensor, values in zip(new, _tensors_of(computed), strict=True):
        if identity(tensor) not in changed:
            learn_values(tensor._virtual_inner, values, certainty)


def _tensors_of(computed: Any) -> list[torch.Tensor]:
    """The tensors among the results of an operator on the host."""
    return [leaf for leaf in leaves_of(computed) if isinstance(leaf, torch.Tensor)]


class _GivenValues:
    """Finds the values of the arguments of one call."""

    def __init__(self, overwritten: list[Any]) -> None:
        """Begin; nothing is asked of the values of `overwritten`."""
        self.overwritten = overwritten
        self.found: set[Certainty] = set()  # of those found
        self.has_unknown_number = False  # a whole number

    def certainty(self) -> Certainty:
        """How certain is what follows from the values that were found."""
        if self.found == {Certainty.UNKNOWN}:
            return Certainty.UNKNOWN
        return Certainty.DERIVED if self.found - {Certainty.CERTAIN} else Certainty.CERTAIN

    def values_of(self, value: Any) -> Any:
        """The values of a tensor; what is no tensor as it is. Raises _ValueUnknown.

        How certain they are is noted. Where nothing is known of a device tensor with few elements,
        its values are taken for zeros, which is noted for its storage; so are those of a tensor
        that is overwritten.
        """
        if not isinstance(value, torch.Tensor):
            return value
        if type(value) not in VIRTUAL:
            if lacks_values(value) or not is_small(value):
                raise _ValueUnknown
            return value
        tensor: Any = value
        inner = tensor._virtual_inner
        if not is_small(inner):
            raise _ValueUnknown
        if any(value is each for each in self.overwritten):
            learn_values(inner, torch.zeros(inner.shape, dtype=inner.dtype))
        known = known_values(inner)
        if known is None:
            if inner.numel() > FEW or not inner.is_meta:
                raise _ValueUnknown
            known = assume_zeros(inner)
        values, certainty = known
        self.found.add(certainty)
        if certainty is Certainty.UNKNOWN and values.dtype in _WHOLE_NUMBERS:
            self.has_unknown_number = True
        return values
