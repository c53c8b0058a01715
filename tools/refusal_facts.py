"""Which dtypes and operators CUDA refuses, and in which words: the tables of refusals.json.

They are made from what `probe.py` recorded on a real GPU.
"""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from virtual_cuda.device.cuda_errors import DTYPE_NAMES
from virtual_cuda.ops.cpu_errors import usual_cuda_name
from virtual_cuda.ops.registry import declared_operators

from tools.probe import SHORT

Table = dict[str, Any]
# Evidence for all three stands for the other widths too.
INTEGERS: Final = ("Byte", "Int", "Long")
KERNEL: Final = re.compile(r"""NotImplementedError: "(.+)" not implemented for '(\w+)'$""")
NOT_DTYPE: Final = ("same device", "indices should be either", "Could not run")
# The CPU got as far as this only because it computes an integer product before.
LATER: Final = "expected m1 and m2"
# A message with sizes is one call's, not the operator's.
SIZES: Final = re.compile(r"\[\d|\{\[")


@functools.cache
def overloads_by_hand() -> frozenset[str]:
    """The overloads whose refusals are declared by hand."""
    names = []
    for name, facts in declared_operators().items():
        if facts.by_hand:
            names.append(f"aten.{name}.default")
    return frozenset(names)


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
        return DTYPE_NAMES[getattr(torch, self.dtype)]

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
        if not overload.startswith("aten.") or overload in overloads_by_hand():
            continue
        for dtype, rows in dtypes.items():
            for row in rows:
                if _is_about_dtype(row["dev"]):
                    yield Refusal(
                        overload=overload,
                        dtype=dtype,
                        cuda=row["dev"],
                        cpu=row["cpu"],
                        cpu_overload=row["cpu_ov"],
                        times=row["n"],
                    )


def _is_about_dtype(message: str) -> bool:
    """True if CUDA refused, and for no other reason than a dtype, as its message says."""
    if not message:
        return False
    return not any(text in message for text in NOT_DTYPE)


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
        message = refusal.cuda
        if spelled in message.replace("HalfTensor", "Half"):
            template = re.sub(rf"'{spelled}'$", "'{T}'", message)
            found[refusal.overload][spelled] = template
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
        first, *_ = dtypes.split(",")
        if first == SHORT[dtype]:
            return True
    return False


def _join_integers(messages: dict[str, str]) -> None:
    """Change the messages of an overload: integers that are all refused alike become one entry."""
    message = messages.get("Long")
    if message is None:
        return
    if any(messages.get(name) != message for name in INTEGERS):
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
    kernels = {}
    for cpu, cuda_names in names.items():
        if len(cuda_names) == 1:
            (kernels[cpu],) = cuda_names
    spoken: dict[str, dict[str, str]] = {}
    for (overload, cpu), counts in messages.items():
        ((cuda, _),) = counts.most_common(1)
        if SIZES.search(cpu + cuda):
            continue
        if cuda != _with_kernel_of_cuda(cpu, kernels):
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
        message = row["msg"]
        if "Could not run" in message and "'CUDA' backend" in message:
            absent.append(overload)
    return {
        "forbidden": forbidden_dtypes(probe),
        "kernels": wording.kernels,
        "spoken": wording.spoken,
        "absent": absent,
    }
