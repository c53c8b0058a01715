"""``python -m tests.virtual_cuda.conformance``: agreement with the real GPU, and where it ends."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from tests.virtual_cuda.conformance import corpus as corpora
from tests.virtual_cuda.conformance import pins
from tests.virtual_cuda.conformance.compare import (
    ASPECTS,
    NOT_RUN,
    Difference,
    differences,
    folded,
    tallies,
    verdicts,
)
from tests.virtual_cuda.conformance.corpus import Corpus, Record
from tests.virtual_cuda.conformance.run import VIRTUAL_CUDA, run

SHOWN = (
    "outcome",
    "result",
    "error_type",
    "message",
    "error_line",
    "syncs",
    "sync_lines",
    "warnings",
    "mem_delta",
    "mem_delta_namespace",
    "peak_delta",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.virtual_cuda.conformance", description=__doc__
    )
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="ids containing this text (several: commas)"
    )
    parser.add_argument(
        "--list", dest="aspect", choices=[*ASPECTS, "all"], help="list what differs in this aspect"
    )
    parser.add_argument("--corpus", choices=corpora.names(), help="one corpus instead of all")
    parser.add_argument(
        "--show", metavar="ID", help="one snippet: its code, the GPU's record, and ours"
    )
    parser.add_argument(
        "--device", default=VIRTUAL_CUDA, metavar="MODULE:CALLABLE", help="another device to try"
    )
    parser.add_argument("--save", metavar="FILE", help="keep the records as JSON")
    parser.add_argument(
        "--pin", action="store_true", help="write the counts reached to agreement.json"
    )
    arguments = parser.parse_args()
    if arguments.pin and (arguments.only or arguments.show):
        parser.error("--pin needs whole corpora, not --only or --show")

    console = Console(highlight=False)
    chosen = [c for c in corpora.load_all() if arguments.corpus in (None, c.name)]
    if arguments.show and not any(arguments.show in c.snippets for c in chosen):
        close = [id_ for c in chosen for id_ in c.snippets if arguments.show in id_]
        parser.error(
            f"no snippet {arguments.show!r}"
            + (f"; did you mean {', '.join(close[:5])}?" if close else "")
        )
    saved: dict[str, Record] = {}
    for corpus in chosen:
        kept = corpus.containing(arguments.show or arguments.only)
        if not kept.snippets:
            continue
        started = time.perf_counter()
        try:
            tried = run(kept, device=arguments.device)
        except subprocess.CalledProcessError as failed:
            sys.exit(
                f"the runner stopped with exit code {failed.returncode}; what it said is above"
            )
        seconds = time.perf_counter() - started
        saved |= tried
        if arguments.show:
            show(console, kept, arguments.show, tried.get(arguments.show, NOT_RUN))
            continue
        for difference in differences(kept.golden, tried):
            if arguments.aspect in (difference.aspect, "all"):
                console.print(line(difference), markup=False, soft_wrap=True)
        console.print(f"{kept.name}: {len(kept.snippets)} snippets in {seconds:.1f} s")
        for aspect, tally in tallies(kept.golden, tried).items():
            console.print(f"  {aspect:8} {tally.agree}/{tally.of}  {tally.percent:.1f} %")
        if arguments.pin:
            pins.pin_tallies(kept.name, tallies(kept.golden, tried))
    if arguments.save:
        with open(arguments.save, "w", encoding="utf-8") as file:
            json.dump({"results": saved}, file, indent=1)


def line(difference: Difference) -> str:
    return (
        f"  {difference.id} [{difference.aspect}]: GPU {brief(difference.golden)} | tried "
        f"{brief(difference.tried)}"
    )


def brief(record: Record) -> str:
    said = (
        f" {record['error_type']}: {folded(record['message'])[:140]}"
        if record["error_type"]
        else ""
    )
    return f"{record['outcome']}{said} syncs={record.get('syncs')} memory={record.get('mem_delta')}"


def show(console: Console, corpus: Corpus, id_: str, tried: Record) -> None:
    golden = corpus.golden[id_]
    code = Syntax(corpus.snippets[id_].code.rstrip(), "python", line_numbers=True, word_wrap=True)
    console.print(Panel(code, title=id_))
    # A row per field, so that what the GPU did stands beside what was tried.
    table = Table("", "real GPU", "tried", show_lines=True)
    for field in SHOWN:
        table.add_row(field, *(Text(pretty(record.get(field))) for record in (golden, tried)))
    console.print(table)
    answers = verdicts(golden, tried)
    console.print(
        ", ".join(
            f"{aspect} {'agrees' if agrees else 'DIFFERS'}" for aspect, agrees in answers.items()
        )
    )


def pretty(value: Any) -> str:
    """Text as it is, everything else as JSON, on one line where it is short."""
    if isinstance(value, str):
        return value
    short = json.dumps(value, ensure_ascii=False)
    return short if len(short) < 60 else json.dumps(value, indent=1, ensure_ascii=False)


if __name__ == "__main__":
    main()
