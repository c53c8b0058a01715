"""What torch's own tables say of operators: the tables of operators.json."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import torch

Table = dict[str, Any]
HEADER = pathlib.Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
POLICIES = {
    "lower": "AT_FORALL_LOWER_PRECISION_FP",
    "fp32": "AT_FORALL_FP32",
    "optional": "AT_FORALL_FP32_SET_OPT_DTYPE",
    "promote": "AT_FORALL_PROMOTE",
    "append": "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE",
}


def device_checks() -> dict[str, Any]:
    """The operators that compare the devices of their arguments, from torch's own tables.

    Each has the name of the method that complains, and its tensors in the order of comparison.
    """
    import torchgen
    from torchgen.gen import parse_native_yaml
    from torchgen.model import DeviceCheckType, DispatchKey

    native = pathlib.Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(native / "native_functions.yaml"), str(native / "tags.yaml"))
    cuda = parsed.backend_indices[DispatchKey.CUDA]
    by_name = {each.func.name: each for each in parsed.native_functions}
    checks: dict[str, Any] = {}
    for native_function in parsed.native_functions:
        if native_function.device_check is DeviceCheckType.NoCheck:
            continue
        # Only operators with a kernel for CUDA, of their own or of another form of theirs.
        delegate = native_function.structured_delegate
        has_kernel = bool(cuda.get_kernel(native_function))
        if not has_kernel and delegate is not None:
            has_kernel = bool(cuda.get_kernel(by_name[delegate]))
        if not has_kernel:
            continue
        # Only operators with two tensors, or with a list of them.
        signature = native_function.func
        ordered = [*signature.arguments.out, *signature.arguments.flat_positional]
        tensors = [each for each in ordered if each.type.is_tensor_like()]
        has_list = any("[]" in str(each.type) for each in tensors)
        if len(tensors) < 2 and not has_list:
            continue
        overload = signature.name.overload_name or "default"
        method = _name_of_wrapper(native_function)
        key = f"aten.{signature.name.name}.{overload}"
        checks[key] = [method, [each.name for each in tensors]]
    return checks


def _name_of_wrapper(native_function: Any) -> str:
    """The name of the C++ function in which torchgen puts an operator's device check.

    A structured kernel's is `mm_out_out`, any other's `out_nonzero_out`.
    """
    signature = native_function.func
    base = str(signature.name.name)
    if signature.is_out_fn():
        base += "_out"
    overload = signature.name.overload_name
    if not native_function.structured and native_function.structured_delegate is None:
        return f"wrapper_CUDA_{overload}_{base}"
    if overload:
        return f"wrapper_CUDA_{base}_{overload}"
    return f"wrapper_CUDA_{base}"


def autocast_policies() -> dict[str, list[str]]:
    """The operators that autocast runs in lower precision, in float32, in the widest type given."""
    text = HEADER.read_text()
    policies = {}
    for policy, macro in POLICIES.items():
        body = re.search(rf"#define {macro}\(_\)(.*?)\n\n", text, re.S)
        assert body is not None, f"{macro} is gone from autocast_mode.h"
        names = []
        for name, overload in re.findall(r"_\(\s*(\w+)(?:,\s*(\w+))?\)", body.group(1)):
            names.append(f"{name}.{overload}" if overload else name)
        quoted = re.findall(r'"([\w.]+)"', body.group(1))
        policies[policy] = names + quoted
    return policies


def operator_tables() -> Table:
    """The tables of operators.json."""
    return {
        "torch": torch.__version__.split("+")[0],
        "autocast": autocast_policies(),
        "checks": device_checks(),
    }
