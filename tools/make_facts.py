"""Makes the data under `facts/` from torch's own tables and from a probe of a real GPU.

python -m tools.make_facts                  operators.json
python -m tools.make_facts probe.json       and, from what `probe.py` recorded, the other two
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import re
from typing import Any, Final

import torch
from virtual_cuda.device.cuda_errors import DTYPE_NAMES as SPELLINGS
from virtual_cuda.ops.cpu_errors import usual_cuda_name
from virtual_cuda.ops.registry import declared_operators

from tools.probe import SHORT

FACTS: Final = pathlib.Path(__file__).parents[1] / "graders" / "virtual_cuda" / "ops" / "facts"
Table = dict[str, Any]
# How C++ spells the probe's dtypes in messages.
SPELLED: Final = {name: SPELLINGS[getattr(torch, name)] for name in SHORT}
# Evidence for all three stands for the other widths too.
INTEGERS: Final = ("Byte", "Int", "Long")
KERNEL: Final = re.compile(r"""NotImplementedError: "(.+)" not implemented for '(\w+)'$""")
BY_HAND: Final = frozenset(
    f"aten.{name}.default" for name, facts in declared_operators().items() if facts.by_hand
)
NOT_DTYPE: Final = ("same device", "indices should be either", "Could not run")
# The CPU got as far as this only because it computes an integer product before.
LATER: Final = "expected m1 and m2"


def _rows(probe: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Triples of overload, dtype and row of the probe where CUDA refused a dtype."""
    return [
        (overload, dtype, row)
        for overload, dtypes in probe["dtype_diff"].items()
        if overload.startswith("aten.") and overload not in BY_HAND
        for dtype, rows in dtypes.items()
        for row in rows
        if row["dev"] and not any(text in row["dev"] for text in NOT_DTYPE)
    ]


def forbidden(probe: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The messages of CUDA for dtypes that it alone refuses, whatever the other arguments.

    They are found by overload, then by the dtype's name or "integer".
    """
    found: dict[str, dict[str, str]] = collections.defaultdict(dict)
    for overload, dtype, row in _rows(probe):
        if row["cpu"] and row["cpu_ov"] == overload:
            continue  # the CPU refuses as well: a matter of words
        worked = [
            key for key in probe["ok_dtypes"].get(overload, {}) if key.split(",")[0] == SHORT[dtype]
        ]
        spelled = SPELLED[dtype]
        if worked or spelled not in row["dev"].replace("HalfTensor", "Half"):
            continue
        found[overload][spelled] = re.sub(rf"'{spelled}'$", "'{T}'", row["dev"])
    # Integers that are all refused alike become one entry.
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
    """The names of CUDA's kernels by CPU name, and other messages by operator and CPU message.

    A kernel is there if every operator agrees on its name, and the name is not the usual one.
    """
    named: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    rest: dict[str, dict[str, collections.Counter[str]]] = collections.defaultdict(
        lambda: collections.defaultdict(collections.Counter)
    )
    # Count how CUDA said what the CPU said, with the dtype as {T}.
    for overload, dtype, row in _rows(probe):
        if (
            not row["cpu"]
            or row["cpu_ov"] != overload
            or row["cpu"].startswith("NotImplementedError: Could not run")
        ):
            continue
        spelled = SPELLED[dtype]
        if LATER in row["cpu"]:
            continue
        dev, cpu = (re.sub(rf"\b{spelled}\b", "{T}", row[side]) for side in ("dev", "cpu"))
        if "{T}" not in dev:
            cpu = row["cpu"]  # words that do not name the dtype are the words for this one
        ours = KERNEL.match(row["cpu"])
        theirs = KERNEL.match(row["dev"])
        if ours and theirs and ours[2] == theirs[2]:
            named[ours[1]][theirs[1]] += row["n"]
        rest[overload][cpu][dev] += row["n"]
    # What the kernels' names do not explain is kept by operator.
    kernels = {cpu: next(iter(cuda)) for cpu, cuda in named.items() if len(cuda) == 1}
    spoken: dict[str, dict[str, str]] = {}
    for overload, pairs in rest.items():
        for cpu, devs in pairs.items():
            dev = devs.most_common(1)[0][0]
            kernel = KERNEL.match(cpu.replace("'{T}'", "'T'"))
            if kernel and dev == cpu.replace(
                f'"{kernel[1]}"', f'"{kernels.get(kernel[1]) or usual_cuda_name(kernel[1])}"'
            ):
                continue
            if not re.search(
                r"\[\d|\{\[", cpu + dev
            ):  # a message with sizes is one call's, not the operator's
                spoken.setdefault(overload, {})[cpu] = dev
    return {cpu: cuda for cpu, cuda in kernels.items() if cuda != usual_cuda_name(cpu)}, spoken


def refusals(probe: Table) -> Table:
    """The tables of refusals.json; "absent" are operators for which CUDA has no kernel at all."""
    kernels, spoken = words(probe)
    raised = {overload: row["msg"] for overload, row in probe["cmp_raised_only_dev"].items()}
    absent = sorted(
        name
        for name, said in raised.items()
        if "Could not run" in said and "'CUDA' backend" in said
    )
    return {"forbidden": forbidden(probe), "kernels": kernels, "spoken": spoken, "absent": absent}


# ---- placement.json ------------------------------------------------------------------------------

WRAPPER = re.compile(r"but got (\w+) is on (\S+), different from .* in method (wrapper_CUDA_\w+)\)")
ARGUMENT = re.compile(r"(\w+)=\w+\[([\d,]*)\]")


def delegation(moved: dict[str, Any]) -> list[Any] | None:
    """The method that complains, and pairs of an argument and its name in the message.

    Made from what was said when each argument alone was on the CPU. None if another check
    complained, or several methods did.
    """
    methods: set[str] = set()
    said: dict[str, str] = {}
    first = ""
    # Each message names the method, and one argument with its device.
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
    # The argument that the others are compared with comes first.
    if len(methods) != 1:
        return None
    order = [first] if first else []
    order += sorted(
        (name for name in said if name != first),
        key=list(moved).index if len(moved) == len(said) else str,
    )
    return [methods.pop(), [[own, said[own]] for own in order]]


def strict_arguments(moved: dict[str, Any]) -> list[str]:
    """Arguments refused on the CPU even where they had no dimension."""
    return sorted(
        argument
        for argument, kinds in moved.items()
        if any(
            "at least two devices" in text and dict(ARGUMENT.findall(example)).get(argument) == ""
            for text, examples in kinds.get("one_cpu", {}).items()
            for example in examples
        )
    )


def placement(probe: Table, checked: Table) -> Table:
    """The tables of placement.json: what is not in `checked`, which torch's own tables give."""
    delegated = {}
    strict = {}
    for overload, moved in probe["mixed"].items():
        if overload in checked or "_foreach_" in overload:
            continue
        if (found := delegation(moved)) is not None:
            delegated[overload] = found
        elif not overload.rpartition(".")[0].endswith("_") and (names := strict_arguments(moved)):
            strict[overload] = names
    return {"delegated": delegated, "strict": strict}


# ---- operators.json ------------------------------------------------------------------------------

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
    by_name = {f.func.name: f for f in parsed.native_functions}
    checks: dict[str, Any] = {}
    # Only operators with a kernel for CUDA, and with two tensors or a list of them.
    for f in parsed.native_functions:
        structured = f.structured or f.structured_delegate is not None
        kernel = cuda.get_kernel(f) or (
            f.structured_delegate and cuda.get_kernel(by_name[f.structured_delegate])
        )
        if not kernel or f.device_check is DeviceCheckType.NoCheck:
            continue
        func = f.func
        ordered = [*func.arguments.out, *func.arguments.flat_positional]
        tensors = [a.name for a in ordered if a.type.is_tensor_like()]
        if len(tensors) < 2 and not any(
            "[]" in str(a.type) for a in ordered if a.type.is_tensor_like()
        ):
            continue
        base = str(func.name.name) + ("_out" if func.is_out_fn() else "")
        overload = func.name.overload_name
        # torchgen names a structured kernel's wrapper `mm_out_out`, any other's `out_nonzero_out`.
        suffixed = f"{base}_{overload}" if overload else base
        method = f"wrapper_CUDA_{suffixed}" if structured else f"wrapper_CUDA_{overload}_{base}"
        checks[f"aten.{func.name.name}.{overload or 'default'}"] = [method, tensors]
    return checks


def autocast_policies() -> dict[str, list[str]]:
    """The operators that autocast runs in lower precision, in float32, in the widest type given."""
    text = HEADER.read_text()
    policies = {}
    for policy, macro in POLICIES.items():
        body = re.search(rf"#define {macro}\(_\)(.*?)\n\n", text, re.S)
        assert body is not None, f"{macro} is gone from autocast_mode.h"
        names = re.findall(r"_\(\s*(\w+)(?:,\s*(\w+))?\)", body.group(1))
        quoted = re.findall(r'"([\w.]+)"', body.group(1))
        policies[policy] = [
            f"{name}.{overload}" if overload else name for name, overload in names
        ] + quoted
    return policies


def operators() -> Table:
    """The tables of operators.json."""
    return {
        "torch": torch.__version__.split("+")[0],
        "autocast": autocast_policies(),
        "checks": device_checks(),
    }


def _text(tables: Table) -> str:
    """JSON with one operator a line, so that a change is seen as one."""
    parts = []
    for title, table in tables.items():
        if isinstance(table, dict):
            lines = (
                f"  {json.dumps(key)}: {json.dumps(table[key], sort_keys=True)}"
                for key in sorted(table)
            )
            parts.append(f" {json.dumps(title)}: {{\n" + ",\n".join(lines) + "\n }")
        else:
            parts.append(f" {json.dumps(title)}: {json.dumps(table)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def added(known: Table, new: Table) -> Table:
    """The facts of both; where they differ, the new ones."""
    both: Table = dict(new)
    for key, fact in known.items():
        if isinstance(fact, dict):
            both[key] = added(fact, both.get(key, {}))
        elif isinstance(fact, list) and key == "absent":
            both[key] = sorted({*fact, *both.get(key, ())})
        else:
            both.setdefault(key, fact)
    return both


def main(arguments: list[str] | None = None) -> None:
    """Write the facts about operators anew.

    What a probe found is added to what earlier ones have found.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "probe", nargs="?", type=pathlib.Path, help="what probe.py has recorded on a GPU"
    )
    parser.add_argument(
        "--out", type=pathlib.Path, default=FACTS, help="a folder; the package's own unless given"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="forget what earlier probes have found"
    )
    options = parser.parse_args(arguments)
    # torch's own tables, and what the probe adds to them.
    tables = {"operators": operators()}
    if options.probe is not None:
        probe = json.loads(options.probe.read_text())
        found = {
            "refusals": refusals(probe),
            "placement": placement(probe, tables["operators"]["checks"]),
        }
        for name, table in found.items():
            known = {} if options.fresh else json.loads((FACTS / f"{name}.json").read_text())
            tables[name] = added(known, table)
    for name, table in tables.items():
        (options.out / f"{name}.json").write_text(_text(table))


if __name__ == "__main__":
    main()
