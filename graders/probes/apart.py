"""How is a machine looked at that this process cannot be? A process that has used a real GPU can open no virtual one.

The probe runs in a fresh process that sees no GPU, and its observation comes back as evidence.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

from graders.curriculum import day
from graders.curriculum.exercise import Exercise, Function, Probe
from graders.evidence import Evidence, Observation, decode, encode

SECONDS = 60
_MARK = "evidence:"


def observe_apart(exercise: Exercise, function: Function, probe: Probe, path: Path, seed: int) -> Observation:
    command = [sys.executable, "-m", __name__, exercise.stem, function.name, probe.name, str(path), str(seed)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    for line in run.stdout.splitlines():
        if line.startswith(_MARK):
            return decode(base64.b64decode(line.removeprefix(_MARK))).observations[probe.name]
    raise RuntimeError(f"the probe {probe.name} gave no evidence: {run.stderr[-500:]}")


def main(stem: str, function_name: str, probe_name: str, path: str, seed: str) -> None:
    from graders.probes.loading import load
    from graders.probes.observing import observe_one

    exercise = next(e for name in ("day8",) for e in day(name) if e.stem == stem)
    function = next(f for f in exercise.functions if f.name == function_name)
    probe = next(p for p in function.probes if p.name == probe_name)
    seen = observe_one(exercise, function, probe, load(Path(path)), "virtual", int(seed))
    evidence = Evidence(stem, function_name, "virtual", int(seed), {probe_name: seen})
    print(_MARK + base64.b64encode(encode(evidence)).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
