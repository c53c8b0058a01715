"""The zip that an instructor uploads to Gradescope: the grader, recorded evidence, and two scripts.

There are no reference solutions in it, because a container may lack the isolation that keeps student code from reading
them. Student code cannot read the evidence, which is recorded for a secret seed where the instructor gives one.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Final

from gpudojo.classes.grading_options import number
from gpudojo.grading.references import SUFFIX
from gpudojo.model.errors import CannotRelease
from gpudojo.model.results_file import replacing
from gpudojo.release import leaks, recording
from gpudojo.release.student import requirements
from gpudojo.release.wheel import wheel

HERE: Final = Path(__file__).parent
DATE: Final = (2020, 1, 1, 0, 0, 0)
EXECUTABLE: Final = ("setup.sh", "run_autograder")


def archive(root: Path, day: str, secret: str | None = None) -> bytes:
    """The zip, the same bytes every time; raises CannotRelease."""
    reference = root / "reference" / day
    if not reference.is_dir():
        raise CannotRelease(f"there is no folder {reference} to record evidence from")
    seed = recording.SEEDS[-1] if secret is None else number(secret, f"gradescope {day}")
    evidence = recording.recorded(reference, day, (seed,))
    name, data = wheel(day)
    pins = [line for line in requirements(day, name).splitlines() if not line.startswith("./")]
    files = {
        **{name: (HERE / name).read_text(encoding="utf-8").replace("@DAY@", day).encode() for name in EXECUTABLE},
        "requirements.txt": "\n".join([*pins, ""]).encode(),
        "grader.txt": f"{name} --hash=sha256:{hashlib.sha256(data).hexdigest()}\n".encode(),
        name: data,
        f"evidence/{day}{SUFFIX}": evidence,
    }
    found = leaks.leaks(files, reference)
    if found:
        raise CannotRelease(f"nothing was written, because the zip would hold a solution: {found[0]}")
    return zipped(files)


def zipped(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, DATE)
            entry.create_system = 3  # Unix, on every system: scripts are executable
            entry.external_attr = (0o100755 if name in EXECUTABLE else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            made.writestr(entry, data)
    return stream.getvalue()


def write(path: Path, data: bytes) -> None:
    """All of it or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise CannotRelease(f"cannot write {path}: {error.strerror}") from None
