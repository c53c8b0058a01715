"""The manifest of a released repository, what differs from it, and the evidence of the reference for public seeds."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import msgspec

from gpudojo.grading.engine import judge_function
from gpudojo.grading.references import (
    PUBLIC_SEEDS,
    ReferenceSolution,
    ShippedEvidence,
    compress,
    encode_shipped,
)
from gpudojo.model.catalogue import day_names, exercises_of
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
from gpudojo.submissions.archives import fetch
from gpudojo.submissions.entries import Unreadable, is_junk

if TYPE_CHECKING:
    from virtual_cuda.ledger import Timeline


WORKFLOW: Final = ".github/workflows/classroom.yml"
GUARDED_FOLDERS: Final = ("vendor", ".github")
GUARDED_FILES: Final = frozenset({"requirements.txt", "pytest.ini", "conftest.py"})
# Files that would influence pytest or Python if a grader trusted the folder it runs in.
STEERING: Final = frozenset(
    "conftest.py pytest.ini tox.ini setup.cfg pyproject.toml sitecustomize.py usercustomize.py".split()
)
SHADOWS: Final = frozenset("gpudojo virtual_cuda torch numpy pytest msgspec click".split())
LARGEST: Final = 64 << 20
MOST: Final = 20_000  # entries of a checkout that are looked at
VERSION: Final = 1


class Manifest(msgspec.Struct, frozen=True):
    """What a release is made of, as far as students leave it alone."""

    day: str
    wheel: str  # "vendor/gpudojo-….whl"
    files: dict[str, str]  # path: SHA-256
    requirements: tuple[
        str, ...
    ]  # what the grader needs, in the versions that it was released with
    version: int = VERSION

    @property
    def grader(self) -> str:
        """The version of gpudojo in the wheel."""
        return PurePosixPath(self.wheel).name.split("-")[1]


@dataclass(frozen=True)
class Change:
    """A file that is not as it was released."""

    path: str
    what: str  # "changed", "deleted", "added"


def manifest(files: Mapping[str, bytes], day: str) -> Manifest:
    """The manifest of a student's repository, by the paths of its files."""
    wheels = [path for path in files if re.fullmatch(r"vendor/gpudojo-[^/]+\.whl", path)]
    if len(wheels) != 1:
        said = f"a student's repository has one wheel of gpudojo in vendor/, but this one has {len(wheels)}"
        raise CannotRelease(said)
    lines = files.get("requirements.txt", b"").decode("utf-8", "replace").splitlines()
    needed = tuple(
        line.strip() for line in lines if line.strip() and not line.startswith(("./", "#", "-"))
    )
    guarded = [
        path for path in files if path in GUARDED_FILES or path.partition("/")[0] in GUARDED_FOLDERS
    ]
    return Manifest(day, wheels[0], {path: hashed(files[path]) for path in sorted(guarded)}, needed)


def of_folder(folder: Path) -> Manifest:
    """The same, of a released repository on disk."""
    files = {}
    for path in (
        *GUARDED_FILES,
        *(path for path in _walk(folder) if path.partition("/")[0] in GUARDED_FOLDERS),
    ):
        with contextlib.suppress(Unreadable):
            files[path] = fetch(folder / path, LARGEST)
    day = next((name for name in day_names() if (folder / "exercises" / name).is_dir()), None)
    if day is None or not any(path.endswith(".whl") for path in files):
        raise CannotRelease(
            f"{folder} was not made by `dojo release student`: it has no exercises or no wheel"
        )
    return manifest(files, day)


def dumped(made: Manifest) -> str:
    """The manifest on one line."""
    return msgspec.json.encode(made, order="sorted").decode()


def loaded(text: str) -> Manifest:
    try:
        found = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise CannotRelease(f"this is not the manifest of a release: {error}") from None
    if (
        found.version != VERSION
        or found.day not in day_names()
        or not re.fullmatch(r"vendor/[^/]+-[^/]+", found.wheel)
    ):
        raise CannotRelease(
            "this is not the manifest of a release that this version of gpudojo knows"
        )
    return found


def hashed(data: bytes) -> str:
    """A hash that does not change with the line ends that git gives text on some systems."""
    return hashlib.sha256(data if b"\0" in data else data.replace(b"\r\n", b"\n")).hexdigest()


def changes(folder: Path, released: Manifest) -> list[Change]:
    """What of a checkout is not as it was released; nothing in it is run or followed."""
    found = []
    for path, wanted in sorted(released.files.items()):
        data = b""
        with contextlib.suppress(Unreadable):
            data = fetch(folder / path, LARGEST)
        if not os.path.lexists(folder / path):
            found.append(Change(path, "deleted"))
        elif hashed(data) != wanted:
            found.append(Change(path, "changed"))
    found += [Change(path, "added") for path in _steering(folder) if path not in released.files]
    return found


def _steering(folder: Path) -> Iterator[str]:
    """Files and folders that no release has there, and that would influence a grader that trusted them."""
    for path in _walk(folder):
        name = PurePosixPath(path).name
        first, _, rest = path.partition("/")
        shadow = not rest and name.removesuffix(".py") in SHADOWS
        if (
            name in STEERING
            or shadow
            or name.endswith(".pth")
            or (rest and first in GUARDED_FOLDERS)
        ):
            yield path


def _walk(folder: Path) -> Iterator[str]:
    """Files below a folder by path, and links and folders that shadow a package; no link is followed."""
    waiting = [""]
    looked_at = 0
    while waiting:
        inside = waiting.pop(0)
        try:
            with os.scandir(folder / inside) as entries:
                children = sorted(entries, key=lambda child: child.name)
        except OSError:
            continue
        for child in children:
            looked_at += 1
            if looked_at > MOST:
                return
            path = f"{inside}/{child.name}" if inside else child.name
            if child.is_dir(follow_symlinks=False):
                if not inside and child.name in SHADOWS:
                    yield path
                elif child.name in GUARDED_FOLDERS or not is_junk(child.name):
                    waiting.append(path)
            else:
                yield path


SEEDS: Final = PUBLIC_SEEDS
REFUSED: Final = (
    3  # the process's exit status where the reference does not pass; its last line says why
)


def recorded(reference: Path, name: str, seeds: Sequence[int] = SEEDS) -> bytes:
    """The evidence of a day's references, as a release ships it."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "evidence"
        paths = [
            str(Path(__file__).resolve().parents[2]),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
        settings = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        environment = os.environ | settings | {"PYTHONPATH": os.pathsep.join(paths)}
        command = [
            sys.executable,
            "-m",
            __name__,
            str(reference.resolve()),
            name,
            str(target),
            *map(str, seeds),
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        if done.returncode == REFUSED:
            raise CannotRelease(said[-1])
        if done.returncode or not target.is_file():
            raise CannotRelease(f"the references could not be run: {said[-1]}")
        return target.read_bytes()


def record(reference: Path, name: str, seeds: Sequence[int]) -> ShippedEvidence:
    """The same in this process, which should have done nothing else before."""
    signatures = {}
    evidence = {}
    timelines = {}
    for exercise in exercises_of(name):
        written = ReferenceSolution(reference / f"{exercise.stem}.py")
        for function in exercise.functions:
            key = f"{exercise.stem}::{function.name}"
            signatures[key] = written.signature(exercise, function)
            for seed in seeds:
                for bench in ("virtual", "cpu"):
                    found = _seen(exercise, function, written, bench, seed)
                    if bench == "cpu":  # only these see another device than on the virtual GPU
                        alone = {p.name for p in function.probes if p.machine == "bench"}
                        kept = {
                            probe: seen
                            for probe, seen in found.observations.items()
                            if probe in alone
                        }
                        found = msgspec.structs.replace(found, observations=kept)
                    if found.observations:
                        evidence[f"{seed}/{bench}/{key}"] = compress(found)
            if drawn := _drawn(exercise, function, written):
                timelines[key] = compress(drawn)
    return ShippedEvidence(name, tuple(seeds), signatures, evidence, timelines=timelines)


def _drawn(exercise: Exercise, function: Function, written: ReferenceSolution) -> list[Timeline]:
    """What the reference's calls do on the public seed, whichever seeds the evidence is of: these may be a secret."""
    from gpudojo.grading.watching import EveryCall

    every = EveryCall(function.name)
    written.evidence(exercise, every.over(function), "virtual", PUBLIC_SEEDS[0])
    return every.timelines


def _seen(
    exercise: Exercise, function: Function, written: ReferenceSolution, bench: str, seed: int
) -> Evidence:
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
            raise CannotRelease(
                f"{place}: the reference does not pass its own check {result.check}{said}"
            )
    return _portable(function, found)


def _portable(function: Function, found: Evidence) -> Evidence:
    """The evidence without what this machine's clock says."""
    observations = dict(found.observations)
    for probe in function.probes:
        if probe.returns is Race:
            seen = observations[probe.name]
            kept = msgspec.structs.replace(convert_facts(seen.facts, Race), student=0.0, loop=0.0)
            observations[probe.name] = Observation(seen.status, plain_facts(kept))
    return msgspec.structs.replace(found, observations=observations)


def main(reference: str, name: str, target: str, *seeds: str) -> None:
    try:
        made = record(Path(reference), name, tuple(map(int, seeds)))
    except DojoError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        raise SystemExit(REFUSED) from None
    Path(target).write_bytes(encode_shipped(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
