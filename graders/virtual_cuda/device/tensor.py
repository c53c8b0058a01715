"""The tensor of the virtual device.

It is a shell: C++ sees its shape, strides and dtype. Its values are in a CPU tensor inside, the
inner tensor, and its memory is counted by a block.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from virtual_cuda.device.state import Block
from virtual_cuda.identity import identity
from virtual_cuda.internals import find_internal

if TYPE_CHECKING:
    from torch._C import _TensorMeta
else:
    _TensorMeta = type(torch.Tensor)

_KeySet: Final = find_internal("torch._C.DispatchKeySet")
_AUTOCAST_KEY: Final = find_internal("torch._C.DispatchKey.AutocastCUDA", otherwise=None)
# The dispatch keys that a device tensor has besides those of its class.
# Without this one, autocast does not see it.
AUTOCAST: Final = None if _AUTOCAST_KEY is None else _KeySet(_AUTOCAST_KEY)
_STRIDED: Final = torch.strided
make_shell: Final = find_internal("torch.Tensor._make_wrapper_subclass")
set_conjugate: Final = find_internal("torch._C._set_conj", "a conjugate view")
_set_neg: Final = find_internal("torch._C._set_neg", "a negated view")
_data: Final[Any] = torch.Tensor.data


class Plans(dict[int, Any]):
    """The plans of operators, by the identity of the operator.

    A plan is a function(args, kwargs) that runs the operator; `ops/plans.py` makes them. An
    operator's own hash is a Python function, which takes long, so they are not found by that.
    """

    maker: Any = None  # function(operator) -> plan

    def of(self, func: Any) -> Any:
        """The plan of an operator, made by `maker` when it is asked for first, and kept."""
        plan = self.get(identity(func))
        if plan is None:
            plan = self[identity(func)] = self.maker(func)
            self.operators.append(func)
        return plan

    operators: Final[list[Any]] = []  # kept, so that an identity stays an operator's


PLANS: Final = Plans()
_plan_of: Final = PLANS.get


Plan = Callable[[Any, Any], Any]  # gets the arguments of an operator, by position and by name
# Is called with an operator, its plan and its arguments, in place of that plan.
# It returns what the plan returns, which it calls itself.
OperatorHook = Callable[[Any, Plan, Any, Any], Any]
# Those that are in use now; the last one is called first. Whoever adds one takes it away again.
operator_hooks: Final[list[OperatorHook]] = []


def _plan_with_hooks(func: Any, plan: Plan) -> Plan:
    """A plan that runs this plan of the operator `func` inside of all hooks."""
    for hook in operator_hooks:
        plan = functools.partial(hook, func, plan)
    return plan


# The function with which `singledispatch` puts bases in order. In a Python without it this is None,
# and `singledispatch` raises RuntimeError ("Inconsistent hierarchy") for tensors of the device.
_MERGING: Final = getattr(vars(functools).get("_c3_merge"), "__code__", None)


class DeviceClass(_TensorMeta):
    """The class of the classes that device tensors have.

    Each of these equals the class it stands for: on a GPU they are one. Their hashes differ, so a
    set tells them apart. So does `singledispatch`, which puts the bases of a class in order and
    finds no order where two of them are equal.
    """

    _student_class: type

    def __eq__(cls, other: object) -> bool:
        """True for the class itself, and for the class of torch or of a student that it stands for.

        Not where `singledispatch` puts bases in order: it is the caller then.
        """
        if cls is other:
            return True
        if other is not cls._student_class:
            return False
        asking = sys._getframe().f_back
        return asking is None or asking.f_code is not _MERGING

    __hash__ = type.__hash__


class Tensor(torch.Tensor, metaclass=DeviceClass):
    """A tensor on a virtual device. Its attributes and methods are in `torch_api/tensor_api.py`."""

    __torch_function__ = find_internal("torch._C._disabled_torch_function_impl")
    # Whatever is put in their place in `torch.Tensor` is not told of what is inside.
    __getattribute__ = object.__getattribute__
    __setattr__ = object.__setattr__
    __slotnames__ = ()  # no list: `object.__getstate__`, which would give what is inside, refuses

    _student_class: type = torch.Tensor
    _virtual_inner: torch.Tensor
    _virtual_block: Block

    @staticmethod
    def __torch_dispatch__(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Run an operator that meets a device tensor, by its plan, inside of all hooks.

        torch calls this: `func` is the operator, `types` are the classes it has met. Gives the
        operator's results; raises what CUDA raises, or DeviceClosed.
        """
        plan = _plan_of(identity(func))
        if plan is None:
            plan = PLANS.of(func)
        if operator_hooks:
            plan = _plan_with_hooks(func, plan)
        return plan(args, {} if kwargs is None else kwargs)


class _ParameterClass(DeviceClass, type(torch.nn.Parameter)):  # type: ignore[misc]
    """The class of `Parameter`."""

    # That of torch takes any tensor that says so for a parameter.
    __instancecheck__ = type.__instancecheck__


class Parameter(Tensor, torch.nn.Parameter, metaclass=_ParameterClass):
    """A parameter on a virtual device."""

    _student_class = torch.nn.Parameter
    __slotnames__ = ()


for _cls, _module in ((Tensor, "torch"), (Parameter, "torch.nn.parameter")):
    _cls.__module__ = _module

_inference_on: Final = torch.is_inference_mode_enabled
# The classes of device tensors; `torch_api/student_classes.py` adds students' classes.
VIRTUAL: Final[set[type]] = {
    Tensor,
    Parameter,
}


def wrap_new(inner: torch.Tensor, shape: Any, dtype: Any, block: Block) -> Any:
    """A device tensor around a strided tensor that a kernel has just made.

    `shape` and `dtype` are those of `inner`, whose memory is `block`. That begins where `inner`
    does, and conjugate and negative bits are not looked at.
    """
    # All arguments by position: by keyword this call is a fifth of the cost of a small operation.
    shell: Any = make_shell(
        Tensor,
        shape,
        inner.stride(),
        None,
        None,
        dtype,
        _STRIDED,
        block.device.lazy,
        False,
        False,
        None,
        False,
        False,
        AUTOCAST,
    )
    shell._virtual_inner = inner
    shell._virtual_block = block
    return shell


def wrap(inner: torch.Tensor, block: Block) -> Any:
    """A device tensor around `inner`, whose memory is `block`."""
    if _inference_on() and not inner.is_inference():
        # A view of a tensor from outside inference mode is an ordinary tensor,
        # and so must its shell be.
        with torch.inference_mode(False):
            return wrap(inner, block)
    dtype = inner.dtype
    shell = make_shell(
        Tensor,
        inner.shape,
        inner.stride(),
        inner.storage_offset(),
        None,
        dtype,
        inner.layout,
        block.device.lazy,
        False,
        False,
        None,
        False,
        False,
        AUTOCAST,
    )
    # C++ resolves the conjugate and the negative bit of the shell before an operator arrives
    # here; a view keeps both.
    if dtype.is_complex and inner.is_conj():
        set_conjugate(shell, True)
    if inner.is_neg():
        _set_neg(shell, True)
    shell._virtual_inner = inner
    shell._virtual_block = block
    return shell


def update_shell(tensor: Any) -> None:
    """Make a device tensor say what its inner tensor has become.

    `resize_`, `t_`, `set_` and `out=` change the inner one in place. The tensor gets a larger block
    if need be. Raises torch's OutOfMemoryError where there is no room for it.
    """
    inner = tensor._virtual_inner
    nbytes = inner.untyped_storage().nbytes()
    block = tensor._virtual_block
    if nbytes > block.size:
        block = Block(block.device, nbytes)
    other = wrap(inner, block)
    _data.__set__(tensor, other)
    tensor._virtual_block = block
