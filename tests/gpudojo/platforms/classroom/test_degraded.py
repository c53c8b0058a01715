"""Without isolation, what a submission writes to the files of a workflow is undone."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpudojo.cli import main

from tests.exploits.test_degraded import BARE
from tests.gpudojo.platforms.classroom import readers
from tests.gpudojo.platforms.classroom.checkouts import FIRST, FORGED, HOSTILE, STOLEN

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the fences these tests are about are Linux's"
)


# Nor can it become another user, as on a machine where the workflow does not run as root.
SAME_USER = "import gpudojo.sandbox.isolation as confinement\nconfinement.first_user = lambda: None"


@pytest.mark.slow
def test_nothing_forged_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpudojo.sandbox import fork_client as keeper

    head, last = keeper._START.rstrip().rsplit("\n", 1)
    monkeypatch.setattr(keeper, "_START", f"{head}\n{BARE}\n{SAME_USER}\n{last}\n")
    monkeypatch.delenv("DOJO_RELEASE", raising=False)
    paths = {
        name: tmp_path / name for name in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_STEP_SUMMARY")
    }
    for name, path in paths.items():
        path.touch()
        monkeypatch.setenv(name, str(path))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    checkout = tmp_path / "day8-alice"
    shutil.copytree(Path(__file__).parents[4] / "exercises", checkout / "exercises")
    text = HOSTILE.format(
        forged=FORGED, stolen=STOLEN, paths=[str(path) for path in paths.values()]
    )
    (checkout / "exercises" / "day8" / FIRST).write_text(text)
    done = CliRunner().invoke(
        main, ["classroom", str(checkout), "--for", "github", "--time-limit", "3"]
    )
    assert done.exit_code == 0, done.output
    told = [
        message for name, _, message in readers.runner(done.output).commands if name == "warning"
    ]
    for name in paths:
        assert f"The submission wrote to ${name}; this was undone." in told
    assert not any(STOLEN in path.read_text() for path in paths.values())
    assert paths["GITHUB_ENV"].read_text() == ""
    assert readers.reporter(readers.outputs(paths["GITHUB_OUTPUT"].read_text()))[0] == 0
    assert "Isolation layers missing on this machine" in paths["GITHUB_STEP_SUMMARY"].read_text()
