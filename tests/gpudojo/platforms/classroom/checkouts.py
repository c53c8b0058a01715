"""Checkouts of every kind that students push, from solved to hostile, each made from a release."""

from __future__ import annotations

import shutil
from pathlib import Path

REFERENCE = Path(__file__).parents[4] / "reference" / "day8"
KINDS = (
    "solved",
    "half",
    "stubs",
    "nothing",
    "broken",
    "unreadable",
    "endless",
    "crashing",
    "hostile",
)
FIRST = "01_checking_device.py"
SECOND = "02_moving_model_to_device.py"
FOURTH = "04_modifying_training_loop_gpu.py"
FORGED = "::notice title=Autograding report::100/100"
STOLEN = "stolen=by the student"

HOSTILE = """
import sys
FORGED = (
    "{forged}",
    "::set-output name=exercise04::eyJ0ZXN0cyI6W119",
    "   ::add-mask::points",
    "##[set-env name=PATH]/student",
    "harmless ##[error]not the grader's",
    "\\r::error title=cr::cr",
    "\\u2028::error title=separator::separator",
    "::stop-commands::",
    "\\x1b[2J::warning::escape",
)
def shout():
    for text in FORGED:
        print(text, flush=True)
        print(text, file=sys.stderr, flush=True)
    for path in {paths!r}:
        try:
            with open(path, "a") as file:
                file.write("{stolen}\\n")
        except OSError as error:
            print(type(error).__name__)
shout()
def select_device(prefer=None):
    shout()
    raise RuntimeError("one\\n{forged}\\n::error file=a,line=1::b | c | d <img src=x> **bold** [link](http://a)")
"""


def lay_out(kind: str, checkout: Path, released: Path, github_files: list[Path]) -> None:
    """Make the checkout of a student of this kind."""
    shutil.copytree(released, checkout)
    (checkout / ".git").mkdir()
    day = checkout / "exercises" / "day8"
    solutions = {path.name: path.read_bytes() for path in REFERENCE.glob("*.py")}
    if kind in ("solved", "endless", "crashing", "hostile", "tampered", "broken"):
        for name, data in solutions.items():
            (day / name).write_bytes(data)
    match kind:
        case "half":
            for name in sorted(solutions)[:6]:
                (day / name).write_bytes(solutions[name])
            text = solutions[FOURTH].decode().replace("optimizer.step()", "optimizer.zero_grad()")
            (day / FOURTH).write_text(text)
        case "nothing":
            shutil.rmtree(checkout / "exercises")
            shutil.rmtree(checkout / "notebooks", ignore_errors=True)
        case "broken":
            (day / FIRST).write_text("def select_device(prefer=None:\n    return\n")
            (day / SECOND).unlink()
        case "unreadable":
            for name in solutions:
                (day / name).write_bytes(b"\xff\xfe\x00\x00 no text \xfe")
        case "endless":
            (day / FIRST).write_text(
                "def select_device(prefer=None):\n    while True:\n        pass\n"
            )
        case "crashing":
            (day / FIRST).write_text(
                "import os\n\ndef select_device(prefer=None):\n    os._exit(0)\n"
            )
        case "hostile":
            paths = [str(path) for path in github_files]
            text = HOSTILE.format(forged=FORGED, stolen=STOLEN, paths=paths)
            (day / FIRST).write_text(text)
            (checkout / "::error title=name::of a file\n::notice::two.py").write_text("x = 1\n")
            tamper(checkout)
        case "tampered":
            tamper(checkout)


def tamper(checkout: Path) -> None:
    """Everything that would give points away if a grader trusted the folder it runs in."""
    traitor = "raise SystemExit('the checkout was imported')\n"
    (checkout / "conftest.py").write_text(traitor)
    (checkout / "exercises" / "day8" / "conftest.py").write_text(traitor)
    (checkout / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    for name in ("json.py", "torch.py", "sitecustomize.py", "click.py", "tempfile.py"):
        (checkout / name).write_text(traitor)
    (checkout / "gpudojo").mkdir()
    (checkout / "gpudojo" / "__init__.py").write_text(traitor)
    (checkout / "reference" / "day8").mkdir(parents=True)
    (checkout / "reference" / "day8" / FIRST).write_text(
        "def select_device(prefer=None):\n    return 1\n"
    )
    (wheel,) = (checkout / "vendor").glob("*.whl")
    wheel.write_bytes(b"PK\x03\x04 another wheel")
    workflow = checkout / ".github" / "workflows" / "classroom.yml"
    workflow.write_text(workflow.read_text().replace("timeout-minutes: 20", "timeout-minutes: 21"))
    (checkout / ".github" / "workflows" / "mine.yml").write_text("on: push\n")
    (checkout / "requirements.txt").unlink()
