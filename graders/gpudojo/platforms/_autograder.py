"""What an instructor uploads to a platform that runs submissions: the grader, recorded evidence, and scripts.

There are no reference solutions in it, because a container may lack the isolation that keeps student code from reading
them. Student code cannot read the evidence, which is recorded for a secret seed where the instructor gives one.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import uuid
import zipfile
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Final

from gpudojo.classes.grading_options import number
from gpudojo.grading.references import SUFFIX
from gpudojo.model.catalogue import day as exercises_of
from gpudojo.model.catalogue import title
from gpudojo.model.errors import CannotRelease
from gpudojo.model.results_file import replacing
from gpudojo.release import leaks, recording
from gpudojo.release.student import requirements
from gpudojo.release.wheel import wheel

HERE: Final = Path(__file__).parent
DATE: Final = (2020, 1, 1, 0, 0, 0)
EXECUTABLE: Final = ("setup.sh", "run_autograder", "run.sh")
BASES: Final = {"prairielearn": "ubuntu:24.04", "autolab": "autograding_image"}
TIMEOUT: Final = 600  # seconds for a submission


def gradescope_zip(root: Path, day: str, secret: str | None = None) -> bytes:
    """The zip, the same bytes every time; raises CannotRelease."""
    grader, evidence = _grader(day), _evidence(root, day, secret, "gradescope")
    return zipped(
        _checked({**grader, **evidence, "run_autograder": _script("gradescope/run_autograder", DAY=day)}, root, day)
    )


def prairielearn_files(root: Path, day: str, image: str, secret: str | None = None) -> dict[str, bytes]:
    """A question of a course, and the folder its image is built from; raises CannotRelease."""
    # A question keeps its id when it is made again.
    own = uuid.UUID(bytes=hashlib.sha256(f"gpudojo {day} {image}".encode()).digest()[:16], version=4)
    about = {
        "uuid": str(own),
        "title": title(day),
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
        f"questions/{day}/question.html": _script("prairielearn/question.html", TITLE=escape(title(day)), FILES=stems),
        f"questions/{day}/tests/run.sh": _script("prairielearn/run.sh", DAY=day),
        **{f"questions/{day}/tests/{name}": data for name, data in evidence.items()},
        **_image("prairielearn", day, image),
    }
    return _checked(files, root, day)


def autolab_files(root: Path, day: str, image: str, secret: str | None = None) -> dict[str, bytes]:
    """A tarball to import as an assessment, and the folder its image is built from; raises CannotRelease."""
    inside = {"run.sh": _script("autolab/run.sh", DAY=day), **_evidence(root, day, secret, "autolab")}
    image_files = _image("autolab", day, image)
    _checked({**inside, **image_files}, root, day)
    problems = [{"name": each.stem, "description": each.title, "max_score": float(each.points), "optional": False}
                for each in exercises_of(day)]  # fmt: skip
    settings = {
        "general": {
            "name": day, "description": "", "display_name": title(day), "handin_filename": "handin.zip",
            "handin_directory": "handin", "max_grace_days": 0, "max_submissions": -1, "disable_handins": False,
            "max_size": 10, "category_name": "Lab",
        },
        "problems": problems,
        "autograder": {"autograde_timeout": TIMEOUT, "autograde_image": image, "release_score": True},
    }  # fmt: skip
    module = f'require "AssessmentBase.rb"\n\nmodule {day.capitalize()}\n  include AssessmentBase\n\n'
    module += f'  def assessmentInitialize(course)\n    super("{day}", course)\n    @problems = []\n  end\nend\n'
    lab = {
        f"{day}.yml": f"{json.dumps(settings, indent=2)}\n".encode(),  # JSON is YAML
        f"{day}.rb": module.encode(),
        "autograde-Makefile": _script("autolab/autograde-Makefile"),
        "autograde.tar": _tarred(inside),
    }
    return {f"{day}.tar": _tarred({f"{day}/{name}": data for name, data in lab.items()}), **image_files}


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
    seed = recording.SEEDS[-1] if secret is None else number(secret, f"{platform} {day}")
    return {f"evidence/{day}{SUFFIX}": recording.recorded(reference, day, (seed,))}


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
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise CannotRelease(f"cannot write {path}: {error.strerror}") from None
