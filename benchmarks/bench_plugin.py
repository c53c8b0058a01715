"""What the installed pytest plugins cost a project without exercises: modules of ours, and seconds
more.

A made-up project of 200 tests is run without our plugins and with them, one after the other in
every round, so that a busy machine disturbs both alike. Medians are compared; processor time is the
steadier figure. Runs on every system.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.tables import Table, benchmark_parser, format_ratio

ROOT = Path(__file__).resolve().parents[1]
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


def make_project(folder: Path, numbered: bool) -> None:
    """Test files; with `numbered`, scripts beside them that are named as exercises are."""
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    for number in range(FILES):
        tests = (f"def test_{each}():\n    assert True\n" for each in range(TESTS))
        (folder / f"test_{number}.py").write_text("\n\n".join(tests), encoding="utf-8")
        if numbered:
            (folder / f"{number:02}_script.py").write_text("print('a script')\n", encoding="utf-8")


def time_run(folder: Path, plugins: tuple[str, ...]) -> tuple[float, float, int]:
    """Seconds, processor seconds (0 where the system does not tell), and our modules at the end."""
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(ROOT / "graders"),
    }
    environment["PYTEST_ADDOPTS"] = ""
    words = [word for plugin in plugins for word in ("-p", plugin)]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *words]
    before = os.times()
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    after = os.times()
    if done.returncode or f"{FILES * TESTS} passed" not in done.stdout:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    processor = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return seconds, processor, int(done.stdout.rpartition("modules:")[2].split()[0])


def table_of_runs(found: dict[str, list[tuple[float, float, int]]]) -> Table:
    made = Table(
        "pytest in a project without exercises",
        ("run", "our modules", "seconds", "more", "CPU seconds", "more"),
    )
    medians = {
        way: [statistics.median(column) for column in zip(*runs, strict=True)]
        for way, runs in found.items()
    }
    base = next(iter(medians.values()))
    for way, (seconds, processor, modules) in medians.items():
        wall, cpu = (
            f"{1000 * (value - first):+.0f} ms ({format_ratio(value / first)})" if first else "–"
            for value, first in ((seconds, base[0]), (processor, base[1]))
        )
        made.add(way, f"{modules:.0f}", f"{seconds:.3f}", wall, f"{processor:.3f}", cpu)
    made.notes = [
        f"Medians of {len(next(iter(found.values())))} interleaved rounds of {FILES * TESTS} tests."
    ]
    return made


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="how often each is run (15)")
    asked = parser.parse_args()
    found: dict[str, list[tuple[float, float, int]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as place:
        folders = {way: Path(place) / str(number) for number, way in enumerate(WAYS)}
        for way, folder in folders.items():
            make_project(folder, "01_x" in way)
            time_run(folder, WAYS[way])  # compiles what is imported
        for _ in range(asked.rounds):
            for way, folder in folders.items():
                found[way].append(time_run(folder, WAYS[way]))
    table_of_runs(found).show(asked.markdown)


if __name__ == "__main__":
    main()
