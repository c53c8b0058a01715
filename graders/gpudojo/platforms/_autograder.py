"""What an instructor uploads to a platform that runs submissions: the grader, recorded evidence, and scripts.

There are no reference solutions in it, because a container may lack the isolation that keeps student code from reading
them. Student code cannot read the evidence, which is recorded for a secret seed where the instructor gives one.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import sys
import tarfile
import tempfile
import traceback
import uuid
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import msgspec

import gpudojo
from gpudojo.classes import store
from gpudojo.classes.class_grading import ClassGrading, Display
from gpudojo.classes.grading_options import GradingOptions, number
from gpudojo.grading.limits import DEFAULT_SECONDS
from gpudojo.grading.references import SHIPPED_SUFFIX, read_shipped
from gpudojo.model.catalogue import day_title, exercises_of
from gpudojo.model.errors import BadClass, CannotRelease, DojoError
from gpudojo.model.results import POINT_PLACES, ClassResults, Grade, SubmissionRow
from gpudojo.model.results_file import read
from gpudojo.platforms import Options, exporter, parts_of
from gpudojo.platforms._entries import one_line, save, save_json
from gpudojo.release import leaks, manifest
from gpudojo.release.student import requirements
from gpudojo.release.wheel import wheel
from gpudojo.sandbox.layers import missing_layers
from gpudojo.submissions.archives import fetch
from gpudojo.submissions.entries import Unreadable

HERE: Final = Path(__file__).parent
DATE: Final = (2020, 1, 1, 0, 0, 0)
EXECUTABLE: Final = ("setup.sh", "run_autograder", "run.sh")
BASES: Final = {"prairielearn": "ubuntu:24.04", "autolab": "autograding_image"}
TIMEOUT: Final = 600  # seconds for a submission


def classroom50_bundle(released: Path) -> dict[str, bytes]:
    """The files of the bundle, for a repository that `dojo release student` has written; raises CannotRelease."""
    found = manifest.of_folder(released)
    try:
        packed = fetch(released / found.wheel, manifest.LARGEST)
    except Unreadable as error:
        raise CannotRelease(f"{found.wheel} of {released} {error}") from None
    return {
        "autograder.py": (HERE / "classroom50" / "autograder.py")
        .read_text(encoding="utf-8")
        .encode(),
        "release.json": f"{manifest.dumped(found)}\n".encode(),
        PurePosixPath(found.wheel).name: packed,
    }


def gradescope_zip(root: Path, day: str, secret: str | None = None) -> bytes:
    """The zip, the same bytes every time; raises CannotRelease."""
    grader = _grader(day)
    evidence = _evidence(root, day, secret, "gradescope")
    return zipped(
        _checked(
            {**grader, **evidence, "run_autograder": _script("gradescope/run_autograder", DAY=day)},
            root,
            day,
        )
    )


def prairielearn_files(
    root: Path, day: str, image: str, secret: str | None = None
) -> dict[str, bytes]:
    """A question of a course, and the folder its image is built from; raises CannotRelease."""
    # A question keeps its id when it is made again.
    own = uuid.UUID(
        bytes=hashlib.sha256(f"gpudojo {day} {image}".encode()).digest()[:16], version=4
    )
    about = {
        "uuid": str(own),
        "title": day_title(day),
        "topic": "GPU programming",
        "type": "v3",
        "gradingMethod": "External",
        "singleVariant": True,
        "externalGradingOptions": {
            "enabled": True, "image": image, "entrypoint": "/grade/tests/run.sh", "timeout": TIMEOUT
        },
    }  # fmt: skip
    stems = ",".join(f"{exercise.stem}.py" for exercise in exercises_of(day))
    evidence = _evidence(root, day, secret, "prairielearn")
    files = {
        f"questions/{day}/info.json": f"{json.dumps(about, indent=2)}\n".encode(),
        f"questions/{day}/question.html": _script(
            "prairielearn/question.html", TITLE=escape(day_title(day)), FILES=stems
        ),
        f"questions/{day}/tests/run.sh": _script("prairielearn/run.sh", DAY=day),
        **{f"questions/{day}/tests/{name}": data for name, data in evidence.items()},
        **_image("prairielearn", day, image),
    }
    return _checked(files, root, day)


def autolab_files(root: Path, day: str, image: str, secret: str | None = None) -> dict[str, bytes]:
    """A tarball to import as an assessment, and the folder its image is built from; raises CannotRelease."""
    inside = {
        "run.sh": _script("autolab/run.sh", DAY=day),
        **_evidence(root, day, secret, "autolab"),
    }
    image_files = _image("autolab", day, image)
    _checked({**inside, **image_files}, root, day)
    problems = [{"name": each.stem, "description": each.title, "max_score": float(each.points), "optional": False}
                for each in exercises_of(day)]  # fmt: skip
    settings = {
        "general": {
            "name": day, "description": "", "display_name": day_title(day), "handin_filename": "handin.zip",
            "handin_directory": "handin", "max_grace_days": 0, "max_submissions": -1, "disable_handins": False,
            "max_size": 10, "category_name": "Lab",
        },
        "problems": problems,
        "autograder": {"autograde_timeout": TIMEOUT, "autograde_image": image, "release_score": True},
    }  # fmt: skip
    module = (
        f'require "AssessmentBase.rb"\n\nmodule {day.capitalize()}\n  include AssessmentBase\n\n'
    )
    module += f'  def assessmentInitialize(course)\n    super("{day}", course)\n    @problems = []\n  end\nend\n'
    lab = {
        f"{day}.yml": f"{json.dumps(settings, indent=2)}\n".encode(),  # JSON is YAML
        f"{day}.rb": module.encode(),
        "autograde-Makefile": _script("autolab/autograde-Makefile"),
        "autograde.tar": _tarred(inside),
    }
    return {
        f"{day}.tar": _tarred({f"{day}/{name}": data for name, data in lab.items()}),
        **image_files,
    }


def _grader(day: str) -> dict[str, bytes]:
    """The grader, what it needs, and the script that installs both."""
    name, data = wheel(day)
    pins = [line for line in requirements(day, name).splitlines() if not line.startswith("./")]
    return {
        "setup.sh": _script("_setup.sh"),
        "requirements.txt": "\n".join([*pins, ""]).encode(),
        "grader.txt": f"{name} --hash=sha256:{hashlib.sha256(data).hexdigest()}\n".encode(),
        name: data,
    }


def _evidence(root: Path, day: str, secret: str | None, platform: str) -> dict[str, bytes]:
    reference = root / "reference" / day
    if not reference.is_dir():
        raise CannotRelease(f"there is no folder {reference} to record evidence from")
    seed = manifest.SEEDS[-1] if secret is None else number(secret, f"{platform} {day}")
    return {f"evidence/{day}{SHIPPED_SUFFIX}": manifest.recorded(reference, day, (seed,))}


def _image(platform: str, day: str, image: str) -> dict[str, bytes]:
    files = {f"image/source/{name}": data for name, data in _grader(day).items()}
    return {"image/Dockerfile": _script("_Dockerfile", BASE=BASES[platform], IMAGE=image), **files}


def _script(path: str, **filled: str) -> bytes:
    text = (HERE / path).read_text(encoding="utf-8")
    for name, value in filled.items():
        text = text.replace(f"@{name}@", value)
    return text.encode()


def _checked(files: dict[str, bytes], root: Path, day: str) -> dict[str, bytes]:
    if found := leaks.leaks(files, root / "reference" / day):
        raise CannotRelease(f"nothing was written, because it would hold a solution: {found[0]}")
    return files


def _mode(name: str) -> int:
    return 0o755 if name.rpartition("/")[2] in EXECUTABLE else 0o644


def zipped(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, DATE)
            entry.create_system = 3  # Unix, on every system: scripts are executable
            entry.external_attr = (0o100000 | _mode(name)) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            made.writestr(entry, data)
    return stream.getvalue()


def _tarred(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as made:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(data), _mode(name), 1_577_836_800
            made.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def write(path: Path, data: bytes) -> None:
    """All of it or nothing."""
    try:
        store.write(path, data)
    except OSError as error:
        raise CannotRelease(f"cannot write {path}: {error.strerror}") from None


BUNDLE: Final = "CLASSROOM50_BUNDLE_DIR"
CHECKOUT_MEMORY: Final = 2 << 30


@dataclass(frozen=True)
class JudgedBy:
    """What a submission is judged by: reference solutions, or recorded evidence of them."""

    reference: Path | None = None
    evidence: Path | None = None  # the folder it lies in; None: this installation
    secret: str | None = None
    note: str = ""  # what an instructor should know about the choice


@dataclass(frozen=True)
class Graded:
    """A checkout, graded."""

    results: ClassResults
    seed: int | None  # the public one that scenarios were drawn from; None where it is a secret

    @property
    def row(self) -> SubmissionRow:
        return self.results.submissions[0]


def graded(
    folder: Path,
    day: str,
    measure: JudgedBy,
    seconds: float = DEFAULT_SECONDS,
    memory: int = CHECKOUT_MEMORY,
    require_isolation: bool = False,
) -> Graded:
    """One submission's results, whatever is in the folder. Raises DojoError where the grader fails."""
    if not folder.is_dir():
        raise BadClass(f"{folder} is not a folder")
    # Outside of the checkout: nothing that lies in it can be taken for a record of ours.
    with tempfile.TemporaryDirectory(prefix="dojo-classroom-") as out:
        asked = GradingOptions(
            submissions=[folder],
            out=Path(out),
            reference=measure.reference,
            day=day,
            secret=measure.secret,
            seconds=seconds,
            memory=memory,
            require_isolation=require_isolation,
            evidence=measure.evidence,
            alone=True,
        )
        grading = ClassGrading(asked, Display(None))
        results = read(grading.run().path)
    return Graded(results, grading.recorded.seed if grading.recorded else None)


def judged_by(day: str, environment: Mapping[str, str], reference: Path | None = None) -> JudgedBy:
    """What there is to judge by, never anything in the checkout, which is the student's. Raises BadClass.

    References, with a secret, where the instructor has put them; otherwise recorded evidence, from the bundle or from
    the release that is installed; and in a clone of gpudojo, its own references.
    """
    secret = environment.get("DOJO_SEED") or None
    bundle = environment.get(BUNDLE)
    hidden = Path(bundle) / "reference" / day if bundle else None
    if reference is None and hidden is not None and hidden.is_dir():
        reference = hidden
    if reference is not None:
        return JudgedBy(reference, secret=secret)
    unused = "DOJO_SEED is set, but there are no reference solutions to run with it: the public seed was used."
    note = unused if secret else ""
    if bundle and os.path.isfile(Path(bundle) / f"{day}{SHIPPED_SUFFIX}"):
        return JudgedBy(evidence=Path(bundle), note=note)
    if read_shipped(day) is not None:
        return JudgedBy(note=note)
    own = Path(gpudojo.__file__).resolve().parents[2] / "reference" / day
    if own.is_dir():
        return JudgedBy(own, secret=secret)
    raise BadClass(
        "there is nothing to judge by: no reference solutions were given, and this gpudojo has no recorded evidence"
    )


# The smallest container has 768 MB, of which torch and the grader take 340.
CONTAINER_MEMORY: Final = 256 << 20


def _no_result(target: Path, why: str, day: str) -> None:
    """Without a results.json, Gradescope says that the autograder failed, and records no score."""
    (target / "results.json").unlink(missing_ok=True)


def _not_gradable(target: Path, why: str, day: str) -> None:
    """PrairieLearn gives and takes no points for what is not gradable, and does not count it as an attempt."""
    said = f"The grader could not run: {why}. This is not your fault; please tell your instructor."
    save_json(target / "results.json", {"gradable": False, "format_errors": [said]})


def _no_scores(target: Path, why: str, day: str) -> None:
    """Autolab leaves a problem without a score ungraded."""
    said = f"The grader could not run: {why}. This is not your fault; please tell your instructor."
    none = dict.fromkeys(each.exercise for each in parts_of(day))
    save(target / "feedback.txt", f"{said}\n{msgspec.json.encode({'scores': none}).decode()}\n")


class GraderPlaces(NamedTuple):
    """Where a platform puts a submission and the evidence, and what it gets where the grader fails."""

    submission: str
    evidence: str
    failure: Callable[[Path, str, str], None]


PLACES_THERE: Final = {
    "gradescope": GraderPlaces("submission", "source/evidence", _no_result),
    "prairielearn": GraderPlaces("student", "tests/evidence", _not_gradable),
    "autolab": GraderPlaces("submission", "evidence", _no_scores),
}


def main(platform: str, root: Path, day: str, seconds: float) -> int:
    place = PLACES_THERE[platform]
    target = root / "results"
    target.mkdir(parents=True, exist_ok=True)
    try:
        measure = JudgedBy(evidence=root / place.evidence)
        found = graded(
            root / place.submission, day, measure, seconds=seconds, memory=CONTAINER_MEMORY
        )
        row = published(found.row, worth(root / "submission_metadata.json"))
        exporter(platform)(
            found.results,
            [row],
            target,
            Options(submission=row.submission, exercises=parts_of(day)),
        )
        _log(found)
        return 0
    except (DojoError, OSError) as error:
        why = str(error)
    except Exception as error:
        traceback.print_exc()
        why = f"{type(error).__name__}, see the log"
    print(f"The grader could not run: {one_line(why)}. No score was recorded.", file=sys.stderr)
    place.failure(target, one_line(why), day)
    return 1


class _Assignment(msgspec.Struct):
    total_points: float


class _Metadata(msgspec.Struct):
    assignment: _Assignment


def worth(metadata: Path) -> float | None:
    """The assignment's points on Gradescope; None where they cannot be read or are not positive."""
    try:
        found = msgspec.json.decode(
            metadata.read_bytes(), type=_Metadata, strict=False
        ).assignment.total_points
    except (OSError, msgspec.MsgspecError):
        return None
    return found if 0 < found < math.inf else None


def published(row: SubmissionRow, points: float | None) -> SubmissionRow:
    """The row, with its score scaled to what the assignment is worth there."""
    if points is None or not row.max_score:
        return row
    return msgspec.structs.replace(
        row, grade=Grade(round(row.score * points / row.max_score, POINT_PLACES), points)
    )


def _log(found: Graded) -> None:
    """Print what only the instructor should see: the scripts keep it from students."""
    print(
        f"{one_line(found.row.submission)}: {found.row.score:g} of {found.row.max_score:g} points"
    )
    lacking = missing_layers(found.results.layers)
    print(f"Isolation layers missing in this container: {'; '.join(lacking) or 'none'}.")
    for sentence in (*found.row.notes, *found.row.needs_human):
        print(f"- {one_line(sentence)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])))
