"""Records the evidence of the reference for public seeds."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gpudojo.grading.judge import judge_function
from gpudojo.grading.references import PUBLIC_SEEDS, Shipped, Written, compressed, pack
from gpudojo.model.catalogue import day
from gpudojo.model.errors import CannotRelease, DojoError
from gpudojo.model.evidence import Evidence, Observation, Race, decode_evidence, encode_evidence, plain, typed
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import Outcome

if TYPE_CHECKING:
    from virtual_cuda.ledger import Timeline


SEEDS: Final = PUBLIC_SEEDS
REFUSED: Final = 3  # the process's exit status where the reference does not pass; its last line says why


def recorded(reference: Path, name: str, seeds: Sequence[int] = SEEDS) -> bytes:
    """The evidence of a day's references, as a release ships it."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "evidence"
        paths = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        settings = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        environment = os.environ | settings | {"PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-m", __name__, str(reference.resolve()), name, str(target), *map(str, seeds)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        if done.returncode == REFUSED:
            raise CannotRelease(said[-1])
        if done.returncode or not target.is_file():
            raise CannotRelease(f"the references could not be run: {said[-1]}")
        return target.read_bytes()


def record(reference: Path, name: str, seeds: Sequence[int]) -> Shipped:
    """The same in this process, which should have done nothing else before."""
    signatures, evidence, timelines = {}, {}, {}
    for exercise in day(name):
        written = Written(reference / f"{exercise.stem}.py")
        for function in exercise.functions:
            key = f"{exercise.stem}::{function.name}"
            signatures[key] = written.signature(exercise, function)
            for seed in seeds:
                for bench in ("virtual", "cpu"):
                    found = _seen(exercise, function, written, bench, seed)
                    if bench == "cpu":  # only these see another device than on the virtual GPU
                        alone = {p.name for p in function.probes if p.machine == "bench"}
                        kept = {probe: seen for probe, seen in found.observations.items() if probe in alone}
                        found = msgspec.structs.replace(found, observations=kept)
                    if found.observations:
                        evidence[f"{seed}/{bench}/{key}"] = compressed(found)
            if drawn := _drawn(exercise, function, written):
                timelines[key] = compressed(drawn)
    return Shipped(name, tuple(seeds), signatures, evidence, timelines=timelines)


def _drawn(exercise: Exercise, function: Function, written: Written) -> list[Timeline]:
    """What the reference's calls do on the public seed, whichever seeds the evidence is of: these may be a secret."""
    from gpudojo.grading.watching import EveryCall

    every = EveryCall(function.name)
    written.evidence(exercise, every.over(function), "virtual", PUBLIC_SEEDS[0])
    return every.timelines


def _seen(exercise: Exercise, function: Function, written: Written, bench: str, seed: int) -> Evidence:
    """What the reference does, once it is known to pass all that students have to."""
    import torch  # only in the process that records

    place = f"{written.path.name}: `{function.name}`"
    torch.manual_seed(seed)  # for what may draw numbers as it likes, such as a shuffled loader
    try:
        found = decode_evidence(encode_evidence(written.evidence(exercise, function, bench, seed)))
    except DojoError as error:
        raise CannotRelease(f"{place}: {error}") from None
    for result in judge_function(exercise, function, found, found):
        if result.outcome is not Outcome.PASSED:
            said = f": {result.happened}" if result.happened else ""
            raise CannotRelease(f"{place}: the reference does not pass its own check {result.check}{said}")
    return _portable(function, found)


def _portable(function: Function, found: Evidence) -> Evidence:
    """The evidence without what this machine's clock says."""
    observations = dict(found.observations)
    for probe in function.probes:
        if probe.returns is Race:
            seen = observations[probe.name]
            kept = msgspec.structs.replace(typed(seen.facts, Race), student=0.0, loop=0.0)
            observations[probe.name] = Observation(seen.status, plain(kept))
    return msgspec.structs.replace(found, observations=observations)


def main(reference: str, name: str, target: str, *seeds: str) -> None:
    try:
        made = record(Path(reference), name, tuple(map(int, seeds)))
    except DojoError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        raise SystemExit(REFUSED) from None
    Path(target).write_bytes(pack(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
