"""`torch.distributed` between processes with a virtual device each.

Gloo stands in for NCCL: it exchanges the CPU tensors inside the device's. The ledger records every
collective, with its bytes and how long it took until it was complete on this rank.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import torch
import torch.cuda.nccl
import torch.distributed

from virtual_cuda.device.hidden import hidden_attribute
from virtual_cuda.device.state import VirtualDevice
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.internals import find_internal
from virtual_cuda.ledger.rows import CollectiveRow, EndRow
from virtual_cuda.ops import placement
from virtual_cuda.ops.dispatch import Unwrapped, closed_device_error
from virtual_cuda.ops.library_operators import NAMESPACES
from virtual_cuda.patching import Opening, Patch, around, if_present, torch_patches
from virtual_cuda.recorder import site, tensors_in
from virtual_cuda.torch_api.compatibility import (
    OTHER_NAMES_OF_NCCL,
    class_of_work_with_callback,
    store_of_group,
)
from virtual_cuda.trees import map_only

dist: Final[Any] = torch.distributed
_FEATURE: Final = "torch.distributed"  # is refused where this torch lacks what is needed for it
_register_group: Final = find_internal(
    "torch._C._distributed_c10d._register_process_group", _FEATURE
)
_unregister_group: Final = find_internal(
    "torch._C._distributed_c10d._unregister_process_group", _FEATURE
)
_work_from_future: Final = find_internal(
    "torch._C._distributed_c10d._create_work_from_future", _FEATURE
)
_get_backend: Final = find_internal(
    "torch._C._distributed_c10d.ProcessGroup._get_backend", _FEATURE
)
_set_default_backend: Final = find_internal(
    "torch._C._distributed_c10d.ProcessGroup._set_default_backend", _FEATURE
)
_register_backend: Final = find_internal(
    "torch._C._distributed_c10d.ProcessGroup._register_backend", _FEATURE
)
_group_named: Final = find_internal(
    "torch.distributed.distributed_c10d._resolve_process_group", "functional collectives"
)
_VERSION: Final = (2, 28, 9)  # of NCCL
_MINUTES: Final = 10  # NCCL's usual timeout
_CPU: Final = torch.device("cpu")


class _Options:
    """`ProcessGroupNCCL.Options`; only the timeout has a meaning for gloo."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout = datetime.timedelta(minutes=_MINUTES)
        self.config = SimpleNamespace()


@functools.cache
def _backend_class() -> Any:
    """The class `ProcessGroupNCCL`: gloo in the place of NCCL; made at the first call."""

    class ProcessGroupNCCL(dist.ProcessGroupGloo):  # type: ignore[misc]
        """Gloo in the place of NCCL."""

        Options: Any = _Options
        uid = 0
        supports_splitting = False  # a new group gets a new backend

        def __init__(
            self, store: Any, rank: int, size: int, options: Any = None, device: Any = None
        ) -> None:
            """Make the backend of one rank; `options` are those of NCCL, or a timeout.

            It is kept, since C++ keeps no Python class. Raises what gloo raises where ranks do not
            meet.
            """
            timeout = getattr(options, "_timeout", options) or datetime.timedelta(minutes=_MINUTES)
            super().__init__(store, rank, size, timeout)
            _kept.append(self)

    ProcessGroupNCCL.__module__ = "torch.distributed.distributed_c10d"
    return ProcessGroupNCCL


# ---- the groups that carry the inner tensors -----------------------------------------------------

_kept: Final[list[Any]] = []  # C++ keeps a backend, but not its Python class
_HOST_SUFFIX: Final = "/inside"  # of the names under which host groups are registered


class _HostGroup(NamedTuple):
    """A group of the same ranks as another one, which exchanges CPU tensors."""

    backend: Any
    group: Any


_host_groups: Final[dict[str, _HostGroup]] = {}  # by the name of the group they serve


def _host_group_of(group: Any) -> Any:
    """A group of the same ranks that exchanges CPU tensors.

    The backend that the group has for CUDA serves it. It is made and registered at the first call,
    and again when the backend has changed. Raises RuntimeError for a group without such a backend.
    """
    backend = _get_backend(group, torch.device("cuda"))
    known = _host_groups.get(group.group_name)
    if known is not None and known.backend is backend:
        return known.group
    host_group = dist.ProcessGroup(store_of_group(group), group.rank(), group.size())
    _set_default_backend(host_group, dist.ProcessGroup.BackendType.GLOO)
    _register_backend(host_group, _CPU, dist.ProcessGroup.BackendType.GLOO, backend)
    # The backend knows its group's name, so the host group has no other: only the registry of
    # names has.
    name = group.group_name + _HOST_SUFFIX
    if known is not None:
        _unregister_group(name)
    _register_group(name, host_group)
    _host_groups[group.group_name] = _HostGroup(backend, host_group)
    return host_group


def _forget_host_groups(names: Iterable[str]) -> None:
    """Unregister the host groups of the groups with these names; others are ignored.

    After the last one, the backends that were kept go, too.
    """
    for name in names:
        if _host_groups.pop(name, None) is not None:
            _unregister_group(name + _HOST_SUFFIX)
    if not _host_groups:
        _kept.clear()


def _forget_all_host_groups() -> None:
    """Unregister the host groups of all groups."""
    _forget_host_groups([*_host_groups])


def _destroy_group(original: Any, group: Any = None) -> None:
    """Call `destroy_process_group`, and forget the host groups of the group, or of all.

    `original` is that function of torch; what it raises is raised.
    """
    if isinstance(group, dist.ProcessGroup) and group is not dist.group.WORLD:
        _forget_host_groups([group.group_name])
    else:
        _forget_all_host_groups()
    original(group)


# ---- collective operations -----------------------------------------------------------------------


class _AfterSum(threading.local):
    """What is done to the result of the next sum, in each thread.

    Gloo knows neither averages nor factors.
    """

    change: Callable[[torch.Tensor], object] | None = None


_after_sum: Final = _AfterSum()


def _multiply_by(factor: Any, tensor: torch.Tensor) -> None:
    """Multiply a tensor in place; the factor may be a device tensor."""
    tensor.mul_(hidden_attribute(factor, "_virtual_inner", factor))


def _divide_by(size: int, tensor: torch.Tensor) -> None:
    """Divide a tensor of sums in place; integers are rounded down."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.div_(size)
    else:
        tensor.floor_divide_(size)


def _reduce_as_sum(original: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a method of ProcessGroup, the `original`, that reduces tensors; gives its work.

    For device tensors an average is a sum that is divided afterwards: the options among the
    arguments are changed to that, and `_after_sum` holds the division meanwhile. Raises what the
    method raises.
    """
    options = None
    for argument in (*args, *kwargs.values()):
        if hasattr(argument, "reduceOp"):
            options = argument
            break
    on_device = any(type(tensor) in VIRTUAL for tensor in tensors_in(args))
    if options is None or not on_device:
        return original(group, *args, **kwargs)
    reduction = options.reduceOp
    if reduction == dist.ReduceOp.AVG:
        _after_sum.change = functools.partial(_divide_by, group.size())
    elif reduction == dist.ReduceOp.PREMUL_SUM:
        _after_sum.change = functools.partial(_multiply_by, reduction.factor)
    else:
        return original(group, *args, **kwargs)
    options.reduceOp = dist.ReduceOp.SUM
    try:
        return original(group, *args, **kwargs)
    finally:
        _after_sum.change = None


# Names in C++, and those in the ledger.
_NAMES: Final = {
    "_allgather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
}
# Gloo cuts their tensors along the first dimension, NCCL cuts the memory.
_CUTTING_MEMORY: Final = (
    *_NAMES.values(),
    "allgather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
)


def _flattened_if_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """A view with one dimension; a tensor that is not contiguous as it is."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    return tensor


def _argument_names(func: Any) -> list[str]:
    """The names of an operator's arguments, in order."""
    return [argument.name for argument in func._schema.arguments]


class _Collective:
    """One collective operation of this rank: its inner tensors, and its rows in the ledger."""

    def __init__(self, func: Any, args: Any) -> None:
        """Unwrap the tensors of an operation.

        Raises DeviceClosed, and RuntimeError if one of the tensors is on the host.
        """
        self.unwrapped = Unwrapped()
        self.inner = [self.unwrapped.open(value) for value in args]
        assert self.unwrapped.device is not None
        self.device: VirtualDevice = self.unwrapped.device
        if self.device.closed:
            raise closed_device_error(self.device)
        if self.unwrapped.plain:
            raise RuntimeError("No backend type associated with device type cpu")
        self.change_result = _after_sum.change
        _after_sum.change = None
        name_in_cpp = func._schema.name.partition("::")[2].removesuffix("_")
        self.name = _NAMES.get(name_in_cpp, name_in_cpp)

    def flatten_tensors(self) -> None:
        """Give the contiguous tensors that are written and read one dimension."""
        for index in (0, 1):
            value = self.inner[index]
            self.inner[index] = map_only(torch.Tensor, _flattened_if_contiguous, value)

    def begin(self, size: int) -> None:
        """Record the collective operation of `size` ranks, with its bytes, in the ledger.

        The number of its row is kept for `end`.
        """
        nbytes = 0
        if self.name != "barrier":
            nbytes = sum(tensor.nbytes for tensor in tensors_in(self.inner))
        self.row = len(self.device.gpu.ledger.rows)
        code, offset = site()
        row = CollectiveRow(
            at=perf_counter(),
            code=code,
            offset=offset,
            name=self.name,
            device=self.device.label,
            bytes=nbytes,
            ranks=size,
        )
        self.device.note(row)

    def end(self, complete: bool = True) -> None:
        """Record the end; if it is complete, an average or factor is applied to the result."""
        if complete and self.change_result is not None:
            for tensor in tensors_in(self.inner[0]):  # what it has written
                self.change_result(tensor)
        self.device.note(EndRow(perf_counter(), self.row))


def _run_collective(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator of c10d; the last of its results is the work to wait for.

    Records the collective operation; its end is recorded when the work is complete. Device tensors
    that it has written are given before the work. For a barrier that gives a work, the wait of the
    host is recorded. Raises DeviceClosed, RuntimeError for tensors on the host and at a wait that
    is refused or tells of a failed kernel, and what gloo raises.
    """
    names = _argument_names(func)
    if "process_group" not in names:
        inner = [hidden_attribute(value, "_virtual_inner", value) for value in args]
        return func(*inner, **kwargs)
    # Run it on the inner tensors, in the group that carries these.
    collective = _Collective(func, args)
    position = names.index("process_group")
    group = dist.ProcessGroup.unbox(args[position])
    collective.inner[position] = _host_group_of(group).boxed()
    if collective.name in _CUTTING_MEMORY:
        collective.flatten_tensors()
    collective.begin(group.size())
    results = func(*collective.inner, **kwargs)
    # Gloo's thread lets go of the tensors when it is done, and must not be the last that knows the
    # group.
    collective.inner[position] = None
    if not func._schema.returns:  # a barrier that has waited
        collective.end()
        return None
    # Hand out a work that records the end, and with it the device tensors where there are any.
    if not isinstance(results, tuple):
        results = (results,)
    inner_work = dist.Work.unbox(results[-1])
    work = _record_end_of(inner_work, collective, args[0]).boxed()
    if collective.name == "barrier":
        placement.record_waits("barrier", explicit=True)
    has_tensors = len(results) > 1
    if has_tensors:
        return (args[0], work)
    return work


def _record_end_of(work: Any, collective: _Collective, results: Any) -> Any:
    """A work that also records the end of `work`, and gives the device tensors in `results`.

    Where this torch cannot tell when a work ends, it is recorded as ended at once.
    """

    def record_end(future: Any) -> Any:
        """Record the end of the work; raises what went wrong on another rank."""
        try:
            future.value()
        except Exception:  # whatever went wrong on another rank: recorded, and raised again
            collective.end(complete=False)
            raise
        collective.end()
        return [*tensors_in(results)]

    try:
        future = work.get_future()
    except RuntimeError:
        return _record_end_of_message(work, collective)
    return _work_from_future(future.then(record_end))


def _record_end_of_message(work: Any, collective: _Collective) -> Any:
    """A work that also records the end of a message from one rank to another.

    torch gives no future for these, so the end is recorded when the work is waited for. Where torch
    has no class for such a work, it is recorded at once; if the result has still to be divided, the
    message is waited for before, here. Raises what that wait raises.
    """
    work_class = class_of_work_with_callback()
    if work_class is None:
        if collective.change_result is None:
            collective.end()
            return work
        # Not to be waited for again: Gloo's work may copy the sums to the result each time.
        work.wait()
        collective.end()
        completed: Any = torch.futures.Future()
        completed.set_result([])
        return _work_from_future(completed)

    def wait_and_record_end(timeout: Any) -> bool:
        """Wait for the message, record its end, and return whether it is complete."""
        is_complete = bool(work.wait())
        collective.end(is_complete)
        return is_complete

    return work_class(wait_and_record_end)


def _group_from(name_or_object: Any) -> Any:
    """The group that an operator is given by its name or as an object of C++."""
    if isinstance(name_or_object, str):
        return _group_named(name_or_object)
    return dist.ProcessGroup.unbox(name_or_object)


def _run_functional_collective(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator of `torch.distributed._functional_collectives`, and give its results.

    It is complete, and recorded, when this returns. Raises DeviceClosed, RuntimeError for tensors
    on the host, torch's OutOfMemoryError, and what gloo raises.
    """
    names = _argument_names(func)
    if "group_name" not in names:
        return args[0]  # wait_tensor
    collective = _Collective(func, args)
    # Run it in the group that carries inner tensors.
    position = names.index("group_name")
    group = _group_from(args[position])
    _host_group_of(group)  # which registers it under its name
    collective.inner[position] = group.group_name + _HOST_SUFFIX
    # An average is a sum that is divided afterwards.
    if "reduce_op" in names:
        reduction = names.index("reduce_op")
        if collective.inner[reduction] == "avg":
            collective.inner[reduction] = "sum"
            collective.change_result = functools.partial(_divide_by, group.size())
    collective.begin(group.size())
    inner_kwargs = {key: collective.unwrapped.open(value) for key, value in kwargs.items()}
    results = func(*collective.inner, **inner_kwargs)
    for tensor in tensors_in(results):
        torch.ops._c10d_functional.wait_tensor(tensor)
    collective.inner[0] = results
    collective.end()
    on_device, _ = collective.unwrapped.close(results, collective.device)
    return on_device


NAMESPACES.update(c10d=_run_collective, _c10d_functional=_run_functional_collective)


# ---- patches -------------------------------------------------------------------------------------

# The methods of `ProcessGroup` that reduce; some releases of torch have not all of them.
_REDUCING: Final = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "_reduce_scatter_base",
)


@contextlib.contextmanager
def _forget_groups_at_end() -> Iterator[None]:
    """Forget all host groups at the end of a `with` block."""
    try:
        yield
    finally:
        _forget_all_host_groups()


@torch_patches()
def _distributed_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of `torch.distributed`; none but NCCL's version where it lacks gloo."""
    yield torch.cuda.nccl, "version", lambda: _VERSION
    if not dist.is_available() or not dist.is_gloo_available():
        return
    opening.enter(_forget_groups_at_end)
    c10d = dist.distributed_c10d
    for module in (dist, c10d):
        yield module, "is_nccl_available", lambda: True
        yield module, "ProcessGroupNCCL", _backend_class()
        for name in OTHER_NAMES_OF_NCCL:
            yield if_present(module, name, _backend_class())
        yield around(module, "destroy_process_group", _destroy_group)
    yield c10d, "_NCCL_AVAILABLE", True
    # A barrier asks it for its device.
    yield torch._C, "_get_accelerator", lambda check=None: torch.device("cuda")
    yield c10d, "default_pg_nccl_timeout", datetime.timedelta(minutes=_MINUTES)
    # Times of the CPU's or CUDA's own timers; for other devices it warns that there are none.
    yield dist.Logger, "set_runtime_stats_and_log", lambda self: None
    for name in _REDUCING:
        yield around(dist.ProcessGroup, name, _reduce_as_sum)
