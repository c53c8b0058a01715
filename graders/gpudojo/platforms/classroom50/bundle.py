"""The bundle for Classroom 50: an autograder, the released grader and its manifest.

The folder becomes `CLASSROOM/autograders/ASSIGNMENT/` of the teacher's configuration repository. Students can read it
there, so it holds nothing that a student's repository does not hold.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from gpudojo.model.errors import CannotRelease
from gpudojo.release.manifest import LARGEST, dumped, of_folder
from gpudojo.submissions.archives import fetch
from gpudojo.submissions.entries import Unreadable


def bundle(released: Path) -> dict[str, bytes]:
    """The files of the bundle, for a repository that `dojo release student` has written."""
    found = of_folder(released)
    try:
        wheel = fetch(released / found.wheel, LARGEST)
    except Unreadable as error:
        raise CannotRelease(f"{found.wheel} of {released} {error}") from None
    return {
        "autograder.py": Path(__file__).with_name("autograder.py").read_text(encoding="utf-8").encode(),
        "release.json": f"{dumped(found)}\n".encode(),
        PurePosixPath(found.wheel).name: wheel,
    }
