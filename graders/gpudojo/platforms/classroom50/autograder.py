"""Grades the student's checkout, which is the current folder, with the grader beside this file.

This file is copied into the bundle as it is, and runs there without gpudojo: it imports only the
standard library.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Grade the checkout, and return the exit status of the grader, which writes its result there.

    Where the grader cannot be started, an error is printed for GitHub, and the status is 1. Raises
    OSError where a file of the bundle cannot be read.
    """
    # The wheel, as the release has it.
    manifest = HERE / "release.json"
    released = json.loads(manifest.read_bytes())
    wheel = HERE / Path(released["wheel"]).name
    pinned = released["files"][released["wheel"]]
    if not has_digest(wheel, pinned):
        reason = f"{wheel.name} is missing from the bundle or was changed."
        print(f"::error title=The grader is missing::{reason}")
        return 1
    # The grader runs in a folder of its own: the checkout is the student's.
    checkout = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="gpudojo-") as folder:
        python = os.environ.get("GPUDOJO_PYTHON")
        if not python:
            try:
                python = install_release(Path(folder), wheel, pinned, released["requirements"])
            except subprocess.CalledProcessError as error:
                reason = f"exit status {error.returncode}, see above."
                print(f"::error title=The grader could not be installed::{reason}")
                return 1
        command = [python, "-I", "-m", "gpudojo", "classroom", checkout, "--day", released["day"]]
        command += ["--for", "classroom50", "--out", checkout, "--release", str(manifest)]
        return subprocess.run(command, cwd=folder).returncode


def has_digest(file: Path, digest: str) -> bool:
    """True if the file is there and this is its SHA-256. Raises OSError if it cannot be read."""
    if not file.is_file():
        return False
    return hashlib.sha256(file.read_bytes()).hexdigest() == digest


def install_release(folder: Path, wheel: Path, pinned: str, requirements: list[str]) -> str:
    """Install the grader in a new virtual environment, and return the path of its Python.

    Nothing in the checkout can influence it. Raises CalledProcessError where a step of it fails;
    that step has printed why.
    """
    subprocess.run([sys.executable, "-I", "-m", "venv", "dojo"], cwd=folder, check=True)
    python = str(folder / "dojo" / "bin" / "python")
    (folder / "requirements.txt").write_text("\n".join(requirements) + "\n")
    (folder / "grader.txt").write_text(f"{wheel} --hash=sha256:{pinned}\n")
    pip = [python, "-I", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    # torch without CUDA, which is a tenth of the size
    environment = {"PIP_EXTRA_INDEX_URL": "https://download.pytorch.org/whl/cpu", **os.environ}
    subprocess.run([*pip, "-r", "requirements.txt"], cwd=folder, env=environment, check=True)
    grader = [*pip, "--no-deps", "--require-hashes", "-r", "grader.txt"]
    subprocess.run(grader, cwd=folder, check=True)
    return python


if __name__ == "__main__":
    sys.exit(main())
