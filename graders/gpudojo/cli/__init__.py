"""The command `dojo`. A subcommand's module is imported when the subcommand is used."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

import click

from gpudojo import __version__

# The parts of `dojo --help`, which imports no other module: by command, its module in this package
# and its line there.
PARTS: Final = {
    "For students": {
        "watch": ("watch", "Grade what you save; show what to fix."),
        "lesson": ("watch", "Show the lesson of an exercise."),
        "reset": ("exercise_files", "Give a stub back; keep your file beside it."),
        "solution": ("exercise_files", "Show a model solution, if you have all points."),
        "run": ("watch", "Run a script on a virtual GPU."),
        "estimate": ("watch", "Say what memory and time a script needs."),
        "doctor": ("watch", "Show what this machine has and lacks."),
    },
    "For instructors": {
        "init": ("course", "Write or check a course file."),
        "grade": ("grade", "Grade submissions."),
        "status": ("status", "Show who is late, absent, to review, to mark."),
        "review": ("review", "Tick off what needed review."),
        "override": ("override", "Decide a dispute: points, lateness."),
        "marks": ("marks", "Mark by hand, with a sheet."),
        "remove": ("remove", "Take rows out of a class."),
        "report": ("export", "Make HTML pages of results."),
        "feedback": ("export", "Write what students get back."),
        "export": ("export", "Write results for another program."),
        "release": ("release", "Make what students get."),
        "classroom": ("release", "Grade a checkout on GitHub Classroom."),
    },
    "For authors of exercises": {
        "new": ("authoring", "Make a new exercise or day."),
        "lint": ("authoring", "Check that a day is ready for students."),
        "sample": ("authoring", "Make a sample class of submissions."),
    },
}
COMMANDS: Final = {name: command for part in PARTS.values() for name, command in part.items()}


class Interrupted(BaseException):
    """A Ctrl-C in a student's script: the process ends as Python's would."""


class LazyGroup(click.Group):
    """A group that imports its commands when they are used.

    Errors of gpudojo become messages, not tracebacks.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, whose module is imported; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module_name, _ = COMMANDS[cmd_name]
        module = importlib.import_module(f"{__name__}.{module_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is named first; raises UsageError with a suggestion.

        Returns its name, the command, and the arguments that are left, as click does.
        """
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            from gpudojo.model.errors import suggest_name  # only here: `dojo --help` does without

            hint = suggest_name(name, COMMANDS, "") or "."
            raise click.UsageError(f"No such command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the parts of the help, from the table alone."""
        width = max(len(name) for name in COMMANDS)
        for title, part in PARTS.items():
            lines = [(f"{name:{width}}", line) for name, (_, line) in part.items()]
            with formatter.section(title):
                formatter.write_dl(lines)

    def main(self, *args: Any, **more: Any) -> Any:
        """Run the command; texts are written with other characters where the output lacks ours.

        Raises KeyboardInterrupt for a Ctrl-C in a student's script.
        """
        runs_script = sys.argv[1:2] in (["run"], ["estimate"])  # a script's output is its own
        if not runs_script and "utf" not in (sys.stdout.encoding or "").lower():
            from virtual_cuda.ledger import write_similar

            write_similar(sys.stdout, sys.stderr)
        try:
            return super().main(*args, **more)
        except Interrupted:  # not by click, which would say "Aborted!" and exit with 1
            raise KeyboardInterrupt from None

    def invoke(self, ctx: click.Context) -> object:
        """Run a subcommand; raises ClickException for errors that a user can mend.

        These are a DojoError, and an OSError with a file that is not a script's own. Others come
        out as they are.
        """
        try:
            return super().invoke(ctx)
        except Exception as error:  # others than these two are raised again
            from gpudojo.model.errors import DojoError  # only here: `dojo --help` does without

            if isinstance(error, DojoError):
                raise click.ClickException(str(error)) from error
            is_of_script = ctx.invoked_subcommand in ("run", "estimate")
            if isinstance(error, OSError) and error.filename and not is_of_script:
                reason = f"cannot use {error.filename}: {error.strerror}"
                raise click.ClickException(reason) from error
            raise


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dojo")
def main() -> None:
    """Exercises in GPU programming, on any machine."""
