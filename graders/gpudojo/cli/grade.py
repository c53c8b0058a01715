"""`dojo grade`."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpudojo.cli.options import processors, which_day

if TYPE_CHECKING:
    from gpudojo.classes.local_runner import Runner


@click.command()
@click.argument("submissions", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Where results go.")
@which_day
@click.option(
    "--bench",
    default="virtual",
    show_default=True,
    type=click.Choice(["virtual", "cuda", "mps", "cpu"]),
    help="Where student code runs.",
)
@click.option("--seed", "secret", envvar="DOJO_SEED", metavar="SECRET", help="A secret the scenarios are drawn from.")
@click.option("--jobs", type=click.IntRange(min=1), help="How many at once (default: one for each processor).")
@click.option("--scheduler", metavar="ADDRESS", help="Grade on the workers of a Dask scheduler (tcp://…, or its file).")
@click.option(
    "--wait",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0),
    metavar="S",
    help="Seconds to wait for a scheduler or workers that are gone.",
)
@click.option(
    "--time-limit",
    default=10.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    metavar="S",
    help="Seconds each function may take.",
)
@click.option("--memory-limit", default="2 GiB", show_default=True, help="Memory each submission may take.")
@click.option("--gpu-memory-limit", default="2 GiB", show_default=True, help="GPU memory, with --bench cuda.")
@click.option("--only", multiple=True, metavar="FUNCTION", help="Grade this function only; may be repeated.")
@click.option("--rejudge", is_flag=True, help="Judge stored evidence again; no student code runs.")
@click.option("--fresh", is_flag=True, help="Run everything again.")
@click.option("--require-isolation", is_flag=True, help="Refuse to grade where a layer of isolation is missing.")
@click.option(
    "--reference",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder of reference solutions (default: reference/DAY of the repository).",
)
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
def grade(
    submissions: tuple[Path, ...],
    out: Path,
    day: str,
    bench: str,
    secret: str | None,
    jobs: int | None,
    scheduler: str | None,
    wait: float,
    time_limit: float,
    memory_limit: str,
    gpu_memory_limit: str,
    only: tuple[str, ...],
    rejudge: bool,
    fresh: bool,
    require_isolation: bool,
    reference: Path | None,
    quiet: bool,
) -> None:
    """Grade SUBMISSIONS: folders, .zip, .tar.gz, .py and .ipynb files, or folders of these.

    Each submission runs in an isolated process. Run the same command again to resume after an interruption;
    submissions that have not changed are not run again.
    """
    if not hasattr(os, "fork"):
        raise click.ClickException("grading a class needs Linux or macOS; on Windows, use WSL")
    from rich.console import Console
    from virtual_cuda import parse_size
    from virtual_cuda.errors import BadSize

    from gpudojo.classes.class_grading import ClassGrading
    from gpudojo.classes.display import Display
    from gpudojo.classes.grading_options import GradingOptions
    from gpudojo.model.errors import DojoError

    if rejudge and fresh:
        raise click.UsageError("--rejudge runs nothing and --fresh runs everything: choose one")
    if scheduler is not None and jobs is not None:
        raise click.UsageError("--jobs is for this machine; with --scheduler, the workers' threads count")
    try:
        memory, gpu_memory = parse_size(memory_limit), parse_size(gpu_memory_limit)
    except BadSize as error:
        raise click.BadParameter(str(error), param_hint="--memory-limit, --gpu-memory-limit") from None
    options = GradingOptions(
        submissions=submissions,
        out=out,
        reference=reference or _reference(day),
        day=day,
        bench=bench,
        secret=secret,
        jobs=jobs or processors(),
        seconds=time_limit,
        memory=memory,
        gpu_memory=gpu_memory,
        only=frozenset(only),
        rejudge=rejudge,
        fresh=fresh,
        require_isolation=require_isolation,
    )
    display = Display(Console(highlight=False), quiet)
    try:
        runner = None if scheduler is None or rejudge else _cluster(scheduler, wait, require_isolation)
        with display:
            outcome = ClassGrading(options, display, runner).run()
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
    display.summary(outcome.seconds, outcome.ran)
    if not quiet:
        click.echo(f"\n{outcome.path}")


def _cluster(address: str, wait: float, require_isolation: bool) -> Runner:
    try:
        import distributed  # noqa: F401 - is it there?
    except ImportError:
        raise click.ClickException(
            "--scheduler needs Dask's `distributed`: pip install -c constraints.txt 'gpudojo[cluster]'"
        ) from None
    from gpudojo.classes.dask_client import Cluster

    return Cluster(address, wait, require_isolation)


def _reference(day: str) -> Path:
    from gpudojo.cli.options import repository

    return repository() / "reference" / day
