"""Where do the facts about CUDA's operators come from? torch's own tables: `python -m graders.bench.virtual.facts`.

Run it (with PyYAML installed) when a new torch release has been adopted, and read the diff it makes.
"""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import torch

HERE = pathlib.Path(__file__).parent
HEADER = pathlib.Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
POLICIES = {
    "lower": "AT_FORALL_LOWER_PRECISION_FP",
    "fp32": "AT_FORALL_FP32",
    "optional": "AT_FORALL_FP32_SET_OPT_DTYPE",
    "promote": "AT_FORALL_PROMOTE",
    "append": "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE",
}


def device_checks() -> dict[str, Any]:
    """Which operators compare the devices of their arguments, in which order and under which name."""
    import torchgen
    from torchgen.gen import parse_native_yaml
    from torchgen.model import DeviceCheckType, DispatchKey

    native = pathlib.Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(native / "native_functions.yaml"), str(native / "tags.yaml"))
    cuda = parsed.backend_indices[DispatchKey.CUDA]
    by_name = {f.func.name: f for f in parsed.native_functions}
    checks: dict[str, Any] = {}
    for f in parsed.native_functions:
        structured = f.structured or f.structured_delegate is not None
        kernel = cuda.get_kernel(f) or (f.structured_delegate and cuda.get_kernel(by_name[f.structured_delegate]))
        if not kernel or f.device_check is DeviceCheckType.NoCheck:
            continue
        func = f.func
        ordered = [*func.arguments.out, *func.arguments.flat_positional]
        tensors = [a.name for a in ordered if a.type.is_tensor_like()]
        if len(tensors) < 2 and not any("[]" in str(a.type) for a in ordered if a.type.is_tensor_like()):
            continue
        base = str(func.name.name) + ("_out" if func.is_out_fn() else "")
        overload = func.name.overload_name
        # torchgen names a structured kernel's wrapper `mm_out_out`, any other's `out_nonzero_out`.
        suffixed = f"{base}_{overload}" if overload else base
        method = f"wrapper_CUDA_{suffixed}" if structured else f"wrapper_CUDA_{overload}_{base}"
        checks[f"aten.{func.name.name}.{overload or 'default'}"] = [method, tensors]
    return checks


def autocast_policies() -> dict[str, list[str]]:
    """Which operators autocast runs in lower precision, in float32, in the widest type given."""
    text = HEADER.read_text()
    policies = {}
    for policy, macro in POLICIES.items():
        body = re.search(rf"#define {macro}\(_\)(.*?)\n\n", text, re.S)
        assert body is not None, f"{macro} is gone from autocast_mode.h"
        names = re.findall(r"_\(\s*(\w+)(?:,\s*(\w+))?\)", body.group(1))
        quoted = re.findall(r'"([\w.]+)"', body.group(1))
        policies[policy] = [f"{name}.{overload}" if overload else name for name, overload in names] + quoted
    return policies


def main() -> None:
    facts: dict[str, Any] = {
        "torch": torch.__version__.split("+")[0],
        "autocast": autocast_policies(),
        "checks": device_checks(),
    }
    lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(facts.pop("checks").items()))
    rest = json.dumps(facts, indent=1)[:-2]
    (HERE / "operators.json").write_text(rest + ',\n "checks": {\n' + lines + "\n }\n}\n")


if __name__ == "__main__":
    main()
