"""Times programs on a real GPU: ``python -m tests.virtual_cuda.clock.record OUT.json
[PROGRAMS.json] [--passes N]``.

The programs are those of an earlier record, by default the one of this folder. A step is run three
times to warm up; then its wall time, the time to issue it and the time between two events are
medians of 5 to 50 repeats. The profiler counts kernels and copies in one more step. A host that
many use is now fast, now slow: further passes, in random order, tell how much that is; the times
are then medians of all passes, and `walls_s` has those of each.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
WARM_UP = 3
FEWEST = 5
MOST = 50
SECONDS = 0.4


def timed(setup: str, step: str, kernels: bool = True) -> dict[str, Any]:
    """What one program takes."""
    scope: dict[str, Any] = {}
    exec(compile(setup, "<setup>", "exec"), scope)
    code = compile(step, "<step>", "exec")
    for _ in range(WARM_UP):
        exec(code, scope)
    once = _round(code, scope)[0]
    rounds = [
        _round(code, scope) for _ in range(max(FEWEST, min(MOST, int(SECONDS / max(once, 1e-6)))))
    ]
    wall, queue, event = (statistics.median(column) for column in zip(*rounds, strict=True))
    found = {"wall_s": wall, "queue_s": queue, "event_s": event, "repeats": len(rounds)}
    if kernels:
        each, copies = _profiled(code, scope)
        found |= {
            "kernels": len(each),
            "copies": len(copies),
            "kernel_s": sum(each),
            "copy_s": sum(copies),
        }
    return found


def _round(code: Any, scope: dict[str, Any]) -> tuple[float, float, float]:
    """Seconds until the device is idle, until everything is issued, and between two events."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begun = time.perf_counter()
    first.record()
    exec(code, scope)
    last.record()
    issued = time.perf_counter()
    torch.cuda.synchronize()
    return time.perf_counter() - begun, issued - begun, first.elapsed_time(last) / 1e3


def _profiled(code: Any, scope: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Seconds of each kernel and of each copy of one step."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        exec(code, scope)
        torch.cuda.synchronize()
    kernels: list[float] = []
    copies: list[float] = []
    for event in profile.events():
        if event.device_type != torch.autograd.DeviceType.CUDA or event.name.startswith(
            ("Memset", "ProfilerStep")
        ):
            continue
        (copies if event.name.startswith("Memcpy") else kernels).append(event.device_time / 1e6)
    return kernels, copies


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.virtual_cuda.clock.record", description=__doc__
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("programs", type=Path, nargs="?", default=HERE / "h200-times.json")
    parser.add_argument(
        "--passes", type=int, default=1, metavar="N", help="time all programs so often (default: 1)"
    )
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    programs = json.loads(options.programs.read_text(encoding="utf-8"))["programs"]
    rows: dict[str, Any] = {}
    for number in range(options.passes):
        for name in random.sample(list(programs), len(programs)) if number else programs:
            source = {"setup": programs[name]["setup"], "step": programs[name]["step"]}
            try:
                found = timed(**source, kernels=not number)
                rows.setdefault(name, {**source, **found, "passes": []})["passes"].append(found)
            except Exception as error:  # the record says so, and the next program is run
                rows[name] = source | {
                    "error": f"{type(error).__name__}: {error}"[:200],
                    "passes": [],
                }
            torch.cuda.empty_cache()
    for row in rows.values():
        if len(passes := row.pop("passes")) > 1:
            row |= {
                what: statistics.median(each[what] for each in passes)
                for what in ("wall_s", "queue_s", "event_s")
            }
            row["walls_s"] = [each["wall_s"] for each in passes]
    record = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "programs": rows}
    options.out.write_text(json.dumps(record, indent=1), encoding="utf-8")
    failed = [name for name, row in rows.items() if "error" in row]
    print(f"{len(rows)} programs timed, {len(failed)} failed: {', '.join(failed) or 'none'}")


if __name__ == "__main__":
    main()
