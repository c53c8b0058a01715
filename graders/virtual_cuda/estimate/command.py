"""The command `python -m virtual_cuda estimate FILE`, which is `dojo estimate`, too."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from virtual_cuda.clock.gpu_models import USUAL_GPU, gpu_named, gpus
from virtual_cuda.errors import VirtualCudaError
from virtual_cuda.estimate.changes import CHANGES
from virtual_cuda.estimate.progress import EstimateProgress, showing_progress
from virtual_cuda.ledger.texts import with_similar_signs
from virtual_cuda.single_options import SingleOptionsParser

if TYPE_CHECKING:
    from virtual_cuda.estimate.result import Estimate

DESCRIPTION: Final = """\
Say how much memory a script would need on a GPU and how long a step would take, without a GPU and
without computing anything: tensors have shapes and no values. The script runs unchanged for a few
steps of its optimizer. Options come before FILE; what follows FILE goes to the script."""
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
PASSES: Final = 256  # calls of a model without gradients: a loop may wait for a value
_NOTHING_RAN: Final = (
    "ended and nothing had run on the GPU: no tensor was made there or moved there; move the model "
    'and its inputs with .to("cuda")'
)
_STATUSES: Final = (
    "Exit status: 0, also where it fits on no GPU; 1 if the script raised an error or nothing ran "
    "on the GPU; 2 for wrong options; 130 after Ctrl-C, which tells what was known by then."
)
INTERRUPTED: Final = 130  # as shells have it
STEPS: Final = 3  # the first makes the optimizer's states, the last finds all memory cached


def run_estimate(
    arguments: Sequence[str] | None = None, prog: str = "python -m virtual_cuda estimate"
) -> int:
    """Estimate the script that the arguments name, and print the result; returns the exit status.

    It is one of those that `--help` tells.
    """
    options = _parse_options(arguments, prog)
    try:
        return _run(options, prog)
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(options: argparse.Namespace, prog: str) -> int:
    """Estimate the script, print the result, and return the exit status.

    Raises KeyboardInterrupt, but not where the script itself was interrupted.
    """
    progress = EstimateProgress(options.steps)
    with _script_prints_to_stderr(options.json), showing_progress(progress, prog):
        # Not at the top: it imports torch, which takes a while, and `--help` does without.
        from virtual_cuda.estimate.running import estimate_script

        run = estimate_script(options, progress)
    from virtual_cuda.estimate.report import report_lines

    if run.estimate is None:
        if run.failure is not None:
            _explain_failure(run.failure, None, prog)
        elif run.is_interrupted:
            raise KeyboardInterrupt
        else:
            print(f"{prog}: {options.script[0]} {_NOTHING_RAN}", file=sys.stderr)
        return 1
    if options.html is not None:
        options.html.write_text(run.page, encoding="utf-8")
        print(f"wrote {options.html}", file=sys.stderr)
    if not options.json:
        _print_lines(report_lines(run.estimate))
    estimate = run.estimate
    if run.failure is None and not run.is_interrupted:
        with showing_progress(progress, prog):
            estimate = _with_variants(estimate, options, progress)
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(estimate), indent=2).decode())
        sys.stdout.write("\n")
    if run.is_interrupted:
        return INTERRUPTED
    if run.failure is None:
        return 0
    sys.stdout.flush()
    _explain_failure(run.failure, estimate, prog)
    return 1


def _with_variants(
    estimate: Estimate, options: argparse.Namespace, progress: EstimateProgress
) -> Estimate:
    """The estimate with what `--try` and `--batch` ask for, each of which runs the script again.

    Prints each as soon as it is known, unless JSON is asked for. `progress` is told what is done.
    """
    from virtual_cuda.estimate.comparing import (
        estimate_change,
        lines_of_search,
        lines_of_variant,
        search_largest_batch,
    )

    variants = []
    search = None
    for change in options.tries:
        progress.do_next(f"estimating again with {change}")
        variant = estimate_change(change, estimate, options)
        variants.append(variant)
        if not options.json:
            _print_lines(lines_of_variant(estimate, variant))
    if options.batch is not None:
        search = search_largest_batch(estimate, options, progress.do_next)
        if not options.json:
            _print_lines(lines_of_search(estimate, search))
    return msgspec.structs.replace(estimate, variants=variants, search=search)


@contextlib.contextmanager
def _script_prints_to_stderr(is_wanted: bool) -> Iterator[None]:
    """Let what is printed inside the `with` block go to stderr, also by other processes.

    JSON is then all that stands on stdout. Nothing changes if it is not wanted.
    """
    if not is_wanted:
        yield
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def _print_lines(lines: Iterable[str]) -> None:
    """Print each line as soon as it is known."""
    for line in lines:
        print(with_similar_signs(line, sys.stdout.encoding or "utf-8"), flush=True)


def _parse_options(arguments: Sequence[str] | None, prog: str) -> argparse.Namespace:
    """The options of the command line, checked; exits with status 2 where one is wrong."""
    usage = "%(prog)s [options] FILE [ARGS ...]"
    parser = SingleOptionsParser(prog, usage, DESCRIPTION, _STATUSES, allow_abbrev=False)
    parser.add_argument(
        "--gpu",
        default=USUAL_GPU,
        metavar="NAME",
        help=f"the GPU to be: {', '.join(gpus())} (default: {USUAL_GPU})",
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help=f"stop after N steps of the optimizer, or calls of a model without gradients; 0: run "
        f"to the end (default: {STEPS} steps, {PASSES} calls)",
    )
    parser.add_argument(
        "--batch",
        metavar="OPTION",
        help="find the largest batch that fits, by this option of the script, as batch-size",
    )
    parser.add_argument(
        "--try",
        dest="tries",
        default="",
        metavar="LIST",
        help=f"also estimate the script with a change: {', '.join(CHANGES)}, or both",
    )
    parser.add_argument("--change", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument(
        "--html", type=Path, metavar="TO", help="write a page: memory over time, and a timeline"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the result as JSON; what the script prints goes to stderr",
    )
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        options.gpu = gpu_named(options.gpu).name
    except VirtualCudaError as error:
        parser.error(f"--gpu: {error}")
    if options.steps is not None and options.steps < 0:
        parser.error("--steps: give a number of steps, or 0 for all")
    options.is_limited = options.steps is not None  # by whoever asks
    options.passes = PASSES if options.steps is None else options.steps
    options.steps = STEPS if options.steps is None else options.steps
    if options.batch is not None and not options.batch.startswith("-"):
        options.batch = f"--{options.batch}"
    options.tries = [each for each in options.tries.split(",") if each]
    for each in options.tries:
        if each not in CHANGES:
            parser.error(f"--try: there is no change {each!r}; choose of {', '.join(CHANGES)}")
    if options.html is not None and not options.html.absolute().parent.is_dir():
        parser.error(f"cannot write {options.html}: its folder is missing")
    if not options.script:
        parser.error("name a script")
    file = Path(options.script[0])
    if file.suffix == ".ipynb":
        parser.error(
            f"{file} is a notebook; make a script of it with: jupyter nbconvert --to script {file}"
        )
    if not file.is_file():
        parser.error(f"there is no file {file}")
    return options


def _explain_failure(failure: BaseException, estimate: Estimate | None, prog: str) -> None:
    """Print why the script did not go on: a sentence where no estimate can, else its traceback.

    What it read before may be why, which is said as well.
    """
    from virtual_cuda.estimate.obstacles import describe_obstacle, describe_reads, line_of_failure

    sentence = describe_obstacle(failure)
    if sentence is None:
        _print_traceback(failure)
        sentence = f"{line_of_failure(failure)}the script ended with the error above"
        if estimate is not None:
            sentence = describe_reads(failure, estimate.assumptions) or sentence
    print(f"{prog}: {sentence}", file=sys.stderr)


def _print_traceback(failure: BaseException) -> None:
    """Print the traceback of an error and of those it came from, as it would be on a GPU.

    Frames of the virtual device are left out.
    """
    told = traceback.TracebackException.from_exception(failure)
    part: traceback.TracebackException | None = told
    while part is not None:
        frames = [frame for frame in part.stack if not frame.filename.startswith(_PACKAGE)]
        part.stack = traceback.StackSummary.from_list(frames)
        part = part.__cause__ or part.__context__
    print("".join(told.format()), end="", file=sys.stderr)
