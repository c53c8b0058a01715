"""When the last commit of a student's checkout was made."""

from __future__ import annotations

import datetime
import os
import re
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Final

_COMMIT_ID: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BRANCH: Final = re.compile(r"refs/heads/(?!.*\.\.)[\w./-]+")
_COMMITTER: Final = re.compile(rb"^committer .*> (\d{1,11}) ([+-])(\d\d)(\d\d)$", re.M)
_READ_CHARACTERS: Final = 1 << 20
_GIT_SECONDS: Final = 10


def commit_time(checkout: Path) -> str:
    """The time of the last commit of a checkout, as ISO 8601; empty if it is not known.

    The checkout is the student's, and git runs programs that a repository's settings name: it is
    given the objects alone, and settings of ours.
    """
    git_folder = checkout / ".git"
    try:
        commit_id = _current_commit(git_folder)
        if not _COMMIT_ID.fullmatch(commit_id):
            return ""
        commit = _read_commit(commit_id, git_folder / "objects")
        committer = _COMMITTER.search(commit.partition(b"\n\n")[0])
        if committer is None:
            return ""
        seconds, sign, hours, minutes = committer.groups()
        offset = datetime.timedelta(hours=int(hours), minutes=int(minutes))
        zone = datetime.timezone(-offset if sign == b"-" else offset)
        return datetime.datetime.fromtimestamp(int(seconds), zone).isoformat()
    except (OSError, ValueError, OverflowError, subprocess.SubprocessError):
        return ""


def _current_commit(git_folder: Path) -> str:
    """The id of the commit that is checked out; "" where its branch has none.

    Raises OSError or ValueError for files that cannot be read.
    """
    head = _read_text(git_folder / "HEAD").strip()
    branch = _BRANCH.fullmatch(head.removeprefix("ref: "))
    if branch is None:
        return head
    file = git_folder / branch[0]
    if file.is_file():
        return _read_text(file).strip()
    for line in _read_text(git_folder / "packed-refs").splitlines():
        commit_id, _, name = line.partition(" ")
        if name == branch[0]:
            return commit_id
    return ""


def _read_commit(commit_id: str, objects: Path) -> bytes:
    """The text of a commit, by git in an empty repository of ours; empty where git finds none.

    `objects` is the student's folder of objects. Raises OSError if git cannot be run, and
    subprocess.TimeoutExpired.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in ("objects", "refs"):
            (Path(folder) / name).mkdir()
        (Path(folder) / "HEAD").write_text("ref: refs/heads/none\n", encoding="ascii")
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "HOME": folder,
            "LC_ALL": "C",
            "GIT_DIR": folder,
            "GIT_OBJECT_DIRECTORY": str(objects.resolve()),
        }
        run = subprocess.run(
            ["git", "cat-file", "commit", commit_id],
            env=environment,
            capture_output=True,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_SECONDS,
        )
    return run.stdout


def _read_text(path: Path) -> str:
    """The beginning of a regular file; raises OSError, or ValueError for anything else."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise ValueError  # to open a pipe would wait for whoever writes to it
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_READ_CHARACTERS)
