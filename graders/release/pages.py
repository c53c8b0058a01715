"""What stands in a student's repository beside exercises and grader? A README, requirements, settings for editors."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection
from typing import Any, Final

from graders.curriculum import day
from graders.release.recording import SEEDS
from graders.release.wheel import PROJECT

README: Final = """\
# {title}: GPU acceleration and performance

{count} small files about moving work to a GPU, keeping it there, and finding out what it costs. No GPU is needed: where
there is none, a virtual one computes the same values and refuses what a real one refuses.

```sh
pip install -r requirements.txt
pytest exercises/{day}
```

The first line installs PyTorch and the grader, which is in `vendor`. It needs Python {python} or newer, and is best
typed in a virtual environment: `python -m venv .venv`, then `. .venv/bin/activate` (on Windows
`.venv\\Scripts\\activate`). The second line runs every check of every exercise. At first everything is *to do*.

## How to work

1. Open a file in `exercises/{day}`, read a function's docstring, and write the function in place of
   `raise NotImplementedError`.
2. `pytest exercises/{day}/{first}.py` checks that file, `pytest exercises/{day} -k {function}` one function.
   The last lines of every run say what to do next. In VS Code the checks are in the test explorer.
3. `python exercises/{day}/{first}.py` runs the file as a program, which shows its idea at work here.
{notebooks}
## What the output means

| in the dots | in words | meaning |
| --- | --- | --- |
| `.` | passed | the claim holds, and its points are yours |
| `t` | to do | the function is still a stub |
| `F` | failed | what happened, what was expected, on which of your lines, and why it matters on a GPU |
| `b` | blocked | another check of the function has to pass first; it is named |

A failure that begins with "This is gpudojo's fault" is ours, and costs you nothing: please tell your teacher.

The table at the end adds up the points of each exercise; all of them give {points:g}.

## Hints, and more

- A failed check shows the first hint. `--hints 2` shows two of them, `--hints 3` more.
- `--seed {second}` tries other numbers; there are {seeds}. Your work is graded with numbers of its own.
- `--bench cpu`, `virtual` or `cuda` chooses where your code runs. Without it, it is this machine's GPU or the virtual
  one.
- `--timeline` draws what each function did: copies, waits, memory.
- `print` and `breakpoint()` work in your functions: add `-s` to see everything.
- Stuck? Ask with the text of the failed check: it says what happened and on which line.

## The exercises

| file | points | what it is about |
| --- | --- | --- |
{table}
"""
NOTEBOOKS: Final = """
If you prefer notebooks, the same exercises are in `notebooks/{day}`: run the first cell, fill in the functions, and
`check(...)` below each of them says how it went.
"""
IGNORED: Final = ".venv/\n__pycache__/\n.pytest_cache/\n.ipynb_checkpoints/\n.DS_Store\n"
PYTEST: Final = "[pytest]\nminversion = 8.0\ntestpaths = exercises\n"
SETTINGS: Final = {
    "python.testing.pytestEnabled": True,
    "python.testing.unittestEnabled": False,
    "python.testing.pytestArgs": ["exercises"],
    "python.testing.autoTestDiscoverOnSaveEnabled": True,
    "files.exclude": {"**/__pycache__": True, "**/.pytest_cache": True},
}


def pages(name: str, wheel: str, others: Collection[str] = ()) -> dict[str, bytes]:
    """The files by path; `wheel` is the name of the one in `vendor`, `others` what else there is."""
    settings = json.dumps(SETTINGS, indent=4)
    texts = {
        "README.md": readme(name, notebooks=any(path.endswith(".ipynb") for path in others)),
        "requirements.txt": requirements(wheel),
        "pytest.ini": PYTEST,
        ".gitignore": IGNORED,
        ".vscode/settings.json": f"{settings}\n",
    }
    return {path: text.encode() for path, text in texts.items()}


def readme(name: str, notebooks: bool) -> str:
    exercises = day(name)
    *most, last = map(str, SEEDS)
    rows = [f"| `{e.stem}.py` | {e.points:g} | {e.title} |" for e in exercises]
    return README.format(
        title=re.sub(r"(\D+)(\d+)", r"\1 \2", name).capitalize(),
        day=name,
        notebooks=NOTEBOOKS.format(day=name) if notebooks else "",
        python=_project()["requires-python"].lstrip(">="),
        first=exercises[0].stem,
        function=exercises[0].functions[0].name,
        count=len(exercises),
        points=sum(e.points for e in exercises),
        second=SEEDS[1],
        seeds=f"{', '.join(most)} and {last}",
        table="\n".join(rows),
    )


def requirements(wheel: str) -> str:
    """The grader, and what it needs in the versions that a course runs on."""
    text = (PROJECT / "constraints.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"(?m)^([\w.-]+)==(\S+)$", text))
    lines = []
    for dependency in _project()["dependencies"]:
        asked, semicolon, marker = dependency.partition(";")
        (package,) = re.findall(r"^[\w.-]+", asked)
        wanted = f"{package}=={pins[package]}" if package in pins else asked.strip()
        lines.append(f"{wanted}; {marker.strip()}" if semicolon else wanted)
    return "\n".join([*lines, f"./vendor/{wheel}", ""])


def _project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found
