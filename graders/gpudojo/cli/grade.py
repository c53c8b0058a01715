"""`dojo grade`."""

from __future__ import annotations

import errno
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

import click

from gpudojo.cli.options import (
    FOLDER,
    THAT,
    THAT_FILE,
    THAT_FOLDER,
    bytes_option,
    given,
    limits,
    processors,
    repository,
    secret_seed,
    which_day,
)
from gpudojo.model.results import AttemptRule

if TYPE_CHECKING:
    from gpudojo.classes.local_runner import Runner

DEVICES: Final = click.Choice(["virtual", "cuda", "mps", "cpu"])
REFERENCE: Final = "The folder of reference solutions (default: reference/DAY of the repository)."
# Options that are as in the last run where they are not given.
ASKED: Final = {
    "day": "day",
    "bench": "bench",
    "time_limit": "seconds",
    "memory_limit": "memory",
    "gpu_memory_limit": "gpu_memory",
}
ONLY: Final = "Grade this function or exercise (04) only; may be repeated."
ROSTER: Final = "A CSV file of students, from a platform or with columns id, name, email."
WAIT: Final = "Seconds to wait for a scheduler or workers that are gone."


@click.command()
@click.argument("submissions", nargs=-1, required=True, type=THAT)
@click.option(
    "--out",
    required=True,
    type=FOLDER,
    help="The folder of the class: results, records, overrides.",
)
@which_day
@click.option(
    "--bench", default="virtual", show_default=True, type=DEVICES, help="Where student code runs."
)
@secret_seed(
    help="A secret the scenarios are drawn from (default: the one of the last run, or a new one)."
)
@click.option(
    "--jobs", type=click.IntRange(min=1), help="How many at once (default: one for each processor)."
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Grade on the workers of a Dask scheduler (tcp://…, or its file).",
)
@click.option(
    "--wait", default=60.0, show_default=True, type=click.FloatRange(min=0), metavar="S", help=WAIT
)
@limits
@bytes_option("--gpu-memory-limit", help="GPU memory, with --bench cuda.")
@click.option("--only", multiple=True, metavar="NAME", help=ONLY)
@click.option("--rejudge", is_flag=True, help="Judge stored evidence again; no student code runs.")
@click.option("--fresh", is_flag=True, help="Run everything again.")
@click.option("--reference", type=THAT_FOLDER, help=REFERENCE)
@click.option(
    "--course", type=THAT_FILE, help="The course file (default: course.toml beside SUBMISSIONS)."
)
@click.option("--roster", type=THAT_FILE, help=ROSTER)
@click.option(
    "--attempt",
    type=click.Choice(get_args(AttemptRule)),
    help="Which of a student's submissions counts.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
@click.pass_context
def grade(
    context: click.Context,
    submissions: tuple[Path, ...],
    out: Path,
    day: str,
    bench: str,
    secret: str | None,
    jobs: int | None,
    scheduler: str | None,
    wait: float,
    time_limit: float,
    memory_limit: int,
    gpu_memory_limit: int,
    only: tuple[str, ...],
    rejudge: bool,
    fresh: bool,
    require_isolation: bool,
    reference: Path | None,
    course: Path | None,
    roster: Path | None,
    attempt: AttemptRule | None,
    quiet: bool,
) -> None:
    """Grade SUBMISSIONS: folders, .zip, .tar.gz, .py and .ipynb files, or folders of these.

    Each submission runs in an isolated process. Run the same command again to resume after an interruption;
    submissions that have not changed are not run again. Day, device, seed, limits, course file, roster and --attempt
    are those of the last run with this --out, unless they are given. Results of other students are kept: to grade one
    again, give its folder alone.
    """
    if not hasattr(os, "fork"):
        raise click.ClickException("grading a class needs Linux or macOS; on Windows, use WSL")
    if rejudge and fresh:
        raise click.UsageError("--rejudge runs nothing and --fresh runs everything: choose one")
    if scheduler is not None and jobs is not None:
        raise click.UsageError(
            "--jobs is for this machine; with --scheduler, the workers' threads count"
        )
    gc.disable()  # until all is imported, and stays: to look through it for garbage takes a tenth of judging
    from gpudojo.classes.class_grading import ClassGrading, Display, console_here
    from gpudojo.classes.grading_options import GradingOptions
    from gpudojo.classes.local_runner import LocalRunner
    from gpudojo.model.errors import DojoError

    options = GradingOptions(
        submissions=submissions,
        out=out,
        reference=reference,
        references=repository() / "reference" if reference is None else None,
        day=day,
        bench=bench,
        secret=secret,
        jobs=jobs or processors(),
        seconds=time_limit,
        memory=memory_limit,
        gpu_memory=gpu_memory_limit,
        only=frozenset(only),
        rejudge=rejudge,
        fresh=fresh,
        require_isolation=require_isolation,
        course=course,
        roster=roster,
        attempt=attempt,
        asked=frozenset(name for option, name in ASKED.items() if given(context, option)),
    )
    display = Display(None if quiet else console_here())
    try:
        runner: Runner | None = None
        if context.obj is not None:
            runner = LocalRunner(options.jobs, context.obj)
        elif scheduler is not None and not rejudge:
            runner = _cluster(scheduler, wait, require_isolation)
        with display:
            grading = ClassGrading(options, display, runner)
            gc.freeze()
            gc.enable()
            outcome = grading.run()
    except KeyboardInterrupt:
        kept = f"{display.done} of {display.count} are graded and kept"
        click.echo(f"\nStopped; {kept}. Run the same command again to resume.", err=True)
        sys.exit(130)
    except DojoError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        why = f"cannot write to {out}: {error.strerror}; {display.done} of {display.count} are graded and kept"
        raise click.ClickException(f"{why}. Run the same command again to resume.") from error
    finally:
        gc.enable()
    display.summary(outcome)
    if not quiet:
        click.echo(f"\n{outcome.path}")


def _cluster(address: str, wait: float, require_isolation: bool) -> Runner:
    try:
        import distributed  # noqa: F401 - is it there?
    except ImportError:
        said = "--scheduler needs Dask's `distributed`: pip install -c constraints.txt 'gpudojo[cluster]'"
        raise click.ClickException(said) from None
    from gpudojo.classes.dask_client import Cluster

    return Cluster(address, wait, require_isolation)
