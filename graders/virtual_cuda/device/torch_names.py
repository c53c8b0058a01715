"""What torch has that a ledger can name: operators, and classes of modules."""

from __future__ import annotations

from typing import Final

import torch

from virtual_cuda.internals import find_internal, has_kernel

_all_operators: Final = find_internal("torch._C._dispatch_get_all_op_names", otherwise=lambda: ())


def operator_names() -> frozenset[str]:
    """The full names of all operators, as a ledger writes them: "aten.add.Tensor".

    Those of libraries are among them. It is empty where this torch does not tell them.
    """
    return frozenset(_ledger_name(name) for name in _all_operators())


def names_made_of_others() -> frozenset[str]:
    """The full names of operators that no ledger has: torch makes them of others, on every device.

    It does so where it has a way for all devices ("CompositeImplicitAutograd") and no kernel.
    Private operators are left out: some have a kernel for CUDA alone, which a build without CUDA
    does not tell. It is empty where this torch does not say which kernels there are.
    """
    found = set()
    for name in _all_operators():
        is_private = name.partition("::")[2].startswith("_")
        if is_private or not has_kernel(name, "CompositeImplicitAutograd"):
            continue
        if not has_kernel(name, "CPU"):
            found.add(_ledger_name(name))
    return frozenset(found)


def _ledger_name(name: str) -> str:
    """The name in a ledger of an operator that C++ calls "aten::add.Tensor" or "aten::mm"."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    return f"{namespace}.{base}.{overload or 'default'}"


def module_names() -> frozenset[str]:
    """The names of all classes of modules that exist, torch's and everybody's."""
    classes: set[type] = set()
    waiting: list[type] = [torch.nn.Module]
    while waiting:
        module = waiting.pop()
        if module not in classes:
            classes.add(module)
            waiting += module.__subclasses__()
    return frozenset(module.__name__ for module in classes)
