"""Broken files of every kind: a clear message at the student's line, while other files are graded.

All of them are graded in one run, as a class would be: what one does must not reach the next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
from gpudojo.model.time_outs import describe_time_out, still_running_after

from tests.sharing import WarmPython, once

REPOSITORY = Path(__file__).parents[3]
FILE = "01_checking_device.py"
RIGHT = (REPOSITORY / "reference" / "day8" / FILE).read_text(encoding="utf-8")
DEF = "def select_device(prefer=None):\n"


class Case(NamedTuple):
    source: str | bytes
    line: int | None
    said: str


CASES = {
    "syntax": Case(
        "import torch\n\ndef select_device(prefer=None:\n    return 1\n", 3, "SyntaxError"
    ),
    "encoding": Case(
        b"# gr\xfc\xdfe\ndef select_device(prefer=None):\n    return 1\n", 1, "byte 0xfc is not"
    ),
    "later_encoding": Case(b"x = 1\ny = 2\nz = 3\n# \xff\n", 4, "byte 0xff is not utf-8 text"),
    "utf16": Case("x = 1\n".encode("utf-16"), 1, "save it as UTF-8"),
    "null": Case(b"x = 1\ny = \0\n", 2, "null byte"),
    "before": Case(
        "1 / 0\n\ndef select_device(prefer=None):\n    return 1\n", 1, "ZeroDivisionError"
    ),
    "exits_at_import": Case("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
    "interrupts_at_import": Case("raise KeyboardInterrupt\n", 1, "KeyboardInterrupt"),
    "loops_at_import": Case(
        "x = 1\nwhile True:\n    x += 1\n", None, describe_time_out(None, "still running")
    ),
    "missing": Case("x = 1\n", None, "`select_device` was not handed in"),
    "misspelt": Case(
        "def selct_device(prefer=None):\n    return 1\n", 1, "is `selct_device` meant to be it?"
    ),
    "no_parameter": Case(
        "x = 1\ndef select_device():\n    return 1\n", 2, "takes 0 positional arguments but 1"
    ),
    "two_parameters": Case(
        "def select_device(a, b):\n    return 1\n", 1, "missing 2 required positional arguments"
    ),
    "nothing": Case("def select_device(prefer=None):\n    prefer = 1\n", 2, "None"),
    "loops": Case(
        "def select_device(prefer=None):\n    while True:\n        pass\n",
        None,
        describe_time_out("select_device", ""),
    ),
    "stubborn": Case(
        (
            f"{DEF}    while True:\n"
            "        try:\n"
            "            x = 1\n"
            "        except:\n"
            "            pass\n"
        ),
        None,
        still_running_after(1.5),
    ),
    "sleeps": Case(
        "import time\ndef select_device(prefer=None):\n    time.sleep(600)\n", 3, "time-out"
    ),
    "recurses": Case(
        "def select_device(prefer=None):\n    return select_device()\n", 2, "RecursionError"
    ),
    "exits": Case("def select_device(prefer=None):\n    exit()\n", 2, "SystemExit"),
    "interrupts": Case(
        "def select_device(prefer=None):\n    raise KeyboardInterrupt\n", 2, "KeyboardInterrupt"
    ),
    "skips": Case(
        "import pytest\ndef select_device(prefer=None):\n    pytest.skip('no')\n", 3, "Skipped: no"
    ),
    "prints": Case(
        f"{DEF}    for i in range(3000): print('line' * 90, i)\n    raise ValueError('full')\n",
        3,
        "ValueError: full",
    ),
    "half_done": Case(
        (
            "def select_device(prefer=None):\n"
            "    if prefer:\n"
            "        return 1\n"
            "    raise NotImplementedError\n"
        ),
        4,
        "NotImplementedError",
    ),
}
PASSING = {
    "right": RIGHT,
    "fails_later": RIGHT.replace(
        'if __name__ == "__main__":', "raise OSError('too late')\nif __name__ == '__main__':"
    ),
    "stub_first": "def select_device(prefer=None):\n    raise NotImplementedError\n\n" + RIGHT,
    "crlf": RIGHT.replace("\n", "\r\n"),
    "bom": b"\xef\xbb\xbf" + RIGHT.encode(),
    "dataclass": RIGHT.replace(
        '"""\n\nimport torch\n',
        '"""\n\n'
        "from __future__ import annotations\n"
        "import torch\n"
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Wish:\n    name: str\n",
        1,
    ),
    "warns": RIGHT.replace("import torch\n", "import torch, warnings\nwarnings.warn('old')\n", 1),
    "neighbour": RIGHT.replace(
        "import torch\n", "import torch, mine\nassert mine.NAME == 'neighbour'\n", 1
    ),
    "other_neighbour": RIGHT.replace(
        "import torch\n", "import torch, mine\nassert mine.NAME == 'other_neighbour'\n", 1
    ),
}

STUBS = {
    "stops_before_the_stub": (
        f"import torch\nimport no_such_module\n\n{DEF}    raise NotImplementedError\n"
    )
}


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython
) -> tuple[Any, dict[tuple[str, str], Any]]:
    from tests.gpudojo.pytest_plugin.conftest import Student

    return once(tmp_path_factory, "bad-input", lambda folder: graded(Student(folder, warm_python)))


def graded(student: Any) -> tuple[Any, dict[tuple[str, str], Any]]:
    """What pytest says of all files, and its results by folder and test."""
    student.write("pytest.ini", "[pytest]\nfilterwarnings = error\n")
    for name, case in CASES.items():
        student.write(f"{name}/{FILE}", case.source)
    for name, source in PASSING.items():
        student.write(f"{name}/{FILE}", source)
        student.write(f"{name}/mine.py", f"NAME = {name!r}\n")
    for name, source in STUBS.items():
        student.write(f"{name}/{FILE}", source)
    done = student.pytest("--junit-xml=out.xml", "--timeout=1.5", ".")
    cases = {}
    for case in ElementTree.parse(student.folder / "out.xml").iter("testcase"):
        folder = str(case.get("classname")).split(".")[0]
        cases[folder, str(case.get("name"))] = case
    return done, cases


def test_the_run_ends_as_usual(run: Any) -> None:
    done, cases = run
    assert done.returncode == 1, done.stdout + done.stderr
    assert {folder for folder, _ in cases} == {*CASES, *PASSING, *STUBS}
    assert "graders/" not in done.stdout.replace("graders/gpudojo/pytest_plugin", ""), (
        "never the grader's frames"
    )
    assert "Traceback" not in done.stdout
    assert len(done.stdout) < 100_000


@pytest.mark.parametrize("name", CASES)
def test_a_broken_file_gets_a_message_with_its_line(run: Any, name: str) -> None:
    _, cases = run
    case = CASES[name]
    failures = [
        f for (folder, _), c in cases.items() if folder == name for f in c.findall("failure")
    ]
    assert failures, "it passed"
    text = "\n".join(failure.text or "" for failure in failures)
    assert case.said in " ".join(text.split())
    if case.line is not None:
        assert f"{FILE}:{case.line}\n" in text
    assert not any(
        c.findall("error") or c.findall("skipped")
        for (folder, _), c in cases.items()
        if folder == name
    )
    if name != "nothing":
        blocked = [
            failure for failure in failures if str(failure.get("message")).startswith("blocked")
        ]
        assert len(blocked) == len(failures) - 1


@pytest.mark.parametrize("name", PASSING)
def test_a_working_file_passes_beside_broken_ones(run: Any, name: str) -> None:
    _, cases = run
    failures = [
        f.text for (folder, _), c in cases.items() if folder == name for f in c.findall("failure")
    ]
    assert failures == []


def test_a_signature_is_shown_and_output_is_shortened(run: Any) -> None:
    done, _ = run
    said = " ".join(done.stdout.split())
    assert "a function that can be called as `select_device(prefer=None)`" in said
    assert "lines left out here; pytest -s shows all of them" in said
    assert "line 0\n" in done.stdout
    assert "fails_later/01_checking_device.py:" in done.stdout
    assert "stopped with OSError: too late; what it defines before that was graded" in said
    assert (
        "stops_before_the_stub/01_checking_device.py:2 stopped with ModuleNotFoundError: "
        "No module named 'no_such_module'" in said
    )
