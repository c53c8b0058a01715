"""Where the arguments of operators may be, and when the host waits for the device."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.device.cuda_errors import (
    argument_elsewhere_error,
    device_assert_error,
    label_of,
    two_devices_error,
    warn,
)
from virtual_cuda.device.state import now
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.ledger.rows import Direction, SyncRow, TransferRow
from virtual_cuda.ops.registry import ALLOWED, call_of, facts_of, name_of
from virtual_cuda.recorder import site, tensors_in

HOST: Final = "cpu"
WARNING: Final = "called a synchronizing CUDA operation"


def record_waits(
    kind: str, times: int = 1, explicit: bool = False, warned: bool | None = None, where: Any = None
) -> None:
    """Record that the host waited, and warn or raise as `torch.cuda.set_sync_debug_mode` asks.

    `kind` is the ledger's name for the wait, `times` how often the host waited. That mode accepts
    `torch.cuda.synchronize()`, which says what it does, but not a stream's; `warned` overrides
    this. Raises RuntimeError if the mode is "error", and the assert of a kernel that has failed
    since the last wait: the device is lost from then on.
    """
    gpu = now.gpu
    if gpu is None:
        return
    code, offset = where or site()
    # Observers come first: they may raise.
    for called in gpu.on_wait:
        called(kind)
    device = gpu.devices[gpu.current].label
    for _ in range(times):
        gpu.ledger.rows.append(SyncRow(perf_counter(), code, offset, kind, explicit, device))
        if gpu.sync_debug and (not explicit if warned is None else warned):
            if gpu.sync_debug == 2:
                raise RuntimeError(WARNING)
            warn(WARNING)
    # The host learns now of a kernel that has failed.
    if gpu.asserted:
        gpu.lost = True
        for open_device in gpu.devices:
            open_device.closed = True
        raise device_assert_error()


def record_copy(
    direction: Direction,
    tensor: torch.Tensor,
    pinned: bool,
    non_blocking: bool,
    source: str,
    target: str,
    wait: str = "copy",
    where: Any = None,
) -> None:
    """Record one copy between host and device, or between devices.

    The host waits for every copy that it did not ask to be asynchronous; `record_waits` records
    that wait, which may raise. Empty tensors are not recorded.
    """
    gpu = now.gpu
    nbytes = tensor.nbytes
    if gpu is None or nbytes == 0:
        return  # nothing is copied, so nobody waits
    # The copy itself, then the wait for it.
    code, offset = where or site()
    at = perf_counter()
    asked = bool(non_blocking)
    gpu.ledger.rows.append(
        TransferRow(at, code, offset, direction, nbytes, pinned, asked, source, target)
    )
    if not non_blocking and direction != "between_devices":
        record_waits(wait, where=(code, offset))


def waits_of(func: Any) -> Callable[[Any, Any], None] | None:
    """A function(args, kwargs) that records the waits which a call of this operator has caused.

    None for an operator that never makes the host wait.
    """
    waits = facts_of(func).waits
    if waits is None:
        return None
    kind, count = waits
    if not callable(count):
        return lambda args, kwargs: record_waits(kind, count)
    names = [argument.name for argument in func._schema.arguments]

    def record(args: Any, kwargs: Any) -> None:
        times = count({**dict(zip(names, args, strict=False)), **kwargs})
        if times:
            record_waits(kind, times)

    return record


# ---- counts that several families use; each takes the arguments by name --------------------------


def on_device(value: Any) -> bool:
    """True for a tensor of a virtual device."""
    return type(value) in VIRTUAL


def on_host(value: Any) -> bool:
    """True for a tensor that is not on a virtual device."""
    return isinstance(value, torch.Tensor) and type(value) not in VIRTUAL


def unless_empty(argument: str, count: int) -> Callable[[dict[str, Any]], int]:
    """A function of the arguments by name that gives `count`, or 0 where one is empty.

    Without elements in that argument the work is skipped, and so is the wait.
    """
    return lambda given: count if given[argument].numel() else 0


def device_values(*names: str) -> Callable[[dict[str, Any]], int]:
    """A function of the arguments by name that counts which of these are on the device.

    The host reads the value of each.
    """
    return lambda given: sum(on_device(given.get(name)) for name in names)


aten: Final = torch.ops.aten


class OperatorCall(NamedTuple):
    """One call whose arguments are on different devices."""

    func: Any
    args: Any
    kwargs: Any
    given: dict[str, Any]  # the arguments by name


def judge_placement(func: Any, args: Any, kwargs: Any) -> Any:
    """Decide about a call whose arguments are on different devices.

    Gives ALLOWED if the call may go on, or its finished result. Raises CUDA's error if it may not.
    """
    given = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | kwargs
    facts = facts_of(func)
    if facts.placement is not None:
        decided = facts.placement(OperatorCall(func, args, kwargs, given))
        if decided is not None:
            return decided
    elif name_of(func).startswith("_foreach_"):
        return _one_by_one(func, args, kwargs)
    if not func._schema.is_mutable and any(
        t.is_meta for t in tensors_in((args, tuple(kwargs.values())))
    ):
        return _without_values(func, args, kwargs)
    if facts.check is not None:
        compare_devices(*facts.check, given)
        return ALLOWED
    if facts.output_first:
        _outputs_first(func, given)
    find_host_number(func, given, facts.strict)
    return ALLOWED


def _without_values(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of a call with a tensor of the device "meta", which has no values.

    ALLOWED where the result is not on "meta", so that the call goes on. Raises the error of torch,
    with the name of our device in it.
    """
    try:
        out = func(*inner_of(args), **{key: inner_of(value) for key, value in kwargs.items()})
    except RuntimeError as error:
        device = next(
            label_of(t) for t in tensors_in((args, tuple(kwargs.values()))) if on_device(t)
        )
        raise type(error)(re.sub(r"\bcpu\b", device, str(error))) from None
    return out if all(tensor.is_meta for tensor in tensors_in(out)) else ALLOWED


# ---- the general rules ---------------------------------------------------------------------------


def compare_devices(method: str, order: Any, given: dict[str, Any]) -> None:
    """Compare the device of every tensor with that of the first one met.

    torch's generated wrappers do this first. `order` has the arguments to look at, each with its
    name in the message. Raises RuntimeError at the first difference.
    """
    common = None
    for name, said in order:
        for tensor in tensors_in(given.get(name)):
            if common is None:
                common = tensor.device
            elif tensor.device != common:
                raise argument_elsewhere_error(said, label_of(tensor), str(common), method)


def find_host_number(func: Any, given: dict[str, Any], strict: Any = ()) -> tuple[int, str] | None:
    """The operand that is taken for a number, with its argument's name; None if there is none.

    This is the rule of TensorIterator, the part of torch that runs elementwise operators: all
    operands are on one device, but one without dimensions may be on the host. Operands are counted
    from the output, which is 0. Arguments in `strict` may not be on the host. Raises CUDA's error
    where the rule is broken.
    """
    arguments = func._schema.arguments
    written = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    outputs = [(a.name, t) for a in written for t in tensors_in(given.get(a.name))]
    inputs = [
        (a.name, t) for a in arguments if a not in written for t in tensors_in(given.get(a.name))
    ]
    # The first tensor on a device decides which one is meant.
    common = next((label_of(t) for _, t in [*outputs, *inputs] if not on_host(t)), HOST)
    for _, tensor in outputs:
        if label_of(tensor) != common:
            raise two_devices_error(common, label_of(tensor))
    # In place, the first argument is an input as well, so operands are counted from the output
    # that is made.
    before = 1 if not outputs or written[0].kwarg_only else 2
    number = None
    for operand, (name, tensor) in enumerate(inputs, before):
        if label_of(tensor) == common:
            continue
        if not on_host(tensor) or tensor.dim() > 0 or name in strict:
            raise two_devices_error(common, label_of(tensor))
        if number is not None:
            raise RuntimeError("Trying to pass too many CPU scalars to non-CPU kernel!")
        number = operand, name
    return number


def _outputs_first(func: Any, given: dict[str, Any]) -> None:
    """Raise RuntimeError if the tensors of `out=` are on another device than the first input.

    Reductions check this before TensorIterator looks at the operands.
    """
    written = [a.name for a in func._schema.arguments if a.kwarg_only and a.alias_info is not None]
    source = next(
        (t for name, v in given.items() if name not in written for t in tensors_in(v)), None
    )
    for name in written:
        for tensor in tensors_in(given.get(name)):
            if source is not None and tensor.device != source.device:
                raise RuntimeError(
                    f"Expected out tensor to have device {label_of(source)}, but got {label_of(tensor)} instead"
                )


# ---- what the operators' own rules use -----------------------------------------------------------


def allow_anywhere(call: OperatorCall) -> Any:
    """Allow arguments on any devices."""
    return ALLOWED


def takes_no_number(call: OperatorCall) -> Any:
    """Refuse a CPU number that the checks let through, but not as a weight.

    Raises the error of CUDA's kernel, which cannot take it; else gives ALLOWED.
    """
    number = find_host_number(call.func, call.given, facts_of(call.func).strict)
    if number is not None and number[1] not in ("weight", "tensor2"):
        raise RuntimeError(
            'iter.device(arg).is_cuda() INTERNAL ASSERT FAILED at "/pytorch/aten/src/ATen/native/cuda/Loops.cuh":'
            f"109, please report a bug to PyTorch. argument {number[0]}: expected a CUDA device but found cpu"
        )
    return ALLOWED


def record_crossing(source: Any, target: Any) -> None:
    """Record that CUDA copies `source` to the device of `target`, for which the host waits."""
    if label_of(source) == label_of(target):
        return
    plain = source if on_host(source) else source._inner
    direction: Direction = "between_devices"
    if on_host(source):
        direction = "to_device"
    elif on_host(target):
        direction = "to_host"
    record_copy(direction, plain, False, False, label_of(source), label_of(target))


def inner_of(value: Any) -> Any:
    """A value with the CPU tensors that are inside the device's, also in lists and tuples."""
    if type(value) in VIRTUAL:
        return value._inner
    if isinstance(value, (list, tuple)):
        return type(value)([inner_of(item) for item in value])
    return value


def result_beside(call: OperatorCall, base: Any) -> Any:
    """The result of a call whose result belongs where `base` is.

    If that is the host, the call is run here, since the dispatcher would put the result on the
    device. Otherwise ALLOWED.
    """
    if not on_host(base):
        return ALLOWED
    func, args, kwargs, _ = call
    out = call_of(func)(*inner_of(args), **{key: inner_of(value) for key, value in kwargs.items()})
    if (count_waits := waits_of(func)) is not None:
        count_waits(args, kwargs)
    return out


# ---- lists of tensors ----------------------------------------------------------------------------


def _one_by_one(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of `_foreach_*` for lists that mix devices, run element by element.

    This is torch's slow path. Raises what the single operators raise.
    """
    packet = name_of(func)
    overload = func._overloadname
    single = facts_of(func).single or f"{packet.removeprefix('_foreach_')}.Tensor"
    run = operator.attrgetter(single)(aten)
    # One tensor for all elements must be on the host or on their device.
    first = next(value for value in args if isinstance(value, (list, tuple)))
    other = args[1] if overload == "Tensor" and len(args) > 1 else None
    if isinstance(other, torch.Tensor) and len({label_of(t) for t in first}) == 1:
        where = label_of(first[0])
        if not on_host(other) and label_of(other) != where:
            raise RuntimeError(
                f"scalar tensor is expected to be on {where} but is on {label_of(other)}"
            )
    # Elements whose tensors are on one device go to the operator itself, others to the single one.
    results = []
    for position in range(len(first)):
        element = [
            [value[position]] if isinstance(value, (list, tuple)) else value for value in args
        ]
        if len({label_of(tensor) for tensor in tensors_in(element)}) == 1:
            out = func(*element, **kwargs)
            results.append(out[0] if out else None)
            continue
        alone = [value[0] if isinstance(value, list) else value for value in element]
        if packet.startswith("_foreach_addc"):  # the factor is named there
            value = alone[3] if len(alone) > 3 else kwargs.get("value", 1)
            results.append(run(*alone[:3], value=value))
        else:
            results.append(run(*alone, **kwargs))
    return None if packet.endswith("_") else results
