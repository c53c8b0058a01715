"""What does `check` show where there is no notebook? The same as text: in IPython, at Python's prompt, in a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.gpudojo.notebook.solving import ROOT, reference

SELECT = "import torch\nfrom gpudojo.notebook import check\n\n\n" + reference()["select_device"]
STUB = "def train_epoch(model, loader, loss_fn, optimizer, device):\n    raise NotImplementedError\n"
RAISES = "def move_model(model, device):\n    model = model.to(device)\n    return 1 / 0\n"
SAID = ("select_device: 8 of 8 points (01_checking_device)", "train_epoch: 0 of 14 points", "still to do", "division")


def run(*command: str, folder: Path, stdin: str = "", encoding: str = "utf-8") -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONIOENCODING": encoding,
        "TERM": "dumb",
    }
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, input=stdin.encode(), capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode(encoding)


def test_a_script(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    calls = "check(select_device)\ncheck(train_epoch)\ncheck(move_model)\ncheck()\n"
    script.write_text(f"{SELECT}\n\n\n{STUB}\n\n{RAISES}\n\n{calls}", encoding="utf-8")
    said = run(str(script), folder=tmp_path)
    for part in SAID:
        assert part in said
    assert "return 1 / 0" in said
    assert "mine.py, line " in said
    assert "░" in said
    assert "<" not in said.replace("<table>", ""), "no HTML"
    # The same on a console that knows no such characters.
    assert "select_device: 8 of 8 points" in run(str(script), folder=tmp_path, encoding="ascii")


def test_pythons_own_prompt(tmp_path: Path) -> None:
    # A prompt ends a function with an empty line; what is typed there may have no source to be read again.
    typed = "\n".join(line for line in SELECT.splitlines() if line.strip()) + "\n\n"
    typed += f"{STUB}\n{RAISES}\ncheck(select_device)\ncheck(train_epoch)\ncheck(move_model)\n"
    said = run("-i", "-q", folder=tmp_path, stdin=typed)
    for part in SAID:
        assert part in said


def test_ipython_in_a_terminal(tmp_path: Path) -> None:
    lines = f"{SELECT}\n\n\n{STUB}\n\n{RAISES}\n\ncheck(select_device)\ncheck(train_epoch)\ncheck(move_model)\n"
    said = run("-m", "IPython", "--simple-prompt", "--no-banner", "--colors=nocolor", "-c", lines, folder=tmp_path)
    for part in SAID:
        assert part in said
    assert "return 1 / 0" in said
    assert "gpudojo" not in said, "HTML is for those who can draw it"
