"""Grades the student's checkout, which is the current folder, with the grader beside this file.

This file is copied into the bundle as it is, and runs there without gpudojo: it imports only the standard library.
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
    """Grade the checkout; the exit status is that of the grader."""
    manifest = HERE / "release.json"
    released = json.loads(manifest.read_bytes())
    checkout = os.getcwd()
    wheel = HERE / Path(released["wheel"]).name
    pinned = released["files"][released["wheel"]]
    if not wheel.is_file() or hashlib.sha256(wheel.read_bytes()).hexdigest() != pinned:
        print(
            f"::error title=The grader is missing::{wheel.name} is missing from the bundle or was changed."
        )
        return 1
    with tempfile.TemporaryDirectory(prefix="gpudojo-") as folder:
        try:
            python = os.environ.get("GPUDOJO_PYTHON") or install_release(
                Path(folder), wheel, pinned, released["requirements"]
            )
        except subprocess.CalledProcessError as error:
            print(
                f"::error title=The grader could not be installed::exit status {error.returncode}, see above."
            )
            return 1
        command = [python, "-I", "-m", "gpudojo", "classroom", checkout, "--day", released["day"]]
        command += ["--for", "classroom50", "--out", checkout, "--release", str(manifest)]
        return subprocess.run(command, cwd=folder).returncode


def install_release(folder: Path, wheel: Path, pinned: str, requirements: list[str]) -> str:
    """Python in a new virtual environment; nothing in the checkout can influence it."""
    subprocess.run([sys.executable, "-I", "-m", "venv", "dojo"], cwd=folder, check=True)
    python = str(folder / "dojo" / "bin" / "python")
    (folder / "requirements.txt").write_text("\n".join(requirements) + "\n")
    (folder / "grader.txt").write_text(f"{wheel} --hash=sha256:{pinned}\n")
    pip = [python, "-I", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    # torch without CUDA, which is a tenth of the size
    environment = {"PIP_EXTRA_INDEX_URL": "https://download.pytorch.org/whl/cpu", **os.environ}
    subprocess.run([*pip, "-r", "requirements.txt"], cwd=folder, env=environment, check=True)
    subprocess.run(
        [*pip, "--no-deps", "--require-hashes", "-r", "grader.txt"], cwd=folder, check=True
    )
    return python


if __name__ == "__main__":
    sys.exit(main())
