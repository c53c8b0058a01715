"""The options `--timeline` and `--traces`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from gpudojo.grading.watching import Pair


COLOURS: Final[dict[str, dict[str, bool]]] = {
    "wait": {"red": True, "bold": True},
    "copy": {"cyan": True},
    "grad": {"yellow": True},
    "no grad": {"green": True},
    "autocast": {"purple": True},
    "pass": {"bold": True},
    "memory": {"blue": True},
}


def wanted(config: pytest.Config) -> bool:
    return bool(config.getoption("dojo_timeline") or config.getoption("dojo_traces"))


def refuse_unwritable(folder: Path | None, option: str) -> None:
    """Raises UsageError before anything runs: at the end, what there was to write would be lost."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK) else "it cannot be written to"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise pytest.UsageError(f"{option} {folder}: {reason}")


def write_section(
    reporter: pytest.TerminalReporter, config: pytest.Config, files: Mapping[Path, Mapping[str, Pair]]
) -> None:
    """Draws and writes what was recorded in this run."""
    if not any(files.values()):
        return
    if config.getoption("dojo_timeline"):
        _draw(reporter, files)
    if config.getoption("dojo_traces"):
        _write_traces(reporter, Path(config.getoption("dojo_traces")), files)


def _draw(reporter: pytest.TerminalReporter, files: Mapping[Path, Mapping[str, Pair]]) -> None:
    from virtual_cuda.ledger import draw_timeline, timeline_legend

    reporter.section("what your code did", sep="=")
    width, nothing = reporter._tw.fullwidth, []
    for path, pairs in files.items():
        if len(files) > 1 and pairs:
            reporter.write_line(os.path.relpath(path), bold=True)
        for name, pair in pairs.items():
            found = pair.timelines()
            if found is None:
                nothing.append(name)
                continue
            for line in draw_timeline(found[0], width, found[1]):
                for text, meaning in line:
                    reporter.write(text, **COLOURS.get(meaning, {}))
                reporter.write_line("")
            reporter.write_line("")
    if nothing:
        reporter.write_line(f"no timeline of {', '.join(nothing)}: almost nothing happened on a device")
    for signs in timeline_legend(width):
        reporter.write_line(signs, light=True)


def _write_traces(reporter: pytest.TerminalReporter, folder: Path, files: Mapping[Path, Mapping[str, Pair]]) -> None:
    """Writes one file per function, with the folder's name in front where several files have the function."""
    import msgspec
    from virtual_cuda.ledger import trace_of

    written = 0
    for path, pairs in files.items():
        for name, pair in pairs.items():
            if not pair.yours.records:
                continue
            beside = f"{path.parent.name}-" if _twice(files, pair.exercise, name) else ""
            target = folder / f"{beside}{pair.exercise}-{name}.json"
            try:
                target.write_bytes(msgspec.json.encode(trace_of(pair.yours.records)))
            except OSError as error:
                reporter.write_line(f"cannot write {target}: {error.strerror}", red=True)
                continue
            written += 1
    reporter.write_line(f"{written} {'trace' if written == 1 else 'traces'} in {folder}; ui.perfetto.dev opens them")


def _twice(files: Mapping[Path, Mapping[str, Pair]], exercise: str, name: str) -> bool:
    return sum(name in pairs and pairs[name].exercise == exercise for pairs in files.values()) > 1
