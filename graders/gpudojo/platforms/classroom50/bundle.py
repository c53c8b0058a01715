"""The bundle for Classroom 50: an autograder, the released grader and its manifest.

The folder becomes `CLASSROOM/autograders/ASSIGNMENT/` of the teacher's configuration repository. Students can read it
there, so it holds nothing that a student's repository does not hold.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

from gpudojo.model.errors import CannotRelease
from gpudojo.release.manifest import LARGEST, dumped, hashed, of_folder
from gpudojo.submissions.archives import fetch
from gpudojo.submissions.entries import Unreadable

MANIFEST: Final = "release.json"

AUTOGRADER: Final = '''\
"""Grades the student's checkout, which is the current folder, with the grader beside this file."""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DAY = @DAY@
WHEEL = @WHEEL@
PINNED = @HASH@  # SHA-256
REQUIREMENTS = @REQUIREMENTS@


def main() -> int:
    checkout = os.getcwd()
    wheel = HERE / WHEEL
    if not wheel.is_file() or hashlib.sha256(wheel.read_bytes()).hexdigest() != PINNED:
        print(f"::error title=The grader is missing::{WHEEL} is missing from the bundle or was changed.")
        return 1
    with tempfile.TemporaryDirectory(prefix="gpudojo-") as folder:
        try:
            python = os.environ.get("GPUDOJO_PYTHON") or installed(Path(folder), wheel)
        except subprocess.CalledProcessError as error:
            print(f"::error title=The grader could not be installed::exit status {error.returncode}, see above.")
            return 1
        command = [python, "-I", "-m", "gpudojo", "classroom", checkout, "--day", DAY, "--for", "classroom50"]
        command += ["--out", checkout, "--release", str(HERE / "release.json")]
        return subprocess.run(command, cwd=folder).returncode


def installed(folder: Path, wheel: Path) -> str:
    """Python in a new virtual environment; nothing in the checkout can influence it."""
    subprocess.run([sys.executable, "-I", "-m", "venv", "dojo"], cwd=folder, check=True)
    python = str(folder / "dojo" / "bin" / "python")
    (folder / "requirements.txt").write_text("\\n".join(REQUIREMENTS) + "\\n")
    (folder / "grader.txt").write_text(f"{wheel} --hash=sha256:{PINNED}\\n")
    pip = [python, "-I", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "-r", "requirements.txt"], cwd=folder, check=True)
    subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", "grader.txt"], cwd=folder, check=True)
    return python


if __name__ == "__main__":
    sys.exit(main())
'''


def bundle(released: Path) -> dict[str, bytes]:
    """The files of the bundle, for a repository that `dojo release student` has written."""
    found = of_folder(released)
    try:
        wheel = fetch(released / found.wheel, LARGEST)
    except Unreadable as error:
        raise CannotRelease(f"{found.wheel} of {released} {error}") from None
    name = PurePosixPath(found.wheel).name
    needed = "".join(f"    {line!r},\n" for line in found.requirements)
    filled = {
        "@DAY@": repr(found.day),
        "@WHEEL@": repr(name),
        "@HASH@": repr(hashed(wheel)),
        "@REQUIREMENTS@": f"(\n{needed})",
    }
    text = AUTOGRADER
    for mark, value in filled.items():
        text = text.replace(mark, value)
    return {"autograder.py": text.encode(), MANIFEST: f"{dumped(found)}\n".encode(), name: wheel}
