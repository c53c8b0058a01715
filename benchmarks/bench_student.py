"""How long does a student wait?

`pytest exercises/day8` in some ways, next to a bare `import torch`, in one table.

A copy of the repository's exercises is run as handed out, with every stub still to do, and with the
references in place of the stubs; with `--released FOLDER`, which `dojo release student FOLDER` has
made, that repository too. Only the plugins that gpudojo brings with it are loaded, and bytecode is
written, as in a student's environment. Rounds are interleaved, one of each after another, and
medians are compared: a busy machine disturbs all alike. The first round, which fills caches, does
not count. Runs on every system.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.commands import ROOT, run_and_time
from benchmarks.tables import Table, benchmark_parser, format_ratio

IMPORT = "python -c 'import torch'"
FUNCTION = "train_epoch"
PLUGINS: Final = ("gpudojo.pytest_plugin", "virtual_cuda.pytest_plugin", "pytest_timeout")
DAY: Final = Path("exercises", "day8")


class Way(NamedTuple):
    """One thing that a student types."""

    title: str  # in the table
    state: str  # of the exercises: "stubs", "solved" or "released"
    options: tuple[str, ...] = ()
    file: str = ""  # "" for the whole day


WAYS: Final = (
    Way("pytest --collect-only", "stubs", ("--collect-only",)),
    Way(f"pytest -k {FUNCTION}, still to do", "stubs", ("-k", FUNCTION)),
    Way(f"pytest -k {FUNCTION}, solved", "solved", ("-k", FUNCTION)),
    Way("pytest, one file solved", "solved", file="04_modifying_training_loop_gpu.py"),
    Way("pytest, the whole day still to do", "stubs"),
    Way("pytest, the whole day solved", "solved"),
    Way(f"pytest -k {FUNCTION}, solved, in a release", "released", ("-k", FUNCTION)),
    Way("pytest, the whole day solved, in a release", "released"),
)


def copy_exercises(base: Path) -> None:
    """Copy the exercises as handed out, and with the references in their place.

    The references lie beside them, as in the repository.
    """
    without_bytecode = shutil.ignore_patterns("__pycache__")
    for name, source in (("stubs", "exercises"), ("solved", "reference")):
        copy = base / name
        shutil.copytree(ROOT / source / "day8", copy / DAY, ignore=without_bytecode)
        shutil.copytree(ROOT / "reference", copy / "reference", ignore=without_bytecode)


def unpack_release(base: Path, folder: Path) -> None:
    """Copy a released repository, solve its exercises, and unpack its wheel beside them."""
    copy = base / "released"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (copy / DAY).glob("*.py"):
        shutil.copy(ROOT / "reference" / "day8" / path.name, path)
    (wheel,) = (folder / "vendor").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(_packages_of_release(base))


def _packages_of_release(base: Path) -> Path:
    """The folder with the packages of an unpacked release."""
    return base / "released" / "site"


def pytest_command(base: Path, way: Way) -> list[str]:
    """The words of pytest for one thing that a student types."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    for plugin in PLUGINS:
        command += ["-p", plugin]
    target = base / way.state / DAY / way.file
    return [*command, *way.options, str(target)]


def student_environment(base: Path, packages: Path | None = None) -> dict[str, str]:
    """The variables of a student's terminal; `packages` are found before the repository's."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    path = [str(ROOT)]
    if packages is not None:
        path.insert(0, str(packages))
    if environment.get("PYTHONPATH"):
        path.append(environment["PYTHONPATH"])
    environment["PYTHONPATH"] = os.pathsep.join(path)
    environment["PYTHONIOENCODING"] = "utf-8"
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    environment["DOJO_CACHE"] = str(base / "cache")
    return environment


class Wait(NamedTuple):
    """Seconds on the clock, and seconds of processors; zero where a system does not tell them."""

    wall: float
    cpu: float


def time_import(base: Path) -> Wait:
    """How long a bare `import torch` takes."""
    command = [sys.executable, "-c", "import torch"]
    return time_command(command, base, student_environment(base))


def time_pytest(base: Path, way: Way) -> Wait:
    """How long pytest takes for one thing that a student types."""
    packages = None
    if way.state == "released":
        packages = _packages_of_release(base)
    environment = student_environment(base, packages)
    return time_command(pytest_command(base, way), base, environment, failures_allowed=True)


def time_command(
    command: list[str], folder: Path, environment: dict[str, str], failures_allowed: bool = False
) -> Wait:
    """How long until the prompt is back.

    Raises SystemExit if the command failed. With `failures_allowed`, exit code 1, that of pytest
    after failed tests, is none.
    """
    run = run_and_time(command, folder, environment)
    allowed = (0, 1) if failures_allowed else (0,)
    if run.code not in allowed:
        text = f"{' '.join(command)} ended with {run.code}:\n{run.output[-2000:]}"
        raise SystemExit(text)
    return Wait(run.wall, run.cpu)


def table_of_waits(waits_by_title: dict[str, list[Wait]]) -> Table:
    """The medians of all waits, and their ratios to that for the bare import."""
    table = Table("What a student waits for", ("what", "seconds", "ratio", "CPU seconds", "ratio"))
    base = medians_of_waits(waits_by_title[IMPORT])
    for title, waits in waits_by_title.items():
        wait = medians_of_waits(waits)
        cpu = "–"
        cpu_ratio = "–"
        if base.cpu:
            cpu = f"{wait.cpu:.2f}"
            cpu_ratio = format_ratio(wait.cpu / base.cpu)
        table.add(title, f"{wait.wall:.2f}", format_ratio(wait.wall / base.wall), cpu, cpu_ratio)
    rounds = len(waits_by_title[IMPORT])
    table.notes = [f"Medians of {rounds} interleaved rounds; ratios are to the bare import."]
    return table


def medians_of_waits(waits: list[Wait]) -> Wait:
    """The median of both figures."""
    wall = statistics.median(wait.wall for wait in waits)
    cpu = statistics.median(wait.cpu for wait in waits)
    return Wait(wall, cpu)


def main() -> None:
    """Run everything by turns, and print the table."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each is run (5)")
    parser.add_argument(
        "--released",
        type=Path,
        metavar="FOLDER",
        help="a repository made by `dojo release student`",
    )
    options = parser.parse_args()
    ways = [way for way in WAYS if options.released is not None or way.state != "released"]
    waits: dict[str, list[Wait]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        copy_exercises(base)
        if options.released is not None:
            unpack_release(base, options.released)
        for _ in range(1 + options.rounds):
            waits[IMPORT].append(time_import(base))
            for way in ways:
                waits[way.title].append(time_pytest(base, way))
    without_first = {title: several[1:] for title, several in waits.items()}
    table_of_waits(without_first).show(options.markdown)


if __name__ == "__main__":
    main()
