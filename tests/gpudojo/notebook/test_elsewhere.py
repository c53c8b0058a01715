"""`check` without a notebook shows text: in IPython, at Python's prompt, in a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.gpudojo.notebook.solving import ROOT, reference
from tests.sharing import WarmPython

SELECT = "import torch\nfrom gpudojo.notebook import check\n\n\n" + reference()["select_device"]
STUB = (
    "def train_epoch(model, loader, loss_fn, optimizer, device):\n    raise NotImplementedError\n"
)
RAISES = "def move_model(model, device):\n    model = model.to(device)\n    return 1 / 0\n"
SAID = (
    "select_device: 8 of 8 points (01_checking_device)",
    "train_epoch: 0 of 14 points",
    "still to do",
    "division",
)


def environment(folder: Path, encoding: str = "utf-8") -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONIOENCODING": encoding,
        "TERM": "dumb",
    }


def said_by(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script(warm_python: WarmPython, tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    calls = "check(select_device)\ncheck(train_epoch)\ncheck(move_model)\ncheck()\n"
    script.write_text(f"{SELECT}\n\n\n{STUB}\n\n{RAISES}\n\n{calls}", encoding="utf-8")
    said = said_by(warm_python.run(str(script), cwd=tmp_path, env=environment(tmp_path)))
    for part in SAID:
        assert part in said
    assert "return 1 / 0" in said
    assert "mine.py, line " in said
    assert "░" in said
    assert "<" not in said.replace("<table>", ""), "no HTML"
    # The same on a console that knows no such characters.
    plain = said_by(warm_python.run(str(script), cwd=tmp_path, env=environment(tmp_path, "ascii")))
    assert plain.isascii()
    assert "select_device: 8 of 8 points" in plain


def test_pythons_own_prompt(tmp_path: Path) -> None:
    # A prompt ends a function with an empty line; what is typed there may have no source to be read
    # again.
    typed = "\n".join(line for line in SELECT.splitlines() if line.strip()) + "\n\n"
    typed += f"{STUB}\n{RAISES}\ncheck(select_device)\ncheck(train_epoch)\ncheck(move_model)\n"
    done = subprocess.run(
        [sys.executable, "-i", "-q"],
        cwd=tmp_path,
        env=environment(tmp_path),
        input=typed,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    said = said_by(done)
    for part in SAID:
        assert part in said


def test_ipython_in_a_terminal(warm_python: WarmPython, tmp_path: Path) -> None:
    lines = (
        f"{SELECT}\n\n\n"
        f"{STUB}\n\n"
        f"{RAISES}\n\n"
        "check(select_device)\n"
        "check(train_epoch)\n"
        "check(move_model)\n"
    )
    options = ("--simple-prompt", "--no-banner", "--colors=nocolor", "-c", lines)
    said = said_by(warm_python.run("IPython", *options, cwd=tmp_path, env=environment(tmp_path)))
    for part in SAID:
        assert part in said
    assert "return 1 / 0" in said
    assert "gpudojo" not in said, "HTML is for those who can draw it"
