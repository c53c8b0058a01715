"""Makes examples/class from the solutions in this repository: `python examples/make_class.py`.

Ten submissions of every kind an instructor meets: solved, half done, wrong in different ways, a
notebook, an archive, broken, endless, hostile, and one named by a learning platform. The same files
every time.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gpudojo.authoring.sample_class import SampleSubmission, hand_in  # noqa: E402

DAY = "day8"
HOSTILE = '''"""Gives itself full marks, or tries to."""

import json
import os
import sys

# A forged report, a patched test runner, and a polite exit before anything could be checked.
for name in ("results.json", "result.json", "../results.json"):
    try:
        with open(name, "w") as file:
            json.dump({"score": 100, "max_score": 100, "status": "graded"}, file)
    except OSError:
        pass
try:
    import _pytest.reports

    _pytest.reports.TestReport.passed = property(lambda self: True)
except ImportError:
    pass
print("::notice title=Autograding report::100/100")
os._exit(0)
'''
CONFTEST = """def pytest_runtest_makereport(item, call):
    call.excinfo = None
"""
ENDLESS = """import torch


def select_device(prefer=None):
    while not torch.cuda.is_available():
        pass  # it will be there any moment
    return torch.device("cuda")
"""
BROKEN = """import torch


def train_epoch(model, loader, loss_fn, optimizer, device)
    model.to(device)
    return 0.0
"""


def files_of(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((ROOT / folder / DAY).glob("*.py"))}


def wrong(stem: str, name: str) -> bytes:
    """A wrong answer below the stub, as a student would have typed it.

    Without the line that says what is wrong.
    """
    text = (ROOT / "tests" / DAY / "wrong" / stem / f"{name}.py").read_text(encoding="utf-8")
    return "\n".join(text.splitlines()[1:]).strip().encode() + b"\n"


def submissions() -> list[SampleSubmission]:
    solved, stubs = files_of("reference"), files_of("exercises")
    plain = {name: _without_markers(data) for name, data in solved.items()}
    half = {name: plain[name] if name < "07" else stubs[name] for name in plain}
    train, evaluate = "04_modifying_training_loop_gpu", "05_modifying_evaluation_loop_gpu"
    first = "01_checking_device.py"
    loops, amp = "06_vectorizing_pixel_loops", "07_mixed_precision"
    forgetful = plain | {
        f"{train}.py": wrong(train, "missing_zero_grad"),
        f"{amp}.py": wrong(amp, "no_update"),
    }
    hard_coded = plain | {
        f"{train}.py": wrong(train, "hard_coded"),
        f"{evaluate}.py": wrong(evaluate, "no_no_grad"),
    }
    return [
        SampleSubmission("student-01-solved", plain, "folder"),
        SampleSubmission("student-02-half-done", half, "folder"),
        SampleSubmission("student-03-forgetful", forgetful, "folder"),
        SampleSubmission("student-04-hard-coded", hard_coded, "folder"),
        SampleSubmission(
            "student-05-notebook",
            plain | {f"{train}.py": wrong(train, "mean_of_batch_means")},
            "notebook",
        ),
        SampleSubmission("student-06-zipped", half | {f"{loops}.py": stubs[f"{loops}.py"]}, "zip"),
        SampleSubmission(
            "student-07-broken", {f"{train}.py": BROKEN.encode(), first: plain[first]}, "folder"
        ),
        SampleSubmission("student-08-endless", plain | {first: ENDLESS.encode()}, "folder"),
        SampleSubmission(
            "student-09-hostile",
            {first: HOSTILE.encode(), "conftest.py": CONFTEST.encode()},
            "folder",
        ),
        SampleSubmission(
            "student10_10010_200010_day8",
            {"day8.py": plain["02_moving_model_to_device.py"]},
            "folder",
        ),
    ]


def _without_markers(data: bytes) -> bytes:
    """A student's file has no solution markers."""
    markers = ("# BEGIN SOL", "# END SOL", "# INSTEAD:")
    lines = data.decode().splitlines(keepends=True)
    return "".join(line for line in lines if not line.strip().startswith(markers)).encode()


def make(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for made in submissions():
        if made.name.startswith("student10"):  # a single file, as a platform names it
            (target / f"{made.name}.py").write_bytes(made.files["day8.py"])
        else:
            hand_in(made, target)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "examples" / "class")
