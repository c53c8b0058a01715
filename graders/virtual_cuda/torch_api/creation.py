"""Functions that make tensors: `torch.device`, `torch.tensor`, and factories as `torch.zeros`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from time import perf_counter
from typing import Any, Final

import torch

from virtual_cuda.device import pinning
from virtual_cuda.device.cuda_errors import warn
from virtual_cuda.device.state import CPU, VirtualDevice, find_open_device, now
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.identity import identity
from virtual_cuda.internals import find_internal
from virtual_cuda.ledger.rows import StreamRow
from virtual_cuda.patching import Opening, Patch, around, originals_in_force, torch_patches
from virtual_cuda.torch_api.compatibility import default_device
from virtual_cuda.torch_api.dlpack import PyCapsule, take_from
from virtual_cuda.torch_api.generators import is_device_generator

# ---- torch.device --------------------------------------------------------------------------------

_Device: Final = torch.device


class _DeviceMeta(type):
    """Makes our `torch.device` equal to torch's, which C++ lets nobody derive from."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Device)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, _Device)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is _Device

    def __hash__(cls) -> int:
        return hash(_Device)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a `torch.device`; a number alone is that of a GPU."""
        if len(args) == 1 and not kwargs:
            number = args[0]
            if isinstance(number, int) and not isinstance(number, bool):
                return _Device("cuda", number)
        return _Device(*args, **kwargs)


_DEVICE_CLASS: Final = _DeviceMeta(
    "device", (), {"__module__": "torch", "__doc__": _Device.__doc__}
)

# ---- torch.tensor, as_tensor, asarray ------------------------------------------------------------

_FROM_DATA: Final = ("tensor", "as_tensor", "asarray")
_COPY_WARNING: Final = (
    "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
    "sourceTensor.detach().clone().requires_grad_(True), rather than torch.tensor(sourceTensor)."
)
_LONG: Final = 100  # numbers in a list; fewer cost no more than the operator
# Where this torch lacks one of these, no default device is seen.
_count_of_function_modes: Final = find_internal(
    "torch._C._len_torch_function_stack", otherwise=lambda: 1
)
_function_mode_stack: Final = find_internal(
    "torch.overrides._get_current_function_mode_stack", otherwise=lambda: ()
)
_DeviceContext: Final = find_internal("torch.utils._device.DeviceContext", otherwise=())


def _default_device() -> Any:
    """The device of an enclosing `with torch.device(...)` or of set_default_device, or None."""
    if not _count_of_function_modes():
        return None
    for mode in reversed(_function_mode_stack()):
        if isinstance(mode, _DeviceContext):
            return mode.device
    return None


def _is_list(data: Any) -> bool:
    """True for a list or a tuple, but not for a class of a student."""
    return type(data) is list or type(data) is tuple


def _may_hold_device_scalars(data: Any) -> bool:
    """True for a list with device tensors or other lists in it."""
    if not _is_list(data):
        return False
    return any(type(item) in VIRTUAL or _is_list(item) for item in data)


def _read_scalars(data: Any) -> Any:
    """The data with device scalars in its lists replaced by numbers.

    They are read one by one, as torch does it; each read waits. Raises ValueError for a device
    tensor with more than one element, and RuntimeError at a wait that is refused or tells of a
    failed kernel.
    """
    if _may_hold_device_scalars(data):
        return [_read_scalars(item) for item in data]
    if type(data) not in VIRTUAL:
        return data
    if data.numel() != 1:
        raise ValueError("only one element tensors can be converted to Python scalars")
    return data.item()


def _dtype_of_scalars(data: Any) -> torch.dtype | None:
    """The dtype that torch gives to a list with device scalars in it; None for a list without."""
    if type(data) in VIRTUAL:
        dtype: torch.dtype = data.dtype
        return dtype
    if not _may_hold_device_scalars(data):
        return None
    on_device = [_dtype_of_scalars(item) for item in data]
    if all(dtype is None for dtype in on_device):
        return None
    dtypes = []
    for item, dtype_on_device in zip(data, on_device, strict=True):
        dtypes.append(dtype_on_device or torch.as_tensor(item).dtype)
    return functools.reduce(torch.promote_types, dtypes)


def _make_from_data(
    name: str,
    original: Any,
    *args: Any,
    device: Any = None,
    pin_memory: bool = False,
    **kwargs: Any,
) -> Any:
    """Call `torch.tensor`, `as_tensor` or `asarray`, with data that may be on the device.

    `name` is the name of the function, `original` is the function. A tensor for the device is made
    on the host and then copied, as torch does it, which is recorded; one in a capsule of ours is
    taken out of it. Device tensors in a list are read one by one, and the host waits for each.
    Raises RuntimeError for memory that cannot be pinned, for gradients of integers, for an empty
    capsule and for a device that is not there, ValueError for a list with longer device tensors,
    torch's OutOfMemoryError, RuntimeError at a wait that is refused or tells of a failed kernel,
    and what the function raises.
    """
    keyword = "obj" if name == "asarray" else "data"
    if not args and keyword in kwargs:
        args = (kwargs.pop(keyword),)
    data: Any = args[0] if args else None
    if isinstance(data, PyCapsule):
        data = take_from(data)
    if device is None:
        if type(data) in VIRTUAL:
            device = data.device
        elif not isinstance(data, torch.Tensor):
            device = _default_device()
    if _is_list(data) and kwargs.get("dtype") is None:
        dtype = _dtype_of_scalars(data)
        if dtype is not None:
            kwargs["dtype"] = dtype
    open_device = find_open_device(device)
    if name == "asarray" and type(data) in VIRTUAL and kwargs.get("copy") is False:
        _refuse_alias(original, data, device, kwargs.get("dtype"))
    if open_device is None:
        tensor = _make_on_host(original, data, args, device, kwargs)
        if pin_memory:
            return pinning.pin(tensor)
        return tensor
    # It is for the device.
    requires_grad = kwargs.pop("requires_grad", None)
    has_history = isinstance(data, torch.Tensor) and data.requires_grad
    if name == "asarray" and has_history and not _keeps_history(original, requires_grad):
        data = data.detach()
    if isinstance(data, torch.Tensor):
        tensor = _copy_tensor(name, data, open_device, kwargs)
    else:
        if pin_memory:
            raise RuntimeError("Only dense CPU tensors can be pinned")
        tensor = _make_on_host(original, data, args, CPU, kwargs).to(open_device.cuda)
    if not requires_grad:
        return tensor
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
    return tensor.requires_grad_()


def _keeps_history(original: Any, requires_grad: bool | None) -> bool:
    """True if `torch.asarray` of a tensor that requires gradients gives one that does.

    That depends on the release where `requires_grad` is None, not given. So `original`, torch's own
    function, is asked; it may warn.
    """
    options = {}
    if requires_grad is not None:
        options["requires_grad"] = requires_grad
    example = torch.empty(0, requires_grad=True)
    result: torch.Tensor = original(example, **options)
    return result.requires_grad


def _refuse_alias(original: Any, data: Any, device: Any, dtype: torch.dtype | None) -> None:
    """Raise ValueError if `torch.asarray` of a device tensor would have to copy it.

    `original` is torch's own function; it knows what to say of dtypes.
    """
    target = find_open_device(device)
    if target is None or target.cuda != data.device:
        label = device if target is None else target.cuda
        raise ValueError(f"can't alias tensor from device '{data.device}' to '{label}'.")
    original(data._virtual_inner.detach(), dtype=dtype, copy=False)


def _make_on_host(
    original: Any, data: Any, args: tuple[Any, ...], device: Any, kwargs: dict[str, Any]
) -> torch.Tensor:
    """Call `torch.tensor` or its like for the host, or for a device that is not ours.

    `data` is the first of `args`, if there is any; one on a device of ours comes with a `device`,
    which is added to `kwargs`. A long list is noted for the clock. The host waits for each device
    tensor that it reads. Raises ValueError for device tensors of several elements in a list,
    RuntimeError at a wait that is refused or tells of a failed kernel, and what `original` raises.
    """
    if device is not None:
        kwargs["device"] = device
    if type(data) in VIRTUAL:
        is_for_host = torch.device(device).type == "cpu"
        if is_for_host:
            first = data.cpu()
        else:
            first = data
        args = (first, *args[1:])
    elif args and not isinstance(data, torch.Tensor):
        first = _read_scalars(data)
        args = (first, *args[1:])
    tensor: torch.Tensor = original(*args, **kwargs)
    if _is_list(data) and tensor.numel() >= _LONG:
        _note_long_list(tensor.numel())
    return tensor


def _copy_tensor(name: str, data: Any, device: VirtualDevice, kwargs: dict[str, Any]) -> Any:
    """`torch.tensor`, `as_tensor` or `asarray` of a tensor, for the device.

    `torch.tensor` always copies, without history, and warns of that; the others only where they
    must or are asked to. Raises what `Tensor.to` raises.
    """
    dtype = kwargs.get("dtype") or data.dtype
    if name != "tensor":
        moved = data.to(device.cuda, dtype)
        if kwargs.get("copy") and moved is data:
            return moved.clone()
        return moved
    warn(_COPY_WARNING)
    moved = data.detach().to(device.cuda, dtype)
    if moved.data_ptr() == data.data_ptr():
        return moved.clone()
    return moved


def _note_long_list(count: int) -> None:
    """Note in the ledger that a tensor was made of a list of `count` numbers.

    The modelled clock wants to know. Nothing is noted where no device is open.
    """
    gpu = now.gpu
    if gpu is None:
        return
    row = StreamRow(
        at=perf_counter(),
        code=None,
        offset=None,
        device=gpu.devices[gpu.current].label,
        stream=0,
        what="list",
        other=count,
    )
    gpu.ledger.rows.append(row)


def _make_new_tensor(
    tensor: Any,
    data: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **kwargs: Any,
) -> Any:
    """`Tensor.new_tensor`, with the dtype and device of the tensor where none is named.

    Raises what `torch.tensor` raises; further arguments are ignored.
    """
    if device is None:
        device = tensor.device
    return torch.tensor(
        data, dtype=dtype or tensor.dtype, device=device, requires_grad=requires_grad
    )


# ---- factories -----------------------------------------------------------------------------------

_LIKE: Final = (
    "empty_like",
    "full_like",
    "ones_like",
    "rand_like",
    "randint_like",
    "randn_like",
    "zeros_like",
)
_NEW: Final = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
# Where this torch lacks it, factories take neither numbers of devices nor `pin_memory`.
_device_constructors: Final = find_internal(
    "torch.utils._device._device_constructors", otherwise=set
)


def _replace_factory(original: Any, name: str) -> Any:
    """The function to put in the place of a factory of torch, with its name and documentation.

    It calls the `original`. It knows numbers of devices, pins memory, and refuses a generator of
    another device.
    """

    def make_tensor(*args: Any, **kwargs: Any) -> Any:
        """Call the factory, `original`, and give its tensor.

        Raises RuntimeError for memory, a generator or an `out` of the wrong device and for a device
        that is not there, and what the factory raises.
        """
        device = kwargs.get("device")
        open_device = find_open_device(device)
        if type(kwargs.get("out")) in VIRTUAL and device is not None:
            if open_device is None:
                kind = torch.device(device).type
                raise RuntimeError(
                    f"device type {kind} does not match device type of out parameter (cuda)"
                )
            del kwargs["device"]  # in C++ the device of `out` has another name
            return original(*args, **kwargs)
        if open_device is not None and type(device) is int:
            kwargs["device"] = open_device.cuda
        if kwargs.get("pin_memory"):
            if open_device is not None:
                raise RuntimeError("Only dense CPU tensors can be pinned")
            del kwargs["pin_memory"]
            return pinning.pin(original(*args, **kwargs))
        if open_device is None:
            _refuse_device_generator(args, kwargs)
        return original(*args, **kwargs)

    make_tensor.__name__ = name
    make_tensor.__doc__ = original.__doc__
    return make_tensor


def _refuse_device_generator(args: Any, kwargs: Any) -> None:
    """Raise RuntimeError for a generator of the device where values are for the host.

    They are for the device without its being named with a default device, with an `out` there, or
    beside a tensor there.
    """
    generator = kwargs.get("generator")
    if generator is None or not is_device_generator(generator):
        return
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.device.type == "cuda":
            return
    if default_device().type != "cuda":
        raise RuntimeError("Expected a 'cpu' device type for generator but found 'cuda'")


def _replace_factory_by_example(original: Any, name: str) -> Any:
    """The function to put in the place of `zeros_like`, `Tensor.new_zeros` and their like.

    It replaces the number of a device by the device, and pins memory. `name` is that of the
    `original`.
    """

    def make_tensor(*args: Any, **kwargs: Any) -> Any:
        """Call the factory, with the device in the place of its number.

        Raises CUDA's error for a device that is not there, and what the factory raises.
        """
        device = kwargs.get("device")
        if type(device) is int:
            open_device = find_open_device(device)
            kwargs["device"] = device if open_device is None else open_device.cuda
        if kwargs.get("pin_memory") and not _is_for_device(device, args[0]):
            del kwargs["pin_memory"]
            return pinning.pin(original(*args, **kwargs))
        return original(*args, **kwargs)

    make_tensor.__name__ = name
    make_tensor.__doc__ = original.__doc__
    return make_tensor


def _is_for_device(device: Any, example: Any) -> bool:
    """True if a tensor for `device`, or where `example` is if that is None, is on the device.

    Raises CUDA's error for a device that is not there.
    """
    if device is None:
        return type(example) in VIRTUAL
    return find_open_device(device) is not None


@functools.cache
def _factory_patches() -> list[Patch]:
    """The patches of every function of `torch` that takes a device.

    Searched once, because torch has a thousand names.
    """
    patches: list[Patch] = []
    constructors = {id(function) for function in _device_constructors()}
    for name, function in vars(torch).items():
        is_factory = id(function) in constructors and name not in _FROM_DATA
        if is_factory or name == "normal":
            make_tensor = _replace_factory(function, name)
            patches.append((torch, name, make_tensor))
    for name in _LIKE:
        make_tensor = _replace_factory_by_example(getattr(torch, name), name)
        patches.append((torch, name, make_tensor))
    for name in _NEW:
        make_tensor = _replace_factory_by_example(getattr(torch.Tensor, name), name)
        patches.append((torch.Tensor, name, make_tensor))
    return patches


class _DefaultDevices:
    """Tells which functions take a default device: torch's, and those in the place of these."""

    def __init__(self) -> None:
        self._known: set[Any] = set()

    def constructors(self, original: Any) -> set[Any]:
        """The functions, by torch's own function for it, the `original`, as long as one is open."""
        if not self._known:
            functions = original()
            replaced = originals_in_force({identity(function) for function in functions})
            self._known = {*functions, *replaced.values()}
        return self._known


@torch_patches()
def _creation_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of functions that make tensors."""
    yield torch, "device", _DEVICE_CLASS
    yield torch.Tensor, "new_tensor", _make_new_tensor
    for name in _FROM_DATA:
        yield around(torch, name, functools.partial(_make_from_data, name))
    yield from _factory_patches()
    devices = _DefaultDevices()
    module = find_internal("torch.utils._device")
    yield around(module, "_device_constructors", devices.constructors)
