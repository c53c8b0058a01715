"""Plans: the one way on which every operator runs, made once for each operator.

A plan is a function(args, kwargs) that `Tensor.__torch_dispatch__` calls. It is made from the
operator's schema, which is torch's list of its arguments and results, and from its entry in the
registry. Most operators have one of a few forms, and a plan that looks only at what this form can
have: two tensors, a list of tensors, … Where the arguments turn out to be others, on two devices
for instance, a plan hands the call to `run_any` of `dispatch.py`, which can run all operators.

A plan does what `run_any` does: it calls the CPU's kernel with the inner tensors, which are the CPU
tensors inside of device tensors, allocates memory for the results, wraps them and records the
operation. So it raises what `run_any` raises. A kernel of the CPU may raise anything, which CUDA
might compute or refuse in other words: `handle_cpu_error` gets every exception, and decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.device.known_values import read_values
from virtual_cuda.device.state import VirtualDevice
from virtual_cuda.device.tensor import AUTOCAST, PLANS, VIRTUAL, update_shell, wrap
from virtual_cuda.internals import COMPOSITE, dispatch_also_to, find_internal, has_kernel
from virtual_cuda.ops.cpu_errors import handle_cpu_error
from virtual_cuda.ops.dispatch import (
    allocate,
    closed_device_error,
    put_on_device,
    record_operation,
    refuse_if_too_large,
    run_any,
    thread_state,
    work_of,
    wrap_result,
)
from virtual_cuda.ops.library_operators import run_library_operator
from virtual_cuda.ops.placement import on_host
from virtual_cuda.ops.registry import call_of, facts_of, name_of
from virtual_cuda.ops.rules import Rules, rules_of
from virtual_cuda.ops.workspaces import plan_with_workspaces

Plan = Callable[[Any, Any], Any]  # function(args, kwargs) -> results

_STRIDED: Final = torch.strided
_NUMBERS: Final = (int, float, bool)
_increment_version: Final = find_internal(
    "torch._C._increment_version", otherwise=lambda tensors: None
)
# Results of more elements are tried on the meta device first: the host might not have the memory
# to find out that the device has not.
_MANY_ELEMENTS: Final = 1 << 27


# ---- what operators look at ----------------------------------------------------------------------


def _elements_of_product(left: torch.Tensor, right: torch.Tensor) -> int:
    """How many elements a matrix product has; 0 for vectors."""
    if left.dim() < 2 or right.dim() < 2:
        return 0
    depth = max(left.shape[-1], 1)
    rows = left.numel() // depth
    columns = right.shape[-1]
    return rows * columns


def _elements_of_broadcast(left: Any, right: Any) -> int:
    """How many elements two shapes have when each is stretched to the other."""
    elements = 1
    for pair in zip_longest(reversed(left), reversed(right), fillvalue=1):
        elements *= max(pair)
    return elements


# Operators for which it matters how the channels lie, and how many of their first arguments tell.
_TENSORS_WITH_CHANNELS: Final = {
    "convolution": 2,
    "convolution_backward": 3,
    "native_batch_norm": 1,
    "native_batch_norm_backward": 2,
}


def _channels_if_last(count: int, args: Any) -> tuple[int, ...]:
    """The dimension of the channels, (1,), if they lie last in memory in one of the arguments.

    Looks at the first `count` arguments; gives () if the channels come before the pixels.
    """
    for tensor in args[:count]:
        if tensor is None or tensor.dim() < 4 or tensor.shape[1] == 1:
            continue
        if tensor.stride(1) == 1 and math.prod(tensor.shape[2:]) > 1:
            return (1,)
    return ()


# Matrix products, whose rows in memory tensor cores want to begin at multiples of so many elements.
# By name: which argument is the first of the two matrices.
_PRODUCTS: Final = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
_ALIGNMENT: Final = 8


def _one_if_misaligned(first: int, args: Any) -> tuple[int, ...]:
    """(1,) if a matrix of a product in half precision has rows that tensor cores cannot copy.

    `first` is the position of the first of the two matrices. A row is what lies together in memory;
    the columns of the last matrix are those of the result.
    """
    left, right = args[first : first + 2]
    if left.element_size() != 2:
        return ()
    lengths = [right.shape[-1]]
    for matrix in (left, right):
        lengths.append(max(matrix.stride()[-2:]))
    if any(length % _ALIGNMENT for length in lengths):
        return (1,)
    return ()


def _strided_dim_of(func: Any) -> Callable[[Any], tuple[int, ...]] | None:
    """A function(args) that gives the dimension an operator works along, if not the last.

    The clock wants to know: the memory of other dimensions is read in strides. None for operators
    without such an argument.
    """
    if name_of(func) in _TENSORS_WITH_CHANNELS:
        return partial(_channels_if_last, _TENSORS_WITH_CHANNELS[name_of(func)])
    if name_of(func) in _PRODUCTS:
        return partial(_one_if_misaligned, _PRODUCTS[name_of(func)])
    # Find the argument `dim`; the first argument is the tensor, so 0 means there is none.
    types = ("int", "List[int]", "Optional[int]", "Optional[List[int]]")
    position = 0
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == "dim" and str(argument.type) in types:
            position = index
            break
    if position == 0:
        return None

    def strided_dim(args: Any) -> tuple[int, ...]:
        """The first dimension, in a tuple; () if all are meant or the last is among them."""
        if len(args) <= position:
            return ()
        dims = args[position]
        if type(dims) not in (list, tuple):
            dims = (dims,)
        last = args[0].dim() - 1
        for dim in dims:
            if dim is None or dim == -1 or dim == last:
                return ()
        return tuple(dims[:1])

    return strided_dim


# ---- plans for a single operator -----------------------------------------------------------------


def _plan_item(func: Any, rules: Rules) -> Plan:
    """The plan of `item()`, the one operator whose result is a Python number.

    A plan is a function(args, kwargs) that runs the operator.
    """
    name = rules.name
    count_waits = rules.count_waits
    assert count_waits is not None

    def run_item(args: Any, kwargs: Any) -> Any:
        """Give the number; record the operation and the wait of the host.

        In a run without values, a number that is not certain is noted for the report. Raises
        torch's RuntimeError for a tensor with several elements and at a wait that is refused or
        tells of a failed kernel, and DeviceClosed or the error of what ended the device.
        """
        first = args[0]
        device = first._virtual_block.device
        if device.closed:
            raise closed_device_error(device)
        inner = first._virtual_inner
        if inner.numel() == 1 and inner.is_meta:
            value = read_values(inner).item()
        elif inner.numel() == 1:
            value = inner.item()
        else:
            value = func(inner)  # refuses
        record_operation(name, device, 0)
        count_waits(args, {})
        return value

    return run_item


def _plan_detach(func: Any, rules: Rules) -> Plan:
    """The plan of `detach`: another device tensor around the same inner tensor.

    It is not recorded: autograd detaches what it saves, which for plain tensors never reaches a
    dispatcher. Operators that change a tensor's shape in place unshare the inner tensor first.
    """

    def run_detach(args: Any, kwargs: Any) -> Any:
        """Give a device tensor that shares the inner tensor and the block.

        Raises DeviceClosed, or the error of what ended the device, for a tensor whose device is no
        longer open.
        """
        first = args[0]
        if type(first) not in VIRTUAL:
            return run_any(func, args, kwargs)
        inner = first._virtual_inner
        if inner.layout is not _STRIDED:
            return run_any(func, args, kwargs)
        block = first._virtual_block
        if block.device.closed:
            raise closed_device_error(block.device)
        return wrap(inner, block)

    return run_detach


def _plan_like(func: Any, rules: Rules) -> Plan:
    """The plan of `zeros_like` and its kin where the result stays on the device.

    Calls that ask for more, such as another device, are rare: `run_any` runs them.
    """
    name = rules.name
    call = rules.call

    def run_like(args: Any, kwargs: Any) -> Any:
        """Give a new tensor, and record the operation; calls of another form are left to `run_any`.

        Raises torch's OutOfMemoryError, what CUDA raises, and DeviceClosed or the error of what
        ended the device.
        """
        first = args[0]
        if type(first) not in VIRTUAL or len(args) > 1:
            return run_any(func, args, kwargs)
        if kwargs.get("layout") not in (None, _STRIDED):
            return run_any(func, args, kwargs)
        device = first._virtual_block.device
        # Options that change nothing are left out; another device is not for this plan.
        options = {}
        for key, value in kwargs.items():
            if key == "device":
                if value is not None and value != device.lazy:
                    return run_any(func, args, kwargs)
            elif key != "pin_memory" and value is not None:
                options[key] = value
        inner = first._virtual_inner
        if device.closed or inner.layout is not _STRIDED:
            return run_any(func, args, kwargs)
        return put_on_device(call(inner, **options), device, name)

    return run_like


# ---- plans for operators of one form -------------------------------------------------------------


def _plan_view(func: Any, rules: Rules) -> Plan:
    """The plan of an operator that gives a view of one tensor.

    A plan is a function(args, kwargs) that runs the operator `func`.
    """
    name = rules.name
    call_for_complex = rules.call
    call_for_real = call_of(func)  # without the care that conjugated numbers need

    def run_view(args: Any, kwargs: Any) -> Any:
        """Give a view that shares the block; record the operation.

        Raises what CUDA raises, DeviceClosed or the error of what ended the device, and NeedsValues
        in a run without values.
        """
        first = args[0]
        if type(first) not in VIRTUAL:
            return run_any(func, args, kwargs)
        block = first._virtual_block
        inner = first._virtual_inner
        device = block.device
        if device.closed:
            raise closed_device_error(device)
        if inner.dtype.is_complex:
            call = call_for_complex
        else:
            call = call_for_real
        inputs = [inner, *args[1:]]
        try:
            result = call(*inputs, **kwargs)
        except Exception as error:
            result = handle_cpu_error(func, inputs, kwargs, device, error)
        record_operation(name, device, 0)
        return wrap(result, block)

    return run_view


def _plan_one_tensor(func: Any, call: Any) -> Plan:
    """The plan of an operator that makes one new tensor from one.

    `call` computes the result from inner tensors.
    """
    name = str(func)
    is_copy = func is torch.ops.aten.clone.default
    is_pointwise = torch.Tag.pointwise in func.tags
    strided_dim = _strided_dim_of(func)

    def run_on_one(args: Any, kwargs: Any) -> Any:
        """Give the new tensor; record the operation.

        Raises what CUDA raises, torch's OutOfMemoryError, DeviceClosed or the error of what ended
        the device, and NeedsValues in a run without values.
        """
        first = args[0]
        if type(first) not in VIRTUAL:
            return run_any(func, args, kwargs)
        device = first._virtual_block.device
        if device.closed:
            raise closed_device_error(device)
        inner = first._virtual_inner
        inputs = [inner, *args[1:]]
        if inner.numel() > _MANY_ELEMENTS:
            refuse_if_too_large(func, inputs, kwargs, device)
        try:
            result = call(*inputs, **kwargs)
        except Exception as error:
            result = handle_cpu_error(func, inputs, kwargs, device, error)
        # Record the shapes that the clock needs.
        if strided_dim is not None:
            return put_on_device(result, device, name, inner.shape, *strided_dim(args))
        if is_pointwise and not is_copy:
            return put_on_device(result, device, name)
        # The clock takes a copy with the same strides, without a shape, for no kernel.
        if is_copy and inner.stride() == result.stride():
            return put_on_device(result, device, name)
        return put_on_device(result, device, name, inner.shape)

    return run_on_one


def _plan_two_tensors(func: Any, call: Any) -> Plan:
    """The plan of an operator that makes one new tensor from two, or from one and a number.

    `call` computes the result from inner tensors.
    """
    name = str(func)
    strided_dim = _strided_dim_of(func)
    run_with_number = partial(_run_with_number, func, name, call)

    def run_on_two(args: Any, kwargs: Any) -> Any:
        """Give the new tensor; record the operation.

        Raises what CUDA raises, torch's OutOfMemoryError, DeviceClosed or the error of what ended
        the device, and NeedsValues in a run without values.
        """
        # Leave calls of another form to others.
        if len(args) < 2:
            return run_any(func, args, kwargs)
        first = args[0]
        second = args[1]
        if type(second) in _NUMBERS:
            return run_with_number(args, kwargs)
        if type(first) not in VIRTUAL or type(second) not in VIRTUAL:
            return run_any(func, args, kwargs)
        device = first._virtual_block.device
        if second._virtual_block.device is not device:
            return run_any(func, args, kwargs)
        if device.closed:
            raise closed_device_error(device)
        # Compute on the host, after a look at the size of the result.
        inputs = [first._virtual_inner, second._virtual_inner, *args[2:]]
        left_shape = inputs[0].shape
        right_shape = inputs[1].shape
        is_stretched = left_shape != right_shape
        if is_stretched and _elements_of_broadcast(left_shape, right_shape) > _MANY_ELEMENTS:
            refuse_if_too_large(func, inputs, kwargs, device)
        try:
            result = call(*inputs, **kwargs)
        except Exception as error:
            result = handle_cpu_error(func, inputs, kwargs, device, error)
        if strided_dim is None:
            return put_on_device(result, device, name, left_shape, right_shape)
        dims = strided_dim(args)
        return put_on_device(result, device, name, left_shape, right_shape, *dims)

    return run_on_two


def _run_with_number(func: Any, name: str, call: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator of two tensors on one tensor and a number, and record it; gives its result.

    `call` computes the result from inner tensors; `name` is the operator's in the ledger. Raises
    what CUDA raises, torch's OutOfMemoryError, DeviceClosed or the error of what ended the device,
    and NeedsValues in a run without values.
    """
    first = args[0]
    if type(first) not in VIRTUAL:
        return run_any(func, args, kwargs)
    device = first._virtual_block.device
    inner = first._virtual_inner
    if inner.layout is not _STRIDED or device.closed:
        return run_any(func, args, kwargs)
    inputs = [inner, *args[1:]]
    try:
        result = call(*inputs, **kwargs)
    except Exception as error:
        result = handle_cpu_error(func, inputs, kwargs, device, error)
    if result.dtype is inner.dtype:
        return put_on_device(result, device, name, inner.shape)
    # The work is told in the dtype of the argument.
    wrapped, nbytes = wrap_result(result, device, {})
    work = work_of(result, (inner,))
    record_operation(name, device, nbytes, work)
    return wrapped


def _plan_changed_tensor(func: Any, rules: Rules, slots: tuple[int, ...]) -> Plan:
    """The plan of an operator that changes its first tensor in place and returns it.

    `slots` are the positions of the tensors among the arguments; all are on one device.
    """
    name = rules.name
    is_product = facts_of(func).product
    reshapes = torch.Tag.inplace_view in func.tags
    strided_dim = _strided_dim_of(func)

    def run_in_place(args: Any, kwargs: Any) -> Any:
        """Change and return the first argument; record the operation and its waits.

        Raises what CUDA raises, torch's OutOfMemoryError, RuntimeError at a wait that is refused
        or tells of a failed kernel, NeedsValues in a run without values, and DeviceClosed or the
        error of what ended the device.
        """
        # Leave calls of another form to `run_any`.
        opened = _open_tensors(args, slots, numbers_allowed=True)
        if opened is None:
            return run_any(func, args, kwargs)
        device = opened.device
        inner = opened.inner
        first = args[0]
        if opened.has_number and inner[0].layout is not _STRIDED:
            return run_any(func, args, kwargs)
        if device.closed:
            raise closed_device_error(device)
        if reshapes:  # other device tensors may share the inner one
            inner[0] = first._virtual_inner = inner[0].detach()
        _call_kernel(func, rules, args, kwargs, opened, is_product)
        # Record it, with the shapes that the clock needs.
        if opened.has_number:
            work = work_of(inner[0], inner)
        else:
            work = (first.dtype, None, *opened.shapes_at(slots))
            if strided_dim is not None:
                work += strided_dim(args)
        record_operation(name, device, 0, work)
        if rules.count_waits is not None:
            rules.count_waits(args, kwargs)
        if reshapes:
            update_shell(first)
        return first

    return run_in_place


def _plan_new_tensors(func: Any, rules: Rules, slots: tuple[int, ...]) -> Plan:
    """The plan of an operator that makes one new tensor or several.

    `slots` are the positions of the tensors among the arguments; all are on one device.
    """
    name = rules.name
    is_product = facts_of(func).product
    is_front = facts_of(func).front
    is_single = len(func._schema.returns) == 1
    strided_dim = _strided_dim_of(func)

    def run_for_new(args: Any, kwargs: Any) -> Any:
        """Give the new tensor, or a tuple of several; record the operation and its waits.

        Raises what CUDA raises, torch's OutOfMemoryError, RuntimeError at a wait that is refused or
        tells of a failed kernel, NeedsValues in a run without values, and DeviceClosed or the error
        of what ended the device.
        """
        opened = _open_tensors(args, slots, numbers_allowed=False)
        if opened is None:
            return run_any(func, args, kwargs)
        device = opened.device
        if device.closed:
            raise closed_device_error(device)
        results = _call_kernel(func, rules, args, kwargs, opened, is_product)
        shapes = opened.shapes_at(slots)
        if strided_dim is not None:
            shapes += strided_dim(args)
        if rules.output is not None:
            results = rules.output(opened.inner, kwargs, results)
        # Put the results on the device, which records the operation.
        wrapped: Any
        if is_single and is_front:
            wrapped = _put_all_on_device((results,), device, name, shapes)[0]
        elif is_single:
            wrapped = put_on_device(results, device, name, *shapes)
        else:
            wrapped = _put_all_on_device(results, device, name, shapes)
        if rules.count_waits is not None:
            rules.count_waits(args, kwargs)
        return wrapped

    return run_for_new


class _Opened(NamedTuple):
    """The arguments of an operator with inner tensors in the place of device tensors."""

    device: VirtualDevice
    inner: list[Any]
    has_number: bool = False  # whether there is a number where a tensor could be

    def shapes_at(self, slots: tuple[int, ...]) -> list[Any]:
        """The shapes of the tensors at these positions; positions without a tensor are left out."""
        inner = self.inner
        shapes = []
        for slot in slots:
            tensor = None
            if slot < len(inner):
                tensor = inner[slot]
            if tensor is not None:
                shapes.append(tensor.shape)
        return shapes


def _open_tensors(args: Any, slots: tuple[int, ...], numbers_allowed: bool) -> _Opened | None:
    """The arguments, with the tensors at these positions opened.

    None unless all are on one device; positions that hold None are skipped, and numbers if allowed.
    The arguments themselves stay as they are.
    """
    device = None
    has_number = False
    inner = [*args]
    for slot in slots:
        if slot >= len(inner):
            break
        tensor = inner[slot]
        if type(tensor) in VIRTUAL:
            if tensor._virtual_block.device is not device:
                if device is not None:
                    return None
                device = tensor._virtual_block.device
            inner[slot] = tensor._virtual_inner
        elif numbers_allowed and type(tensor) in _NUMBERS:
            has_number = True
        elif tensor is not None:
            return None
    if device is None:
        return None
    return _Opened(device, inner, has_number)


def _call_kernel(
    func: Any, rules: Rules, args: Any, kwargs: Any, opened: _Opened, is_product: bool
) -> Any:
    """Refuse what CUDA refuses, and return what the kernel computes from the inner tensors.

    `args` and `kwargs` are the arguments of the call, `opened` those by position with inner
    tensors. For a matrix product, the last two are its factors. After a bad index the open GPU is
    marked: the next wait of the host raises. Raises what CUDA raises, also torch's
    OutOfMemoryError, and NeedsValues in a run without values.
    """
    inner = opened.inner
    if rules.refuse is not None:
        rules.refuse(args, kwargs)
    if is_product:
        left, right = inner[-2:]
        if _elements_of_product(left, right) > _MANY_ELEMENTS:
            refuse_if_too_large(func, inner, kwargs, opened.device)
    try:
        return rules.call(*inner, **kwargs)
    except Exception as error:
        return handle_cpu_error(func, inner, kwargs, opened.device, error)


def _put_all_on_device(
    results: Any, device: VirtualDevice, name: str, shapes: list[Any]
) -> tuple[Any, ...]:
    """The results of one operator as device tensors; the operation is recorded.

    Results that are no CPU tensors stay as they are. `shapes` are those of the arguments, for the
    clock. Raises torch's OutOfMemoryError.
    """
    wrapped: list[Any] = []
    nbytes = 0
    dtype = None
    for result in results:
        if not on_host(result):
            wrapped.append(result)
            continue
        size = result.untyped_storage().nbytes()  # it may be the front of a longer buffer
        nbytes += size
        dtype = dtype or result.dtype
        block = allocate(device, size)
        wrapped.append(wrap(result, block))
    first = results[0]
    first_shape = None
    if on_host(first):
        first_shape = first.shape
    work = (dtype, first_shape, *shapes)
    record_operation(name, device, nbytes, work)
    return tuple(wrapped)


# ---- lists of tensors ----------------------------------------------------------------------------


def _open_lists(args: Any, slots: Sequence[int]) -> _Opened | None:
    """The arguments, with the lists of tensors at these positions opened.

    None unless all tensors are on one device.
    """
    device = None
    inner = [*args]
    for slot in slots:
        if slot >= len(inner):
            break
        tensors = inner[slot]
        if type(tensors) is not list and type(tensors) is not tuple:
            return None
        opened = []
        for tensor in tensors:
            if type(tensor) not in VIRTUAL:
                return None
            if tensor._virtual_block.device is not device:
                if device is not None:
                    return None
                device = tensor._virtual_block.device
            opened.append(tensor._virtual_inner)
        inner[slot] = opened
    if device is None:
        return None
    return _Opened(device, inner)


def _plan_lists(func: Any, call: Any, slots: tuple[int, ...]) -> Plan:
    """The plan of `_foreach_*`, operators on lists of tensors.

    They give a list of new tensors, or change the first list in place. `call` computes from lists
    of inner tensors; `slots` are the positions of the lists among the arguments.
    """
    name = str(func)
    makes_tensors = bool(func._schema.returns)

    def run_on_lists(args: Any, kwargs: Any) -> Any:
        """Give a list of new tensors, or None after a change in place; record the operation.

        Raises what CUDA raises, torch's OutOfMemoryError, DeviceClosed or the error of what ended
        the device, and NeedsValues in a run without values.
        """
        opened = _open_lists(args, slots)
        if opened is None:
            return run_any(func, args, kwargs)
        device = opened.device
        inner = opened.inner
        if device.closed:
            raise closed_device_error(device)
        try:
            results = call(*inner, **kwargs)
        except Exception as error:
            results = handle_cpu_error(func, inner, kwargs, device, error)
        # Record it as one operation; a change in place makes nothing new.
        first_list = inner[slots[0]]
        shapes = [tensor.shape for tensor in first_list]
        work = (first_list[0].dtype, None, *shapes)
        if not makes_tensors:
            _increment_version(args[slots[0]])  # as torch does for a list that is changed in place
            record_operation(name, device, 0, work)
            return None
        wrapped = []
        nbytes = 0
        for result in results:
            block = allocate(device, result.nbytes)
            wrapped.append(wrap(result, block))
            nbytes += result.nbytes
        record_operation(name, device, nbytes, work)
        return wrapped

    return run_on_lists


# ---- the choice ----------------------------------------------------------------------------------


def plan_by_hand(function: Any, func: Any) -> Plan:
    """A plan that calls function(func, args, kwargs)."""
    return partial(function, func)


def _plan_parts(func: Any) -> Plan:
    """The plan of `to`, `item`, `linear`, …: operators that C++ makes of others.

    Autograd takes them apart; in inference mode they arrive whole. C++ takes them apart here, too:
    `func.decompose` prefers versions in Python, which a GPU never runs, and some import sympy. What
    arrives here has left autocast behind. It is turned on again for the parts of operators that
    autocast has nothing to do with, as they would find it on a GPU.
    """
    run_parts = partial(func._op_dk, COMPOSITE)
    is_cast_itself = has_kernel(func.name(), "AutocastCUDA")

    def run_as_on_gpu(args: Any, kwargs: Any) -> Any:
        """Give what the parts give, with autocast on or off as they would find it on a GPU.

        The state of the thread is changed meanwhile. Raises what the parts raise.
        """
        if thread_state.autocast is None or thread_state.cast:
            return run_parts(*args, **kwargs)
        # Autocast has cast the arguments of this operator already: its parts are not cast again.
        if is_cast_itself:
            thread_state.cast = True
            try:
                return run_parts(*args, **kwargs)
            finally:
                thread_state.cast = False
        with dispatch_also_to(AUTOCAST):
            return run_parts(*args, **kwargs)

    return run_as_on_gpu


_BY_ENTRY: Final = {
    "detach": _plan_detach,
    "item": _plan_item,
    "like": _plan_like,
    "view": _plan_view,
}


def make_plan(func: Any) -> Plan:
    """The plan of an operator, with the workspaces that its entry says.

    A plan is a function(args, kwargs) that runs the operator and gives its results.
    """
    plan = _plan_for(func)
    workspaces = facts_of(func).workspaces
    return plan if workspaces is None else plan_with_workspaces(plan, workspaces)


def _plan_for(func: Any) -> Plan:
    """The plan of an operator: the one its entry says, or one that suits its schema.

    A plan is a function(args, kwargs) that runs the operator.
    """
    facts = facts_of(func)
    if facts.plan is not None:
        return plan_by_hand(facts.plan, func)
    if func.namespace != "aten":  # prims are written in Python, of operators of aten
        return plan_by_hand(run_library_operator, func)
    if has_kernel(func.name(), "CompositeImplicitAutograd") and not facts.whole:
        return _plan_parts(func)
    if facts.fast_path is not None:
        return _BY_ENTRY[facts.fast_path](func, rules_of(func))
    return _plan_by_schema(func) or partial(run_any, func)


def _plan_by_schema(func: Any) -> Plan | None:
    """The plan for operators of this form; None where only `run_any` can run them.

    A plan is a function(args, kwargs) that runs the operator `func`. What its schema says of
    arguments and results decides.
    """
    schema = func._schema
    rules = rules_of(func)
    if func.namespace != "aten" or _takes_tensors_by_name(schema):
        return None
    slots = []  # the positions of tensors
    list_slots = []  # the positions of lists of tensors
    for index, argument in enumerate(schema.arguments):
        kind = str(argument.type)
        if "List[" in kind and "Tensor" in kind:
            list_slots.append(index)
        elif kind in ("Tensor", "Optional[Tensor]") and not argument.kwarg_only:
            slots.append(index)
    if list_slots:
        if slots or rules.refuse is not None or not _is_plain_foreach(schema):
            return None
        return _plan_lists(func, rules.call, tuple(list_slots))
    if not slots or not schema.returns:
        return None
    for each in schema.returns:
        if str(each.type) != "Tensor":
            return None
    return _plan_by_results(func, rules, tuple(slots))


def _is_plain_foreach(schema: Any) -> bool:
    """True for `_foreach_*` that returns nothing, or one new list."""
    if not schema.name.startswith("aten::_foreach_"):
        return False
    if not schema.returns:
        return True
    return len(schema.returns) == 1 and not schema.is_mutable


def _takes_tensors_by_name(schema: Any) -> bool:
    """True if tensors, devices or generators come by keyword: `out=`, `device=`, `generator=`."""
    for argument in schema.arguments:
        kind = str(argument.type)
        if "Generator" in kind:
            return True
        by_name = "Tensor" in kind or argument.name in ("device", "generator")
        if argument.kwarg_only and by_name:
            return True
    return False


def _plan_by_results(func: Any, rules: Rules, slots: tuple[int, ...]) -> Plan | None:
    """The plan for an operator with tensors at these positions that returns tensors.

    It is one for new tensors, for a change in place or for a view; None where none of these suits.
    """
    schema = func._schema
    returns = schema.returns
    alias = returns[0].alias_info
    are_new = all(each.alias_info is None for each in returns)
    if are_new and not schema.is_mutable:
        return _plan_by_tensors(func, rules, slots)
    if len(returns) > 1 or slots[0] != 0 or alias is None:
        return None
    if alias.is_write:
        return _plan_changed_tensor(func, rules, slots)
    if len(slots) == 1:
        return _plan_view(func, rules)
    return None


def _plan_by_tensors(func: Any, rules: Rules, slots: tuple[int, ...]) -> Plan | None:
    """The plan for an operator with tensors at these positions that makes new tensors.

    None for one new tensor where the first argument is none. Operators with rules of their own get
    the general plan, others one for their number of tensors.
    """
    if len(func._schema.returns) > 1:
        return _plan_new_tensors(func, rules, slots)
    if slots[0] != 0:
        return None
    has_own_care = rules.refuse or rules.output or rules.count_waits
    if has_own_care or facts_of(func).front:
        return _plan_new_tensors(func, rules, slots)
    if slots == (0,):
        return _plan_one_tensor(func, rules.call)
    if slots == (0, 1):
        return _plan_two_tensors(func, rules.call)
    return _plan_new_tensors(func, rules, slots)


PLANS.maker = make_plan
