"""A line of a solution is found wherever it is put in a release, and nothing else is reported."""

from __future__ import annotations

import functools
import gzip
import io
import json
import textwrap
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpudojo.model.catalogue import BUILT_IN, Day, registered_days
from gpudojo.release import leaks
from gpudojo.release.leaks import Secret, is_idiom, secrets_of
from gpudojo.release.stubs import solution_blocks
from gpudojo.release.wheel import SOURCES, files_of_wheel
from hypothesis import given, settings
from hypothesis import strategies as st

from .conftest import REFERENCE, Released

LINES, BLOCKS = secrets_of(REFERENCE)
SOLUTIONS = {
    (path.name, block[0][0]): textwrap.dedent("\n".join(line for _, line in block))
    for path in sorted(REFERENCE.glob("*.py"))
    for block in solution_blocks(path.read_text(encoding="utf-8"))
}


@pytest.fixture(autouse=True, scope="module")
def secrets_read_once() -> Iterator[None]:
    """Hundreds of searches for the same solutions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaks, "secrets_of", functools.cache(secrets_of))
        yield


PROSE = "Sprites are small.\n\nThey are drawn on the device, and the host waits for nobody.\n"


def zipped(name: str, data: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return held.getvalue()


def notebook(text: str) -> bytes:
    cell = {
        "cell_type": "code",
        "metadata": {},
        "outputs": [],
        "source": text.splitlines(keepends=True),
    }
    return json.dumps(
        {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    ).encode()


# How a text can lie in a release: the file's name and its bytes.
PLACES = {
    "a page": lambda text: ("README.md", f"{PROSE}```python\n{text}\n```\n".encode()),
    "a file of the grader": lambda text: (
        "vendor/g.whl",
        zipped("gpudojo/days/day8/x.py", f"import os\n\n{text}\n".encode()),
    ),
    "a function": lambda text: (
        "vendor/g.whl",
        zipped("gpudojo/x.py", f"def f(x):\n{textwrap.indent(text, ' ' * 8)}\n".encode()),
    ),
    "comments": lambda text: ("a.py", textwrap.indent(text, "#   ", lambda _: True).encode()),
    "a quotation": lambda text: ("mail.txt", textwrap.indent(text, "> ", lambda _: True).encode()),
    "a notebook": lambda text: ("day8.ipynb", notebook(text)),
    "a string of Python": lambda text: (
        "vendor/g.whl",
        zipped("gpudojo/x.py", f"X = {text!r}\n".encode()),
    ),
    "a string of JSON": lambda text: ("a.yml", f"run: {json.dumps(text)}\n".encode()),
    "other white space": lambda text: (
        "a.py",
        text.replace("    ", "\t").replace("\n", "\r\n").encode(),
    ),
    "UTF-16": lambda text: ("a.txt", text.encode("utf-16")),
    "zipped twice": lambda text: ("a.zip", zipped("b.zip", zipped("c.txt", text.encode()))),
    "gzip": lambda text: ("a.gz", gzip.compress(text.encode(), mtime=0)),
    "evidence": lambda text: ("a.mp", b"\x81\xa1e\xc4" + zlib.compress(text.encode(), 9) + b"more"),
}

IN_THE_GRADER = ("a file of the grader", "a function", "a string of Python")


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(SOLUTIONS)), st.sampled_from(sorted(PLACES)))
def test_a_solution_is_found_wherever_it_is_put(which: tuple[str, int], place: str) -> None:
    path, data = PLACES[place](SOLUTIONS[which])
    found = leaks.find_leaks({"pytest.ini": b"[pytest]\n", path: data}, REFERENCE)
    assert any(leak.reference == which[0] for leak in found)
    assert all(leak.path.startswith(path) for leak in found)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(LINES),
    st.sampled_from([place for place in sorted(PLACES) if place not in IN_THE_GRADER]),
)
def test_a_single_line_is_found_outside_the_grader(secret: Secret, place: str) -> None:
    path, data = PLACES[place](secret.text)
    found = leaks.find_leaks({path: data}, REFERENCE)
    assert (secret.reference, secret.line) in {(leak.reference, leak.line) for leak in found}


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([secret for secret in LINES if not secret.idiom]))
def test_a_telling_line_is_found_inside_the_grader_too(secret: Secret) -> None:
    path, data = PLACES["a function"](secret.text)
    assert leaks.find_leaks({path: data}, REFERENCE)


def test_every_solution_is_guarded() -> None:
    guarded = {(secret.reference, secret.line) for secret in BLOCKS}
    short = [where for where, text in SOLUTIONS.items() if where not in guarded]
    assert short == [], "a solution too short to be told from anybody's code"


@pytest.mark.parametrize(
    ("line", "idiom"),
    [
        ("optimizer.zero_grad()", True),
        ("return model.to(device)", True),
        ("yield from tensors_in(item)", True),
        ("kind = torch.device(device).type", True),
        ("total += loss.item() * len(targets)", False),
        ('best = torch.device("cuda")', False),
        ("return batch.to(device, non_blocking=non_blocking)", False),
        ("return palette[indices].permute(0, 3, 1, 2)", False),
        ("gpus.append({", False),
    ],
)
def test_what_an_idiom_is(line: str, idiom: bool) -> None:
    assert is_idiom(line) is idiom


def test_the_grader_and_the_stubs_give_nothing_away(released: Released) -> None:
    assert leaks.find_leaks(released.files, REFERENCE) == []
    # The wheel was looked into: the same search finds what is put there.
    held = io.BytesIO(released.files[released.wheel])
    with zipfile.ZipFile(held, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "gpudojo/x.py", (REFERENCE / "04_modifying_training_loop_gpu.py").read_bytes()
        )
    spoiled = leaks.find_leaks({released.wheel: held.getvalue()}, REFERENCE)
    assert "04_modifying_training_loop_gpu.py" in {leak.reference for leak in spoiled}
    assert {leak.path for leak in spoiled} == {f"{released.wheel}: gpudojo/x.py"}


def test_what_gpudojo_has_anyway_is_no_leak_of_another_course(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of its own that the course's author wrote, too; but its day's files are searched."""
    line = next(
        text
        for text in (SOURCES / "gpudojo/sandbox/warm_up.py").read_text("utf-8").splitlines()
        if "torch.optim.SGD(" in text
    )
    reference = tmp_path / "reference" / "day1"
    reference.mkdir(parents=True)
    (reference / "01_x.py").write_text(
        f"import torch\n\n\ndef f(model):\n    # BEGIN SOLUTION\n    {line.strip()}\n"
        "    optimizer.step()\n    # END SOLUTION\n",
        encoding="utf-8",
    )
    warm_up = (SOURCES / "gpudojo/sandbox/warm_up.py").read_bytes()

    def leaks_in(member: str, data: bytes) -> list[str]:
        found = leaks.find_leaks({"vendor/g.whl": zipped(member, data)}, reference)
        return [leak.path for leak in found]

    outside = {
        **registered_days(),
        "day1": Day("day1", "course.day1", tmp_path / "course" / "day1"),
    }
    monkeypatch.setattr(leaks, "registered_days", lambda: outside)
    assert leaks_in("gpudojo/sandbox/warm_up.py", warm_up) == []
    for member, data in (
        ("course/day1/x.py", warm_up),
        ("gpudojo/sandbox/warm_up.py", warm_up + b"# changed\n"),
        ("gpudojo/grading/of_reference/day1.mp", zlib.compress(warm_up)),
    ):
        assert f"vendor/g.whl: {member}" in leaks_in(member, data)
    # A day of gpudojo itself: its own material could show its solutions.
    built_in = {"day1": Day("day1", "gpudojo.days.day1", BUILT_IN / "day1")}
    monkeypatch.setattr(leaks, "registered_days", lambda: built_in)
    assert leaks_in("gpudojo/sandbox/warm_up.py", warm_up) == [
        "vendor/g.whl: gpudojo/sandbox/warm_up.py"
    ]


def test_a_leak_says_where_it_is() -> None:
    (leak,) = leaks.find_leaks(
        {"README.md": b"`return 0.299 * red + 0.587 * green + 0.114 * blue`"}, REFERENCE
    )
    assert str(leak).startswith("README.md shows line ")
    assert "06_vectorizing_pixel_loops.py: return 0.299 * red" in str(leak)


def test_the_wheel_is_made_without_references_and_tests() -> None:
    names = set(files_of_wheel("day8", b""))
    assert "gpudojo/grading/of_reference/day8.mp" in names
    assert not [
        name
        for name in names
        if name.startswith(("reference/", "tests/", "exercises/")) or "__pycache__" in name
    ]


def test_a_damaged_archive_is_looked_at_as_it_is(tmp_path: Path) -> None:
    data = zipped("a.txt", b"nothing")[:-5]
    assert (
        leaks.find_leaks(
            {"a.zip": data, "b.ipynb": b"{broken", "c.gz": b"\x1f\x8b\x08\0\0"}, REFERENCE
        )
        == []
    )
