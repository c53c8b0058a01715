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


def _run(*words: str) -> None:
    run = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if run.returncode:
        errors = [line for line in run.stdout.splitlines() if "error" in line.lower()]
        raise RuntimeError((errors or run.stdout.splitlines() or ["it said nothing"])[-1].strip())


def _site(python: Path) -> str:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.run(
        [python, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def make(place: Path) -> dict[str, str]:
    """Make what is missing; gives, by package, why one is not there."""
    place.mkdir(parents=True, exist_ok=True)
    constraints = ("-c", str(ROOT / "constraints.txt"))
    _environment(place, TORCH, (*constraints, "torch", "numpy"), None)
    shared = _site(python_of(place, TORCH))
    reasons = {}
    for package, wanted in PACKAGES.items():
        # A peer's own versions are its own business: only pytest is ours, too.
        pinned = constraints if package == "pytest" else ()
        try:
            _environment(place, package, (*pinned, wanted), shared)
        except RuntimeError as error:
            reasons[package] = str(error)
    (place / REASONS).write_text(json.dumps(reasons, indent=1), encoding="utf-8")
    return reasons


def _environment(place: Path, name: str, wanted: tuple[str, ...], shared: str | None) -> None:
    python = python_of(place, name)
    done = place / name / "made"
    if done.exists():
        return
    print(f"making the environment of {name}", file=sys.stderr, flush=True)
    _run(sys.executable, "-m", "venv", "--clear", str(place / name))
    if shared is not None:
        Path(_site(python), "torch_from_beside.pth").write_text(f"{shared}\n", encoding="utf-8")
    _run(str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted)
    _run(str(python), "-c", "import torch, numpy")
    done.touch()


def missing(place: Path | None, package: str) -> str | None:
    """Why a peer cannot run here, in a sentence; None where it can."""
    if place is None:
        return "no environment: give --environments DIR, and --make-environments DIR to make them"
    if (place / package / "made").exists():
        return None
    reasons = place / REASONS
    known = json.loads(reasons.read_text(encoding="utf-8")) if reasons.exists() else {}
    return str(
        known.get(
            package,
            f"no environment for {package} in the folder given; --make-environments makes it",
        )
    )


def version(place: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    run = subprocess.run(
        [python_of(place, package), "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    return run.stdout.strip()
