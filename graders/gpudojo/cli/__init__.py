"""The command `dojo`. A subcommand's module is imported when the subcommand is used."""

from __future__ import annotations

import importlib
from typing import Final

import click

from gpudojo import __version__

# By name: the module in this package, and the line of `dojo --help`, which imports no other module.
COMMANDS: Final = {
    "bench": ("bench", "Train on a virtual CUDA device and show what each line moved."),
    "classroom": ("classroom", "Grade a checkout on GitHub Classroom or Classroom 50."),
    "doctor": ("doctor", "Show what this machine has, and what to do about what is missing."),
    "export": ("export", "Write results for another program."),
    "grade": ("grade", "Grade submissions."),
    "lesson": ("lesson", "Show the lesson of an exercise."),
    "lint": ("authoring", "Check that a day is ready for students."),
    "new": ("authoring", "Make the files of a new exercise or day."),
    "release": ("release", "Make what students get."),
    "report": ("export", "Make HTML pages of results."),
    "sample": ("authoring", "Make a sample class of submissions."),
    "watch": ("watch", "Grade what you save, at once, and show the first thing to fix."),
}


class LazyGroup(click.Group):
    """A group that imports its commands when they are used. Errors of gpudojo become messages, not tracebacks."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"{__name__}.{COMMANDS[cmd_name][0]}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except Exception as error:
            from gpudojo.model.errors import DojoError  # only here: `dojo --help` does without

            if not isinstance(error, DojoError):
                raise
            raise click.ClickException(str(error)) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dojo")
def main() -> None:
    """Exercises in GPU programming, on any machine."""
