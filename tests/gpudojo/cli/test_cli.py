"""The command `dojo`: help, imports, and `dojo run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from gpudojo import __version__
from gpudojo.cli import COMMANDS, main
from gpudojo.sandbox.fork_client import ForkClient

from tests.sharing import WarmPython

REPOSITORY = Path(__file__).parents[3]


def dojo(*arguments: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "220"}).invoke(main, arguments)
    return result.exit_code, result.output


def imported(*arguments: str) -> set[str]:
    """The modules that a command imports, up to the end of its help."""
    question = (
        "import sys\nfrom gpudojo.cli import main\n"
        "try:\n"
        f"    main({list(arguments)!r}, standalone_mode=False)\n"
        "except SystemExit:\n"
        "    pass\n"
        "print('modules:', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", question], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
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
    assert {name for name in found if name.startswith(("gpudojo", "virtual_cuda"))} == {
        "gpudojo",
        "gpudojo.cli",
    }
    assert not {"torch", "numpy", "rich", "jinja2", "msgspec"} & found


def test_the_fork_server_is_started_before_others_are_imported() -> None:
    question = (
        "import sys\n"
        "before = {*sys.modules}\n"
        "import gpudojo.sandbox.fork_client\n"
        "print(*{*sys.modules} - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", question], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert not {"click", "msgspec", "inspect", "dataclasses"} & {*done.stdout.split()}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_does_not_import_torch_before_it_runs(name: str) -> None:
    found = imported(name, "--help")
    assert "torch" not in found
    others = {module for module, _ in COMMANDS.values()} - {COMMANDS[name][0]}
    assert not {f"gpudojo.cli.{other}" for other in others} & found


def test_help_has_a_part_for_students_first_and_cuts_nothing_off() -> None:
    said = CliRunner(env={"COLUMNS": "60"}).invoke(main, ["--help"]).output
    assert (
        said.index("For students:")
        < said.index("  run ")
        < said.index("For instructors:")
        < said.index("  grade ")
    )
    assert all(len(line) <= 60 for line in said.splitlines())
    for _, line in COMMANDS.values():
        assert f"{line}\n" in said, "on one line, whole"


@pytest.mark.slow
def test_run_passes_its_options_on(warm_python: WarmPython, tmp_path: Path) -> None:
    script = "import sys, torch\nprint(torch.cuda.device_count(), sys.argv)\nsys.exit(3)\n"
    (tmp_path / "script.py").write_text(script)
    arguments = ["run", "--gpus", "2", "script.py", "--help", "-m", "x"]
    done = warm_python.run("gpudojo", *arguments, cwd=tmp_path, env=os.environ)
    assert (done.returncode, done.stdout) == (3, "2 ['script.py', '--help', '-m', 'x']\n")
    assert done.stderr == "\nscript.py did nothing on the virtual GPU.\n"
    told = warm_python.run("gpudojo", "run", "--help", cwd=tmp_path, env=os.environ).stdout
    assert told.startswith("usage: dojo run [options] FILE")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a class is graded on Linux and macOS")
def test_the_fork_server_starts_with_the_command_where_something_will_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = str(tmp_path / "new")
    known = str(tmp_path / "class")
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "01_checking_device.py").write_text("x = 1\n")
    steps = list[str]()
    monkeypatch.setattr(ForkClient, "start", lambda self: steps.append("started"))
    monkeypatch.setattr(ForkClient, "close", lambda self: steps.append("closed"))
    wrong = ("--only", "no_such_function")  # so that nothing is graded
    for more in (
        ["--out", known],
        ["--out", new, "--rejudge"],
        ["--out", new, "--scheduler=tcp://127.0.0.1:9"],
        ["--out", new, "--bench=cpu"],
        ["--out", new, "--help"],
    ):
        dojo("grade", known, *more, *wrong)
    assert steps == []
    code, said = dojo("grade", known, "--out", new, *wrong)
    assert (code, "no_such_function" in said) == (1, True)
    assert steps == ["started", "closed"]


@pytest.mark.parametrize("bench", ["cuda", "mps"])
def test_watch_says_that_a_device_is_not_here(bench: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtual_cuda.hooks.device_count", lambda kind: 0)
    code, said = dojo("watch", str(REPOSITORY / "exercises" / "day8"), "--plain", "--bench", bench)
    assert code == 1
    assert said.startswith(
        f"Error: --bench {bench}: this machine has no '{bench}' device that torch can use"
    )


def test_no_command_ends_with_a_traceback_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*words: object) -> None:
        raise OSError(30, "Read-only file system", "some/file")

    monkeypatch.setattr("gpudojo.cli.watch._exercises_with_lesson", broken)
    assert dojo("lesson", "04") == (1, "Error: cannot use some/file: Read-only file system\n")
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "day8").symlink_to(REPOSITORY / "reference" / "day8")
    (tmp_path / "exercises").touch()
    code, said = dojo("release", "stubs", "--root", str(tmp_path))
    assert (code, said.startswith(f"Error: cannot write {tmp_path / 'exercises'}")) == (1, True), (
        said
    )


@pytest.mark.parametrize("more", [(), ("--mutants",)])
def test_lint_needs_references(tmp_path: Path, more: tuple[str, ...]) -> None:
    """Without them every file of every exercise would be listed as missing."""
    done = CliRunner().invoke(main, ["lint", "--root", str(tmp_path), *more])
    assert (done.exit_code, done.output) == (
        1,
        f"Error: there is no folder {tmp_path / 'reference' / 'day8'}\n",
    )


def test_a_mistyped_command_is_answered_with_what_may_be_meant() -> None:
    assert dojo("grad")[1].endswith("Error: No such command 'grad'; did you mean grade?\n")
    assert dojo("overide")[1].endswith("Error: No such command 'overide'; did you mean override?\n")
    assert dojo("xyz")[1].endswith("Error: No such command 'xyz'.\n")


def commands_of(group: click.Group, *before: str) -> list[tuple[tuple[str, ...], click.Command]]:
    """All commands below a group, each with the words that call it."""
    found = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        words = (*before, name)
        if isinstance(command, click.Group):
            found += commands_of(command, *words)
        else:
            found.append((words, command))
    return found


def test_no_command_drops_an_option_that_is_given_twice() -> None:
    """It takes several values, or says that it takes one."""
    asked = 0
    for words, command in commands_of(main):
        for option in command.params:
            if not isinstance(option, click.Option) or option.is_flag or option.multiple:
                continue
            name = max(option.opts, key=len)
            code, said = dojo(*words, name, "1", name, "2")
            assert (code, f"{name} is given twice, and takes one value" in said) == (2, True), said
            asked += 1
    assert asked > 50
