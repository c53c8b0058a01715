"""Runs a script again with something changed, and tells the difference."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Final

from virtual_cuda.estimate.changes import HALF_BATCH
from virtual_cuda.estimate.report import compared_lines
from virtual_cuda.estimate.result import BatchRun, BatchSearch, ChangedRun, Estimate
from virtual_cuda.estimate.variants import (
    CannotVary,
    ScriptVariant,
    batch_given,
    estimate_variant,
    find_largest_batch,
    with_batch,
)
from virtual_cuda.ledger.texts import count_phrase, short_size

_NOT_HALVED: Final = (
    "changed nothing, since no DataLoader makes the script's batches; name its option for them "
    "with --batch"
)
_NOT_FOUND: Final = "changes nothing: is that the script's option for the batch?"


def _options_of_variant(options: Namespace) -> tuple[str, ...]:
    """The command's own options for a run of a variant."""
    return ("--gpu", options.gpu, "--steps", str(options.steps))


# ---- changes -------------------------------------------------------------------------------------


def estimate_change(change: str, estimate: Estimate, options: Namespace) -> ChangedRun:
    """Run the script with one change; `estimate` is that without it."""
    given = _options_of_variant(options)
    script = tuple(options.script)
    variant = ScriptVariant((*given, "--change", change), script)
    if change == HALF_BATCH and options.batch is not None:
        batch = batch_given(script, options.batch) or estimate.pass_batch or 2
        variant = ScriptVariant(given, with_batch(script, options.batch, max(batch // 2, 1)))
    try:
        other = estimate_variant(variant)
    except CannotVary as error:
        return ChangedRun(change, why_not=str(error))
    is_same = other.peak == estimate.peak and other.batch == estimate.batch
    if change == HALF_BATCH and is_same:
        return ChangedRun(change, why_not=_NOT_HALVED)
    return ChangedRun(change, other)


def lines_of_variant(estimate: Estimate, variant: ChangedRun) -> Iterator[str]:
    """The lines on a change, beside the estimate without it."""
    if variant.estimate is None:
        yield f"{variant.change}: {variant.why_not}"
    else:
        yield from compared_lines(variant.change, estimate, variant.estimate)


# ---- the largest batch ---------------------------------------------------------------------------


def search_largest_batch(
    estimate: Estimate, options: Namespace, tell: Callable[[str], None]
) -> BatchSearch:
    """Find the largest batch that fits, by runs with other numbers for the script's option.

    Before each run `tell` is called with what is done.
    """
    script = tuple(options.script)
    runs: list[BatchRun] = []

    def fits(batch: int) -> bool:
        """True if the script fits with this batch; keeps the run. Raises CannotVary."""
        tell(f"estimating again with {options.batch} {batch}")
        words = with_batch(script, options.batch, batch)
        variant = ScriptVariant(_options_of_variant(options), words)
        found = estimate_variant(variant)
        (here,) = [each for each in found.on_gpus if each.gpu == options.gpu]
        runs.append(BatchRun(batch, found.peak, here.fits))
        return here.fits == "yes"

    given = batch_given(script, options.batch)
    start = estimate.largest_batch or given or 1
    try:
        largest = find_largest_batch(start, fits)
    except CannotVary as error:
        return BatchSearch(options.batch, None, runs, str(error))
    has_no_effect = all(run.peak == estimate.peak for run in runs)
    if largest and has_no_effect:
        return BatchSearch(options.batch, None, runs, _NOT_FOUND)
    return BatchSearch(options.batch, largest, runs)


def lines_of_search(estimate: Estimate, search: BatchSearch) -> Iterator[str]:
    """The lines on the largest batch that fits."""
    if search.largest is None:
        yield f"{search.option}: {search.why_not}"
        return
    if not search.largest:
        yield f"Not even {search.option} 1 surely fits on {estimate.label}."
        return
    (peak,) = {run.peak for run in search.runs if run.batch == search.largest}
    runs = count_phrase(len(search.runs), "run")
    yield (
        f"The largest that fits on {estimate.label} is about {search.option} {search.largest}, "
        f"with a peak of {short_size(peak)}; {runs} tried it."
    )
    close = [run.batch for run in search.runs if run.fits == "close"]
    if close:
        yield f"{search.option} {min(close)} is too close to say."
