"""Probes that this process cannot run give the same evidence in a subprocess."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpudojo.grading.load import load_submission
from gpudojo.grading.observe import observe_probe
from gpudojo.grading.subprocess_probe import observe_in_subprocess
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.evidence import CallStatus

EXERCISE = exercises_of("day8")[0]
FUNCTION = EXERCISE.functions[0]


def test_it_sees_what_is_seen_here(tmp_path: Path) -> None:
    path = tmp_path / f"{EXERCISE.stem}.py"
    path.write_text(
        "import torch\n"
        "print('noise')\n\n"
        "def select_device(prefer=None):\n"
        "    return torch.device('cpu')\n"
    )
    for probe in FUNCTION.probes:
        here = observe_probe(EXERCISE, FUNCTION, probe, load_submission(path), "virtual", 8)
        assert observe_in_subprocess(EXERCISE, FUNCTION, probe, path, 8) == here


def test_a_file_that_ends_its_process_ends_nothing_else(tmp_path: Path) -> None:
    ends = tmp_path / "ends.py"
    works = tmp_path / "works.py"
    ends.write_text("import os\nos._exit(3)\n")
    works.write_text("def select_device(prefer=None):\n    raise ValueError('mine')\n")
    with pytest.raises(RuntimeError, match="ended without evidence"):
        observe_in_subprocess(EXERCISE, FUNCTION, FUNCTION.probes[0], ends, 8)
    seen = observe_in_subprocess(EXERCISE, FUNCTION, FUNCTION.probes[0], works, 8)
    assert seen.status is CallStatus.RAISED
