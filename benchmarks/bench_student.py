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
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.tables import Table, benchmark_parser, format_ratio

ROOT = Path(__file__).resolve().parents[1]
IMPORT = "python -c 'import torch'"
FUNCTION = "train_epoch"
# What is typed, with which files, in the words of the table.
WAYS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("pytest --collect-only", "stubs", ("--collect-only",)),
    (f"pytest -k {FUNCTION}, still to do", "stubs", ("-k", FUNCTION)),
    (f"pytest -k {FUNCTION}, solved", "solved", ("-k", FUNCTION)),
    ("pytest, one file solved", "solved", ("04_modifying_training_loop_gpu.py",)),
    ("pytest, the whole day still to do", "stubs", ()),
    ("pytest, the whole day solved", "solved", ()),
    (f"pytest -k {FUNCTION}, solved, in a release", "released", ("-k", FUNCTION)),
    ("pytest, the whole day solved, in a release", "released", ()),
)
PLUGINS: Final = ("gpudojo.pytest_plugin", "virtual_cuda.pytest_plugin", "pytest_timeout")


def copy_exercises(base: Path) -> None:
    """The exercises as handed out, and with the references in their place.

    References beside, as in the repository.
    """
    for name, source in (("stubs", "exercises"), ("solved", "reference")):
        shutil.copytree(
            ROOT / source / "day8", base / name / "exercises" / "day8", ignore=_compiled
        )
        shutil.copytree(ROOT / "reference", base / name / "reference", ignore=_compiled)


def unpack_release(base: Path, folder: Path) -> None:
    """A released repository with its exercises solved, and its wheel unpacked beside them."""
    shutil.copytree(folder, base / "released", ignore=_compiled)
    for path in (base / "released" / "exercises" / "day8").glob("*.py"):
        shutil.copy(ROOT / "reference" / "day8" / path.name, path)
    (wheel,) = (folder / "vendor").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(base / "released" / "site")


_compiled = shutil.ignore_patterns("__pycache__")


def pytest_command(base: Path, state: str, words: tuple[str, ...]) -> list[str]:
    plugins = [word for plugin in PLUGINS for word in ("-p", plugin)]
    folder = base / state / "exercises" / "day8"
    files = [str(folder / word) for word in words if word.endswith(".py")]
    rest = [word for word in words if not word.endswith(".py")]
    return [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *plugins,
        *rest,
        *(files or [str(folder)]),
    ]


class Waited(NamedTuple):
    """Seconds on the clock, and seconds of processors; zero where a system does not tell them."""

    wall: float
    cpu: float


def time_command(words: list[str], base: Path, pytest: bool) -> Waited:
    """How long until the prompt is back.

    A pytest that could not start is an error, one with failures is not.
    """
    site = [str(base / "released" / "site")] if any("released" in word for word in words) else []
    path = os.pathsep.join([*site, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {
        "PYTHONPATH": path,
        "PYTHONIOENCODING": "utf-8",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = os.times()
    began = time.perf_counter()
    run = subprocess.run(
        words,
        cwd=base,
        env=clean | settings | {"DOJO_CACHE": str(base / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    took = time.perf_counter() - began
    after = os.times()
    if run.returncode not in ((0, 1) if pytest else (0,)):
        raise SystemExit(
            f"{' '.join(words)} ended with {run.returncode}:\n"
            f"{run.stdout.decode(errors='replace')[-2000:]}"
        )
    spent = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return Waited(took, spent)


def table_of_waits(found: dict[str, list[Waited]]) -> Table:
    made = Table("What a student waits for", ("what", "seconds", "ratio", "CPU seconds", "ratio"))
    base = _medians_of(found[IMPORT])
    for name, several in found.items():
        wall, cpu = _medians_of(several)
        spent = (f"{cpu:.2f}", format_ratio(cpu / base.cpu)) if base.cpu else ("–", "–")
        made.add(name, f"{wall:.2f}", format_ratio(wall / base.wall), *spent)
    made.notes = [
        f"Medians of {len(found[IMPORT])} interleaved rounds; ratios are to the bare import."
    ]
    return made


def _medians_of(several: list[Waited]) -> Waited:
    return Waited(*(statistics.median(column) for column in zip(*several, strict=True)))


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each is run (5)")
    parser.add_argument(
        "--released",
        type=Path,
        metavar="FOLDER",
        help="a repository made by `dojo release student`",
    )
    asked = parser.parse_args()
    ways = [way for way in WAYS if asked.released is not None or way[1] != "released"]
    found: dict[str, list[Waited]] = {IMPORT: [], **{name: [] for name, _, _ in ways}}
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        copy_exercises(base)
        if asked.released is not None:
            unpack_release(base, asked.released)
        for _ in range(1 + asked.rounds):
            found[IMPORT].append(
                time_command([sys.executable, "-c", "import torch"], base, pytest=False)
            )
            for name, state, words in ways:
                found[name].append(
                    time_command(pytest_command(base, state, words), base, pytest=True)
                )
    table_of_waits({name: several[1:] for name, several in found.items()}).show(asked.markdown)


if __name__ == "__main__":
    main()
