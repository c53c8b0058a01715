"""Runs `python -m virtual_cuda estimate` for tests."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.sharing import WarmPython


class Estimator:
    """Estimates scripts, each in a process that has torch loaded already."""

    def __init__(self, folder: Path, python: WarmPython) -> None:
        """Scripts will lie in `folder`, which is the current one for them."""
        self.folder = folder
        self.python = python

    def estimate(self, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command on a script with this source, whose name stands for FILE."""
        script = self.folder / "train.py"
        script.write_text(source, encoding="utf-8")
        words = [str(script) if word == "FILE" else word for word in arguments]
        return self.python.run("virtual_cuda", "estimate", *words, cwd=self.folder, env=os.environ)

    def result_of(self, source: str, *arguments: str) -> dict[str, Any]:
        """What the command says as JSON. Fails unless it succeeds."""
        done = self.estimate(source, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found
