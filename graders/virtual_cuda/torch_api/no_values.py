"""Tensors of the host in a run without values."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import torch

from virtual_cuda.device.known_values import is_small
from virtual_cuda.device.no_values import (
    LARGE,
    forget_values,
    lacks_values,
    note_assumption,
    note_read,
    on_host_without_values,
    printing,
    shape_only,
)
from virtual_cuda.device.state import META, now
from virtual_cuda.device.tensor import VIRTUAL, Tensor
from virtual_cuda.errors import NeedsValues
from virtual_cuda.internals import find_internal, require_internal
from virtual_cuda.ops.cpu_errors import WANTS_VALUES
from virtual_cuda.ops.registry import facts_of
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.trees import leaves_of, map_leaves

aten: Final = torch.ops.aten
_Base: Final[Any] = torch.Tensor.__base__  # the class in C
_ITEM: Final = find_internal("torch.ops.aten._local_scalar_dense.default", otherwise=None)
_MODE: Final = "torch.utils._python_dispatch.TorchDispatchMode"
if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode as _Mode
else:
    _Mode = find_internal(_MODE, otherwise=object)


class HostWithoutValues(_Mode):
    """Lets large tensors of the host have no values, nor what is computed from them.

    A factory such as `torch.empty` or `torch.rand` makes one where the tensor is large. What writes
    to it does nothing, and what reads a number of it gets 0. Other tensors are computed.
    """

    knows_names = True  # the device's names in C++: see `torch_api/wrapper_classes.py`

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch need not be told to compile nothing here, which imports the compiler."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and return its results; raises what it raises, and NeedsValues.

        Tensors of a device are left to the device. On the host, large tensors that a factory makes
        have no values, nor do results that are computed from such tensors; reading one is noted for
        the report.
        """
        named = {} if kwargs is None else kwargs
        if now.gpu is None or now.gpu.values:  # a thread may go on after the run
            return func(*args, **named)
        leaves = [leaf for leaf in leaves_of((args, named)) if isinstance(leaf, torch.Tensor)]
        if any(type(leaf) in VIRTUAL for leaf in leaves):
            return func(*args, **named)
        device = named.get("device")
        if device is not None and device.type != "cpu":
            return func(*args, **named)
        if not leaves:
            return _run_factory(func, args, named)
        if not any(lacks_values(leaf) for leaf in leaves):
            return func(*args, **named)
        return _run_without_values(func, args, named)


@contextlib.contextmanager
def host_without_values() -> Iterator[None]:
    """Let tensors of the host have no values inside the `with` block, in threads begun there, too.

    Lists can be used as indices there: torch makes tensors of them in a way that fails inside of
    any such mode. Raises TorchLacks where this torch has no such mode.
    """
    require_internal(_MODE, "a run without values")
    Tensor.__getitem__ = _get_item  # type: ignore[method-assign]
    try:
        with HostWithoutValues():  # type: ignore[no-untyped-call]
            yield
    finally:
        del Tensor.__getitem__


def _start_thread(original: Any, thread: Any) -> None:
    """Call `Thread.start`, the `original`.

    In a run without values, the thread's `run` is first replaced by one that enters a mode of its
    own: modes are a thread's own.
    """
    if now.gpu is not None and not now.gpu.values:
        run = thread.run

        def run_without_values() -> None:
            with HostWithoutValues():  # type: ignore[no-untyped-call]
                run()

        thread.run = run_without_values
    original(thread)


def _get_item(tensor: Any, index: Any) -> Any:
    """`tensor[index]`, where lists among the indices are made tensors before.

    Raises what torch raises.
    """
    if isinstance(index, tuple):
        index = tuple(_index_of_list(each, tensor) for each in index)
    return _Base.__getitem__(tensor, _index_of_list(index, tensor))


def _index_of_list(index: Any, tensor: Any) -> Any:
    """A list as an index tensor beside `tensor`; other indices as they are."""
    if isinstance(index, list):
        return torch.tensor(index, device=tensor.device)
    return index


def _run_factory(func: Any, args: Any, named: Any) -> Any:
    """The tensor that a factory of the host makes: without values if it is large.

    Raises what the factory raises.
    """
    if not _takes_device(func) or func is aten.from_file.default:
        return func(*args, **named)
    planned = func(*args, **{**named, "device": META, "pin_memory": None})
    if not isinstance(planned, torch.Tensor) or planned.nbytes < LARGE:
        return func(*args, **named)
    return on_host_without_values(planned)


def _takes_device(func: Any) -> bool:
    """True for an operator that can be told on which device to make a tensor."""
    return any(argument.name == "device" for argument in func._schema.arguments)


def _run_without_values(func: Any, args: Any, named: Any) -> Any:
    """The results of an operator on tensors of the host, one of which has no values.

    Results have none either, and nor have tensors that are written to, from then on. Reading a
    number is noted for the report. Raises what the operator raises for such shapes, and
    NeedsValues.
    """
    if func is _ITEM:
        note_read()
        return func(*args, **named)
    if _is_view(func):
        return func(*args, **named)
    written = _written_arguments(func, args, named)
    if facts_of(func).largest is None and _are_small(args, named):
        results = func(*args, **named)  # what zeros lead to
        for leaf in leaves_of((results, written)):
            if isinstance(leaf, torch.Tensor):
                forget_values(leaf)
        return results
    if written:
        for tensor in leaves_of(written):
            forget_values(tensor)
        return _results_in_place(func, written)
    call = facts_of(func).largest or func
    inner = map_leaves(shape_only, tuple(args))
    inner_named = map_leaves(shape_only, named)
    if "device" in inner_named:
        inner_named["device"] = META
    inner_named.pop("pin_memory", None)
    try:
        results = call(*inner, **inner_named)
    except (RuntimeError, NotImplementedError) as error:
        if WANTS_VALUES.search(str(error)):
            raise NeedsValues(str(func)) from error
        raise
    return map_leaves(_result_on_host, results)


def _are_small(args: Any, named: Any) -> bool:
    """True if all tensors among these arguments are small enough to be computed with."""
    leaves = leaves_of((args, named))
    return all(is_small(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))


def _result_on_host(result: Any) -> Any:
    """A result for the host, if it is a tensor of "meta"; other results as they are."""
    if isinstance(result, torch.Tensor) and result.is_meta:
        return on_host_without_values(result)
    return result


def _is_view(func: Any) -> bool:
    """True for an operator that gives a view, or changes the shape of a tensor in place."""
    if torch.Tag.inplace_view in func.tags:
        return True
    returns = func._schema.returns
    if not returns:
        return False
    alias = returns[0].alias_info
    return alias is not None and not alias.is_write


def _written_arguments(func: Any, args: Any, named: Any) -> list[Any]:
    """The arguments that an operator writes to, in their order."""
    written = []
    for position, argument in enumerate(func._schema.arguments):
        alias = argument.alias_info
        if alias is None or not alias.is_write:
            continue
        if position < len(args):
            written.append(args[position])
        elif argument.name in named:
            written.append(named[argument.name])
    return written


def _results_in_place(func: Any, written: list[Any]) -> Any:
    """What an operator returns that writes to these arguments: they themselves, or nothing."""
    returns = func._schema.returns
    if not returns:
        return None
    if len(returns) == 1:
        return written[0]
    return tuple(written)


# ---- reading values by Python --------------------------------------------------------------------


def _read_by(original: Any, tensor: Any, /, *args: Any, **named: Any) -> Any:
    """Call `numpy` or `tolist`, the `original`, and note it if the tensor has no values."""
    if now.gpu is not None and not now.gpu.values and lacks_values(tensor):
        note_read()
    return original(tensor, *args, **named)


def _print_tensor(original: Any, tensor: Any, /, *args: Any, **named: Any) -> str:
    """Call `Tensor.__repr__`, the `original`.

    In a run without values, all that it reads is noted for the report as one line that prints.
    """
    with printing():
        text: str = original(tensor, *args, **named)
    return text


def _save(original: Any, obj: Any, f: Any, *args: Any, **named: Any) -> None:
    """Call `torch.save`, the `original`; a run without values writes nothing.

    That is noted for the report. A storage is saved, since that is how pickle copies one. Raises
    what `torch.save` raises.
    """
    is_storage = isinstance(obj, (torch.UntypedStorage, torch.TypedStorage))
    if now.gpu is None or now.gpu.values or is_storage:
        original(obj, f, *args, **named)
        return
    note_assumption("did not save: there are no values to be written")


@torch_patches()
def _patches_of_readers(opening: Opening) -> Iterator[Patch]:
    """The patches of functions that read values without an operator, and of starting a thread."""
    yield around(torch.Tensor, "__repr__", _print_tensor)
    yield around(torch, "save", _save)
    yield around(threading.Thread, "start", _start_thread)
    for name in ("numpy", "tolist", "__array__"):
        yield around(torch.Tensor, name, _read_by)
