"""`dojo grade`."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click
from virtual_cuda.hooks import DEVICE_KINDS

from gpudojo.cli.options import (
    EXISTING_FILE,
    EXISTING_FOLDER,
    EXISTING_PATH,
    FOLDER,
    NumberRange,
    WholeNumberRange,
    count_of_processors,
    day_option,
    find_repository,
    is_given_by_user,
    seed_option,
    size_option,
    with_limits,
)
from gpudojo.cli.single_options import StrictCommand
from gpudojo.model.courses import refuse_other_package
from gpudojo.model.results import AttemptRule

if TYPE_CHECKING:
    from gpudojo.classes.class_grading import GradedClass
    from gpudojo.classes.display import Display
    from gpudojo.classes.grading_options import GradingOptions
    from gpudojo.classes.runners import Runner

REFERENCE: Final = "The folder of reference solutions (default: reference/DAY of the repository)."
# Options that are as in the last run where they are not given, and their names in GradingOptions.
KEPT_OPTIONS: Final = {
    "day": "day",
    "bench": "bench",
    "time_limit": "seconds",
    "memory_limit": "memory",
    "gpu_memory_limit": "gpu_memory",
}
ONLY: Final = (
    "Grade this function or exercise (04) only; may be repeated. In a class that was graded for "
    "more, all else keeps its results and counts."
)
ROSTER: Final = "A CSV file of students, from a platform or with columns id, name, email."
WAIT: Final = "Seconds to wait for a scheduler or workers that are gone."


@click.command(cls=StrictCommand)
@click.argument("submissions", nargs=-1, type=EXISTING_PATH)
@click.option(
    "--out",
    required=True,
    type=FOLDER,
    help="The folder of the class: results, records, overrides.",
)
@day_option
@click.option(
    "--bench",
    default="virtual",
    show_default=True,
    type=click.Choice(DEVICE_KINDS),
    help="Where student code runs.",
)
@seed_option(
    help="A secret the scenarios are drawn from (default: the one of the last run, or a new one)."
)
@click.option(
    "--jobs",
    type=WholeNumberRange(min=1),
    help="How many at once (default: one for each processor).",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Grade on the workers of a Dask scheduler (tcp://…, or its file).",
)
@click.option(
    "--wait", default=60.0, show_default=True, type=NumberRange(min=0), metavar="S", help=WAIT
)
@with_limits
@size_option("--gpu-memory-limit", help="GPU memory, with --bench cuda.")
@click.option("--only", multiple=True, metavar="NAME", help=ONLY)
@click.option("--rejudge", is_flag=True, help="Judge stored evidence again; no student code runs.")
@click.option("--fresh", is_flag=True, help="Run everything again.")
@click.option("--reference", type=EXISTING_FOLDER, help=REFERENCE)
@click.option(
    "--course",
    type=EXISTING_FILE,
    help="The course file (default: that of the last run, else course.toml in the folder of "
    "SUBMISSIONS or in one of two above).",
)
@click.option("--roster", type=EXISTING_FILE, help=ROSTER)
@click.option(
    "--attempt",
    type=click.Choice(get_args(AttemptRule)),
    help="Which of a student's submissions counts.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
@click.pass_context
def grade(context: click.Context, /, **arguments: Any) -> None:
    """Grade SUBMISSIONS: folders, .zip, .tar.gz, .py and .ipynb files, or folders of these.

    Each submission runs in an isolated process. Run the same command again to resume after an
    interruption; submissions that have not changed are not run again. Day, device, seed, limits
    and course file are those of the last run with this --out, unless they are given; so are
    --roster and --attempt where the course file sets none. Where it does, they hold for this run
    alone. Results of other students are kept: to grade one again, give its folder alone. Without
    SUBMISSIONS, what the class keeps of earlier runs is graded again.
    """
    asked = GradeArguments(**arguments)
    _refuse_contradictions(asked)
    with contextlib.closing(_make_runner(asked)) as runner:
        display = _make_display(asked.quiet)
        options = _make_options(asked, context)
        graded = _grade_class(options, display, runner)
    if not asked.quiet:
        from gpudojo.classes.class_summary import print_summary

        print_summary(display.console, graded)
        click.echo(f"\n{graded.path}")


@dataclass(frozen=True)
class GradeArguments:
    """What the user asks of `dojo grade`: its arguments, by the names that click gives them."""

    submissions: tuple[Path, ...]
    out: Path
    day: str
    bench: str
    secret: str | None
    jobs: int | None
    scheduler: str | None
    wait: float
    time_limit: float
    memory_limit: int
    gpu_memory_limit: int
    only: tuple[str, ...]
    rejudge: bool
    fresh: bool
    require_isolation: bool
    reference: Path | None
    course: Path | None
    roster: Path | None
    attempt: AttemptRule | None
    quiet: bool

    @property
    def is_new_class_here(self) -> bool:
        """True if something will certainly run on this machine, on a virtual device."""
        if self.rejudge or self.scheduler is not None or self.bench != "virtual":
            return False
        return not self.out.exists()


def _refuse_contradictions(asked: GradeArguments) -> None:
    """Raises ClickException for a system that cannot grade, UsageError for options that clash."""
    if not hasattr(os, "fork"):
        raise click.ClickException("grading a class needs Linux or macOS; on Windows, use WSL")
    if asked.rejudge and asked.fresh:
        raise click.UsageError("--rejudge runs nothing and --fresh runs everything: choose one")
    if asked.scheduler is not None and asked.jobs is not None:
        raise click.UsageError(
            "--jobs is for this machine; with --scheduler, the workers' threads count"
        )


def _make_options(asked: GradeArguments, context: click.Context) -> GradingOptions:
    """The options of the run, with those that the user gave in `asked`.

    References are looked for later; that raises ClickException where there are none.
    """
    from gpudojo.classes.grading_options import GradingOptions

    names_given = {
        name for option, name in KEPT_OPTIONS.items() if is_given_by_user(context, option)
    }
    return GradingOptions(
        submissions=asked.submissions,
        out=asked.out,
        find_reference=partial(choose_reference, given=asked.reference),
        day=asked.day,
        bench=asked.bench,
        secret=asked.secret,
        jobs=asked.jobs or count_of_processors(),
        seconds=asked.time_limit,
        memory=asked.memory_limit,
        gpu_memory=asked.gpu_memory_limit,
        only=frozenset(asked.only),
        rejudge=asked.rejudge,
        fresh=asked.fresh,
        require_isolation=asked.require_isolation,
        course=asked.course,
        roster=asked.roster,
        attempt=asked.attempt,
        asked=frozenset(names_given),
    )


def choose_reference(day: str, given: Path | None) -> Path:
    """The folder of a day's reference solutions: the one that is given, or that of the repository.

    Raises ClickException where there is none, and CannotBegin for one in a folder with a package of
    the day, where another copy of it is installed.
    """
    if given is None:
        return find_repository(day) / "reference" / day
    for folder in given.resolve().parents:
        refuse_other_package(day, folder)
    return given


def _make_display(quiet: bool) -> Display:
    """What shows progress: nothing with --quiet."""
    from gpudojo.classes.display import Display

    if quiet:
        return Display(None)
    from rich.console import Console

    return Display(Console(highlight=False))


def _grade_class(options: GradingOptions, display: Display, runner: Runner) -> GradedClass:
    """Grade a class and show progress.

    After Ctrl-C the command ends with 130. Raises ClickException where results cannot be written,
    and what `ClassGrading` raises: BadClass and other DojoErrors, OSError.
    """
    from gpudojo.classes.class_grading import ClassGrading

    try:
        with display:
            return ClassGrading(options, display, runner).run()
    except KeyboardInterrupt:
        click.echo(
            f"\nStopped; {_how_far(display)}. Run the same command again to resume.", err=True
        )
        sys.exit(130)
    except OSError as error:
        no_place = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
        if error.errno not in no_place:
            raise
        raise click.ClickException(
            f"cannot write to {options.out}: {error.strerror}; {_how_far(display)}. "
            "Run the same command again to resume."
        ) from error


def _how_far(display: Display) -> str:
    return f"{display.done} of {display.count} are graded and kept"


def _make_runner(asked: GradeArguments) -> Runner:
    """What runs submissions: this machine, or the workers of a Dask scheduler.

    The fork server of this machine may be started. Raises ClickException without Dask, NoCluster
    for a scheduler file without an address, and BadClass where the machine lacks the device.
    """
    if asked.scheduler is None or asked.rejudge:
        return _local_runner(asked)
    try:
        import distributed  # noqa: F401 - is it there?
    except ImportError:
        raise click.ClickException(
            "--scheduler needs Dask's `distributed`: "
            "pip install -c constraints.txt 'gpudojo[cluster]'"
        ) from None
    from gpudojo.classes.dask_client import Cluster

    return Cluster(asked.scheduler, asked.wait, asked.require_isolation)


def _local_runner(asked: GradeArguments) -> Runner:
    """This machine; if something will certainly run, its fork server is started at once.

    It takes seconds until it is ready, and so does what this process imports meanwhile. Raises
    BadClass where the machine lacks the device.
    """
    from gpudojo.classes.local_runner import LocalRunner

    runner = LocalRunner(asked.jobs or count_of_processors())
    if asked.is_new_class_here:
        runner.start_early(asked.bench)
    return runner
