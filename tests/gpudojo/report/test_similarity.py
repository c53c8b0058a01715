"""Copies are found under other names and layouts.

What everybody has, and what was given, is no copy.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from click.testing import CliRunner
from gpudojo.classes.store import Store
from gpudojo.cli import main
from gpudojo.model.results_file import write
from gpudojo.report.people import Person
from gpudojo.report.similarity import (
    ComparedWork,
    side_by_side,
    similar_pairs,
    similarity_page,
)
from gpudojo.submissions.opening_cell import opening_code

from tests.gpudojo.report.classes import header, submission

GIVEN = (
    "import torch\n\n"
    "def f(batch, device):\n"
    "    '''Do it.'''\n"
    "    moved = batch.to(device, non_blocking=True)\n"
)
OWN = """\
    total = torch.zeros(3, device=device) + 17.5
    for index, row in enumerate(moved.unbind(0)):
        if index % 3 == 1 and row.sum() > 0.25:
            total = total + row.pow(2).sum().sqrt() * 0.125
    return total.clamp(min=-4, max=9).reshape(-1)
"""
COPY = """\
    # my own idea
    acc = torch.zeros(3, device=where) + 17.5
    for i, line in enumerate(
        put.unbind(0)
    ):
        if i % 3 == 1 and line.sum() > 0.25:
            print("debugging")
            acc = acc + line.pow(2).sum().sqrt() * 0.125
    return acc.clamp(min=-4, max=9).reshape(-1)
"""
RENAMED = GIVEN.replace("device", "where").replace("moved", "put")


def other(number: int) -> str:
    first = f"    y = (moved * {number} + torch.arange({number})).cumsum({number})\n"
    return f"{first}    return y.roll({number}).flip({number})\n"


def notebook(source: str) -> bytes:
    cells = [
        {
            "cell_type": "code",
            "source": source,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
    ]
    return json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 4, "metadata": {}}).encode()


def a_class() -> dict[int, ComparedWork]:
    works = {n: ComparedWork({"01.py": (GIVEN + other(n)).encode()}) for n in range(2, 9)}
    works[0] = ComparedWork({"01.py": (GIVEN + OWN).encode()})
    works[1] = ComparedWork({"sub/day8.ipynb": notebook(RENAMED + COPY)})
    return works


def test_a_renamed_copy_in_a_notebook_is_found() -> None:
    works = a_class()
    pairs = similar_pairs(works, ComparedWork({"01.py": GIVEN.encode()}))
    assert [(pair.one, pair.other) for pair in pairs] == [(0, 1)]
    assert pairs[0].similarity > 0.9
    assert pairs[0].shared == 5
    ((left, right),) = side_by_side(works[0], works[1], ComparedWork({"01.py": GIVEN.encode()}))
    assert left is not None
    assert right is not None
    assert (left[0], right[0]) == ("f, 01.py", "f, sub/day8.ipynb, cell 1")
    assert [text.strip() for _, text, marked in right[1] if not marked and "print" in text] == [
        'print("debugging")'
    ]
    assert all(marked for _, text, marked in left[1] if text.strip() and text in OWN)
    assert not any(marked for _, text, marked in left[1] if text in GIVEN)


def test_what_was_given_and_what_everybody_wrote_is_left_out() -> None:
    works = {n: ComparedWork({"01.py": (GIVEN + OWN).encode()}) for n in range(9)}
    assert similar_pairs(works) == [], "nine of nine have it"
    two = {
        0: works[0],
        1: works[1],
        **{n: ComparedWork({"01.py": (GIVEN + other(n)).encode()}) for n in range(2, 9)},
    }
    assert [(pair.similarity, pair.shared) for pair in similar_pairs(two)] == [(1.0, 5)]
    assert similar_pairs(two, ComparedWork({"reference.py": (GIVEN + OWN).encode()})) == [], (
        "the reference's own words"
    )


def test_the_first_cell_of_our_notebooks_is_nobodys_own() -> None:
    first_cell = opening_code("gpudojo")
    works = {}
    for place in range(2):
        own_work = f"own = [{place}] * {place + 3}\n"
        works[place] = ComparedWork({"day8.ipynb": notebook(first_cell + own_work)})
    assert similar_pairs(works), "they share it"
    people = [Person(name, name) for name in ("ada", "bo")]
    page = similarity_page(people, works, {}, {}, False, "Day 8")
    assert "No two submissions share three statements of their own." in page


def test_nothing_that_is_handed_in_breaks_it() -> None:
    deep = "x = " + "(" * 5000 + ")" * 5000
    odd = [
        "def f(:",
        "\0",
        deep,
        "x = 1" + " + 1" * 20000,
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ]
    works = {
        n: ComparedWork({"a.py": text.encode("utf-8", "replace"), "b.txt": b"x"})
        for n, text in enumerate(odd)
    }
    works[9] = ComparedWork({"n.ipynb": b'{"cells": "no"}', "big.py": b"x = 1\n" * 400_000})
    assert similar_pairs(works) == []


def test_the_page_ranks_pairs_and_needs_names(tmp_path: Path) -> None:
    store = Store(tmp_path)
    rows = []
    sources = {
        "ada": GIVEN + OWN,
        "<b>bob</b>": RENAMED + COPY,
        **{f"s{n}": GIVEN + other(n) for n in range(2, 9)},
    }
    for number, (name, text) in enumerate(sources.items()):
        store.keep_sources(f"{number:064x}", {"01.py": text.encode()})
        rows.append(submission(number, name, "no"))
    rows = [
        msgspec.structs.replace(row, digest=f"{number:064x}") for number, row in enumerate(rows)
    ]
    store.keep_sources("r" * 40, {"01.py": GIVEN.encode()})
    write(tmp_path / "results.json", header(reference="r" * 40), rows)
    done = CliRunner().invoke(main, ["report", str(tmp_path), "--similarity", "--no-students"])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "report" / "similarity.html").read_text(encoding="utf-8")
    assert "<bdi>ada</bdi> and <bdi>&lt;b&gt;bob&lt;/b&gt;</bdi>" in page
    assert "Statements of the reference and of the given code are left out" in page
    assert 'href="similarity.html"' in (tmp_path / "report" / "index.html").read_text(
        encoding="utf-8"
    )
    write(tmp_path / "results.json", header(reference="r" * 40), rows[:1])
    done = CliRunner().invoke(main, ["report", str(tmp_path), "--similarity", "--no-students"])
    assert "--similarity compares submissions, and there is only one with sources" in done.output
    for more in ("--anonymous", "--only=ada"):
        done = CliRunner().invoke(main, ["report", str(tmp_path), "--similarity", more])
        assert done.exit_code == 2
        assert "--similarity names pairs of students" in done.output


def test_without_sources_there_is_a_sentence(tmp_path: Path) -> None:
    write(
        tmp_path / "results.json",
        header(),
        [submission(1, "ada", "no"), submission(2, "bob", "no")],
    )
    done = CliRunner().invoke(main, ["report", str(tmp_path), "--similarity"])
    assert done.exit_code == 1
    assert "there are no sources to compare" in done.output


def test_what_is_left_of_a_stub_is_no_copy() -> None:
    """The reference has other values there."""
    answers = (
        "ANSWERS = {'portable': None, 'no_grad': None, 'memory': ...}\n"
        "MORE: dict = {'a': None, 'b': None}\n"
    )
    assert ComparedWork({"12.py": answers.encode()}).statements == []
    assert len(ComparedWork({"12.py": answers.replace("None", "7", 1).encode()}).statements) == 1
