"""What `--timeline` draws at the end of a run, and the files that `--traces` writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from virtual_cuda.ledger import count_phrase

from gpudojo.grading.colours import style_of_timeline
from gpudojo.pytest_plugin.terminal import markup_of

if TYPE_CHECKING:
    from gpudojo.grading.watching import Pair

# What was recorded of each function, by file and by the function's name.
Recorded = Mapping[Path, "Mapping[str, Pair]"]


def records_timelines(config: pytest.Config) -> bool:
    """True if this run draws timelines or writes traces."""
    return bool(config.getoption("dojo_timeline") or config.getoption("dojo_traces"))


def refuse_unwritable(folder: Path | None, option: str) -> None:
    """Make the folder for traces. Raises UsageError if it cannot be written to.

    To be called before anything runs: at the end, what there was to write would be lost.
    """
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise pytest.UsageError(f"{option} {folder}: {reason}") from None
    if not os.access(folder, os.W_OK):
        raise pytest.UsageError(f"{option} {folder}: it cannot be written to")


def write_timelines(
    reporter: pytest.TerminalReporter, config: pytest.Config, recorded: Recorded
) -> None:
    """Draw and write what was recorded in this run, as its options say; nothing without records."""
    if not any(recorded.values()):
        return
    if config.getoption("dojo_timeline"):
        _draw_timelines(reporter, recorded)
    folder = config.getoption("dojo_traces")
    if folder:
        _write_traces(reporter, Path(folder), recorded)


def _draw_timelines(reporter: pytest.TerminalReporter, recorded: Recorded) -> None:
    """Draw the timeline of each function, name those that have none, and explain the marks."""
    from virtual_cuda.ledger import timeline_legend

    reporter.section("what your code did", sep="=")
    without_timeline = []
    for path, pairs in recorded.items():
        if len(recorded) > 1 and pairs:
            reporter.write_line(os.path.relpath(path), bold=True)
        for name, pair in pairs.items():
            if not _draw_timeline(reporter, pair):
                without_timeline.append(name)
    if without_timeline:
        names = ", ".join(without_timeline)
        reporter.write_line(f"no timeline of {names}: almost nothing happened on a device")
    for line in timeline_legend(reporter._tw.fullwidth):
        reporter.write_line(line, light=True)


def _draw_timeline(reporter: pytest.TerminalReporter, pair: Pair) -> bool:
    """Draw one function's timeline beside the reference's. Returns False if there is none."""
    from virtual_cuda.ledger import draw_timeline

    timelines = pair.make_timelines()
    if timelines is None:
        return False
    yours, theirs = timelines
    for line in draw_timeline(yours, reporter._tw.fullwidth, theirs):
        for text, meaning in line:
            style = style_of_timeline(meaning)
            reporter.write(text, **markup_of(style))
        reporter.write_line("")
    reporter.write_line("")
    return True


def _write_traces(reporter: pytest.TerminalReporter, folder: Path, recorded: Recorded) -> None:
    """Write one file for each function that recorded something, and say how many.

    Says which files could not be written; that raises nothing.
    """
    import msgspec

    count = 0
    for path, pairs in recorded.items():
        for name, pair in pairs.items():
            if not pair.yours.records:
                continue
            target = folder / _name_of_trace(path, name, recorded)
            trace = pair.yours.make_trace()
            try:
                target.write_bytes(msgspec.json.encode(trace))
                count += 1
            except OSError as error:
                reporter.write_line(f"cannot write {target}: {error.strerror}", red=True)
    traces = count_phrase(count, "trace")
    reporter.write_line(f"{traces} in {folder}; ui.perfetto.dev opens them")


def _name_of_trace(path: Path, name: str, recorded: Recorded) -> str:
    """A file's name, with the folder in front if several files have the function."""
    exercise = recorded[path][name].exercise
    files_with_it = 0
    for pairs in recorded.values():
        if name in pairs and pairs[name].exercise == exercise:
            files_with_it += 1
    file = f"{exercise}-{name}.json"
    if files_with_it > 1:
        return f"{path.parent.name}-{file}"
    return file
