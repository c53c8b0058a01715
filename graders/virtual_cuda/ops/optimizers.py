"""Steps of optimizers that run as one kernel for all parameters."""

from __future__ import annotations

import functools
from itertools import chain
from typing import Any, Final

import torch
import torch.nn.functional

from virtual_cuda.ops import placement
from virtual_cuda.ops.elementwise import to_single
from virtual_cuda.ops.registry import ALLOWED, operator

aten: Final = torch.ops.aten


def _step_in_single(func: Any, /, *lists: Any, **named: Any) -> None:
    """Change the parameters and states in these lists by one step of an optimizer.

    `func` is the CPU's kernel, `named` are its numbers. Half precision is computed in single
    precision and copied back: some of the CPU's own kernels leave such tensors unchanged. Raises
    what the kernel raises.
    """
    wide_lists = []
    for tensors in lists:
        wide_lists.append([to_single(tensor) for tensor in tensors])
    func(*wide_lists, **named)
    pairs = zip(chain(*lists), chain(*wide_lists), strict=True)
    for tensor, changed in pairs:
        if tensor is not changed:
            tensor.copy_(changed)


def _learning_rate_anywhere(call: placement.OperatorCall) -> Any:
    """Allow a learning rate on the host, whatever its shape: it is read there.

    Raises CUDA's RuntimeError for other tensors on different devices; else gives ALLOWED.
    """
    placement.find_host_number(call.func, {**call.given, "lr": None})
    return ALLOWED


for _name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"):
    for _func in (getattr(aten, _name).default, getattr(aten, _name).tensor_lr):
        operator(
            f"{_name}.{_func._overloadname}",
            kernel=functools.partial(_step_in_single, _func),
            placement=_learning_rate_anywhere,
        )
