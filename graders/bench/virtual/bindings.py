"""Which Python function runs an operator fastest? torch's bindings parse arguments twice as fast as `torch.ops` does.

Only operators that training loops call often are listed; everything else is called through its overload.
A binding chooses among overloads by the types of the arguments, which have been through the dispatcher
already, so it chooses the same one; a test compares both on samples.
"""

from __future__ import annotations

from typing import Any, Final

import torch

HOT: Final = frozenset(
    """
    add add_ sub sub_ mul mul_ div div_ neg sqrt rsqrt pow exp log abs lerp_ addcmul_ addcdiv_ reciprocal mm
    addmm bmm baddbmm mv dot t transpose permute view expand unsqueeze select detach clone relu
    relu_ sigmoid tanh gelu silu leaky_relu native_layer_norm convolution max_pool2d_with_indices _log_softmax
    _log_softmax_backward_data _softmax _softmax_backward_data sum mean max min argmax eq ne lt le gt ge where
    zero_ fill_ zeros_like ones_like empty_like _foreach_add_ _foreach_mul_ _foreach_lerp_ _foreach_addcmul_
    _foreach_sqrt _foreach_div_ _foreach_addcdiv_
    """.split()
)


def call_of(func: Any) -> Any:
    """The callable that runs `func` on plain tensors."""
    name = func._schema.name.partition("::")[2]
    if (
        func.namespace != "aten"
        or name not in HOT
        or any(a.kwarg_only and "Tensor" in str(a.type) for a in func._schema.arguments)
    ):
        return func
    if name in ("add", "add_", "sub", "sub_") and func._overloadname == "Scalar":
        return func  # alpha by position means something else to the binding, which is deprecated and warns
    if name in ("max", "min") and len(func._schema.returns) > 1:
        return func  # the binding gives a named tuple, which the dispatcher would not open
    for home in (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase):
        binding = getattr(home, name, None)
        if binding is not None:
            return binding
    return func
