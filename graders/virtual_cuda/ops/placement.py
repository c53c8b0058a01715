"""Where the arguments of operators may be, and when the host waits for the device."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
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
from virtual_cuda.ledger.names import WaitKind
from virtual_cuda.ledger.rows import Direction, SyncRow, TransferRow
from virtual_cuda.ops.registry import ALLOWED, call_of, facts_of, name_of
from virtual_cuda.recorder import site, tensors_in

HOST: Final = "cpu"
WARNING: Final = "called a synchronizing CUDA operation"


def record_waits(
    kind: WaitKind,
    times: int = 1,
    explicit: bool = False,
    warned: bool | None = None,
    where: Any = None,
) -> None:
    """Record that the host waited, and warn or raise as `torch.cuda.set_sync_debug_mode` asks.

    `kind` is the ledger's name for the wait, `times` how often the host waited, `where` the code
    object and instruction offset of the line, if known. That mode accepts
    `torch.cuda.synchronize()`, which says what it does (`explicit`), but not a stream's; `warned`
    overrides this. Raises RuntimeError if the mode is "error", what an observer of waits raises,
    and the assert of a kernel that has failed since the last wait: the device is lost from then on.
    """
    gpu = now.gpu
    if gpu is None:
        return
    code, offset = where or site()
    # Observers come first: they may raise.
    for called in gpu.on_wait:
        called(kind)
    device = gpu.devices[gpu.current].label
    if warned is None:
        is_debugged = not explicit
    else:
        is_debugged = warned
    for _ in range(times):
        gpu.ledger.rows.append(SyncRow(perf_counter(), code, offset, kind, explicit, device))
        if is_debugged:
            _warn_of_wait(gpu.sync_debug)
    # The host learns now of a kernel that has failed.
    if gpu.asserted:
        gpu.lost = True
        for open_device in gpu.devices:
            open_device.closed = True
        raise device_assert_error()


def _warn_of_wait(mode: int) -> None:
    """Do what `torch.cuda.set_sync_debug_mode` asks for a wait: nothing (0), warn (1) or raise (2).

    Raises RuntimeError.
    """
    if mode == 2:
        raise RuntimeError(WARNING)
    if mode:
        warn(WARNING)


def record_copy(
    tensor: torch.Tensor,
    source: str,
    target: str,
    *,
    pinned: bool = False,
    non_blocking: bool = False,
    wait: WaitKind = "copy",
    where: Any = None,
) -> None:
    """Record one copy between host and device, or between devices.

    `tensor` is what is copied; `source` and `target` are HOST or the labels of devices; `where` is
    the code object and instruction offset of the line, if known. The host waits for every copy that
    it did not ask to be asynchronous; that is recorded, too, as `wait`. Empty tensors are not
    recorded. Raises RuntimeError at a wait that is refused or tells of a failed kernel, and what an
    observer of waits raises.
    """
    gpu = now.gpu
    if gpu is None or tensor.nbytes == 0:
        return  # nothing is copied, so nobody waits
    # The copy itself, then the wait for it.
    code, offset = where or site()
    row = TransferRow(
        at=perf_counter(),
        code=code,
        offset=offset,
        direction=direction_of_copy(source, target),
        bytes=tensor.nbytes,
        pinned=pinned,
        non_blocking=bool(non_blocking),
        source=source,
        target=target,
    )
    gpu.ledger.rows.append(row)
    if not non_blocking and HOST in (source, target):
        record_waits(wait, where=(code, offset))


def direction_of_copy(source: str, target: str) -> Direction:
    """The direction of a copy from one label to another."""
    if source == HOST:
        return "to_device"
    if target == HOST:
        return "to_host"
    return "between_devices"


def waits_of(func: Any) -> Callable[[Any, Any], None] | None:
    """A function(args, kwargs) that records the waits which a call of this operator has caused.

    It raises RuntimeError at a wait that is refused or tells of a failed kernel. None for an
    operator that never makes the host wait.
    """
    waits = facts_of(func).waits
    if waits is None:
        return None
    kind, count = waits
    if not callable(count):
        return lambda args, kwargs: record_waits(kind, count)
    names = [argument.name for argument in func._schema.arguments]

    def record_counted_waits(args: Any, kwargs: Any) -> None:
        """Record as many waits as there are for these arguments.

        Raises RuntimeError at a wait that is refused or tells of a failed kernel.
        """
        given = dict(zip(names, args, strict=False)) | kwargs
        times = count(given)
        if times:
            record_waits(kind, times)

    return record_counted_waits


# ---- counts that several families use; each takes the arguments by name --------------------------


def on_device(value: Any) -> bool:
    """True for a tensor of a virtual device."""
    return type(value) in VIRTUAL


def on_host(value: Any) -> bool:
    """True for a tensor that is not on a virtual device."""
    if not isinstance(value, torch.Tensor):
        return False
    return type(value) not in VIRTUAL


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

    Gives ALLOWED if the call may go on, or its finished result. The operator's own rule may record
    copies and waits. Raises CUDA's error if the call may not go on, and RuntimeError at a wait that
    is refused or tells of a failed kernel.
    """
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    facts = facts_of(func)
    # The operator's own rule.
    if facts.placement is not None:
        decided = facts.placement(OperatorCall(func, args, kwargs, given))
        if decided is not None:
            return decided
    elif name_of(func).startswith("_foreach_"):
        return _run_one_by_one(func, args, kwargs)
    # The general rules.
    tensors = tensors_in((args, tuple(kwargs.values())))
    if not func._schema.is_mutable and any(tensor.is_meta for tensor in tensors):
        return _run_without_values(func, args, kwargs)
    if facts.check is not None:
        compare_devices(*facts.check, given)
        return ALLOWED
    if facts.output_first:
        _check_outputs_first(func, given)
    find_host_number(func, given, facts.strict)
    return ALLOWED


def _run_without_values(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of a call with a tensor of the device "meta", which has no values.

    ALLOWED where the result is not on "meta", so that the call goes on. Raises the RuntimeError of
    torch, with the name of our device in it.
    """
    try:
        result = func(*inner_of(args), **_inner_of_values(kwargs))
    except RuntimeError as error:
        tensors = tensors_in((args, tuple(kwargs.values())))
        on_devices = [tensor for tensor in tensors if on_device(tensor)]
        device = label_of(on_devices[0])
        text = re.sub(r"\bcpu\b", device, str(error))
        raise type(error)(text) from None
    if all(tensor.is_meta for tensor in tensors_in(result)):
        return result
    return ALLOWED


# ---- the general rules ---------------------------------------------------------------------------


def compare_devices(method: str, order: Any, given: dict[str, Any]) -> None:
    """Compare the device of every tensor with that of the first one met.

    torch's generated wrappers do this first. `order` has the arguments to look at, each with its
    name in the message; `given` are the arguments by name. Raises RuntimeError at the first
    difference.
    """
    common = None
    for name, name_in_message in order:
        for tensor in tensors_in(given.get(name)):
            if common is None:
                common = tensor.device
            elif tensor.device != common:
                found = label_of(tensor)
                raise argument_elsewhere_error(name_in_message, found, str(common), method)


def compare_devices_by_name(method: str, names: Iterable[str], given: dict[str, Any]) -> None:
    """Compare the devices of the arguments with these names, in this order.

    `method` is the C++ function that does it on CUDA, `given` are the arguments by name. Raises
    RuntimeError at the first difference.
    """
    compare_devices(method, [(name, name) for name in names], given)


class HostNumber(NamedTuple):
    """An operand on the host that is taken for a number."""

    operand: int  # counted from the output, which is 0
    argument: str  # its name


def find_host_number(func: Any, given: dict[str, Any], strict: Any = ()) -> HostNumber | None:
    """The operand on the host that is taken for a number; None if there is none.

    This is the rule of TensorIterator, the part of torch that runs elementwise operators: all
    operands are on one device, but one without dimensions may be on the host. `given` are the
    arguments by name; those in `strict` may not be on the host. Raises CUDA's RuntimeError where
    the rule is broken.
    """
    arguments = func._schema.arguments
    written = [each for each in arguments if _is_written(each)]
    read = [each for each in arguments if not _is_written(each)]
    outputs = _tensors_of_arguments(written, given)
    inputs = _tensors_of_arguments(read, given)
    # The first tensor on a device decides which one is meant.
    common = HOST
    for _, tensor in [*outputs, *inputs]:
        if not on_host(tensor):
            common = label_of(tensor)
            break
    for _, tensor in outputs:
        if label_of(tensor) != common:
            raise two_devices_error(common, label_of(tensor))
    # In place, the first argument is an input as well, so operands are counted from the output
    # that is made.
    first_input = 2
    if not outputs or written[0].kwarg_only:
        first_input = 1
    number = None
    for operand, (name, tensor) in enumerate(inputs, first_input):
        if label_of(tensor) == common:
            continue
        if not on_host(tensor) or tensor.dim() > 0 or name in strict:
            raise two_devices_error(common, label_of(tensor))
        if number is not None:
            raise RuntimeError("Trying to pass too many CPU scalars to non-CPU kernel!")
        number = HostNumber(operand, name)
    return number


def _is_written(argument: Any) -> bool:
    """True for an argument of a schema that the operator writes to."""
    if argument.alias_info is None:
        return False
    return bool(argument.alias_info.is_write)


def _tensors_of_arguments(arguments: Any, given: dict[str, Any]) -> list[tuple[str, Any]]:
    """The tensors given for these arguments of a schema, each after its argument's name."""
    pairs = []
    for argument in arguments:
        for tensor in tensors_in(given.get(argument.name)):
            pairs.append((argument.name, tensor))
    return pairs


def _check_outputs_first(func: Any, given: dict[str, Any]) -> None:
    """Raise RuntimeError if the tensors of `out=` are on another device than the first input.

    Reductions check this before TensorIterator looks at the operands. `given` are the arguments by
    name.
    """
    outputs: list[Any] = []
    inputs: list[Any] = []
    for argument in func._schema.arguments:
        tensors = tensors_in(given.get(argument.name))
        if argument.kwarg_only and argument.alias_info is not None:
            outputs.extend(tensors)
        else:
            inputs.extend(tensors)
    if not inputs:
        return
    source = inputs[0]
    for tensor in outputs:
        if tensor.device != source.device:
            raise RuntimeError(
                f"Expected out tensor to have device {label_of(source)}, "
                f"but got {label_of(tensor)} instead"
            )


# ---- what the operators' own rules use -----------------------------------------------------------


def allow_anywhere(call: OperatorCall) -> Any:
    """Allow arguments on any devices."""
    return ALLOWED


def takes_no_number(call: OperatorCall) -> Any:
    """Refuse a CPU number that the checks let through, but not as a weight.

    Raises the RuntimeError of CUDA's kernel, which cannot take it; else gives ALLOWED. Raises
    RuntimeError also for operands on two devices.
    """
    strict = facts_of(call.func).strict
    number = find_host_number(call.func, call.given, strict)
    if number is not None and number.argument not in ("weight", "tensor2"):
        raise RuntimeError(
            "iter.device(arg).is_cuda() INTERNAL ASSERT FAILED at "
            '"/pytorch/aten/src/ATen/native/cuda/Loops.cuh":109, please report a bug to PyTorch. '
            f"argument {number.operand}: expected a CUDA device but found cpu"
        )
    return ALLOWED


def record_crossing(source: Any, target: Any) -> None:
    """Record that CUDA copies `source` to the device of `target`, for which the host waits.

    Nothing is recorded where both are on one device. Raises RuntimeError at a wait that is refused
    or tells of a failed kernel.
    """
    if label_of(source) == label_of(target):
        return
    if on_host(source):
        inner = source
    else:
        inner = source._virtual_inner
    record_copy(inner, label_of(source), label_of(target))


def inner_of(value: Any) -> Any:
    """A value with the CPU tensors that are inside the device's, also in lists and tuples."""
    if type(value) in VIRTUAL:
        return value._virtual_inner
    if isinstance(value, (list, tuple)):
        return type(value)([inner_of(item) for item in value])
    return value


def _inner_of_values(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name with the CPU tensors that are inside the device's."""
    return {key: inner_of(value) for key, value in kwargs.items()}


def result_beside(call: OperatorCall, base: Any) -> Any:
    """The result of a call whose result belongs where `base` is.

    If that is the host, the call is run here, and its waits are recorded, since the dispatcher
    would put the result on the device. Otherwise ALLOWED. Raises what the CPU's kernel raises, and
    RuntimeError at a wait that is refused or tells of a failed kernel.
    """
    if not on_host(base):
        return ALLOWED
    func = call.func
    args = inner_of(call.args)
    kwargs = _inner_of_values(call.kwargs)
    result = call_of(func)(*args, **kwargs)
    count_waits = waits_of(func)
    if count_waits is not None:
        count_waits(call.args, call.kwargs)
    return result


# ---- lists of tensors ----------------------------------------------------------------------------


def _run_one_by_one(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of `_foreach_*` for lists that mix devices, run element by element.

    On a GPU torch does the same. Which overload of a single operator runs, its arguments say.
    Raises what the single operators raise.
    """
    name = name_of(func)
    takes_factors = name.startswith("_foreach_addc")
    if takes_factors and func._overloadname == "Tensor":
        numbers = _numbers_in(args[3], len(args[0]))
        return getattr(aten, name).ScalarList(*args[:3], numbers)
    single_name = facts_of(func).single or name.removeprefix("_foreach_")
    first_list = next(value for value in args if isinstance(value, (list, tuple)))
    if func._overloadname == "Tensor" and len(args) > 1:
        _check_scalar_tensor(first_list, args[1])
    results = []
    for position in range(len(first_list)):
        lists = [_list_of_one(value, position) for value in args]
        labels = {label_of(tensor) for tensor in tensors_in(lists)}
        # With its tensors on one device, an element goes to the operator itself.
        if len(labels) == 1:
            result = func(*lists, **kwargs)
            results.append(result[0] if result else None)
            continue
        operands = [_value_in_list_of_one(value) for value in lists]
        named = kwargs
        if takes_factors and len(operands) > 3:
            named = {"value": operands.pop()}  # the factor, which the single operator has by name
        results.append(getattr(aten, single_name)(*operands, **named))
    if name.endswith("_"):
        return None
    return results


def _list_of_one(value: Any, position: int) -> Any:
    """A list with one element of a list or tuple; any other value as it is."""
    if isinstance(value, (list, tuple)):
        return [value[position]]
    return value


def _value_in_list_of_one(value: Any) -> Any:
    """The element of a list with one; any other value as it is."""
    if isinstance(value, list):
        return value[0]
    return value


def refuse_factors(args: Any, kwargs: Any) -> None:
    """Raise RuntimeError for factors of `_foreach_addcmul` or its kin that are no list of numbers.

    `args` are three lists of tensors, and a tensor of factors.
    """
    _numbers_in(args[3], len(args[0]))


def _numbers_in(factors: Any, count: int) -> list[Any]:
    """The numbers in a tensor that has one for each of the `count` elements of a list.

    Raises RuntimeError for one that is not on the host, not contiguous, has not one dimension, or
    has another length.
    """
    if not on_host(factors):
        raise RuntimeError(f"Expected scalars to be on CPU, got {label_of(factors)} instead.")
    if not factors.is_contiguous():
        raise RuntimeError("Expected scalars to be contiguous.")
    if factors.dim() != 1:
        raise RuntimeError(
            f"Expected packed scalar Tensor to be of dimension 1. Got {factors.dim()} instead."
        )
    numbers: list[Any] = factors.tolist()
    if len(numbers) != count:
        raise RuntimeError(
            f"Expected length of scalars to match input of length {count} "
            f"but got {len(numbers)} instead."
        )
    return numbers


def _check_scalar_tensor(tensors: Any, scalar: Any) -> None:
    """Raise RuntimeError for one tensor that serves all elements of a list and is elsewhere.

    It may be on the host or on the device of the list, if that is one.
    """
    labels = {label_of(tensor) for tensor in tensors}
    if not isinstance(scalar, torch.Tensor) or on_host(scalar) or len(labels) != 1:
        return
    expected = label_of(tensors[0])
    if label_of(scalar) != expected:
        raise RuntimeError(
            f"scalar tensor is expected to be on {expected} but is on {label_of(scalar)}"
        )
