"""`torch.distributed` between processes with a virtual device each.

Gloo stands in for NCCL: it exchanges the CPU tensors inside the device's. The ledger records every
collective, with its bytes and how long it took until it was complete on this rank.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import threading
from collections.abc import Callable, Iterator
from time import perf_counter
from types import SimpleNamespace
from typing import Any, Final

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
from virtual_cuda.ops.registry import operator
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.recorder import site, tensors_in
from virtual_cuda.trees import map_only

dist: Final[Any] = torch.distributed
internals: Final = find_internal("torch._C._distributed_c10d", "torch.distributed")
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
    """The class `ProcessGroupNCCL`: gloo in the place of NCCL."""

    class ProcessGroupNCCL(dist.ProcessGroupGloo):  # type: ignore[misc]
        """Gloo in the place of NCCL."""

        Options: Any = _Options
        uid = 0
        supports_splitting = False  # a new group gets a new backend

        def __init__(
            self, store: Any, rank: int, size: int, options: Any = None, device: Any = None
        ) -> None:
            timeout = getattr(options, "_timeout", options) or datetime.timedelta(minutes=_MINUTES)
            super().__init__(store, rank, size, timeout)
            _kept.append(self)

    ProcessGroupNCCL.__module__ = "torch.distributed.distributed_c10d"
    return ProcessGroupNCCL


# ---- the groups that carry the inner tensors -----------------------------------------------------

_kept: Final[list[Any]] = []  # C++ keeps a backend, but not its Python class
_INSIDE: Final = "/inside"
# By a group's name: its backend, and the group with that for the CPU.
_twins: Final[dict[str, tuple[Any, Any]]] = {}


def _twin(group: Any) -> Any:
    """A group of the same ranks that exchanges CPU tensors.

    The backend that the group has for CUDA serves it. It is made and registered at the first call.
    """
    backend = group._get_backend(torch.device("cuda"))
    known, twin = _twins.get(group.group_name, (None, None))
    if known is not backend:
        twin = dist.ProcessGroup(group.get_group_store(), group.rank(), group.size())
        twin._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        twin._register_backend(_CPU, dist.ProcessGroup.BackendType.GLOO, backend)
        # The backend knows its group's name, so the twin has no other: only the registry of names
        # has.
        name = group.group_name + _INSIDE
        if known is not None:
            internals._unregister_process_group(name)
        internals._register_process_group(name, twin)
        _twins[group.group_name] = backend, twin
    return twin


def _forget(group: Any = None) -> None:
    for name in [group.group_name] if isinstance(group, dist.ProcessGroup) else [*_twins]:
        if _twins.pop(name, None) is not None:
            internals._unregister_process_group(name + _INSIDE)
    if not _twins:
        _kept.clear()


def _destroy(original: Any, group: Any = None) -> None:
    _forget(None if group is dist.group.WORLD else group)
    original(group)


# ---- collective operations -----------------------------------------------------------------------


class _Reduction(threading.local):
    """What is done to the result of the next sum, in each thread.

    Gloo knows neither averages nor factors.
    """

    factor: Callable[[torch.Tensor], object] | None = None


_reduction: Final = _Reduction()


def _scaled(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a method of ProcessGroup that reduces tensors.

    For device tensors an average is a sum that is divided afterwards.
    """
    options = next((each for each in (*args, *kwargs.values()) if hasattr(each, "reduceOp")), None)
    if options is None or not any(type(tensor) in VIRTUAL for tensor in tensors_in(args)):
        return original(self, *args, **kwargs)
    reduce = options.reduceOp
    size = self.size()
    if reduce == dist.ReduceOp.AVG:
        _reduction.factor = functools.partial(_divide, size)
    elif reduce == dist.ReduceOp.PREMUL_SUM:
        _reduction.factor = functools.partial(_multiply, reduce.factor)
    else:
        return original(self, *args, **kwargs)
    options.reduceOp = dist.ReduceOp.SUM
    try:
        return original(self, *args, **kwargs)
    finally:
        _reduction.factor = None


def _multiply(factor: Any, tensor: torch.Tensor) -> None:
    tensor.mul_(hidden_attribute(factor, "_inner", factor))


def _divide(size: int, tensor: torch.Tensor) -> None:
    tensor.div_(
        size
    ) if tensor.is_floating_point() or tensor.is_complex() else tensor.floor_divide_(size)


_NAMES: Final = {
    "_allgather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
}


_FLAT: Final = (
    *_NAMES.values(),
    "allgather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1) if tensor.is_contiguous() else tensor


class _Collective:
    """One collective operation of this rank: its inner tensors, and its rows in the ledger."""

    def __init__(self, func: Any, args: Any) -> None:
        """Unwrap the tensors of an operation.

        Raises DeviceClosed, and RuntimeError if one of the tensors is on the host.
        """
        self.seen = Unwrapped()
        self.inner = [self.seen.open(value) for value in args]
        assert self.seen.device is not None
        self.device: VirtualDevice = self.seen.device
        if self.device.closed:
            raise closed_device_error(self.device)
        if self.seen.plain:
            raise RuntimeError("No backend type associated with device type cpu")
        self.factor = _reduction.factor
        _reduction.factor = None
        self.arguments = [argument.name for argument in func._schema.arguments]
        name = func._schema.name.partition("::")[2].removesuffix("_")
        self.name = _NAMES.get(name, name)

    def begin(self, size: int) -> None:
        """Record the collective operation, with its bytes."""
        nbytes = sum(tensor.nbytes for tensor in tensors_in(self.inner))
        self.row = len(self.device.gpu.ledger.rows)
        moved = 0 if self.name == "barrier" else nbytes
        at = perf_counter()
        code, offset = site()
        self.device.note(CollectiveRow(at, code, offset, self.name, self.device.label, moved, size))

    def end(self, complete: bool = True) -> None:
        if complete and self.factor is not None:
            for tensor in tensors_in(self.inner[0]):  # what it has written
                self.factor(tensor)
        self.device.note(EndRow(perf_counter(), self.row))


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator of c10d; the last of its results is the work to wait for.

    Records the collective operation; its end is recorded when the work is complete.
    """
    if "process_group" not in (names := [argument.name for argument in func._schema.arguments]):
        return func(*(hidden_attribute(value, "_inner", value) for value in args), **kwargs)
    # Run it on the inner tensors, in the group that carries these.
    each = _Collective(func, args)
    position = names.index("process_group")
    group = dist.ProcessGroup.unbox(args[position])
    each.inner[position] = _twin(group).boxed()
    if each.name in _FLAT:  # gloo cuts the tensor along its first dimension, NCCL its memory
        each.inner[:2] = [map_only(torch.Tensor, _flat, value) for value in each.inner[:2]]
    each.begin(group.size())
    out = func(*each.inner, **kwargs)
    # Gloo's thread lets go of the tensors when it is done, and must not be the last that knows the
    # group.
    each.inner[position] = None
    if not func._schema.returns:  # a barrier that has waited
        each.end()
        return None
    *tensors, work = out if isinstance(out, tuple) else (out,)
    work = _watched(dist.Work.unbox(work), each, args[0]).boxed()
    if each.name == "barrier":
        placement.note("barrier", explicit=True)
    return (args[0], work) if tensors else work


def _watched(work: Any, each: _Collective, written: Any) -> Any:
    """A work that also records the end of `work`, and gives device tensors.

    Where this torch cannot tell when a work ends, it is recorded as ended at once.
    """

    def ended(future: Any) -> Any:
        try:
            future.value()
        except Exception:
            each.end(complete=False)
            raise
        each.end()
        return [*tensors_in(written)]

    try:
        future = work.get_future()
    except RuntimeError:  # of a message from one rank to another
        # An older torch: how long it takes is not known.
        if not hasattr(internals, "PythonCallbackWork"):
            if each.factor is not None:
                work.wait()
            each.end()
            return work

        def waited(timeout: Any) -> bool:
            done = bool(work.wait())
            each.end(done)
            return done

        return internals.PythonCallbackWork(waited)
    # Of a collective operation: its end is known.
    return internals._create_work_from_future(future.then(ended))


def _run_functional(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator of `torch.distributed._functional_collectives`.

    It is complete, and recorded, when this returns.
    """
    if "group_name" not in (names := [argument.name for argument in func._schema.arguments]):
        return args[0]  # wait_tensor
    each = _Collective(func, args)
    position = names.index("group_name")
    given = args[position]
    group = _group_named(given) if isinstance(given, str) else dist.ProcessGroup.unbox(given)
    _twin(group)
    each.inner[position] = group.group_name + _INSIDE
    if "reduce_op" in names and each.inner[names.index("reduce_op")] == "avg":
        each.inner[names.index("reduce_op")] = "sum"
        each.factor = functools.partial(_divide, group.size())
    each.begin(group.size())
    named = {key: each.seen.open(value) for key, value in kwargs.items()}
    out = func(*each.inner, **named)
    for tensor in tensors_in(out):
        torch.ops._c10d_functional.wait_tensor(tensor)
    each.inner[0] = out
    each.end()
    return each.seen.close(out, each.device)[0]


# ---- what SyncBatchNorm consists of on a GPU; the CPU has no kernels -----------------------------


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _each(channels: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """One value for each channel, in the shape that fits a batch."""
    return channels.view(1, -1, *[1] * (like.dim() - 2))


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.sum([d for d in range(tensor.dim()) if d != 1])


def _stats(batch: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    dims = [d for d in range(batch.dim()) if d != 1]
    variance, mean = torch.var_mean(_wide(batch), dims, correction=0)
    return mean, (variance + eps).rsqrt()


def _gather_stats(
    batch: Any,
    means: Any,
    deviations: Any,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
    counts: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean and inverse deviation of all ranks' batches together.

    Updates the running mean and variance in place.
    """
    counts = _wide(torch.as_tensor(counts, dtype=means.dtype)).view(-1, 1).expand(len(means), 1)
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    variance = ((deviations**-2 - eps + (means - mean) ** 2) * counts).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((variance * total / (total - 1)).to(running_var.dtype), momentum)
    return mean, (variance + eps).rsqrt()


def _normalise(
    batch: Any, weight: Any, bias: Any, mean: Any, deviation: Any, eps: float
) -> torch.Tensor:
    """A batch, normalised and then scaled and shifted, in its own dtype."""
    out = (_wide(batch) - _each(mean, batch)) * _each(deviation, batch)
    out = out if weight is None else out * _each(weight, batch)
    return (out if bias is None else out + _each(bias, batch)).to(batch.dtype)


def _reduce_gradient(
    grad: Any,
    batch: Any,
    mean: Any,
    deviation: Any,
    weight: Any,
    input_: bool,
    weight_: bool,
    bias_: bool,
) -> tuple[torch.Tensor | None, ...]:
    """The sums over a batch that the gradient of a batch norm needs.

    Then the gradients of weight and bias. None stands for each that is not wanted.
    """
    sums = _sum(_wide(grad))
    products = _sum(_wide(grad) * (_wide(batch) - _each(mean, batch)))
    scaled = None if weight is None or not weight_ else (products * deviation).to(weight.dtype)
    shifted = None if weight is None or not bias_ else sums.to(weight.dtype)
    return (sums if input_ else None), (products if input_ else None), scaled, shifted


def _apply_gradient(
    grad: Any,
    batch: Any,
    mean: Any,
    deviation: Any,
    weight: Any,
    sums: Any,
    products: Any,
    counts: Any,
) -> torch.Tensor:
    """The gradient of a batch norm's input, from the sums over all ranks."""
    total = counts.sum()
    centred = (_wide(batch) - _each(mean, batch)) * _each(deviation**2 * products / total, batch)
    factor = deviation if weight is None else deviation * weight
    out = (_wide(grad) - _each(sums / total, batch) - centred) * _each(factor, batch)
    return out.to(batch.dtype)


operator("batch_norm_stats", kernel=_stats)
operator("batch_norm_gather_stats", kernel=_gather_stats)
operator("batch_norm_gather_stats_with_counts", kernel=_gather_stats)
operator("batch_norm_elemt", kernel=_normalise)
operator("batch_norm_backward_reduce", kernel=_reduce_gradient)
operator("batch_norm_backward_elemt", kernel=_apply_gradient)


NAMESPACES.update(c10d=_run, _c10d_functional=_run_functional)


# ---- patches -------------------------------------------------------------------------------------

_REDUCING: Final = """
    allreduce allreduce_coalesced reduce reduce_scatter reduce_scatter_single reduce_scatter_single_coalesced
    reduce_scatter_tensor_coalesced _reduce_scatter_base
""".split()


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    """The patches of `torch.distributed`; none but NCCL's version where it lacks gloo."""
    yield torch.cuda.nccl, "version", lambda: _VERSION
    if not dist.is_available() or not dist.is_gloo_available():
        return
    opening.enter(lambda: contextlib.closing(SimpleNamespace(close=_forget)))
    homes: tuple[Any, ...] = dist, dist.distributed_c10d
    for home in homes:
        yield home, "is_nccl_available", lambda: True
        for name in ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy"):
            if name == "ProcessGroupNCCL" or hasattr(home, name):
                yield home, name, _backend_class()
        yield around(home, "destroy_process_group", _destroy)
    yield homes[1], "_NCCL_AVAILABLE", True
    # A barrier asks it for its device.
    yield (
        torch._C,
        "_get_accelerator",
        lambda check=None: torch.device("cuda"),
    )
    yield homes[1], "default_pg_nccl_timeout", datetime.timedelta(minutes=_MINUTES)
    # Times of the CPU's or CUDA's own timers; for other devices it warns that there are none.
    yield dist.Logger, "set_runtime_stats_and_log", lambda self: None
    for name in _REDUCING:
        if hasattr(dist.ProcessGroup, name):
            yield around(dist.ProcessGroup, name, _scaled)
