"""Where do the peers live?

In a virtual environment each, made here when asked for; none is a dependency.

torch is large, so it is installed once, in an environment of its own, and the others find it
through a `.pth` file. What a peer brings itself comes first on its path. One that cannot be
installed leaves the reason beside the others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
# By name, what is asked of pip: otter-grader grades outside of containers only with what `grading`
# brings.
PACKAGES: Final = {
    "pytest": "pytest",
    "gradescope-utils": "gradescope-utils",
    "check50": "check50",
    "nbgrader": "nbgrader",
    "otter-grader": "otter-grader[grading]",
}
TORCH: Final = "torch"
REASONS: Final = "reasons.json"


def python_of(place: Path, package: str) -> Path:
    """The interpreter of a peer's environment."""
    return place / package / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _run_command(*words: str) -> None:
    """Run a command. Raises RuntimeError with its last error, in its own words, if it fails."""
    run = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if run.returncode == 0:
        return
    lines = run.stdout.splitlines() or ["it said nothing"]
    errors = [line for line in lines if "error" in line.lower()]
    said = errors or lines
    raise RuntimeError(said[-1].strip())


def _packages_folder_of(python: Path) -> str:
    """The folder into which an environment installs packages."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    run = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout.strip()


def make_environments(place: Path) -> dict[str, str]:
    """Make the environments that are missing. Returns, by package, why one could not be made."""
    place.mkdir(parents=True, exist_ok=True)
    constraints = ("-c", str(ROOT / "constraints.txt"))
    _make_environment(place, TORCH, (*constraints, "torch", "numpy"), None)
    shared = _packages_folder_of(python_of(place, TORCH))
    reasons = {}
    for package, wanted in PACKAGES.items():
        # A peer's own versions are its own business: only pytest is ours, too.
        pinned = constraints if package == "pytest" else ()
        try:
            _make_environment(place, package, (*pinned, wanted), shared)
        except RuntimeError as error:
            reasons[package] = str(error)
    (place / REASONS).write_text(json.dumps(reasons, indent=1), encoding="utf-8")
    return reasons


def _make_environment(place: Path, name: str, wanted: tuple[str, ...], shared: str | None) -> None:
    """Make an environment with what is wanted, unless it is there.

    It finds the packages of the folder `shared`, too. Raises RuntimeError if that fails.
    """
    python = python_of(place, name)
    done = place / name / "made"
    if done.exists():
        return
    print(f"making the environment of {name}", file=sys.stderr, flush=True)
    _run_command(sys.executable, "-m", "venv", "--clear", str(place / name))
    if shared is not None:
        link = Path(_packages_folder_of(python), "torch_from_beside.pth")
        link.write_text(f"{shared}\n", encoding="utf-8")
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    _run_command(*install, *wanted)
    _run_command(str(python), "-c", "import torch, numpy")
    done.touch()


def reason_of_absence(place: Path | None, package: str) -> str | None:
    """Why a peer cannot run here, in a sentence; None where it can."""
    if place is None:
        return "no environment: give --environments DIR, and --make-environments DIR to make them"
    if (place / package / "made").exists():
        return None
    reasons = {}
    if (place / REASONS).exists():
        reasons = json.loads((place / REASONS).read_text(encoding="utf-8"))
    if package in reasons:
        return str(reasons[package])
    return f"no environment for {package} in the folder given; --make-environments makes it"
