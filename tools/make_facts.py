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
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

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
# A message with sizes is one call's, not the operator's.
SIZES: Final = re.compile(r"\[\d|\{\[")


# ---- refusals.json -------------------------------------------------------------------------------


class Refusal(NamedTuple):
    """A dtype that CUDA refused to an overload, and what the two devices said."""

    overload: str
    dtype: str
    cuda: str  # the message
    cpu: str  # the message, "" where the CPU did not refuse
    cpu_overload: str  # the overload that raised on the CPU
    times: int

    @property
    def spelled(self) -> str:
        """The dtype as C++ spells it in messages."""
        return SPELLED[self.dtype]

    @property
    def is_by_both(self) -> bool:
        """True if the CPU's kernel of the same overload refuses as well."""
        return bool(self.cpu) and self.cpu_overload == self.overload


class Wording(NamedTuple):
    """How CUDA says what the CPU says."""

    kernels: dict[str, str]  # the names of CUDA's kernels, by CPU name
    spoken: dict[str, dict[str, str]]  # other messages, by operator and CPU message


def dtype_refusals(probe: Table) -> Iterator[Refusal]:
    """Where CUDA refused a dtype, of all operators but those that are declared by hand."""
    for overload, dtypes in probe["dtype_diff"].items():
        if not overload.startswith("aten.") or overload in BY_HAND:
            continue
        for dtype, rows in dtypes.items():
            for row in rows:
                message = row["dev"]
                if message and not any(text in message for text in NOT_DTYPE):
                    yield Refusal(overload, dtype, message, row["cpu"], row["cpu_ov"], row["n"])


def forbidden_dtypes(probe: Table) -> dict[str, dict[str, str]]:
    """The messages of CUDA for dtypes that it alone refuses, whatever the other arguments.

    They are found by overload, then by the dtype's name or "integer".
    """
    found: dict[str, dict[str, str]] = collections.defaultdict(dict)
    for refusal in dtype_refusals(probe):
        if refusal.is_by_both:
            continue  # a matter of words
        if _worked_with(probe, refusal.overload, refusal.dtype):
            continue
        spelled = refusal.spelled
        if spelled in refusal.cuda.replace("HalfTensor", "Half"):
            found[refusal.overload][spelled] = re.sub(rf"'{spelled}'$", "'{T}'", refusal.cuda)
    for messages in found.values():
        _join_integers(messages)
    # What is changed in place was probed with fewer dtypes, and runs the same kernel.
    kept = {}
    for overload, messages in found.items():
        original = overload.replace("_.", ".")
        if original == overload or original not in found:
            kept[overload] = messages
    return kept


def _worked_with(probe: Table, overload: str, dtype: str) -> bool:
    """True if any call worked on CUDA with a first tensor of this dtype."""
    for dtypes in probe["ok_dtypes"].get(overload, {}):
        if dtypes.split(",")[0] == SHORT[dtype]:
            return True
    return False


def _join_integers(messages: dict[str, str]) -> None:
    """Change the messages of an overload: integers that are all refused alike become one entry."""
    message = messages.get("Long")
    if message is None or any(messages.get(name) != message for name in INTEGERS):
        return
    messages["integer"] = message
    for name in INTEGERS:
        del messages[name]


def wording_of(probe: Table) -> Wording:
    """The names of CUDA's kernels, and what they do not explain of CUDA's messages.

    A kernel is there if every operator agrees on its name, and the name is not the usual one.
    """
    names: dict[str, set[str]] = collections.defaultdict(set)
    # How often CUDA said what, by overload and by what the CPU said, with the dtype as {T}.
    messages: dict[tuple[str, str], collections.Counter[str]]
    messages = collections.defaultdict(collections.Counter)
    for refusal in dtype_refusals(probe):
        if not refusal.is_by_both or LATER in refusal.cpu:
            continue
        if refusal.cpu.startswith("NotImplementedError: Could not run"):
            continue
        of_cpu = KERNEL.match(refusal.cpu)
        of_cuda = KERNEL.match(refusal.cuda)
        if of_cpu and of_cuda and of_cpu[2] == of_cuda[2]:
            names[of_cpu[1]].add(of_cuda[1])
        cuda, cpu = _without_dtype(refusal)
        messages[refusal.overload, cpu][cuda] += refusal.times
    kernels = {cpu: next(iter(cuda)) for cpu, cuda in names.items() if len(cuda) == 1}
    spoken: dict[str, dict[str, str]] = {}
    for (overload, cpu), counts in messages.items():
        cuda = counts.most_common(1)[0][0]
        if cuda != _with_kernel_of_cuda(cpu, kernels) and not SIZES.search(cpu + cuda):
            spoken.setdefault(overload, {})[cpu] = cuda
    unusual = {cpu: cuda for cpu, cuda in kernels.items() if cuda != usual_cuda_name(cpu)}
    return Wording(unusual, spoken)


def _without_dtype(refusal: Refusal) -> tuple[str, str]:
    """The messages of CUDA and the CPU with the dtype as {T}.

    Where CUDA does not name the dtype, the CPU's message keeps it: these are the words for this
    dtype.
    """
    dtype = re.compile(rf"\b{refusal.spelled}\b")
    cuda = dtype.sub("{T}", refusal.cuda)
    if "{T}" not in cuda:
        return cuda, refusal.cpu
    return cuda, dtype.sub("{T}", refusal.cpu)


def _with_kernel_of_cuda(message: str, kernels: Mapping[str, str]) -> str | None:
    """A message of the CPU with CUDA's name of the kernel; None if it names no kernel."""
    match = KERNEL.match(message.replace("'{T}'", "'T'"))
    if match is None:
        return None
    name = match[1]
    of_cuda = kernels.get(name) or usual_cuda_name(name)
    return message.replace(f'"{name}"', f'"{of_cuda}"')


def refusal_tables(probe: Table) -> Table:
    """The tables of refusals.json; "absent" are operators for which CUDA has no kernel at all."""
    wording = wording_of(probe)
    absent = []
    for overload, row in sorted(probe["cmp_raised_only_dev"].items()):
        if "Could not run" in row["msg"] and "'CUDA' backend" in row["msg"]:
            absent.append(overload)
    return {
        "forbidden": forbidden_dtypes(probe),
        "kernels": wording.kernels,
        "spoken": wording.spoken,
        "absent": absent,
    }


# ---- placement.json ------------------------------------------------------------------------------

# What a device check of CUDA says: an argument, its device, and the method that complains.
WRAPPER: Final = re.compile(
    r"but got (\w+) is on (\S+), different from .* in method (wrapper_CUDA_\w+)\)"
)
# An argument in an example of the probe: its name and its shape.
ARGUMENT: Final = re.compile(r"(\w+)=\w+\[([\d,]*)\]")


def delegated_check(moved: Table) -> list[Any] | None:
    """The method that complains, and pairs of an argument and its name in the message.

    Made from what was said when each argument alone was on the CPU. None if another check
    complained, or several methods did.
    """
    methods: set[str] = set()
    names: dict[str, str] = {}  # in messages, by argument
    first = ""
    # Each message names the method, and one argument with its device.
    for argument, kinds in moved.items():
        own_name = argument.partition("[")[0]
        for message in kinds.get("one_cpu", {}):
            found = WRAPPER.search(message)
            if found is None:
                return None
            name, device, method = found.groups()
            methods.add(method)
            if device != "cpu" and own_name == argument:
                first = own_name  # the others differ from this one
                names.setdefault(own_name, own_name)
            else:
                names[own_name] = name
    if len(methods) != 1:
        return None
    # The argument that the others are compared with comes first.
    others = [name for name in names if name != first]
    if len(moved) == len(names):
        others.sort(key=list(moved).index)
    else:
        others.sort()
    order = [first, *others] if first else others
    return [methods.pop(), [[own_name, names[own_name]] for own_name in order]]


def strict_arguments(moved: Table) -> list[str]:
    """Arguments refused on the CPU even where they had no dimension."""
    strict = []
    for argument, kinds in moved.items():
        examples = []
        for message, of_message in kinds.get("one_cpu", {}).items():
            if "at least two devices" in message:
                examples += of_message
        shapes = [dict(ARGUMENT.findall(example)).get(argument) for example in examples]
        if "" in shapes:
            strict.append(argument)
    return sorted(strict)


def placement_tables(probe: Table, checked: Table) -> Table:
    """The tables of placement.json: what is not in `checked`, which torch's own tables give."""
    delegated = {}
    strict = {}
    for overload, moved in probe["mixed"].items():
        if overload in checked or "_foreach_" in overload:
            continue
        check = delegated_check(moved)
        if check is not None:
            delegated[overload] = check
            continue
        changes_in_place = overload.rpartition(".")[0].endswith("_")
        arguments = strict_arguments(moved)
        if arguments and not changes_in_place:
            strict[overload] = arguments
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


# ---- the files -----------------------------------------------------------------------------------


def json_of_tables(tables: Table) -> str:
    """JSON with one operator a line, so that a change is seen as one."""
    parts = []
    for title, table in tables.items():
        if not isinstance(table, dict):
            parts.append(f" {json.dumps(title)}: {json.dumps(table)}")
            continue
        lines = []
        for key in sorted(table):
            lines.append(f"  {json.dumps(key)}: {json.dumps(table[key], sort_keys=True)}")
        parts.append(f" {json.dumps(title)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def merge_facts(known: Table, new: Table) -> Table:
    """The facts of both; where they differ, the new ones."""
    both: Table = dict(new)
    for key, fact in known.items():
        if isinstance(fact, dict):
            both[key] = merge_facts(fact, both.get(key, {}))
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
    tables = {"operators": operator_tables()}
    if options.probe is not None:
        probe = json.loads(options.probe.read_text())
        tables["refusals"] = refusal_tables(probe)
        tables["placement"] = placement_tables(probe, tables["operators"]["checks"])
        if not options.fresh:
            for name in ("refusals", "placement"):
                known = json.loads((FACTS / f"{name}.json").read_text())
                tables[name] = merge_facts(known, tables[name])
    for name, table in tables.items():
        (options.out / f"{name}.json").write_text(json_of_tables(table))


if __name__ == "__main__":
    main()
