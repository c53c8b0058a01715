"""Options given twice to the commands of the virtual device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from virtual_cuda.__main__ import _parse_options as parse_run
from virtual_cuda.estimate.command import run_estimate
from virtual_cuda.fitting.figures import main as fit
from virtual_cuda.fitting.recording import main as record

COMMANDS: dict[str, tuple[Callable[..., object], list[str]]] = {
    "run": (parse_run, ["--gpu", "T4", "--gpu=A100"]),
    "estimate": (run_estimate, ["--steps", "3", "--steps", "3"]),
    "fit": (fit, ["--name", "a", "--name", "b"]),
    "record": (record, ["--passes", "1", "--passes", "2"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_of_one_value_given_twice_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, twice = COMMANDS[name]
    script = tmp_path / "script.py"
    script.write_text("")
    with pytest.raises(SystemExit) as ended:
        command([*twice, str(script)], "prog")
    assert ended.value.code == 2
    assert f"argument {twice[0]}: is given twice, and takes one value" in capsys.readouterr().err


def test_options_of_the_script_itself_may_be_repeated(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    options = parse_run(["--gpu", "T4", str(script), "--tag", "a", "--tag", "b"], "prog")
    assert options.script == [str(script), "--tag", "a", "--tag", "b"]
