"""Private names of torch: found by their dotted path, or refused when they are used.

torch may rename what it does not document. So modules here do not write `torch._C._name`: they ask
`find_internal("torch._C._name", "what needs it")`. Where this torch lacks the name, they get a
stand-in, and the one feature that needs it raises `TorchLacks` when it is used; everything else
works. A name that every program needs is found with `otherwise`, what to use in its place. A patch
of something that torch lacks is left out.

What the device cannot be without is `INDISPENSABLE`: where one of these is missing, it refuses to
open.
"""

from __future__ import annotations

import contextlib
import pkgutil
import sys
from typing import Any, Final

import torch

from virtual_cuda.errors import TorchUnsupported
from virtual_cuda.lacking import Lacking

INDISPENSABLE: Final = (
    "torch._C",  # torch's own C++
    "torch._C.DispatchKey",  # tensors of the device have the keys of a GPU's autocast
    "torch._C.DispatchKeySet",
    "torch._C._disabled_torch_function_impl",  # operators reach `__torch_dispatch__` only
    "torch.Tensor._make_wrapper_subclass",  # a tensor with no memory of its own
    "torch.UntypedStorage._cdata",  # tells which tensors share their memory
    "torch.ops.aten.t_.default._schema",  # operators say what their arguments are
    "torch.ops.aten.t_.default._op_dk",  # runs an operator by the kernel of one dispatch key
)
_REFUSE: Final = object()


def find_internal(path: str, feature: str = "", otherwise: Any = _REFUSE) -> Any:
    """The object under a dotted name of torch, its module imported if need be.

    Where there is none, it is `otherwise`, if that is given, else a stand-in that raises
    TorchLacks, with `feature`, when it is used. Raises TorchUnsupported for a name that is
    indispensable.
    """
    try:
        return _resolve(path)
    except (AttributeError, ImportError) as error:
        if path in INDISPENSABLE:
            raise TorchUnsupported(path, torch.__version__) from error
    if otherwise is _REFUSE:
        return Lacking(path, feature or path)
    return otherwise


def require_internal(path: str, feature: str) -> Any:
    """The object under a dotted name of torch.

    Raises TorchLacks where there is none.
    """
    found = find_internal(path, feature)
    if isinstance(found, Lacking):
        found()
    return found


def _resolve(path: str) -> Any:
    """The object under a dotted name; raises AttributeError or ImportError without one."""
    # torch.optim takes the names of its submodules away, so modules that are loaded come first
    owner, _, name = path.rpartition(".")
    if owner in sys.modules:
        module = sys.modules[owner]
        if hasattr(module, name):
            return getattr(module, name)
    return pkgutil.resolve_name(path)


# ---- names that several modules use --------------------------------------------------------------

DispatchKeySet: Final = find_internal("torch._C.DispatchKeySet")
# The key under which C++ keeps how an operator is made of others.
COMPOSITE: Final = find_internal(
    "torch._C.DispatchKey.CompositeImplicitAutograd", "an operator that is made of others"
)
# A `with` block in which `__torch_function__` of students' classes is not asked.
no_torch_function: Final = find_internal(
    "torch._C.DisableTorchFunctionSubclass", otherwise=contextlib.nullcontext
)
# Whether an operator, by its name, has a kernel of its own under a dispatch key.
has_kernel: Final = find_internal(
    "torch._C._dispatch_has_kernel_for_dispatch_key", otherwise=lambda name, key: key == "CPU"
)
# What `torch.add`, `torch.mm`, … are while nothing is patched, and the same of
# `torch.nn.functional`.
torch_functions: Final = find_internal("torch._C._VariableFunctions", otherwise=torch)
nn_functions: Final = find_internal("torch._C._nn")
# Whether a transform of `torch.func` has wrapped a tensor.
is_transformed: Final = find_internal(
    "torch._C._functorch.is_functorch_wrapped_tensor", otherwise=lambda tensor: False
)
_keys_included: Final = find_internal("torch._C._dispatch_tls_local_include_set", "dispatch keys")
_keys_excluded: Final = find_internal("torch._C._dispatch_tls_local_exclude_set", "dispatch keys")
_use_keys: Final = find_internal("torch._C._ForceDispatchKeyGuard", "dispatch keys")


def dispatch_also_to(keys: Any) -> Any:
    """A `with` block in which operators reach these dispatch keys, too.

    Inside `__torch_dispatch__` torch leaves them out.
    """
    return _use_keys(_keys_included(), _keys_excluded() - keys)
