"""What do the installed pytest plugins cost a project without exercises?

Modules of ours that are imported, and seconds more.

A made-up project of 200 tests is run without our plugins and with them, one after the other in
every round, so that a busy machine disturbs both alike. Medians are compared; processor time is the
steadier figure. Runs on every system.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.commands import ROOT, run_and_time
from benchmarks.tables import Table, benchmark_parser, format_ratio

FILES = 20
TESTS = 10
PLUGINS = ("gpudojo.pytest_plugin", "virtual_cuda.pytest_plugin")
WAYS = {
    "without our plugins": (),
    "with our plugins": PLUGINS,
    "with our plugins, and files named 01_x.py": PLUGINS,
}
CONFTEST = """
import sys


def pytest_unconfigure():
    packages = [name.partition(".")[0] for name in sys.modules]
    print("modules:", packages.count("gpudojo") + packages.count("virtual_cuda"))
"""


class RunFigures(NamedTuple):
    """What one run of pytest took, or the medians of several."""

    seconds: float
    processor: float  # seconds; 0 where the system does not tell
    modules: float  # of ours, imported when it ended


def make_project(folder: Path, numbered: bool) -> None:
    """Write test files; with `numbered`, also scripts that are named as exercises are."""
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    tests = [f"def test_{number}():\n    assert True\n" for number in range(TESTS)]
    text = "\n\n".join(tests)
    for number in range(FILES):
        (folder / f"test_{number}.py").write_text(text, encoding="utf-8")
        if numbered:
            script = folder / f"{number:02}_script.py"
            script.write_text("print('a script')\n", encoding="utf-8")


def time_run(folder: Path, plugins: tuple[str, ...]) -> RunFigures:
    """Run the tests of a folder with these plugins. Raises SystemExit unless all pass."""
    environment = dict(os.environ)
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    environment["PYTEST_ADDOPTS"] = ""
    environment["PYTHONPATH"] = str(ROOT / "graders")
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]
    for plugin in plugins:
        command += ["-p", plugin]
    run = run_and_time(command, folder, environment)
    if run.code or f"{FILES * TESTS} passed" not in run.output:
        raise SystemExit(run.output[-4000:])
    _, _, rest = run.output.rpartition("modules:")
    return RunFigures(run.wall, run.cpu, int(rest.split()[0]))


def table_of_runs(runs_by_way: dict[str, list[RunFigures]]) -> Table:
    """The medians of every way, and how much more they are than those of the first."""
    table = Table(
        "pytest in a project without exercises",
        ("run", "our modules", "seconds", "more", "CPU seconds", "more"),
    )
    first_way, *_ = runs_by_way
    base = medians_of_runs(runs_by_way[first_way])
    for way, runs in runs_by_way.items():
        found = medians_of_runs(runs)
        more_seconds = format_excess(found.seconds, base.seconds)
        more_processor = format_excess(found.processor, base.processor)
        seconds = f"{found.seconds:.3f}"
        processor = f"{found.processor:.3f}"
        table.add(way, f"{found.modules:.0f}", seconds, more_seconds, processor, more_processor)
    rounds = len(runs_by_way[first_way])
    table.notes = [f"Medians of {rounds} interleaved rounds of {FILES * TESTS} tests."]
    return table


def medians_of_runs(runs: list[RunFigures]) -> RunFigures:
    """The median of each figure."""
    return RunFigures(
        statistics.median(run.seconds for run in runs),
        statistics.median(run.processor for run in runs),
        statistics.median(run.modules for run in runs),
    )


def format_excess(seconds: float, base: float) -> str:
    """How many milliseconds more than `base`, and the ratio; a dash if that is not known."""
    if not base:
        return "–"
    return f"{1000 * (seconds - base):+.0f} ms ({format_ratio(seconds / base)})"


def main() -> None:
    """Run the project in all ways by turns, and print the table."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="how often each is run (15)")
    options = parser.parse_args()
    runs: dict[str, list[RunFigures]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as base:
        folders = {way: Path(base) / str(number) for number, way in enumerate(WAYS)}
        for way, folder in folders.items():
            make_project(folder, numbered="01_x" in way)
            time_run(folder, WAYS[way])  # compiles what is imported
        for _ in range(options.rounds):
            for way, folder in folders.items():
                runs[way].append(time_run(folder, WAYS[way]))
    table_of_runs(runs).show(options.markdown)


if __name__ == "__main__":
    main()
