"""Runs operators on the virtual device: their rules, the CPU kernel and what CUDA does where it raises, records."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.device.cuda_errors import (
    DTYPE_NAMES,
    KERNEL_LACKS_DTYPE,
    device_assert_error,
    error_from_fact,
    forked_process_error,
    kernel_lacks_dtype_error,
    out_of_memory_error,
    warn,
)
from virtual_cuda.device.hidden import hidden_attribute
from virtual_cuda.device.layout import SMALL
from virtual_cuda.device.memory import OutOfMemory
from virtual_cuda.device.state import CPU, Block, OpenDevice, now, open_device_of
from virtual_cuda.device.tensor import VIRTUAL, fresh, refresh, set_conjugate, wrap
from virtual_cuda.errors import DeviceClosed
from virtual_cuda.internals import DispatchKeySet, dispatch_also_to, find_internal, has_kernel
from virtual_cuda.ledger.rows import GRAD, INFERENCE, OperationRow
from virtual_cuda.ops import elementwise, placement
from virtual_cuda.ops.placement import waits_of
from virtual_cuda.ops.registry import ALLOWED, NOT_EMULATED, Operator, call_of, facts_of, measured
from virtual_cuda.patching import identity
from virtual_cuda.recorder import site, tensors_in
from virtual_cuda.trees import map_only

Refuse = Callable[[Any, Any], object]


class Rules(NamedTuple):
    """How the dispatcher runs one operator."""

    call: Any  # on inner tensors
    refuse: Refuse | None  # function(args, kwargs): raises what CUDA raises before it computes
    output: Any  # function(inner, kwargs, out) -> out: the form of the results
    count_waits: (
        Callable[[Any, Any], None] | None
    )  # function(args, kwargs): records the waits afterwards
    name: str


@functools.cache
def rules_of(func: Any) -> Rules:
    """The rules for an overload; made once, since an operator is called often."""
    facts = facts_of(func)
    call = call_of(func)
    if "linalg" in func.name() or not has_kernel(func.name(), "CPU"):
        call = functools.partial(_taken_apart, call)
    return Rules(call, _refusal(func, facts), facts.output, waits_of(func), str(func))


_LAZY_BITS: Final = "an operator of complex numbers that is made of others"
_CONJUGATE: Final = find_internal("torch._C.DispatchKey.Conjugate", _LAZY_BITS)
_NEGATIVE: Final = find_internal("torch._C.DispatchKey.Negative", _LAZY_BITS)


def _taken_apart(call: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that C++ makes of others: conjugated results between them are resolved, which is off in here."""
    if not args or not isinstance(args[0], torch.Tensor) or not args[0].is_complex():
        return call(*args, **kwargs)
    with dispatch_also_to(DispatchKeySet(_CONJUGATE) | DispatchKeySet(_NEGATIVE)):
        return call(*args, **kwargs)


def _refusal(func: Any, facts: Operator) -> Refuse | None:
    every: list[Refuse] = []
    if facts.nondeterministic is not None:
        every.append(functools.partial(alert, facts))
    if facts.absent:
        every.append(functools.partial(_refuse_all, func))
    elif facts.refuse is not None:
        every.append(facts.refuse)
    elif facts.forbidden is not None:
        every.append(functools.partial(_refuse_dtypes, func, _said(facts.forbidden)))
    if len(every) < 2:
        return every[0] if every else None

    def refuse(args: Any, kwargs: Any) -> None:
        for each in every:
            each(args, kwargs)

    return refuse


# ---- determinism -----------------------------------------------------------------------------------------------------

_REFUSED: Final = (
    "{} does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'. You can "
    "turn off determinism just for this operation, or you can use the 'warn_only=True' option, if that's acceptable "
    "for your application. You can also file an issue at https://github.com/pytorch/pytorch/issues to help us "
    "prioritize adding deterministic support for this operation."
)
_WARNED: Final = (
    "{} does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True, "
    "warn_only=True)'. You can file an issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding "
    "deterministic support for this operation."
)


def alert(facts: Operator, args: Any, kwargs: Any) -> None:
    """Alerts as CUDA does."""
    if not torch.are_deterministic_algorithms_enabled():
        return
    caller = (
        facts.nondeterministic(args) if callable(facts.nondeterministic) else facts.nondeterministic
    )
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if caller is None or (
        facts.exact_integers and not any(t.is_floating_point() or t.is_complex() for t in given)
    ):
        return
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(_REFUSED.format(caller))
    warn(_WARNED.format(caller))


# ---- dtypes ----------------------------------------------------------------------------------------------------------

_ABSENT: Final = (
    "Could not run '{0}' with arguments from the '{1}' backend. This could be because the operator doesn't exist "
    "for this backend, or was omitted during the selective/custom build process (if using custom build). If you are "
    "a Facebook employee using PyTorch on mobile, please visit https://fburl.com/ptmfixes for possible resolutions. "
    "'{0}' is only available for these backends: [CPU, Meta]."
)


def absent(func: Any, backend: str) -> Exception:
    """What torch raises where a backend has no kernel."""
    return NotImplementedError(_ABSENT.format(func.name(), backend))


def _refuse_all(func: Any, args: Any, kwargs: Any) -> None:
    raise absent(func, "CUDA")


def _refuse_dtypes(func: Any, said: dict[torch.dtype, str], args: Any, kwargs: Any) -> None:
    dtype = args[0].dtype
    if dtype in said and _would_run(func, args, kwargs):
        raise error_from_fact(said[dtype], DTYPE_NAMES[dtype])


def _said(messages: dict[str, str]) -> dict[torch.dtype, str]:
    said = {
        dtype: messages[spelled] for dtype, spelled in DTYPE_NAMES.items() if spelled in messages
    }
    if "integer" in messages:
        said |= dict.fromkeys(elementwise.WHOLE, messages["integer"])
    if "ComplexFloat" in messages:
        said[torch.complex128] = messages["ComplexFloat"]
    return said


def _would_run(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a kernel would be launched: shapes are checked before dtypes, and empty tensors need none."""
    copied = [_copied(value) for value in args]
    if any(isinstance(value, torch.Tensor) and not value.numel() for value in copied):
        return False
    try:
        func(*copied, **{key: _copied(value) for key, value in kwargs.items()})
    except (
        Exception
    ) as error:  # a refusal of the arguments; it is raised, and translated, when the operator runs
        return any(text in str(error) for text in ("not implemented for", "can't be cast"))
    return True


def _copied(value: Any) -> Any:
    """A copy of the inner tensor, since the trial run may write into its arguments."""
    return (
        hidden_attribute(value, "_inner", value).clone()
        if isinstance(value, torch.Tensor)
        else value
    )


_OUT_OF_RANGE: Final = re.compile(
    r"out of bounds(?! for dimension with size 0)|out of range|between 0 and 1|`inf`, `nan` or element < 0|"
    r"invalid multinomial|nonzero value"
)


def rescue(func: Any, inner: Any, kwargs: Any, device: OpenDevice, error: Exception) -> Any:
    """What the operator gives on CUDA where the CPU raised `error`: a result, or an exception in CUDA's words."""
    text = str(error)
    if "DefaultCPUAllocator" in text or "can't allocate memory" in text:
        digits = (word for word in text.replace(",", " ").split() if word.isdigit())
        raise out_of_memory_error(
            OutOfMemory(int(next(digits, 0)), device.memory), device.index
        ) from None
    facts = facts_of(func)
    if facts.asserts and now.gpu is not None and _OUT_OF_RANGE.search(text):
        now.gpu.asserted = True
        # The result that a launch gives although its kernel will assert.
        if func._schema.is_mutable or not func._schema.returns:
            return inner[0] if func._schema.is_mutable else None
        named = {key: value for key, value in kwargs.items() if key != "generator"}
        args, named = map_only(torch.Tensor, lambda t: t.to("meta"), (tuple(inner), named))
        return map_only(
            torch.Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype), func(*args, **named)
        )
    if facts.emulate is not None:
        emulated = facts.emulate(func, inner, kwargs, error)
        if emulated is not NOT_EMULATED:
            return emulated
    try:
        raise translate(func, inner, error) or error from None
    finally:
        del error  # it would keep this frame, and the frame it


def translate(func: Any, inner: Any, error: Exception) -> Exception | None:
    """CUDA's exception for a CPU kernel's, or None where both say the same."""
    text = str(error)
    facts = facts_of(func)
    if facts.words is not None and (ruled := facts.words(inner, text)) is not None:
        return ruled
    kernel = KERNEL_LACKS_DTYPE.match(text)
    spelled = (
        kernel[2]
        if kernel
        else next((DTYPE_NAMES.get(t.dtype, "Undefined") for t in tensors_in(inner)), "Undefined")
    )
    if facts.spoken is not None:
        said = f"{type(error).__name__}: {text}"
        words = facts.spoken.get(said) or facts.spoken.get(re.sub(rf"\b{spelled}\b", "{T}", said))
        if words is not None:
            return error_from_fact(words, spelled)
    if kernel:
        cuda = measured("refusals")["kernels"].get(kernel[1]) or usual_name(kernel[1])
        return None if cuda == kernel[1] else kernel_lacks_dtype_error(cuda, spelled)
    # The same sentence with the names that tensors have on the device, and without the CPU's count of arguments.
    said = re.sub(r"^Argument #\d+: (?=Padding size)", "", text)
    said = re.sub(r"\btorch\.(?=[A-Z]\w*Tensor\b)", "torch.cuda.", said)
    said = re.sub(r"\bCPU(?=[A-Z]\w*Type\b)", "CUDA", said)
    said = re.sub(r"(?<=from the ')(\w*)CPU(?=' backend)", r"\1CUDA", said)
    said = said.replace("_out_cpu_template()", "_out_cuda_template()")
    said = said.removesuffix(" or input should be a MKLDNN tensor and weight is a dense tensor")
    said = said.replace("expected m1 and m2 to have", "expected mat1 and mat2 to have")
    return None if said == text else type(error)(said)


def usual_name(cpu: str) -> str:
    """The name of CUDA's kernel for the CPU's, if nothing else is known; `make_facts.py` leaves these names out."""
    cuda = cpu.replace("_vml_cpu", "_cuda").replace("_cpu", "_cuda")
    return cuda.replace("_channels_last", "_out_frame") if cuda.startswith("upsample_") else cuda


# ---- allocations and records -----------------------------------------------------------------------------------------

_grad_on: Final = torch.is_grad_enabled
_inference_on: Final = torch.is_inference_mode_enabled
_TENSOR: Final = torch.Tensor
_new: Final = object.__new__
_NO_DISPATCH: Final = torch.Tensor.__torch_dispatch__


class _ThreadState(threading.local):
    """What a thread knows: the autocast dtype, and whether a fork has cut this process off from the device."""

    autocast: Any = None
    strides: Any = None  # those of the copy that C++ makes next; it leaves them out for a device that it knows little of
    cast: bool = False  # whether an operator that autocast has dealt with is taken apart: its parts are not cast
    forked: bool = False


thread_state: Final = _ThreadState()


def closed_device_error(device: OpenDevice) -> Exception:
    if thread_state.forked:
        return forked_process_error()
    return device_assert_error() if device.gpu.lost else DeviceClosed(device.label)


def require_open_device(tensor: Any) -> OpenDevice:
    """The device of a tensor; raises DeviceClosed, or what has ended the device."""
    device: OpenDevice = tensor._block.device
    if device.closed:
        raise closed_device_error(device)
    return device


def allocate(device: OpenDevice, nbytes: int) -> Block:
    """A new block; raises torch's OutOfMemoryError."""
    size = (nbytes + 511) & -512
    memory = device.memory
    small = memory.small_live + size
    if 0 < size <= SMALL and small <= memory.quick:  # CUDA has no block for nothing
        memory.small_live = small
        memory.blocks += 1
        memory.blocks_ever += 1
        live = memory.live = memory.live + size
        if live > memory.peak:
            memory.peak = live
        block = _new(Block)
        block.device = device
        block.size = size
        block.piece = None
        return block
    try:
        return Block(device, nbytes)
    except OutOfMemory as error:
        for (
            observer
        ) in device.gpu.oom_observers:  # the device, what was wanted, what is in use, what is free
            observer(device.index, error.requested, device.memory.live, device.memory.free)
        raise out_of_memory_error(error, device.index) from None


def write(
    name: str,
    device: OpenDevice,
    nbytes: int,
    work: Any = None,
    where: Any = None,
    at: float | None = None,
) -> None:
    """Append one operation to the ledger: all operations go through here.

    `where`, if known: code object and instruction offset of the student's line. `at`: when it ended, if not now.
    """
    code, offset = where or site()
    mode = GRAD if _grad_on() else 0
    if _inference_on():
        mode |= INFERENCE
    live = device.memory.live
    dtype = thread_state.autocast
    at = perf_counter() if at is None else at
    label = device.label
    device.note(OperationRow(at, code, offset, name, label, mode, dtype, nbytes, live, work))


def work_of(out: Any, given: Any) -> tuple[Any, ...]:
    """What an operator had to do: the dtype, the shape of its (first) result, and those of the tensors it was given."""
    shapes: list[Any] = []
    dtype = None
    for value in given:
        for tensor in value if type(value) in (list, tuple) else (value,):
            if isinstance(tensor, _TENSOR):
                shapes.append(tensor.shape)
                dtype = dtype or tensor.dtype
    if isinstance(out, (list, tuple)):
        out = out[0] if out else None
    if isinstance(out, _TENSOR):
        return dtype or out.dtype, out.shape, *shapes
    return dtype, None, *shapes


# ---- the general case ------------------------------------------------------------------------------------------------


class Unwrapped:
    """What a call's arguments were: the inner tensors, the devices met, and the way back."""

    __slots__ = ("back", "blocks", "device", "devices", "plain")

    def __init__(self) -> None:
        self.device: OpenDevice | None = None
        self.devices: list[OpenDevice] = []
        self.plain: list[torch.Tensor] = []
        self.back: dict[int, Any] = {}
        self.blocks: dict[int, Block] = {}

    def open(self, value: Any) -> Any:
        kind = type(value)
        if kind in VIRTUAL:
            device = value._block.device
            if self.device is None:
                self.device = device
            if device not in self.devices:
                self.devices.append(device)
            inner = value._inner
            self.back.setdefault(
                identity(inner), value
            )  # two shells may share an inner tensor: `x` and `x.detach()`
            if inner.layout is torch.strided:
                self.blocks[inner.untyped_storage()._cdata] = value._block
            return inner
        if kind is list or kind is tuple:
            return kind([self.open(item) for item in value])
        if isinstance(value, _TENSOR):
            self.plain.append(value)
        return value

    def close(self, value: Any, device: OpenDevice | None) -> tuple[Any, int]:
        """Wrap results; also says how many bytes are new on the device."""
        if isinstance(value, _TENSOR):
            known = self.back.get(identity(value))
            if known is not None:
                if known.shape != value.shape or known.stride() != value.stride():
                    refresh(known)
                return known, 0
            if device is None or type(value) in VIRTUAL:
                return value, 0
            return wrap_output(value, device, self.blocks)
        if isinstance(value, (list, tuple)):  # also torch.return_types.*, which a binding gives
            closed = [self.close(item, device) for item in value]
            wrapped = [item for item, _ in closed]
            return wrapped if type(value) is list else tuple(wrapped), sum(
                nbytes for _, nbytes in closed
            )
        return value, 0


# How results that are not strided are wrapped, by layout; `sparse.py` fills it.
WRAPPERS: Final[dict[torch.layout, Callable[[torch.Tensor, OpenDevice], tuple[Any, int]]]] = {}


def wrap_output(
    value: torch.Tensor, device: OpenDevice, blocks: dict[int, Block]
) -> tuple[Any, int]:
    """Wrap one result, in the block it shares with an argument or an earlier result, or in a new one."""
    if value.layout is not torch.strided:
        return WRAPPERS[value.layout](value, device)
    storage = value.untyped_storage()
    block = blocks.get(storage._cdata)
    nbytes = 0
    if block is None:
        nbytes = storage.nbytes()
        block = blocks[storage._cdata] = allocate(device, nbytes)
    return wrap(value, block), nbytes


def general(func: Any, args: Any, kwargs: Any) -> Any:
    """Run any operator, whatever devices its arguments are on."""
    kwargs = kwargs or {}
    seen = Unwrapped()
    inner = [seen.open(value) for value in args]
    named: dict[str, Any] = {
        key: None if key == "pin_memory" else seen.open(value) for key, value in kwargs.items()
    }
    target = device = seen.device
    if named.get("device") is not None:
        target = open_device_of(named["device"])
        named["device"] = named["device"] if target is None else CPU
    if device is not None and device.closed:
        raise closed_device_error(device)
    if (seen.plain and device is not None) or len(seen.devices) > 1:
        if any(type(tensor).__torch_dispatch__ is not _NO_DISPATCH for tensor in seen.plain):
            return NotImplemented  # a class with a dispatcher of its own, sparse or nested: it is asked next
        decided = placement.judge(func, args, kwargs)
        if decided is not ALLOWED:
            return decided
    where = target or device
    call, refuse, output, count_waits, name = rules_of(func)
    if refuse is not None and where is not None:
        refuse(args, kwargs)
    if torch.Tag.inplace_view in func.tags and type(args[0]) in VIRTUAL:
        inner[0] = args[0]._inner = args[
            0
        ]._inner.detach()  # one that no other shell holds: its shape changes
        seen.back[identity(inner[0])] = args[0]
    try:
        out = call(*inner, **named)
    except Exception as error:
        if where is None:
            raise
        out = rescue(func, inner, named, where, error)
    if output is not None:
        out = output(inner, named, out)
    wrapped, nbytes = seen.close(out, target)
    if where is not None:
        write(name, where, nbytes, work_of(out, (*inner, *named.values())))
        if count_waits is not None:
            count_waits(args, kwargs)
    # Python's own binding of `_foreach_mul_` hands its list back; the operator itself returns nothing.
    return wrapped if func._schema.returns else None


def deliver(out: Any, device: OpenDevice, name: str, *given: Any) -> Any:
    """A new tensor on the device, and its line in the ledger.

    `given`: the shapes of the tensors it was made from, where they are not the result's.
    """
    at = perf_counter()
    nbytes = out.nbytes
    shape = out.shape
    dtype = out.dtype
    block = allocate(device, nbytes)
    write(name, device, nbytes, (dtype, shape, *given), at=at)
    shell = fresh(out, shape, dtype, block)
    if dtype.is_complex and out.is_conj():  # `vdot` of a conjugate
        set_conjugate(shell, True)
    return shell


def beforehand(func: Any, inner: Any, kwargs: Any, device: OpenDevice) -> None:
    """Refuse a result that does not fit on the device before the host computes it."""
    try:
        out = func(
            *[v.to("meta") if isinstance(v, torch.Tensor) else v for v in inner], **(kwargs or {})
        )
    except Exception:
        return  # the kernel itself will say what is wrong
    if isinstance(out, torch.Tensor) and out.nbytes > device.memory.allowed - device.memory.live:
        allocate(device, out.nbytes)
