"""The command `dojo`: help, imports, the bench, and its error messages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from gpudojo import __version__
from gpudojo.cli import COMMANDS, main
from gpudojo.cli.bench import TRAINING_LOOP

REPOSITORY = Path(__file__).parents[3]


def dojo(*arguments: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "220"}).invoke(main, arguments)
    return result.exit_code, result.output


def imported(*arguments: str) -> set[str]:
    """The modules that a command imports, up to the end of its help."""
    question = (
        "import sys\nfrom gpudojo.cli import main\n"
        f"main({list(arguments)!r}, standalone_mode=False)\n"
        "print('modules:', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", question], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("modules:")[2].split())


def test_version_and_help() -> None:
    assert dojo("--version") == (0, f"dojo, version {__version__}\n")
    code, said = dojo("--help")
    assert code == 0
    for name, (_, line) in COMMANDS.items():
        assert f"  {name} " in said
        assert line in said
    code, said = dojo("no-such-command")
    assert code == 2
    assert "No such command" in said


def test_help_imports_the_command_group_only() -> None:
    found = imported("--help")
    assert {name for name in found if name.startswith(("gpudojo", "virtual_cuda"))} == {"gpudojo", "gpudojo.cli"}
    assert not {"torch", "numpy", "rich", "jinja2", "msgspec"} & found


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "bench"])
def test_a_command_does_not_import_torch_before_it_runs(name: str) -> None:
    found = imported(name, "--help")
    assert "torch" not in found
    others = {module for module, _ in COMMANDS.values()} - {COMMANDS[name][0]}
    assert not {f"gpudojo.cli.{other}" for other in others} & found


def test_bench_shows_each_line_with_what_it_moved(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    code, said = dojo("bench", "--trace", str(trace))
    assert code == 0
    rows = [[cell.strip() for cell in row.split("│")[1:-1]] for row in said.splitlines() if row.count("│") > 3]
    by_code = {cells[1]: cells[2:] for cells in rows}
    lines = [line.strip() for line in TRAINING_LOOP.splitlines()]
    assert [line for line in lines if line not in by_code] == []
    to_device, _, syncs, *_ = by_code["sprite = sprite.to(device, non_blocking=True)"]
    assert (to_device, syncs) == ("64.00 KiB", "")  # 256 × 64 floats; pinned, so nobody waits
    _, _, syncs, *_ = by_code['print(f"loss {loss.item():.3f}")']
    assert syncs == "8"
    to_device, to_host, syncs, *_ = by_code["guesses = model(sprites.to(device)).argmax(1).cpu()"]
    assert (to_device, to_host, syncs) == ("64.00 KiB", "2.00 KiB", "2")
    assert "Line 22 made the host wait for the device 8 times." in said
    assert json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]


def test_bench_says_how_wide_the_terminal_should_be() -> None:
    def at(columns: int | str) -> str:
        return CliRunner(env={"COLUMNS": str(columns)}).invoke(main, ["bench"]).output

    narrow = at(80)
    assert "…" in narrow
    found = re.search(r"The code is cut off; a terminal with (\d+) columns shows all of it\.", narrow)
    assert found is not None
    wide = at(found[1])
    assert "…" not in wide
    assert "cut off" not in wide


def test_bench_saves_a_self_contained_picture(tmp_path: Path) -> None:
    picture = tmp_path / "bench.svg"
    code, said = dojo("bench", "--picture", str(picture))
    assert code == 0
    assert f"Picture: {picture}" in said
    drawn = picture.read_text(encoding="utf-8")
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
    assert "…" not in drawn, "the picture is as wide as the code"
    assert "url(http" not in drawn
    assert "Line&#160;22&#160;made&#160;the&#160;host&#160;wait" in drawn


def test_bench_reports_bad_sizes_and_missing_folders() -> None:
    code, said = dojo("bench", "--memory", "8 sheep")
    assert code == 1
    assert said.startswith("Error: '8 sheep' is not a size")
    code, said = dojo("bench", "--trace", "/no/such/folder/trace.json")
    assert code == 1
    assert "Error: cannot write /no/such/folder/trace.json: No such file or directory" in said
    code, said = dojo("bench", "--picture", "/no/such/folder/bench.svg")
    assert code == 1
    assert "Error: cannot write /no/such/folder/bench.svg: No such file or directory" in said
