"""What an instructor uploads to a platform that runs submissions: grader, evidence and scripts.

There are no reference solutions in it, because a container may lack the isolation that keeps
student code from reading them. Student code cannot read the evidence, which is recorded for a
secret seed where the instructor gives one. The same input makes the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import uuid
import zipfile
from collections.abc import Collection, Mapping
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any, Final

from gpudojo.classes import store
from gpudojo.classes.grading_options import derive_number
from gpudojo.classes.run_settings import POOL_SIZE
from gpudojo.grading.shipped_evidence import PUBLIC_SEEDS, SHIPPED_SUFFIX
from gpudojo.model.catalogue import day_title, exercises_of
from gpudojo.model.errors import CannotRelease
from gpudojo.release import leaks, recording
from gpudojo.release.manifest import LARGEST_FILE, encode_manifest, manifest_of_folder
from gpudojo.release.student import requirements_text
from gpudojo.release.wheel import build_wheel
from gpudojo.submissions.entries import Unreadable
from gpudojo.submissions.folders import read_file
from gpudojo.submissions.own_output import ZIP_COMMENT

HERE: Final = Path(__file__).parent
ZIP_DATE: Final = (2020, 1, 1, 0, 0, 0)
TAR_DATE: Final = 1_577_836_800  # seconds since 1970, the same day
EXECUTABLE: Final = ("setup.sh", "run_autograder", "run.sh")
BASE_IMAGES: Final = {"prairielearn": "ubuntu:24.04", "autolab": "autograding_image"}
TIMEOUT: Final = 600  # seconds for a submission

Files = dict[str, bytes]  # contents by path


def classroom50_bundle(released: Path) -> Files:
    """Return the files of the bundle for a repository that `dojo release student` has written.

    Raises CannotRelease where the repository is not whole, and OSError where a template of ours
    cannot be read.
    """
    release = manifest_of_folder(released)
    try:
        wheel_data = read_file(released / release.wheel, LARGEST_FILE)
    except Unreadable as error:
        raise CannotRelease(f"{release.wheel} of {released} {error}") from None
    return {
        "autograder.py": _filled_template("classroom50/autograder.py"),
        "release.json": f"{encode_manifest(release)}\n".encode(),
        PurePosixPath(release.wheel).name: wheel_data,
    }


def gradescope_zip(
    root: Path, day: str, secret: str | None = None, left_out: Collection[str] = ()
) -> bytes:
    """Return the zip to upload to Gradescope, of the solutions below `root`.

    With a `secret`, seeds are drawn from it. Exercises with the stems `left_out` are not graded.
    The reference solutions are run to record evidence. Raises CannotRelease where they do not run,
    the grader cannot be built, or a solution would be in it; BadMarkers for their marks; BadDay and
    OSError.
    """
    files = {
        **_grader_files(day),
        **_evidence_files(root, day, secret, "gradescope"),
        "run_autograder": _filled_template(
            "gradescope/run_autograder", DAY=day, ONLY=_only(day, left_out)
        ),
    }
    _refuse_solutions(files, root, day)
    return make_zip(files)


def prairielearn_files(
    root: Path, day: str, image: str, secret: str | None = None, left_out: Collection[str] = ()
) -> Files:
    """Return a question of a course, and the folder its image is built from, as files by path.

    The reference solutions below `root` are run to record evidence; with a `secret`, seeds are
    drawn from it. Exercises with the stems `left_out` are not graded. Raises CannotRelease where
    the solutions do not run, the grader cannot be built, or a solution would be in it; BadMarkers,
    BadDay and OSError.
    """
    names = ",".join(f"{stem}.py" for stem in _graded_stems(day, left_out))
    page = _filled_template("prairielearn/question.html", TITLE=escape(day_title(day)), FILES=names)
    question = {
        "info.json": _as_json(_question_settings(day, image)),
        "question.html": page,
        "tests/run.sh": _filled_template("prairielearn/run.sh", DAY=day, ONLY=_only(day, left_out)),
    }
    for path, data in _evidence_files(root, day, secret, "prairielearn").items():
        question[f"tests/{path}"] = data
    files = {f"questions/{day}/{path}": data for path, data in question.items()}
    files |= _image_files("prairielearn", day, image)
    _refuse_solutions(files, root, day)
    return files


def _question_settings(day: str, image: str) -> dict[str, Any]:
    """Return the `info.json` of a question of PrairieLearn, as data.

    Raises BadDay where the day cannot be imported.
    """
    # A question keeps its id when it is made again.
    digest = hashlib.sha256(f"gpudojo {day} {image}".encode()).digest()
    return {
        "uuid": str(uuid.UUID(bytes=digest[:16], version=4)),
        "title": day_title(day),
        "topic": "GPU programming",
        "type": "v3",
        "gradingMethod": "External",
        "singleVariant": True,
        "externalGradingOptions": {
            "enabled": True,
            "image": image,
            "entrypoint": "/grade/tests/run.sh",
            "timeout": TIMEOUT,
        },
    }


def autolab_files(
    root: Path, day: str, image: str, secret: str | None = None, left_out: Collection[str] = ()
) -> Files:
    """Return a tarball to import as an assessment, and the folder its image is built from.

    Both are files by path. The reference solutions below `root` are run to record evidence; with a
    `secret`, seeds are drawn from it. Exercises with the stems `left_out` are not graded. Raises
    CannotRelease where the solutions do not run, the grader cannot be built, or a solution would be
    in it; BadMarkers, BadDay and OSError.
    """
    autograder = {
        "run.sh": _filled_template("autolab/run.sh", DAY=day, ONLY=_only(day, left_out)),
        **_evidence_files(root, day, secret, "autolab"),
    }
    image_files = _image_files("autolab", day, image)
    _refuse_solutions({**autograder, **image_files}, root, day)
    assessment = {
        f"{day}/{day}.yml": _as_json(_assessment_settings(day, image, left_out)),  # JSON is YAML
        f"{day}/{day}.rb": _filled_template("autolab/assessment.rb", DAY=day, MODULE=day.title()),
        f"{day}/autograde-Makefile": _filled_template("autolab/autograde-Makefile"),
        f"{day}/autograde.tar": _make_tar(autograder),
    }
    return {f"{day}.tar": _make_tar(assessment), **image_files}


def _assessment_settings(day: str, image: str, left_out: Collection[str]) -> dict[str, Any]:
    """Return the settings of an assessment of Autolab, without exercises `left_out`, as data.

    Raises BadDay where the day cannot be imported.
    """
    # Each exercise is a problem with points of its own.
    problems = []
    for exercise in exercises_of(day):
        if exercise.stem in left_out:
            continue
        problem = {
            "name": exercise.stem,
            "description": exercise.title,
            "max_score": float(exercise.points),
            "optional": False,
        }
        problems.append(problem)
    return {
        "general": {
            "name": day,
            "description": "",
            "display_name": day_title(day),
            "handin_filename": "handin.zip",
            "handin_directory": "handin",
            "max_grace_days": 0,
            "max_submissions": -1,
            "disable_handins": False,
            "max_size": 10,
            "category_name": "Lab",
        },
        "problems": problems,
        "autograder": {
            "autograde_timeout": TIMEOUT,
            "autograde_image": image,
            "release_score": True,
        },
    }


def _graded_stems(day: str, left_out: Collection[str]) -> list[str]:
    """Return the stems of a day's exercises, but for those that are left out. Raises BadDay."""
    return [each.stem for each in exercises_of(day) if each.stem not in left_out]


def _only(day: str, left_out: Collection[str]) -> str:
    """Return the last words of the command that grades: the stems, if some are left out."""
    if not left_out:
        return ""
    return " ".join(["", *_graded_stems(day, left_out)])


def _as_json(value: Any) -> bytes:
    """Return a value as the content of a JSON file."""
    return f"{json.dumps(value, indent=2)}\n".encode()


def _grader_files(day: str) -> Files:
    """Return the grader, what it needs, and the script that installs both, as files by path.

    Raises CannotRelease where the wheel of the grader cannot be built, and OSError.
    """
    name, data = build_wheel(day)
    pins = [line for line in requirements_text(day, name).splitlines() if not line.startswith("./")]
    digest = hashlib.sha256(data).hexdigest()
    return {
        "setup.sh": _filled_template("_setup.sh"),
        "requirements.txt": "\n".join([*pins, ""]).encode(),
        "grader.txt": f"{name} --hash=sha256:{digest}\n".encode(),
        name: data,
    }


def _evidence_files(root: Path, day: str, secret: str | None, platform: str) -> Files:
    """Run the reference solutions in a new process and return the file of what was recorded.

    With a secret that is a pool of seeds, of which a submission gets one; else a public seed.
    Raises CannotRelease where there are no solutions, or they do not run or pass, and OSError.
    """
    reference = root / "reference" / day
    if not reference.is_dir():
        raise CannotRelease(f"there is no folder {reference} to record evidence from")
    seeds: tuple[int, ...] = (PUBLIC_SEEDS[-1],)
    if secret is not None:
        names = [f"{platform} {day} {number}" for number in range(POOL_SIZE)]
        seeds = tuple(derive_number(secret, name) for name in names)
    return {f"evidence/{day}{SHIPPED_SUFFIX}": recording.record_evidence(reference, day, seeds)}


def _image_files(platform: str, day: str, image: str) -> Files:
    """Return the folder that a container's image is built from, as files by path.

    Raises CannotRelease where the wheel of the grader cannot be built, and OSError.
    """
    files = {f"image/source/{name}": data for name, data in _grader_files(day).items()}
    dockerfile = _filled_template("_Dockerfile", BASE=BASE_IMAGES[platform], IMAGE=image)
    return {"image/Dockerfile": dockerfile, **files}


def _filled_template(path: str, **values: str) -> bytes:
    """Return a file of this package, with every `@NAME@` replaced by its value. Raises OSError."""
    text = (HERE / path).read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text.encode()


def _refuse_solutions(files: Files, root: Path, day: str) -> None:
    """Raise CannotRelease where a line of a solution is in the files.

    Raises BadMarkers for a solution whose marks do not match, and OSError for one that cannot be
    read.
    """
    leaked = leaks.find_leaks(files, root / "reference" / day)
    if leaked:
        raise CannotRelease(f"nothing was written, because it would hold a solution: {leaked[0]}")


def _mode_of(name: str) -> int:
    """Return the permissions of a file in a bundle."""
    if name.rpartition("/")[2] in EXECUTABLE:
        return 0o755
    return 0o644


def make_zip(files: Mapping[str, bytes]) -> bytes:
    """Return a zip of the files, the same bytes every time."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, ZIP_DATE)
            entry.create_system = 3  # Unix, on every system: scripts are executable
            entry.external_attr = (0o100000 | _mode_of(name)) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
        archive.comment = ZIP_COMMENT
    return stream.getvalue()


def _make_tar(files: Mapping[str, bytes]) -> bytes:
    """Return a tarball of the files, the same bytes every time."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = _mode_of(name)
            entry.mtime = TAR_DATE
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def write_upload(path: Path, data: bytes) -> None:
    """Write a file, all of it or nothing; raises CannotRelease."""
    try:
        store.write_file(path, data)
    except OSError as error:
        raise CannotRelease(f"cannot write {path}: {error.strerror}") from None
