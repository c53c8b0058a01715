"""Values of calls as evidence: what a result holds, and what an argument held before.

Tensors are found in lists, tuples, dicts and modules, at any depth that `DEEPEST` allows.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, Final

from gpudojo.grading.call import DEEPEST, array_of, torch
from gpudojo.model.evidence import Array, Fact

PLAIN_TYPES: Final = (bool, int, float, str, type(None))
_TABLES: Final = ("_parameters", "_buffers", "_modules")  # of a module


@dataclass
class Described:
    """A value as plain data, and what cannot be said in plain data."""

    value: Fact = None
    devices: list[str] = field(default_factory=list)
    """The device of each tensor, in order."""
    unknown: list[str] = field(default_factory=list)
    """Types of objects in it that are no plain data; there the value is None."""


def describe_value(value: Any) -> Described:
    """A value as plain data: tensors become arrays, tuples lists, keys of dicts texts.

    Raises what torch raises for a tensor whose values cannot be read.
    """
    described = Described()
    described.value = _fact_of(value, described, 0)
    return described


def _fact_of(value: Any, described: Described, depth: int) -> Fact:
    """One value as plain data; what is to be said of it besides is added to `described`."""
    if isinstance(value, torch.Tensor):
        described.devices.append(str(value.device))
        return array_of(value)
    if type(value) in PLAIN_TYPES:
        return value
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value)
    if depth < DEEPEST and isinstance(value, (list, tuple)):
        return [_fact_of(each, described, depth + 1) for each in value]
    if depth < DEEPEST and isinstance(value, dict):
        facts = {}
        for key, each in value.items():
            facts[_text_of_key(key, described)] = _fact_of(each, described, depth + 1)
        return facts
    described.unknown.append(type(value).__name__)
    return None


def _text_of_key(key: Any, described: Described) -> str:
    """The key of a dict as a text, in which 1 and "1" differ."""
    if type(key) is str:
        return key
    name = type(key).__name__
    if type(key) not in PLAIN_TYPES:
        described.unknown.append(name)
        return name
    return f"{key!r} ({name})"


# ---- arguments -----------------------------------------------------------------------------------


class Argument:
    """What an argument of a call holds: notices changes, and puts back what was there before."""

    def __init__(self, name: str, value: Any) -> None:
        """Note what the value holds; `name` is the argument in words.

        Raises what torch raises for a tensor whose values cannot be read.
        """
        self.name = name
        self._value = value
        self._containers: list[tuple[Any, Any]] = []  # lists and dicts, each with a copy of it
        self._tensors: list[_KeptTensor] = []
        self._keep(value, 0)
        self._before = self._contents()

    def is_changed(self) -> bool:
        """True if it holds other values than before, or tensors in it are on other devices.

        The device of a module's tensors does not count: that it is moved is seldom a change.
        """
        return self._contents() != self._before

    def put_back(self) -> None:
        """Give lists, dicts, tensors and modules what they held before.

        A tensor that cannot take its values stays as it is.
        """
        for container, copy in self._containers:
            if isinstance(container, dict):
                container.clear()
                container.update(copy)
            else:
                container[:] = copy
        for kept in self._tensors:
            kept.put_back()

    def _contents(self) -> tuple[Fact, list[str], list[Fact]]:
        """What it holds: plain data, the devices of its tensors, and the values of its modules."""
        described = describe_value(self._value)
        states = []
        for module in _modules_in(self._value, 0):
            named = (*module.named_parameters(), *module.named_buffers())
            states.append({name: array_of(tensor) for name, tensor in named})
        return described.value, described.devices, states

    def _keep(self, value: Any, depth: int) -> None:
        """Note the tensors and containers in a value, which lies `depth` levels deep."""
        if isinstance(value, torch.Tensor):
            self._tensors.append(_KeptTensor(value, array_of(value), value.device))
        elif isinstance(value, torch.nn.Module):
            for module in value.modules():
                tables = [vars(module)[name] for name in _TABLES]
                self._containers += [(table, dict(table)) for table in tables]
            for tensor in (*value.parameters(), *value.buffers()):
                self._keep(tensor, depth)
        elif depth < DEEPEST and type(value) in (list, dict, tuple):
            if type(value) is not tuple:
                self._containers.append((value, value.copy()))
            for inner in _items_of(value):
                self._keep(inner, depth + 1)


def _items_of(container: Any) -> list[Any]:
    """What a list, a tuple or a dict holds."""
    if isinstance(container, dict):
        return list(container.values())
    return list(container)


def _modules_in(value: Any, depth: int) -> list[Any]:
    """The modules in a value, which lies `depth` levels deep; those in other modules are not."""
    if isinstance(value, torch.nn.Module):
        return [value]
    found = []
    if depth < DEEPEST and type(value) in (list, dict, tuple):
        for inner in _items_of(value):
            found += _modules_in(inner, depth + 1)
    return found


@dataclass
class _KeptTensor:
    """A tensor, with the values and the device that it had."""

    tensor: Any
    array: Array
    device: Any

    def put_back(self) -> None:
        """Give the tensor its values and its device, if it has others now.

        One that cannot take them stays as it is.
        """
        is_moved = self.tensor.device != self.device
        if not is_moved and array_of(self.tensor) == self.array:
            return
        with contextlib.suppress(RuntimeError), torch.no_grad():
            values = self._values()
            if is_moved or self.tensor.shape != values.shape:
                self.tensor.data = values.to(self.device, self.tensor.dtype)
            else:
                base = torch._C.TensorBase
                with torch._C.DisableTorchFunction():
                    base.copy_(self.tensor, values)

    def _values(self) -> Any:
        """The values as a tensor on the CPU."""
        dtype = getattr(torch, self.array.dtype)
        if not self.array.data:
            return torch.empty(self.array.shape, dtype=dtype)
        return torch.frombuffer(bytearray(self.array.data), dtype=dtype).reshape(self.array.shape)
