"""Records what a real GPU refuses: dtypes, operators, and arguments on another device.

Every sample input of torch's own test suite runs on the CPU and on the device, and each operator
that a call reaches is compared. Then every operator seen runs again with one argument after another
left on the CPU. The result is the input of `make_facts.py`. This file needs torch and numpy only,
so that it runs on a machine without this package:

    python -P tools/probe.py probe.json --jobs 8
    python -m tools.make_facts probe.json
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# The dtypes that are tried, and how keys and examples abbreviate them.
SHORT: Final = {
    "bfloat16": "bf16", "bool": "b8", "complex64": "c64", "float16": "f16", "float32": "f32",
    "float64": "f64", "int32": "i32", "int64": "i64", "uint8": "u8",
}  # fmt: skip
SAMPLES: Final = 20  # of each operator and dtype
EXAMPLES: Final = 3  # kept of each message
TIMEOUT_S: Final = 300.0  # for one worker, which probes CHUNK operators
CHUNK: Final = 12
Table = dict[str, Any]


class Call(NamedTuple):
    """A function or an operator, and what it is called with."""

    function: Any
    args: Any
    kwargs: Any

    def run(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    def copy(self) -> Call:
        """The call with copies of its tensors, for operators that change them."""
        args, kwargs = tree_map(copy_if_tensor, (self.args, self.kwargs))
        return Call(self.function, args, kwargs)

    def copy_on_device(self, device: torch.device, on_cpu: int = -1) -> Call:
        """The call with its tensors on a device, but for the one at position `on_cpu`."""
        position = itertools.count()

        def move(value: Any) -> Any:
            if isinstance(value, torch.device):
                return device
            if not isinstance(value, torch.Tensor):
                return value
            if next(position) == on_cpu:
                target = torch.device("cpu")
            else:
                target = device
            return copy_if_tensor(value).to(target)

        args, kwargs = tree_map(move, (self.args, self.kwargs))
        return Call(self.function, args, kwargs)

    def tensors(self) -> list[torch.Tensor]:
        """All tensors among the arguments, also in lists."""
        return tensors_in(self.args, self.kwargs)

    def named_tensors(self) -> list[NamedTensor]:
        """The tensors of an operator's call in order, with the names of its schema."""
        found = []
        parameters = self.function._schema.arguments
        named = [(each.name, value) for each, value in zip(parameters, self.args, strict=False)]
        named += self.kwargs.items()
        for name, value in named:
            if isinstance(value, torch.Tensor):
                found.append(NamedTensor(name, value))
            elif isinstance(value, (list, tuple)):
                for index, element in enumerate(value):
                    if isinstance(element, torch.Tensor):
                        found.append(NamedTensor(f"{name}[{index}]", element))
        return found


class NamedTensor(NamedTuple):
    """An argument that is a tensor: "self", or "tensors[0]" in a list."""

    name: str
    tensor: torch.Tensor

    @property
    def is_later_in_list(self) -> bool:
        return self.name.endswith("]") and not self.name.endswith("[0]")


class Difference(NamedTuple):
    """What one overload raised on the device and on the CPU; "" where it raised nothing."""

    overload: str
    dtype: str
    on_device: str
    on_cpu: str
    cpu_overload: str


class MixedCall(NamedTuple):
    """An overload, the argument that was on the CPU, and what the device said to that."""

    overload: str
    argument: str
    message: str


class GpuProbe:
    """What has been recorded so far."""

    def __init__(self, device: str = "cuda") -> None:
        self.device = torch.device(device)
        self.differing: collections.Counter[Difference] = collections.Counter()
        # How often a call worked, by overload and dtypes.
        self.worked: collections.Counter[tuple[str, str]] = collections.Counter()
        self.raised_on_device: dict[str, str] = {}
        # Examples of calls that were refused with an argument on the CPU.
        self.refused_mixed: dict[MixedCall, list[str]] = collections.defaultdict(list)
        self.tried: set[tuple[Any, ...]] = set()

    def record(self) -> Table:
        """The record as JSON data, for `merge_records`."""
        return {
            "raised": self.raised_on_device,
            "differing": sorted(self.differing.items()),
            "worked": sorted(self.worked.items()),
            "elsewhere": sorted(self.refused_mixed.items()),
        }

    def probe_operator(self, info: Any) -> None:
        """Add to the record what one entry of torch's operator database does in every dtype."""
        for name in SHORT:
            for call in sample_calls(info, getattr(torch, name)):
                self.compare_call(call)

    def compare_call(self, call: Call) -> None:
        """Run one call on the CPU and on the device, and compare what was raised.

        Then the operators that it reached are tried with arguments elsewhere. Adds to the record.
        """
        cpu = CallWatch()
        cpu.run(call.copy())
        device = CallWatch()
        device.run(call.copy_on_device(self.device))
        for reached in device.done:
            self._record_success(reached)
            self.try_arguments_on_cpu(reached)
        self._record_difference(cpu, device)

    def _record_success(self, call: Call) -> None:
        """Count a call of an operator that worked, unless it launched no kernel."""
        if not all(tensor.numel() for tensor in call.tensors()):
            return  # for empty tensors no kernel is launched
        dtypes = []
        for each in call.named_tensors():
            if not each.is_later_in_list:
                dtypes.append(short_dtype(each.tensor))
        self.worked[str(call.function), ",".join(dtypes)] += 1

    def _record_difference(self, cpu: CallWatch, device: CallWatch) -> None:
        """Note what the two raised, if that differs."""
        if device.error == cpu.error and device.overload == cpu.overload:
            return
        if device.error:
            dtype = device.first_dtype
        else:
            dtype = cpu.first_dtype
        overload = device.overload or cpu.overload
        if overload and dtype in SHORT:
            found = Difference(overload, dtype, device.error, cpu.error, cpu.overload)
            self.differing[found] += 1
        if device.overload and cpu.overload != device.overload:
            self.raised_on_device.setdefault(device.overload, device.error)

    def try_arguments_on_cpu(self, call: Call) -> None:
        """Run one operator with each of its tensors alone on the CPU, and note what is refused.

        Arguments of the same shapes are tried once.
        """
        named = call.named_tensors()
        overload = str(call.function)
        # Operators on lists that mix devices take them element by element.
        if len(named) < 2 or "_foreach_" in overload:
            return
        key = (call.function, tuple((name, tensor.shape) for name, tensor in named))
        if key in self.tried:
            return
        self.tried.add(key)
        example = " ".join(f"{name}={short_description(tensor)}" for name, tensor in named)
        for position, (name, tensor) in enumerate(named):
            watch = CallWatch()
            watch.run(call.copy_on_device(self.device, on_cpu=position))
            if not watch.error:
                continue
            examples = self.refused_mixed[MixedCall(overload, name, watch.error)]
            # A refused number, which has no dimensions, says most.
            if tensor.dim():
                limit = EXAMPLES
            else:
                limit = 2 * EXAMPLES
            if len(examples) < limit:
                examples.append(example)


class CallWatch(TorchDispatchMode):
    """Notes the operators that a call reaches, and the one that raises."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: list[Call] = []
        self.error = ""
        self.overload = ""  # the one that raised
        self.first_dtype = ""  # of its first tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, and note it with its arguments, or that it raised."""
        call = Call(func, args, kwargs or {})
        if func._schema.is_mutable:
            before = call.copy()
        else:
            before = call
        try:
            result = call.run()
        except Exception:  # whatever it is: it is noted, and goes on
            self.overload = str(func)
            tensors = call.tensors()
            self.first_dtype = dtype_name(tensors[0]) if tensors else ""
            raise
        self.done.append(before)
        return result

    def run(self, call: Call) -> None:
        """Run the call; what it raises is kept as "RuntimeError: text"."""
        try:
            with torch.no_grad(), self, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call.run()
        except Exception as error:  # whatever it is: what is raised is what is recorded
            self.error = f"{type(error).__name__}: {error}"
            if not self.overload and isinstance(call.function, torch._ops.OpOverload):
                self.overload = str(call.function)


def copy_if_tensor(value: Any) -> Any:
    """A copy of a tensor, without its graph; any other value itself."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return value


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def short_dtype(tensor: torch.Tensor) -> str:
    """The abbreviation of a tensor's dtype, such as "f32"."""
    name = dtype_name(tensor)
    return SHORT.get(name, name)


def short_description(tensor: torch.Tensor) -> str:
    """The dtype and the shape of a tensor, such as "f32[2,3]"."""
    shape = ",".join(map(str, tensor.shape))
    return f"{short_dtype(tensor)}[{shape}]"


def tensors_in(*values: Any) -> list[torch.Tensor]:
    """All tensors in nested values."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


# ---- torch's own samples -------------------------------------------------------------------------


def operator_database() -> dict[str, Any]:
    """The operators of torch's test suite, by name and variant.

    Imports torch's test helpers, and a stand-in for `expecttest` where that is not installed.
    """
    if "expecttest" not in sys.modules:  # the suite imports it for its own base class only
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal import common_methods_invocations as samples

    entries = {}
    for title, value in vars(samples).items():
        if title != "op_db" and not title.startswith("foreach_"):
            continue
        if not isinstance(value, list):
            continue
        for entry in value:
            if hasattr(entry, "op"):
                name = f"{entry.name}.{entry.variant_test_name}"
                entries[name.rstrip(".")] = entry
    return entries


def sample_calls(info: Any, dtype: torch.dtype) -> Iterator[Call]:
    """The sample calls of one operator, each followed by the same in place."""
    torch.manual_seed(0)
    try:
        inputs = info.sample_inputs("cpu", dtype, requires_grad=False)
        samples = list(itertools.islice(inputs, SAMPLES))
    except Exception:  # of any kind: the CPU cannot make samples in this dtype
        return
    functions = [each for each in (info.op, info.inplace_variant) if callable(each)]
    for sample in samples:
        if not all(map(is_plain_tensor, tensors_in(sample.input, sample.args))):
            continue
        for function in functions:
            yield Call(function, (sample.input, *sample.args), dict(sample.kwargs))


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """True if a tensor is neither sparse nor quantized."""
    return tensor.layout is torch.strided and not tensor.is_quantized


# ---- workers -------------------------------------------------------------------------------------


class ChunkRecords(NamedTuple):
    """The records of some operators, and the names of those that ended their process."""

    records: list[Table]
    lost: list[str]


def probe_and_write(names: Sequence[str], out: pathlib.Path, device: str) -> None:
    """Probe these operators, and append their records to the file `out`.

    A name is written before its operator is probed, and the record after it, in case one of them
    ends the process.
    """
    entries = operator_database()
    with out.open("a") as file:
        for name in names:
            print(json.dumps({"began": name}), file=file, flush=True)
            probe = GpuProbe(device)
            probe.probe_operator(entries[name])
            # Raises if a kernel has failed: this record is worth nothing then.
            torch.cuda.synchronize()
            print(json.dumps({"name": name, "record": probe.record()}), file=file, flush=True)


def probe_in_children(names: list[str], device: str) -> ChunkRecords:
    """The records of these operators, made in child processes.

    When an operator ends its process, another process goes on with the rest.
    """
    found = ChunkRecords([], [])
    while names:
        lines = _lines_of_worker(names, device)
        done = []
        began = names[0]  # where the worker did not even start
        for line in lines:
            if "began" in line:
                began = line["began"]
            else:
                done.append(line["name"])
                found.records.append(line["record"])
        # The operator that began last and is not done has ended the process.
        if began not in done:
            found.lost.append(began)
        names = [name for name in names if name not in done and name not in found.lost]
    return found


def _lines_of_worker(names: Sequence[str], device: str) -> list[Table]:
    """What `probe_and_write` writes in a child process until it ends, or its time is over."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "records")
        command = [sys.executable, "-P", __file__, str(out)]
        command += ["--device", device, "--worker", *names]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, timeout=TIMEOUT_S, check=False, stderr=subprocess.DEVNULL)
        if not out.exists():
            return []
        return [json.loads(line) for line in out.read_text().splitlines()]


# ---- the result ----------------------------------------------------------------------------------


def merge_records(records: Sequence[Table]) -> Table:
    """What all records say, in the shape that `make_facts.py` reads.

    dtype_diff: {overload: {dtype: [{dev, cpu: messages or "",
                                     cpu_ov: the overload that raised on the CPU, n}]}}
    ok_dtypes: {overload: {"f32,i64": calls on the device that succeeded}}
    cmp_raised_only_dev: {overload: {msg}}
    mixed: {overload: {argument: {"one_cpu": {message: [example, …]}}}}
    """
    raised: dict[str, str] = {}
    for record in records:
        # Of an overload's messages, that of the first record counts.
        raised = record["raised"] | raised
    return {
        "torch": torch.__version__,
        "dtype_diff": _merge_differences(records),
        "ok_dtypes": _merge_successes(records),
        "mixed": _merge_mixed_calls(records),
        "cmp_raised_only_dev": {name: {"msg": raised[name]} for name in sorted(raised)},
    }


def _merge_differences(records: Sequence[Table]) -> Table:
    """The table dtype_diff."""
    counts: collections.Counter[Difference] = collections.Counter()
    for record in records:
        for key, count in record["differing"]:
            counts[Difference(*key)] += count
    merged: Table = {}
    for found, count in counts.items():
        row = {
            "dev": found.on_device,
            "cpu": found.on_cpu,
            "cpu_ov": found.cpu_overload,
            "n": count,
        }
        by_dtype = merged.setdefault(found.overload, {})
        by_dtype.setdefault(found.dtype, []).append(row)
    return merged


def _merge_successes(records: Sequence[Table]) -> Table:
    """The table ok_dtypes."""
    merged: Table = {}
    for record in records:
        for (overload, dtypes), count in record["worked"]:
            counts = merged.setdefault(overload, collections.Counter())
            counts[dtypes] += count
    return merged


def _merge_mixed_calls(records: Sequence[Table]) -> Table:
    """The table mixed, with some examples of each message."""
    merged: Table = {}
    for record in records:
        for (overload, argument, message), examples in record["elsewhere"]:
            by_argument = merged.setdefault(overload, {})
            messages = by_argument.setdefault(argument, {"one_cpu": {}})["one_cpu"]
            together = messages.get(message, []) + examples
            messages[message] = together[: 4 * EXAMPLES]
    return merged


def main(arguments: list[str] | None = None) -> None:
    """Probe a device, and write the record."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument(
        "--only", nargs="*", help="names of operators in torch's database; all unless given"
    )
    parser.add_argument("--worker", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    # A child process of `probe_in_children`.
    if options.worker is not None:
        probe_and_write(options.worker, options.out, options.device)
        return
    names = sorted(options.only or operator_database())
    # Several child processes at a time.
    chunks = [names[start : start + CHUNK] for start in range(0, len(names), CHUNK)]
    records: list[Table] = []
    lost: list[str] = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(probe_in_children, chunks, itertools.repeat(options.device)):
            records += found.records
            lost += found.lost
    options.out.write_text(json.dumps(merge_records(records), indent=1))
    ended = " ".join(lost) or "none"
    print(f"{len(records)} operators probed; {len(lost)} ended their process: {ended}")


if __name__ == "__main__":
    main()
