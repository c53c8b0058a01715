"""Records the evidence of a day's references for public seeds, as a release ships it.

`record_evidence` does it in a new process, which has done nothing else before:
`python -m gpudojo.release.recording REFERENCE DAY TARGET SEED...`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gpudojo.grading.engine import judge_function
from gpudojo.grading.reference_solutions import ReferenceSolution
from gpudojo.grading.shipped_evidence import (
    PUBLIC_SEEDS,
    ShippedEvidence,
    compress_evidence,
    encode_shipped_evidence,
)
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import CannotRelease, DojoError
from gpudojo.model.evidence import (
    Evidence,
    Observation,
    Race,
    convert_facts,
    decode_evidence,
    encode_evidence,
    plain_facts,
)
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import Outcome
from gpudojo.release.stubs import stub_of

if TYPE_CHECKING:
    from virtual_cuda.ledger import Timeline

GRADERS: Final = Path(__file__).resolve().parents[2]
# The process's exit status where the reference does not pass; its last line says why.
REFUSED: Final = 3


def record_evidence(reference: Path, day: str, seeds: Sequence[int] = PUBLIC_SEEDS) -> bytes:
    """Run a day's references in a new process and return their evidence, as a file's content.

    Raises CannotRelease where they cannot be run or do not pass, and OSError where no process can
    be started.
    """
    python_path = str(GRADERS)
    path_before = os.environ.get("PYTHONPATH")
    if path_before:
        python_path += f"{os.pathsep}{path_before}"
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": python_path,
    }
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "evidence"
        command = [sys.executable, "-m", __name__, str(reference.resolve()), day, str(target)]
        command += [str(seed) for seed in seeds]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        if done.returncode == REFUSED:
            raise CannotRelease(lines[-1])
        if done.returncode or not target.is_file():
            raise CannotRelease(f"the references could not be run: {lines[-1]}")
        return target.read_bytes()


def run_and_record(reference: Path, day: str, seeds: Sequence[int]) -> ShippedEvidence:
    """Run a day's references in this process, which should have done nothing else before.

    Returns their evidence on the virtual device and the CPU, timelines, and the stubs made of them.
    Raises DojoError where a reference does not pass, BadMarkers, and OSError.
    """
    signatures = {}
    evidence = {}
    timelines = {}
    stubs = {}
    for exercise in exercises_of(day):
        path = reference / f"{exercise.stem}.py"
        stub = stub_of(path.read_text(encoding="utf-8"), str(path))
        stubs[exercise.stem] = zlib.compress(stub.encode(), 9)
        solution = ReferenceSolution(path)
        for function in exercise.functions:
            key = f"{exercise.stem}::{function.name}"
            signatures[key] = solution.signature_of(exercise, function)
            for seed in seeds:
                seen = _observe_reference(exercise, function, solution, "virtual", seed)
                if seen.observations:
                    evidence[f"{seed}/virtual/{key}"] = compress_evidence(seen)
                seen = _observe_reference(exercise, function, solution, "cpu", seed)
                seen = _only_of_bench(function, seen)
                if seen.observations:
                    evidence[f"{seed}/cpu/{key}"] = compress_evidence(seen)
            calls = _timelines_of_calls(exercise, function, solution)
            if calls:
                timelines[key] = compress_evidence(calls)
    return ShippedEvidence(
        day, tuple(seeds), signatures, evidence, timelines=timelines, stubs=stubs
    )


def _only_of_bench(function: Function, evidence: Evidence) -> Evidence:
    """Return what probes saw that run on the chosen device: all others see the virtual one."""
    observations = {}
    for probe in function.probes:
        if probe.machine == "bench" and probe.name in evidence.observations:
            observations[probe.name] = evidence.observations[probe.name]
    return msgspec.structs.replace(evidence, observations=observations)


def _timelines_of_calls(
    exercise: Exercise, function: Function, solution: ReferenceSolution
) -> list[Timeline]:
    """Return what the reference's calls do on the public seed.

    The seeds of the evidence may be a secret. Raises DojoError where the reference does not run.
    """
    from gpudojo.grading.watching import EveryCall

    calls = EveryCall(function.name)
    solution.evidence_of(exercise, calls.watch_function(function), "virtual", PUBLIC_SEEDS[0])
    return calls.timelines


def _observe_reference(
    exercise: Exercise, function: Function, solution: ReferenceSolution, bench: str, seed: int
) -> Evidence:
    """Return what the reference does, once it is known to pass all that students have to.

    Seeds torch's random numbers. Raises CannotRelease where it does not, and BadDay where the day's
    mistakes cannot be read.
    """
    import torch  # only in the process that records

    place = f"{solution.path.name}: `{function.name}`"
    torch.manual_seed(seed)  # for what may draw numbers as it likes, such as a shuffled loader
    try:
        seen = solution.evidence_of(exercise, function, bench, seed)
        evidence = decode_evidence(encode_evidence(seen))
    except DojoError as error:
        raise CannotRelease(f"{place}: {error}") from None
    for result in judge_function(exercise, function, evidence, evidence):
        if result.outcome is not Outcome.PASSED:
            reason = ""
            if result.happened:
                reason = f": {result.happened}"
            raise CannotRelease(
                f"{place}: the reference does not pass its own check {result.check}{reason}"
            )
    return _without_times(function, evidence)


def _without_times(function: Function, evidence: Evidence) -> Evidence:
    """Return the evidence without what this machine's clock says. Raises BadEvidence, KeyError."""
    observations = dict(evidence.observations)
    for probe in function.probes:
        if probe.return_type is not Race:
            continue
        seen = observations[probe.name]
        race = convert_facts(seen.facts, Race)
        without_times = msgspec.structs.replace(race, student=0.0, loop=0.0)
        facts = plain_facts(without_times)
        observations[probe.name] = Observation(seen.status, facts)
    return msgspec.structs.replace(evidence, observations=observations)


def main(reference: str, day: str, target: str, *seeds: str) -> None:
    """Run the references of a day, such as "day8", for these seeds, and write their evidence.

    `reference` is the folder of the references, `target` the file to write. Where one does not pass
    its own checks, a sentence goes to standard error, and the exit status is REFUSED. Raises
    OSError where the file cannot be written.
    """
    try:
        evidence = run_and_record(Path(reference), day, [int(seed) for seed in seeds])
    except DojoError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        raise SystemExit(REFUSED) from None
    Path(target).write_bytes(encode_shipped_evidence(evidence))


if __name__ == "__main__":
    main(*sys.argv[1:])
