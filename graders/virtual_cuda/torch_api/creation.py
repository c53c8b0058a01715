"""Makes, copies and moves tensors: `.to`, `.cuda`, factories, device numbers."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Iterator
from time import perf_counter
from typing import Any, Final

import torch

from virtual_cuda.device import pinning
from virtual_cuda.device.cuda_errors import forked_process_error, warn
from virtual_cuda.device.layout import SMALL
from virtual_cuda.device.pinning import is_pinned
from virtual_cuda.device.state import CPU, VirtualDevice, now, open_device_named, open_device_of
from virtual_cuda.device.tensor import VIRTUAL, wrap
from virtual_cuda.errors import DeviceClosed
from virtual_cuda.internals import find_internal
from virtual_cuda.ledger.rows import StreamRow
from virtual_cuda.ops import autocast, elementwise, layers, recurrent
from virtual_cuda.ops.dispatch import (
    allocate,
    closed_device_error,
    put_on_device,
    record_operation,
    require_open_device,
    run_any,
    thread_state,
    work_of,
)
from virtual_cuda.ops.placement import HOST, record_copy
from virtual_cuda.ops.registry import declared, operator
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.recorder import site
from virtual_cuda.torch_api.generators import is_device_generator

aten: Final = torch.ops.aten


def to_device(
    tensor: torch.Tensor,
    device: VirtualDevice,
    non_blocking: bool,
    dtype: Any = None,
    memory_format: Any = None,
) -> Any:
    """A new device tensor with the values of a host tensor.

    There is no autograd: the caller has seen to that. Allocates memory, and records the operator
    and the copy. Raises DeviceClosed.
    """
    if device.closed:
        raise closed_device_error(device)
    if dtype is None and memory_format is None:
        inner = tensor.clone()
    else:
        inner = aten._to_copy.default(tensor, dtype=dtype, memory_format=memory_format)
    shell = put_on_device(inner, device, "aten._to_copy.default")
    record_copy("to_device", tensor, is_pinned(tensor), non_blocking, HOST, device.label)
    return shell


def _to_copy(func: Any, args: Any, kwargs: Any) -> Any:
    """Run `aten::_to_copy` from, to or on the device.

    Allocates the result's memory, and records the operator and the copy.
    """
    source = args[0]
    options = dict(kwargs)
    device = options.pop("device", None)
    non_blocking = options.pop("non_blocking", False)
    options.pop("pin_memory", None)
    if type(source) not in VIRTUAL:
        target = open_device_of(device)
        assert target is not None
        return to_device(
            source, target, non_blocking, options.get("dtype"), options.get("memory_format")
        )
    # From the device: to the host, to another device, or on it.
    open_device = require_open_device(source)
    inner = source._inner
    target = open_device if device is None else open_device_of(device)
    if target is None and device.type != "cpu":
        return func(inner, device=device, **options)
    dtype = options.get("dtype")
    where = site()
    same = (dtype is None or dtype is inner.dtype) and options.get("memory_format") is None
    if same and inner.is_contiguous() and not inner.is_conj() and not inner.is_neg():
        out = inner.clone()
    else:
        out = elementwise.to_copy(inner, **options)
    if target is None:
        record_operation(
            "aten._to_copy.default", open_device, 0, (inner.dtype, None, inner.shape), where
        )
        record_copy("to_host", inner, False, non_blocking, open_device.label, HOST, where=where)
        # torch pins the result of such a copy, or it could not overlap.
        return pinning.count_as_pinned(out) if non_blocking else out
    block = allocate(target, out.untyped_storage().nbytes())
    plain = out.dtype is inner.dtype and inner.is_contiguous()
    record_operation(
        "aten._to_copy.default", target, out.nbytes, work_of(out, () if plain else (inner,)), where
    )
    if target is not open_device:
        record_copy(
            "between_devices",
            inner,
            False,
            non_blocking,
            open_device.label,
            target.label,
            where=where,
        )
    return wrap(out, block)


def _copy_(func: Any, args: Any, kwargs: Any) -> Any:
    """Run `aten::copy_` where one of the two tensors is on the device.

    Records the operator and the copy.
    """
    target: Any = args[0]
    source: Any = args[1]
    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    on_device = type(target) in VIRTUAL
    from_device = type(source) in VIRTUAL
    device = require_open_device(target if on_device else source)
    if not isinstance(source, torch.Tensor):  # a number, which is a scalar of the host
        source = torch.scalar_tensor(source, dtype=target.dtype)
    # To the host, from the host, or between tensors of devices.
    if not on_device:
        elementwise.copy_(target, source._inner)
        record_operation("aten.copy_.default", device, 0)
        record_copy("to_host", source._inner, is_pinned(target), non_blocking, device.label, HOST)
        return target
    if not from_device:
        target._inner.copy_(source)
        record_operation("aten.copy_.default", device, 0)
        record_copy("to_device", source, is_pinned(source), non_blocking, HOST, device.label)
        return target
    elementwise.copy_(target._inner, source._inner)
    both = target._inner, source._inner
    plain = both[0].dtype is both[1].dtype and both[0].is_contiguous() and both[1].is_contiguous()
    record_operation(
        "aten.copy_.default", device, 0, work_of(both[0], ()) if plain else work_of(None, both)
    )
    other = source._block.device
    if other is not device:
        record_copy(
            "between_devices", source._inner, False, non_blocking, other.label, device.label
        )
    return target


def copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    """`aten::_copy_from`, which is how C++ copies out of a device it has no kernels for."""
    return _copy_(aten.copy_.default, (target, source, non_blocking), {})


operator("_to_copy", plan=_to_copy, kernel=elementwise.to_copy)
operator("copy_", plan=_copy_, kernel=elementwise.copy_)


_real: Final = torch.device


class _AnyDevice(type):
    """Lets `isinstance(x, torch.device)` mean what it always means."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _real)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, _real)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is _real

    def __hash__(cls) -> int:
        return hash(_real)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a `torch.device`; a number alone is that of a GPU."""
        if (
            len(args) == 1
            and not kwargs
            and isinstance(args[0], int)
            and not isinstance(args[0], bool)
        ):
            return _real("cuda", args[0])
        return _real(*args, **kwargs)


device: Final = _AnyDevice("device", (), {"__module__": "torch", "__doc__": _real.__doc__})

_EXABYTE: Final = 1 << 60
EMPTY: Final = (aten.empty.memory_format, aten.empty_strided.default)
_EMPTY_NAMES: Final = ("aten.empty_strided.default", "aten.empty.memory_format")


def _create(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator for the device that C++ has no kernel for: factories above all.

    Allocates memory, and records the operator. Raises DeviceClosed for a tensor that has outlived
    its device, AssertionError, as torch does, where no device is open, and OutOfMemoryError.
    """
    if op.name() == "aten::_copy_from":
        return copy_from(*args)
    if now.gpu is None:
        device = kwargs.get("device")
        if device is not None and device.type == "lazy":
            # Asked for by a tensor that has outlived its device.
            raise DeviceClosed(f"cuda:{device.index or 0}")
        raise (
            forked_process_error()
            if thread_state.forked
            else AssertionError("Torch not compiled with CUDA enabled")
        )
    # Only memory without values is made here; all other operators run as usual.
    if op not in EMPTY:
        return run_any(op, args, kwargs)
    open_device = open_device_of(kwargs["device"])
    assert open_device is not None
    nbytes = math.prod(args[0]) * (kwargs.get("dtype") or torch.get_default_dtype()).itemsize
    if _EXABYTE <= nbytes < 8 * _EXABYTE:  # what is more, C++ cannot count
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more than 1EB memory.")
    if SMALL < nbytes < _EXABYTE and nbytes > open_device.memory.allowed - open_device.memory.live:
        allocate(open_device, nbytes)  # refused, before the host tries to find it
    # The values are the host's.
    kwargs["device"] = CPU
    kwargs.pop("pin_memory", None)
    strides = thread_state.strides
    thread_state.strides = None
    if strides is not None:
        inner = torch.empty_strided(args[0], strides, dtype=kwargs.get("dtype"))
    else:
        inner = op(*args, **kwargs)
    block = allocate(open_device, inner.untyped_storage().nbytes())
    record_operation(_EMPTY_NAMES[op is EMPTY[0]], open_device, inner.nbytes)
    return wrap(inner, block)


# A CUDA build has kernels of its own for these, which would ask for a driver.
_OWN_IN_CUDA: Final = (
    "empty.memory_format",
    "empty_strided",
    "_efficientzerotensor",
    "tril_indices",
    "triu_indices",
)
# C++ makes these of other operators and of a kernel that it looks for by its own name of the
# device.
_WITH_KERNELS: Final = ("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta")
_libraries: Final[list[torch.library.Library]] = []  # empty unless the kernels are registered


def register_kernels() -> None:
    """Register the kernels with which C++ asks us.

    Done once: they do nothing while no virtual device is open.
    """
    if _libraries:
        return
    everything = torch.library.Library("_", "IMPL")
    aten_only = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # "Overriding a previously registered kernel": that is what is meant.
        warnings.simplefilter("ignore")
        for key in ("CUDA", "Lazy"):
            everything.fallback(_create, key)
        if _operator_named("_copy_from") is not None:
            aten_only.impl("_copy_from", copy_from, "Lazy")
        whole = [name for name, facts in declared().items() if facts.whole]
        for name in whole:  # else C++ takes them apart
            _register_creator(aten_only, name, "Lazy")
        for name in (*_WITH_KERNELS, *(_OWN_IN_CUDA if torch.version.cuda else ())):
            _register_creator(aten_only, name, "CUDA", allow_override=True)
        autocast.register(aten_only)
        recurrent.register(aten_only)
        layers.register(aten_only)
    _libraries.extend((everything, aten_only))


def _operator_named(name: str) -> Any:
    """The overload of aten with this name, or None if this torch has none.

    A name is "empty.memory_format", or "dropout" for the default overload.
    """
    base, _, overload = name.partition(".")
    return getattr(getattr(aten, base, None), overload or "default", None)


def _register_creator(library: Any, name: str, key: str, **options: Any) -> None:
    """Have `_create` called for an operator on tensors with a dispatch key.

    Does nothing if this torch lacks the operator.
    """
    operator = _operator_named(name)
    if operator is not None:
        library.impl(name, functools.partial(_create, operator), key, **options)


def withdraw_kernels() -> None:
    """Remove our kernels, so that those of a real GPU come back.

    Where there is no GPU ours may stay: nothing reaches them.
    """
    for library in _libraries:
        library._destroy()
    _libraries.clear()


_COPIED: Final = (
    "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
    "sourceTensor.detach().clone().requires_grad_(True), rather than torch.tensor(sourceTensor)."
)


# Where this torch lacks one of these, a tensor is copied as if there were no profiler, mode or
# transform.
_transform: Final = find_internal("torch._C._functorch.maybe_current_level", otherwise=lambda: None)
_is_wrapped: Final = find_internal(
    "torch._C._functorch.is_functorch_wrapped_tensor", otherwise=lambda tensor: False
)
_unwrapped: Final = find_internal("torch._C._functorch.get_unwrapped", "copying inside torch.func")
_profiler_enabled: Final = find_internal(
    "torch._C._autograd._profiler_enabled", otherwise=lambda: False
)
_dispatch_modes: Final = find_internal("torch._C._len_torch_dispatch_stack", otherwise=lambda: 0)
_function_modes: Final = find_internal("torch._C._len_torch_function_stack", otherwise=lambda: 1)
_no_dispatch_modes: Final = find_internal(
    "torch.utils._python_dispatch._disable_current_modes", otherwise=contextlib.nullcontext
)
_function_mode_stack: Final = find_internal(
    "torch.overrides._get_current_function_mode_stack", otherwise=lambda: ()
)
_device_context: Final = find_internal("torch.utils._device.DeviceContext", otherwise=())
_device_constructors: Final = find_internal(
    "torch.utils._device._device_constructors", otherwise=set
)


def _direct(tensor: Any) -> bool:
    """True if a host tensor can be copied without autograd, modes and transforms."""
    return (
        (type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter)
        and not (tensor.requires_grad and torch.is_grad_enabled())
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not torch.is_inference_mode_enabled()
        and not _profiler_enabled()  # which shows the operators a copy consists of
        and not _dispatch_modes()  # of modes, which are asked for every operator
        and _transform() is None  # of torch.func, which wraps the tensors that are made in it
    )


def _to(original: Any) -> Any:
    """The function to put in the place of `Tensor.to`, of host and device tensors alike."""

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Copy or convert a tensor, as `Tensor.to` does.

        A plain host tensor goes to the device without autograd's help; C++ is asked for all others,
        with the name that it has for the device.
        """
        device = open_device_named(args[0]) if args else None
        if device is not None:
            # (device) as students write it, (device, dtype or None, non_blocking) as nn.Module.to
            # does
            usual = len(args) == 1 or (len(args) == 3 and args[1] in (None, self.dtype))
            # From the host it is a copy, also where none is asked for.
            if (
                usual
                and (not kwargs or not kwargs.keys() - {"non_blocking", "copy"})
                and _direct(self)
            ):
                return to_device(
                    self, device, kwargs.get("non_blocking", len(args) == 3 and args[2])
                )
            # Where there is another text, C++ shall refuse what was written.
            if not any(isinstance(other, str) for other in args[1:]):
                args = (device.lazy, *args[1:])
        named = open_device_named(kwargs.get("device"))
        if named is not None:
            kwargs["device"] = named.lazy  # the device as C++ knows it
            device = named
        if "tensor" in kwargs:
            args = (kwargs.pop("tensor"), *args)
        crosses = device is not None or (bool(args) and type(args[0]) in VIRTUAL)
        if not crosses or type(self) in VIRTUAL or self.layout is not torch.strided:
            return original(self, *args, **kwargs)
        # Of a class that wraps tensors only those inside are copied, which may have any strides.
        wraps = type(self).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        preserved = not wraps and kwargs.get("memory_format") in (None, torch.preserve_format)
        thread_state.strides = _preserved(self) if preserved else None
        try:
            return original(self, *args, **kwargs)
        finally:
            thread_state.strides = None

    return to


def _preserved(tensor: torch.Tensor) -> Any:
    """The strides that a copy of this tensor has.

    Transforms of torch.func copy the tensor inside, which may have more dimensions.
    """
    while _transform() is not None and _is_wrapped(tensor):
        tensor = _unwrapped(tensor)
    with _no_dispatch_modes() if _dispatch_modes() else contextlib.nullcontext():
        return torch.empty_like(tensor, device="meta").stride()


def cuda(
    self: Any,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: Any = torch.preserve_format,
) -> Any:
    """`Tensor.cuda`; raises what torch raises for a wrong device."""
    if isinstance(device, (bool, float)):
        raise TypeError(
            f"cuda(): argument 'device' (position 1) must be torch.device, not {type(device).__name__}"
        )
    if device is not None and not isinstance(device, int) and torch.device(device).type != "cuda":
        raise RuntimeError("Invalid device, must be cuda device")
    return self.to(
        "cuda" if device is None else device, non_blocking=non_blocking, memory_format=memory_format
    )


def _default_device() -> Any:
    """The device of an enclosing `with torch.device(...)` or of set_default_device, or None."""
    if not _function_modes():
        return None
    for mode in reversed(_function_mode_stack()):
        if isinstance(mode, _device_context):
            return mode.device
    return None


def _read(data: Any) -> Any:
    """The data with device scalars in its lists replaced by numbers.

    They are read one by one, as torch does it; each read waits.
    """
    if type(data) in (list, tuple):
        if any(type(item) in VIRTUAL or type(item) in (list, tuple) for item in data):
            return [_read(item) for item in data]
    elif type(data) in VIRTUAL:
        if data.numel() != 1:
            raise ValueError("only one element tensors can be converted to Python scalars")
        return data.item()
    return data


def _dtype_of(data: Any) -> torch.dtype | None:
    """The dtype that torch gives to a list with device scalars in it; None for a list without."""
    if type(data) in (list, tuple):
        if not any(type(item) in VIRTUAL or type(item) in (list, tuple) for item in data):
            return None
        found = [_dtype_of(item) for item in data]
        if all(dtype is None for dtype in found):
            return None
        known = [
            dtype or torch.as_tensor(item).dtype for dtype, item in zip(found, data, strict=True)
        ]
        return functools.reduce(torch.promote_types, known)
    return data.dtype if type(data) in VIRTUAL else None


def _from_data(
    name: str,
    original: Any,
    *args: Any,
    device: Any = None,
    pin_memory: bool = False,
    **kwargs: Any,
) -> Any:
    """Call `torch.tensor`, `as_tensor` or `asarray`.

    A tensor for the device is made on the host and then copied, as torch does it.
    """
    data: Any = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    if device is None:
        if type(data) in VIRTUAL:
            device = data.device
        elif not isinstance(data, torch.Tensor):
            device = _default_device()
    open_device = open_device_named(device)
    if (
        type(data) in (list, tuple)
        and kwargs.get("dtype") is None
        and (dtype := _dtype_of(data)) is not None
    ):
        kwargs["dtype"] = dtype
    if open_device is None:
        if device is not None:
            kwargs["device"] = device
        if type(data) in VIRTUAL:
            args = (data.cpu() if torch.device(device).type == "cpu" else data, *args[1:])
        elif args and not isinstance(data, torch.Tensor):
            args = (_read(data), *args[1:])
        made_here = _counted(data, original(*args, **kwargs))
        return pinning.pin(made_here) if pin_memory else made_here
    # It is for the device.
    requires_grad = kwargs.pop("requires_grad", False)
    if isinstance(data, torch.Tensor):
        copied = name == "tensor"
        if copied:
            warn(_COPIED)
        moved = (data.detach() if copied else data).to(
            open_device.cuda, kwargs.get("dtype") or data.dtype
        )
        if (copied and moved.data_ptr() == data.data_ptr()) or (
            kwargs.get("copy") and moved is data
        ):
            moved = moved.clone()
    else:
        if pin_memory:
            raise RuntimeError("Only dense CPU tensors can be pinned")
        args = (_read(args[0]), *args[1:]) if args else args
        moved = _counted(data, original(*args, device=CPU, **kwargs)).to(open_device.cuda)
    if requires_grad and not (moved.is_floating_point() or moved.is_complex()):
        raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
    return moved.requires_grad_() if requires_grad else moved


def _counted(data: Any, made: torch.Tensor) -> torch.Tensor:
    """The tensor `made`, as it is.

    That it was made of a long list, number by number, is noted for the modelled clock.
    """
    gpu = now.gpu
    if gpu is not None and type(data) in (list, tuple) and made.numel() >= _LONG:
        label = gpu.devices[gpu.current].label
        at = perf_counter()
        gpu.ledger.rows.append(StreamRow(at, None, None, label, 0, "list", made.numel()))
    return made


_LONG: Final = 100  # numbers; fewer cost no more than the operator


def new_tensor(
    self: Any,
    data: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **kwargs: Any,
) -> Any:
    """`Tensor.new_tensor`, with the dtype and device of the tensor where none is named."""
    where = self.device if device is None else device
    return torch.tensor(data, dtype=dtype or self.dtype, device=where, requires_grad=requires_grad)


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    """The patches of functions that make, move and pin tensors."""
    opening.closing.append(pinning.pinned_storages.clear)
    yield torch, "device", device
    yield torch.Tensor, "to", _to(torch.Tensor.to)
    yield torch.Tensor, "cuda", cuda
    yield torch.Tensor, "pin_memory", lambda self, device=None: pinning.pin(self)
    yield torch.Tensor, "is_pinned", lambda self, device=None: pinning.is_pinned(self)
    yield torch.Tensor, "new_tensor", new_tensor
    yield from (around(torch, name, functools.partial(_from_data, name)) for name in _FROM_DATA)
    yield from _factories()


_FROM_DATA = ("tensor", "as_tensor", "asarray")
_LIKE = (
    "empty_like",
    "full_like",
    "ones_like",
    "rand_like",
    "randint_like",
    "randn_like",
    "zeros_like",
)
_NEW = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")


def _settle(original: Any, name: str) -> Any:
    """The function to put in the place of a factory of torch.

    It knows numbers of devices, pins memory, and refuses a generator of another device.
    """

    def made(*args: Any, **kwargs: Any) -> Any:
        """Call the factory; raises RuntimeError for memory or a generator of the wrong device."""
        device = kwargs.get("device")
        open_device = open_device_named(device)
        if open_device is not None and type(device) is int:
            kwargs["device"] = open_device.cuda
        if kwargs.get("pin_memory"):
            if open_device is not None:
                raise RuntimeError("Only dense CPU tensors can be pinned")
            del kwargs["pin_memory"]
            return pinning.pin(original(*args, **kwargs))
        generator = kwargs.get("generator")
        if (
            generator is not None
            and open_device is None
            and is_device_generator(generator)
            and not _on_device(args, kwargs)
        ):
            raise RuntimeError("Expected a 'cpu' device type for generator but found 'cuda'")
        return original(*args, **kwargs)

    made.__name__, made.__doc__ = name, original.__doc__
    return made


def _numbered(original: Any, name: str) -> Any:
    """The function to put in the place of `zeros_like`, `Tensor.new_zeros` and their like.

    It replaces the number of a device by the device, and pins memory.
    """

    def made(*args: Any, **kwargs: Any) -> Any:
        """Call the factory, with the device in the place of its number."""
        device = kwargs.get("device")
        if type(device) is int:
            open_device = open_device_named(device)
            kwargs["device"] = device if open_device is None else open_device.cuda
        if (
            kwargs.get("pin_memory")
            and open_device_named(device) is None
            and not (device is None and type(args[0]) in VIRTUAL)
        ):
            del kwargs["pin_memory"]
            return pinning.pin(original(*args, **kwargs))
        return original(*args, **kwargs)

    made.__name__, made.__doc__ = name, original.__doc__
    return made


def _on_device(args: Any, kwargs: Any) -> bool:
    """True if a factory's values come to the device without its being named.

    That is so with a default device, with an `out` there, or beside a tensor there.
    """
    beside = any(type(given) in VIRTUAL for given in (*args, *kwargs.values()))
    return beside or torch.get_default_device().type == "cuda"


@functools.cache
def _factories() -> tuple[Patch, ...]:
    """The patches of every function of `torch` that takes a device.

    Searched once, because torch has a thousand names.
    """
    constructors = {id(function) for function in _device_constructors()}
    found = {
        name: f
        for name, f in vars(torch).items()
        if id(f) in constructors and name not in _FROM_DATA
    }
    found["normal"] = torch.normal
    made: list[tuple[Any, str, Any]] = [
        (torch, name, _settle(function, name)) for name, function in found.items()
    ]
    for owner, home, names in ((torch, torch, _LIKE), (torch.Tensor, torch.Tensor, _NEW)):
        made += [(owner, name, _numbered(getattr(home, name), name)) for name in names]
    return tuple(made)
