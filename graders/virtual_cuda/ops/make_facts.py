"""Makes the data under ops/facts from torch's own tables and from a probe of a real GPU."""

from __future__ import annotations

import collections
import json
import pathlib
import re
import sys
from typing import Any, Final

import torch

HERE: Final = pathlib.Path(__file__).with_name("facts")
# The probe's dtypes: how it abbreviates them, and how C++ spells them in messages.
SHORT: Final = {
    "bfloat16": "bf16", "bool": "b8", "complex64": "c64", "float16": "f16", "float32": "f32",
    "float64": "f64", "int32": "i32", "int64": "i64", "uint8": "u8",
}  # fmt: skip
SPELLED: Final = {
    "bfloat16": "BFloat16", "bool": "Bool", "complex64": "ComplexFloat", "float16": "Half", "float32": "Float",
    "float64": "Double", "int32": "Int", "int64": "Long", "uint8": "Byte",
}  # fmt: skip
# Evidence for all three stands for the other widths too.
INTEGERS: Final = ("Byte", "Int", "Long")
KERNEL: Final = re.compile(r"""NotImplementedError: "(.+)" not implemented for '(\w+)'$""")
# Their successful calls with these dtypes had empty matrices, for which no kernel is launched.
LAUNCH_NOTHING: Final = frozenset({"aten.mm.default", "aten.addmm.default", "aten._trilinear.default"})
# Their words depend on more than the dtype; `refusals.py` and `translations.py` have them by hand.
BY_HAND: Final = frozenset(
    f"aten.{name}.default"
    for name in (
        "_batch_norm_with_update", "_native_batch_norm_legit", "convolution", "cudnn_batch_norm", "linalg_lstsq",
        "native_batch_norm", "nll_loss_forward",
    )
)  # fmt: skip
NOT_DTYPE: Final = ("same device", "indices should be either", "Could not run")
# The CPU got as far as this only because it computes an integer product before.
LATER: Final = "expected m1 and m2"


def usual_name(cpu: str) -> str:
    """The name a CUDA kernel has if nothing else is known of it. `translations.py` goes by the same rule."""
    return cpu.replace("_vml_cpu", "_cuda").replace("_cpu", "_cuda")


def _rows(probe: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (overload, dtype, row)
        for overload, dtypes in probe["dtype_diff"].items()
        if overload.startswith("aten.") and overload not in BY_HAND
        for dtype, rows in dtypes.items()
        for row in rows
        if row["dev"] and not any(text in row["dev"] for text in NOT_DTYPE)
    ]


def forbidden(probe: dict[str, Any]) -> dict[str, dict[str, str]]:
    """{overload: {dtype's name or "integer": message}} where CUDA alone refuses, whatever the other arguments."""
    found: dict[str, dict[str, str]] = collections.defaultdict(dict)
    for overload, dtype, row in _rows(probe):
        if row["cpu"] and row["cpu_ov"] == overload:
            continue  # the CPU refuses as well: a matter of words
        worked = [key for key in probe["ok_dtypes"].get(overload, {}) if key.split(",")[0] == SHORT[dtype]]
        spelled = SPELLED[dtype]
        if (worked and overload not in LAUNCH_NOTHING) or spelled not in row["dev"].replace("HalfTensor", "Half"):
            continue
        found[overload][spelled] = re.sub(rf"'{spelled}'$", "'{T}'", row["dev"])
    for messages in found.values():
        if len({messages.get(name) for name in INTEGERS}) == 1 and "Long" in messages:
            messages["integer"] = messages["Long"]
            for name in INTEGERS:
                del messages[name]
    # What is changed in place was probed with fewer dtypes, and runs the same kernel.
    return {
        overload: messages
        for overload, messages in found.items()
        if overload.replace("_.", ".") not in found.keys() - {overload}
    }


def words(probe: dict[str, Any]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Kernel names by CPU name where every operator agrees, and the rest by operator and CPU message."""
    named: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    rest: dict[str, dict[str, collections.Counter[str]]] = collections.defaultdict(
        lambda: collections.defaultdict(collections.Counter)
    )
    for overload, dtype, row in _rows(probe):
        if not row["cpu"] or row["cpu_ov"] != overload or row["cpu"].startswith("NotImplementedError: Could not run"):
            continue
        spelled = SPELLED[dtype]
        if LATER in row["cpu"]:
            continue
        dev, cpu = (re.sub(rf"\b{spelled}\b", "{T}", row[side]) for side in ("dev", "cpu"))
        if "{T}" not in dev:
            cpu = row["cpu"]  # words that do not name the dtype are the words for this one
        ours, theirs = KERNEL.match(row["cpu"]), KERNEL.match(row["dev"])
        if ours and theirs and ours[2] == theirs[2]:
            named[ours[1]][theirs[1]] += row["n"]
        rest[overload][cpu][dev] += row["n"]
    kernels = {cpu: next(iter(cuda)) for cpu, cuda in named.items() if len(cuda) == 1}
    spoken: dict[str, dict[str, str]] = {}
    for overload, pairs in rest.items():
        for cpu, devs in pairs.items():
            dev = devs.most_common(1)[0][0]
            kernel = KERNEL.match(cpu.replace("'{T}'", "'T'"))
            if kernel and dev == cpu.replace(f'"{kernel[1]}"', f'"{kernels.get(kernel[1]) or usual_name(kernel[1])}"'):
                continue
            if not re.search(r"\[\d|\{\[", cpu + dev):  # a message with sizes is one call's, not the operator's
                spoken.setdefault(overload, {})[cpu] = dev
    return {cpu: cuda for cpu, cuda in kernels.items() if cuda != usual_name(cpu)}, spoken


def absent(probe: dict[str, Any]) -> list[str]:
    """Operators for which CUDA has no kernel at all."""
    return sorted(
        overload
        for overload, row in probe["cmp_raised_only_dev"].items()
        if "Could not run" in row["msg"] and "'CUDA' backend" in row["msg"]
    )


def _lines(table: dict[str, Any]) -> str:
    return ",\n".join(f"  {json.dumps(key)}: {json.dumps(table[key], sort_keys=True)}" for key in sorted(table))


def make_refusals(path: str) -> None:
    probe = json.loads(pathlib.Path(path).read_text())
    kernels, spoken = words(probe)
    tables: dict[str, dict[str, Any]] = {"forbidden": forbidden(probe), "kernels": kernels, "spoken": spoken}
    body = "".join(f' "{name}": {{\n{_lines(table)}\n }},\n' for name, table in tables.items())
    (HERE / "refusals.json").write_text(f'{{\n{body} "absent": {json.dumps(absent(probe))}\n}}\n')


if __name__ == "__main__":
    make_refusals(sys.argv[1])


WRAPPER = re.compile(r"but got (\w+) is on (\S+), different from .* in method (wrapper_CUDA_\w+)\)")
ARGUMENT = re.compile(r"(\w+)=\w+\[([\d,]*)\]")


def delegation(moved: dict[str, Any]) -> list[Any] | None:
    """Who complains, and under which names, from what was said when each argument alone was on the CPU."""
    methods: set[str] = set()
    said: dict[str, str] = {}
    first = ""
    for argument, kinds in moved.items():
        for text in kinds.get("one_cpu", {}):
            found = WRAPPER.search(text)
            if found is None:
                return None
            name, where, method = found.groups()
            methods.add(method)
            own = argument.partition("[")[0]
            if where != "cpu" and own == argument:
                first = own  # the others differ from this one
                said.setdefault(own, own)
            else:
                said[own] = name
    if len(methods) != 1:
        return None
    order = [first] if first else []
    order += sorted((name for name in said if name != first), key=list(moved).index if len(moved) == len(said) else str)
    return [methods.pop(), [[own, said[own]] for own in order]]


def strict_arguments(moved: dict[str, Any]) -> list[str]:
    """Arguments refused on the CPU even where they had no dimension."""
    refused = set()
    for argument, kinds in moved.items():
        for text, examples in kinds.get("one_cpu", {}).items():
            shapes = [dict(ARGUMENT.findall(example)) for example in examples]
            if "at least two devices" in text and any(shape.get(argument) == "" for shape in shapes):
                refused.add(argument)
    return sorted(refused)


def make_placement() -> None:
    mixed = json.loads(pathlib.Path(sys.argv[1]).read_text())["mixed"]
    checked = json.loads((HERE / "operators.json").read_text())["checks"]
    delegated, strict = {}, {}
    for overload, moved in sorted(mixed.items()):
        if overload in checked or "_foreach_" in overload:
            continue
        if (found := delegation(moved)) is not None:
            delegated[overload] = found
        elif not overload.rpartition(".")[0].endswith("_") and (names := strict_arguments(moved)):
            strict[overload] = names
    parts = [
        f" {json.dumps(title)}: {{\n"
        + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in table.items())
        + "\n }"
        for title, table in (("delegated", delegated), ("strict", strict))
    ]
    (HERE / "placement.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    make_placement()


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


def make_operators() -> None:
    facts: dict[str, Any] = {
        "torch": torch.__version__.split("+")[0],
        "autocast": autocast_policies(),
        "checks": device_checks(),
    }
    lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(facts.pop("checks").items()))
    rest = json.dumps(facts, indent=1)[:-2]
    (HERE / "operators.json").write_text(rest + ',\n "checks": {\n' + lines + "\n }\n}\n")


if __name__ == "__main__":
    make_operators()
