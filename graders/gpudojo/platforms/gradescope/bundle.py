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

DATE: Final = (2020, 1, 1, 0, 0, 0)
EXECUTABLE: Final = ("setup.sh", "run_autograder")

SETUP: Final = """\
#!/usr/bin/env bash
# Run once, when the image is built: installs Python, torch and the grader in a virtual environment.
set -euo pipefail
root="${GPUDOJO_ROOT:-/autograder}"
source="$root/source"
environment="$root/gpudojo"

recent() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' > /dev/null 2>&1; }
if [ ! -x "$environment/bin/python" ]; then
  export DEBIAN_FRONTEND=noninteractive
  if command -v apt-get > /dev/null; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends libseccomp2 python3 python3-pip python3-venv
  fi
  found=
  for python in python3.13 python3.12 python3.11 python3; do
    if recent "$python"; then found="$python"; break; fi
  done
  if [ -n "$found" ]; then
    "$found" -m venv "$environment"
  else
    # not into root's home folder, which the user that runs submissions cannot read
    export UV_PYTHON_INSTALL_DIR="$root/python"
    python3 -m pip install --quiet uv
    python3 -m uv venv --quiet --seed --python 3.12 "$environment"
  fi
fi
pip() { "$environment/bin/python" -I -m pip --disable-pip-version-check --no-cache-dir "$@"; }
# PIP_EXTRA_INDEX_URL may name an index of builds without CUDA, which are smaller
pip install --quiet -r "$source/requirements.txt"
pip install --quiet --no-deps --require-hashes -r <(sed "s|^|$source/|" "$source/grader.txt")
chmod -R go-rwx "$source/evidence"
"""

RUN: Final = """\
#!/usr/bin/env bash
# Run for each submission: always leaves a results.json, even if the grader itself fails.
root="${GPUDOJO_ROOT:-/autograder}"
results="$root/results/results.json"
mkdir -p "$root/results"
rm -rf "$results"
chmod -R go-rwx "$root/source/evidence"
cd "$root/results" || exit 1
"$root/gpudojo/bin/python" -I -m gpudojo.platforms.gradescope.harness "$root" @DAY@ "${GPUDOJO_SECONDS:-20}"
status=$?
if [ ! -s "$results" ]; then
  printf '{"score": 0, "tests": [], "output_format": "text", "stdout_visibility": "hidden", "output": "%s"}\\n' \\
    "The grader could not run: it ended with status $status. This is not your fault; please tell your teacher." \\
    > "$results"
fi
exit 0
"""


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
        "setup.sh": SETUP.encode(),
        "run_autograder": RUN.replace("@DAY@", day).encode(),
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
