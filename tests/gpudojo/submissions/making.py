"""Makes folders and archives for the tests of submissions."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

from gpudojo.submissions.entries import Kind, ReadLimits, ReadSubmission, SubmissionEntry
from gpudojo.submissions.listing import list_submissions
from gpudojo.submissions.reading import read_submission

SOURCE = b"def train_epoch(model, loader, loss_fn, optimizer, device):\n    return 0.0\n"
STUB = (
    b"def train_epoch(model, loader, loss_fn, optimizer, device):\n"
    b'    """To do."""\n'
    b"    raise NotImplementedError\n"
)
FILE = "04_modifying_training_loop_gpu.py"


def write(path: Path, data: bytes = SOURCE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def zipped(
    *files: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED
) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, data in files:
            archive.writestr(name, data)
    return made.getvalue()


def tarred(
    *files: tuple[str | tarfile.TarInfo, bytes], mode: str = "w:gz", form: int = tarfile.PAX_FORMAT
) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode, format=form) as archive:  # type: ignore[call-overload]
        for name, data in files:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


def notebook(*cells: str) -> bytes:
    made = [
        {
            "cell_type": "code",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": text,
        }
        for text in cells
    ]
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}).encode()


def entry(path: Path) -> SubmissionEntry:
    """The path as one submission, whatever a folder holds."""
    if path.is_dir():
        return SubmissionEntry(path.name, path.name, path, Kind.FOLDER)
    (found,) = list_submissions([path]).entries
    return found


def submitted(path: Path, limits: ReadLimits | None = None) -> ReadSubmission:
    return read_submission(entry(path), limits)


def paths(submission: ReadSubmission) -> list[str]:
    return [file.path for file in submission.files]
