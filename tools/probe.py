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
from collections.abc import Iterator
from typing import Any, Final

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


class GpuProbe:
    """What has been recorded so far."""

    def __init__(self, device: str = "cuda") -> None:
        self.device = torch.device(device)
        self.differing: collections.Counter[tuple[str, str, str, str, str]] = collections.Counter()
        self.worked: collections.Counter[tuple[str, str]] = collections.Counter()
        self.raised_on_device: dict[str, str] = {}
        self.elsewhere: dict[tuple[str, str, str], list[str]] = collections.defaultdict(list)
        self.tried: set[tuple[Any, ...]] = set()

    def record(self) -> Table:
        """The record as JSON data, for `tables`."""
        counted: dict[str, dict[Any, Any]] = {
            "differing": self.differing,
            "worked": self.worked,
            "elsewhere": self.elsewhere,
        }
        return {"raised": self.raised_on_device} | {
            name: sorted(rows.items()) for name, rows in counted.items()
        }

    def operator(self, info: Any) -> None:
        """Probe one entry of torch's operator database."""
        for name in SHORT:
            for function, args, kwargs in _calls(info, getattr(torch, name)):
                self.call(function, args, kwargs)

    def call(self, function: Any, args: Any, kwargs: Any) -> None:
        """Run one call on the CPU and on the device, and compare what was raised.

        Then the operators that it reached are tried with arguments elsewhere. Adds to the record.
        """
        cpu = _Watch().run(function, *_copied((args, kwargs)))
        dev = _Watch().run(function, *_moved(_copied((args, kwargs)), self.device))
        # What worked on the device, and what it says to arguments elsewhere.
        for func, given, named in dev.done:
            if all(
                t.numel() for t in _tensors(given, named)
            ):  # for empty tensors no kernel is launched
                first = [
                    t
                    for name, t in _named(func, given, named)
                    if not name.endswith("]") or name.endswith("[0]")
                ]
                self.worked[
                    str(func), ",".join(SHORT.get(_dtype(t), _dtype(t)) for t in first)
                ] += 1
            self.moved(func, given, named)
        # What the two did differently.
        if dev.error != cpu.error or dev.overload != cpu.overload:
            dtype = dev.first if dev.error else cpu.first
            overload = dev.overload or cpu.overload
            if overload and dtype in SHORT:
                self.differing[overload, dtype, dev.error, cpu.error, cpu.overload] += 1
            if dev.overload and cpu.overload != dev.overload:
                self.raised_on_device.setdefault(dev.overload, dev.error)

    def moved(self, func: Any, args: Any, kwargs: Any) -> None:
        """Run one operator with each of its tensors alone on the CPU."""
        named = _named(func, args, kwargs)
        shapes = tuple((name, t.shape) for name, t in named)
        if len(named) < 2 or (func, shapes) in self.tried or "_foreach_" in str(func):
            return  # lists that mix devices are taken element by element
        self.tried.add((func, shapes))
        sides = (
            f"{SHORT.get(_dtype(t), _dtype(t))}[{','.join(map(str, t.shape))}]" for _, t in named
        )
        example = " ".join(f"{name}={side}" for (name, _), side in zip(named, sides, strict=True))
        for position, (name, tensor) in enumerate(named):
            outcome = _Watch().run(
                func, *_moved(_copied((args, kwargs)), self.device, alone=position)
            )
            if outcome.error:
                examples = self.elsewhere[str(func), name, outcome.error]
                if len(examples) < (
                    EXAMPLES if tensor.dim() else 2 * EXAMPLES
                ):  # a refused number says most
                    examples.append(example)


class _Watch(TorchDispatchMode):
    """Notes the operators that a call reaches, and the one that raises."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: list[tuple[Any, Any, Any]] = []
        self.overload = self.error = self.first = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, and note it with what it was given, or that it raised."""
        kwargs = kwargs or {}
        before = _copied((args, kwargs)) if func._schema.is_mutable else (args, kwargs)
        try:
            out = func(*args, **kwargs)
        except Exception:
            found = _tensors(args, kwargs)
            self.overload, self.first = str(func), _dtype(found[0]) if found else ""
            raise
        self.done.append((func, *before))
        return out

    def run(self, function: Any, args: Any, kwargs: Any) -> _Watch:
        """Call the function; what it raises is kept as "RuntimeError: text"."""
        try:
            with torch.no_grad(), self, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function(*args, **kwargs)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            self.overload = self.overload or (
                str(function) if isinstance(function, torch._ops.OpOverload) else ""
            )
        return self


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _tensors(*values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _copied(values: Any) -> Any:
    return tree_map(lambda v: v.detach().clone() if isinstance(v, torch.Tensor) else v, values)


def _moved(values: Any, device: torch.device, alone: int = -1) -> Any:
    """Every tensor on the device, but for the one at position `alone`, which is on the CPU."""
    position = itertools.count()

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to("cpu" if next(position) == alone else device)
        return device if isinstance(value, torch.device) else value

    return tree_map(move, values)


def _named(func: Any, args: Any, kwargs: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a call in order, by argument: "self", or "tensors[0]" in a list."""
    found: list[tuple[str, torch.Tensor]] = []
    pairs = [(a.name, v) for a, v in zip(func._schema.arguments, args, strict=False)] + list(
        kwargs.items()
    )
    for name, value in pairs:
        if isinstance(value, torch.Tensor):
            found.append((name, value))
        elif isinstance(value, (list, tuple)):
            found += [
                (f"{name}[{i}]", v) for i, v in enumerate(value) if isinstance(v, torch.Tensor)
            ]
    return found


# ---- torch's own samples -------------------------------------------------------------------------


def database() -> dict[str, Any]:
    """The operators of torch's test suite, by name and variant."""
    if "expecttest" not in sys.modules:  # the suite imports it for its own base class only
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal import common_methods_invocations as samples

    lists = [
        value
        for key, value in vars(samples).items()
        if key == "op_db" or key.startswith("foreach_")
    ]
    entries = [
        entry
        for found in lists
        if isinstance(found, list)
        for entry in found
        if hasattr(entry, "op")
    ]
    return {f"{entry.name}.{entry.variant_test_name}".rstrip("."): entry for entry in entries}


def _calls(info: Any, dtype: torch.dtype) -> Iterator[tuple[Any, Any, Any]]:
    """The sample calls of one operator, and the same in place."""
    torch.manual_seed(0)
    try:
        samples = list(
            itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES)
        )
    except Exception:
        return  # samples that the CPU cannot make in this dtype
    functions = [f for f in (info.op, info.inplace_variant) if callable(f)]
    for sample in samples:
        if any(
            t.layout is not torch.strided or t.is_quantized
            for t in _tensors(sample.input, sample.args)
        ):
            continue
        for function in functions:
            yield function, (sample.input, *sample.args), dict(sample.kwargs)


# ---- workers -------------------------------------------------------------------------------------


def _work(names: list[str], out: pathlib.Path, device: str) -> None:
    """Probe these operators, and append their records to the file `out`.

    A name is written before its operator is probed, and the record after it, in case one of them
    ends the process.
    """
    entries = database()
    with out.open("a") as file:
        for name in names:
            print(json.dumps({"began": name}), file=file, flush=True)
            probe = GpuProbe(device)
            probe.operator(entries[name])
            # Raises if a kernel has failed: this record is worth nothing then.
            torch.cuda.synchronize()
            print(json.dumps({"name": name, "record": probe.record()}), file=file, flush=True)


def _chunk(names: list[str], device: str) -> tuple[list[Table], list[str]]:
    """The records of these operators from child processes, and the operators that ended one."""
    records: list[Table] = []
    lost: list[str] = []
    while names:
        # A new process for what is left.
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "records")
            command = [
                sys.executable,
                "-P",
                __file__,
                str(out),
                "--device",
                device,
                "--worker",
                *names,
            ]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(command, timeout=TIMEOUT_S, check=False, stderr=subprocess.DEVNULL)
            lines = (
                [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
            )
        # The operator that began last and is not done has ended the process.
        done = [line["name"] for line in lines if "name" in line]
        records += [line["record"] for line in lines if "name" in line]
        began = [line["began"] for line in lines if "began" in line] or names[:1]
        if began[-1] not in done:
            lost.append(began[-1])
        names = [name for name in names if name not in done and name not in lost]
    return records, lost


def tables(records: list[Table]) -> Table:
    """What all records say, in the shape that `make_facts.py` reads.

    dtype_diff: {overload: {dtype: [{dev, cpu: messages or "",
                                     cpu_ov: the overload that raised on the CPU, n}]}}
    ok_dtypes: {overload: {"f32,i64": calls on the device that succeeded}}
    cmp_raised_only_dev: {overload: {msg}}
    mixed: {overload: {argument: {"one_cpu": {message: [example, …]}}}}
    """
    differing: dict[tuple[str, ...], Table] = {}
    whole: Table = {"torch": torch.__version__, "dtype_diff": {}, "ok_dtypes": {}, "mixed": {}}
    # Rows with the same key are added up.
    for record in records:
        for key, n in record["differing"]:
            overload, dtype, dev, cpu, cpu_ov = key
            if tuple(key) not in differing:
                row = differing[tuple(key)] = {"dev": dev, "cpu": cpu, "cpu_ov": cpu_ov, "n": 0}
                whole["dtype_diff"].setdefault(overload, {}).setdefault(dtype, []).append(row)
            differing[tuple(key)]["n"] += n
        for (overload, key), n in record["worked"]:
            counts = whole["ok_dtypes"].setdefault(overload, collections.Counter())
            counts[key] += n
        for (overload, argument, text), examples in record["elsewhere"]:
            texts = (
                whole["mixed"]
                .setdefault(overload, {})
                .setdefault(argument, {"one_cpu": {}})["one_cpu"]
            )
            texts[text] = (texts.get(text, []) + examples)[: 4 * EXAMPLES]
    # Of an overload's messages, that of the first record counts.
    raised = {
        overload: text
        for record in reversed(records)
        for overload, text in record["raised"].items()
    }
    return whole | {
        "cmp_raised_only_dev": {
            overload: {"msg": text} for overload, text in sorted(raised.items())
        }
    }


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
    # A child process of `_chunk`.
    if options.worker is not None:
        _work(options.worker, options.out, options.device)
        return
    names = sorted(options.only or database())
    # Several child processes at a time.
    chunks = [names[i : i + CHUNK] for i in range(0, len(names), CHUNK)]
    records: list[Table] = []
    lost: list[str] = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for found, ended in pool.map(_chunk, chunks, itertools.repeat(options.device)):
            records += found
            lost += ended
    options.out.write_text(json.dumps(tables(records), indent=1))
    print(
        f"{len(records)} operators probed; {len(lost)} ended their process: "
        f"{' '.join(lost) or 'none'}"
    )


if __name__ == "__main__":
    main()
