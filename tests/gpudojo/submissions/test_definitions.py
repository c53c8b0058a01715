"""The right definition is graded, wherever a student keeps it, and no source breaks the choice."""

from __future__ import annotations

import ast
import time
import tracemalloc
from pathlib import Path

import pytest
from gpudojo.grading import load, sources
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.exercise import Exercise
from gpudojo.submissions.choosing import Choice, ChosenDefinition, State, choose_definitions

from tests.gpudojo.submissions.making import FILE, SOURCE, STUB, notebook

STEM = FILE.removesuffix(".py")
TRAINING = next(exercise for exercise in exercises_of("day8") if exercise.stem == STEM)
BROKEN = b"def train_epoch(model:\n    return 1\n"
OTHER = (
    SOURCE.replace(b"return ", b"return 2 * ", 1)
    if b"return " in SOURCE
    else SOURCE + b"    pass\n"
)
BOOK = notebook("import torch", "# here\n" + SOURCE.decode())
STUB_BOOK = notebook(STUB.decode())


def chosen(files: dict[str, bytes], exercise: Exercise = TRAINING) -> ChosenDefinition:
    found = choose_definitions(files, [exercise]).definitions
    assert found == choose_definitions(dict(reversed(files.items())), [exercise]).definitions, (
        "the order of the files is nothing"
    )
    return found[0]


@pytest.mark.parametrize(
    ("files", "file"),
    [
        ({FILE: SOURCE, "a.py": SOURCE, "day8.py": SOURCE}, FILE),
        ({f"{STEM}.ipynb": BOOK, "a.py": SOURCE}, f"{STEM}.ipynb"),
        ({f"{STEM}.ipynb": BOOK, f"z/{FILE}": SOURCE}, f"z/{FILE}"),
        ({f"{STEM} (1).py": SOURCE, "a.py": SOURCE}, f"{STEM} (1).py"),
        ({f"Copy of {STEM}.py": SOURCE, "a.py": SOURCE}, f"Copy of {STEM}.py"),
        (
            {f"examplead_101_9002_{STEM}-2.py": SOURCE, "a.py": SOURCE},
            f"examplead_101_9002_{STEM}-2.py",
        ),
        ({FILE.upper(): SOURCE, "a.py": SOURCE}, FILE.upper()),
        ({FILE: STUB, "a.py": SOURCE}, "a.py"),
        ({FILE: STUB, "day8.ipynb": BOOK}, "day8.ipynb"),
        ({FILE: STUB, "day8.ipynb": STUB_BOOK}, FILE),
        ({FILE: BROKEN, "a.py": SOURCE}, "a.py"),
        ({FILE: BROKEN, "a.py": STUB}, FILE),
        ({FILE: b"x = 1\n", "a.py": SOURCE}, "a.py"),
        ({"day8.ipynb": BOOK, "a.py": SOURCE}, "day8.ipynb"),
        ({"a.ipynb": BOOK, "b.py": SOURCE}, "b.py"),
        ({"a10.py": SOURCE, "a9.py": SOURCE}, "a9.py"),
        ({"a/a.py": SOURCE, "z.py": SOURCE}, "z.py"),
        ({"main.py": b"from work import train_epoch\n", "work.py": SOURCE}, "work.py"),
        (
            {f"reference/day8/{FILE}": SOURCE, f"exercises/day8/{FILE}": STUB},
            f"exercises/day8/{FILE}",
        ),
        ({f"reference/day8/{FILE}": SOURCE, "z/z.py": SOURCE}, "z/z.py"),
        ({"test_training.py": SOURCE, "z.py": SOURCE}, "z.py"),
        ({"tests/a.py": SOURCE}, "tests/a.py"),
        ({f"old/{FILE}": SOURCE, f"exercises/day8/{FILE}": SOURCE}, f"exercises/day8/{FILE}"),
        (
            {f"backup/day8/{FILE}": SOURCE, f"exercises/day8/{FILE}": SOURCE},
            f"exercises/day8/{FILE}",
        ),
        (
            {f"exercises/day8/{STEM} (1).py": SOURCE, f"exercises/day8/{FILE}": SOURCE},
            f"exercises/day8/{FILE}",
        ),
        ({FILE: SOURCE, f"exercises/day8/{FILE}": SOURCE}, f"exercises/day8/{FILE}"),
        (
            {f"ada-main/old/{FILE}": SOURCE, f"ada-main/exercises/day8/{FILE}": SOURCE},
            f"ada-main/exercises/day8/{FILE}",
        ),
        ({f"old/exercises/day8/{FILE}": SOURCE, FILE: SOURCE}, FILE),
        (
            {f"old/exercises/day8/{FILE}": SOURCE, f"exercises/day8/{FILE}": SOURCE},
            f"exercises/day8/{FILE}",
        ),
        ({f"old/{FILE}": SOURCE, f"exercises/day8/{FILE}": STUB}, f"old/{FILE}"),
    ],
)
def test_which_file_is_graded(files: dict[str, bytes], file: str) -> None:
    found = chosen(files)
    assert found.file == file
    assert {found.file, *(other.file for other in found.passed_over)} <= set(files)
    assert found.named == (STEM in file.casefold())


@pytest.mark.parametrize(
    ("source", "line", "state"),
    [
        ("def train_epoch(): return 1", 1, State.DEFINED),
        ("@wrap\ndef train_epoch(): return 1", 2, State.DEFINED),
        ("async def train_epoch(): pass", 1, State.DEFINED),
        ("class train_epoch: pass", 1, State.DEFINED),
        ("train_epoch = lambda: 1", 1, State.DEFINED),
        ("train_epoch: object = print", 1, State.DEFINED),
        ("a, (train_epoch, b) = f()", 1, State.DEFINED),
        ("import torch as train_epoch", 1, State.DEFINED),
        ("from x import y as train_epoch", 1, State.DEFINED),
        (
            "if a:\n    def train_epoch(): return 1\nelse:\n    def train_epoch(): return 2",
            4,
            State.DEFINED,
        ),
        ("try:\n    import x\nexcept E:\n    def train_epoch(): return 1\n", 4, State.DEFINED),
        ("with a:\n    class train_epoch: pass", 2, State.DEFINED),
        ("if a:\n    async def train_epoch(): pass", 2, State.DEFINED),
        (
            "def train_epoch(): return 1\ndef train_epoch(): raise NotImplementedError",
            2,
            State.STUB,
        ),
        ("def train_epoch(): ...\ntrain_epoch = print", 2, State.DEFINED),
        ("train_epoch = None", 1, State.STUB),
        ("class A:\n    def train_epoch(self): return 1", None, State.MISSING),
        ("if a:\n    class A:\n        def train_epoch(self): return 1", None, State.MISSING),
        ("def f():\n    train_epoch = 1", None, State.MISSING),
        ("if a:\n    def f():\n        train_epoch = 1", None, State.MISSING),
        ("x = [train_epoch for train_epoch in y]", None, State.MISSING),
        ("if __name__ == '__main__':\n    train_epoch = 1", None, State.MISSING),
        ("print(train_epoch)", None, State.MISSING),
        ("x = 1\nasync def train_epoch(:\n    pass", 2, State.BROKEN),
    ],
)
def test_what_counts_as_a_definition(source: str, line: int | None, state: State) -> None:
    found = chosen({FILE: source.encode()})
    assert (found.file, found.line, found.state) == (FILE, line, state)


@pytest.mark.parametrize(
    ("other", "versions"),
    [
        ({"old.py": SOURCE}, ("old.py",)),  # nobody knows which is meant
        ({"old.py": STUB}, ()),
        ({"final.ipynb": notebook(SOURCE.decode())}, ()),  # a notebook and its export
        ({"tests/old.py": SOURCE}, ()),
        ({f"{STEM}.py": SOURCE}, ()),  # it is named for the exercise
    ],
)
def test_other_files_with_the_same_function_are_other_versions(
    other: dict[str, bytes], versions: tuple[str, ...]
) -> None:
    (found,) = choose_definitions({"final.py": SOURCE, **other}, [TRAINING]).definitions
    assert found.versions == versions


@pytest.mark.parametrize(
    ("other", "versions"),
    [
        ({f"{STEM}.ipynb": notebook(OTHER.decode())}, (f"{STEM}.ipynb",)),
        ({f"{STEM}.ipynb": notebook("# the same\n\n" + SOURCE.decode())}, ()),
        ({f"{STEM}.ipynb": notebook(STUB.decode())}, ()),
        ({"day8.ipynb": notebook("x = 1", OTHER.decode())}, ("day8.ipynb",)),
        ({"draft.py": OTHER}, ("draft.py",)),
        ({"draft.py": SOURCE}, ()),
        ({"tests/draft.py": OTHER}, ()),
    ],
)
def test_other_work_beside_the_file_of_the_exercise_is_another_version(
    other: dict[str, bytes], versions: tuple[str, ...]
) -> None:
    (found,) = choose_definitions({FILE: SOURCE, **other}, [TRAINING]).definitions
    assert (found.file, found.versions) == (FILE, versions)


def test_a_notebook_names_cell_and_line_and_the_last_sound_definition_counts() -> None:
    book = notebook(
        "!pip install x\nimport torch",
        "%%time\n\n" + SOURCE.decode(),
        "# again\n\n\n" + SOURCE.decode(),
    )
    found = chosen({"day8.ipynb": book})
    assert (found.file, found.cell, found.line, found.named) == ("day8.ipynb", 3, 4, False)
    assert found.note == "It was taken from day8.ipynb."
    found = chosen({"day8.ipynb": notebook(SOURCE.decode(), BROKEN.decode())})
    assert (found.cell, found.line, found.state) == (1, 1, State.DEFINED)
    found = chosen({"day8.ipynb": notebook("x = 1", STUB.decode(), "\n" + BROKEN.decode())})
    assert (found.cell, found.line, found.state) == (3, 2, State.BROKEN)
    choice = choose_definitions(
        {"day8.ipynb": notebook("x = 1", "\n" + BROKEN.decode())}, [TRAINING]
    )
    assert choice.unreadable == (("day8.ipynb", "'(' was never closed in line 2 of cell 2"),)
    assert (
        choice.problem == "day8.ipynb could not be read: '(' was never closed in line 2 of cell 2."
    )


def test_every_function_is_answered_and_the_note_tells_what_was_passed_over() -> None:
    files = {FILE: STUB, "a.py": SOURCE, "b.py": SOURCE, "c.py": SOURCE, "d/d.py": SOURCE}
    choice = choose_definitions(files, exercises_of("day8"))
    functions = [
        function.name for exercise in exercises_of("day8") for function in exercise.functions
    ]
    assert [one.function for one in choice.definitions] == functions
    training = choice.definition_of("train_epoch")
    assert training is not None
    assert (
        training.note
        == "It was taken from a.py. It is defined in b.py, c.py, d/d.py and 1 more, too."
    )
    other = choice.definition_of("select_device")
    assert other is not None
    assert (other.file, other.state, other.note) == (None, State.MISSING, "")
    assert choice.problem is None
    assert choice.definition_of("nothing") is None


def test_answers_that_are_all_none_are_a_stub() -> None:
    questions = next(
        exercise for exercise in exercises_of("day8") if exercise.stem == "12_self_assessment"
    )
    files = {
        "12_self_assessment.py": b'ANSWERS = {"a": None, "b": None}\n',
        "x.py": b'ANSWERS = {"a": "b"}\n',
    }
    assert chosen(files, questions).file == "x.py"
    files["12_self_assessment.py"] = b'ANSWERS = {"a": "c", "b": None}\n'
    assert chosen(files, questions).file == "12_self_assessment.py"


def test_where_nothing_defines_it_the_file_that_should_have_is_named() -> None:
    for files, file in (
        ({FILE: b"x = 1\n", "b.py": b"y = 1\n"}, FILE),
        ({"day8.ipynb": notebook("x = 1"), "b.py": b"y = 1\n"}, "day8.ipynb"),
        ({"b.py": b"def train_epohc(): pass\n"}, "b.py"),
        ({"a.py": b"x = 1\n", "b.py": b"y = 1\n"}, None),
        ({f"reference/{FILE}": b"x = 1\n"}, None),
        ({}, None),
    ):
        found = chosen(files)
        assert (found.file, found.state, found.line) == (file, State.MISSING, None)


DEPTH = 40_000
HOSTILE = {
    "parentheses": b"train_epoch = " + b"(" * DEPTH,
    "minus": b"train_epoch = " + b"-" * DEPTH + b"1",
    "attributes": b"train_epoch = a" + b".a" * DEPTH,
    "calls": b"train_epoch = a" + b"()" * DEPTH,
    "sum": b"train_epoch = " + b"1+" * DEPTH + b"1",
    "lambda": b"train_epoch = " + b"lambda:" * 50_000 + b"1",
    "elif": b"train_epoch = 1\nif 1: pass\n" + b"elif 1: pass\n" * 25_000,
    "dict": b"train_epoch = " + b"{1:" * 150 + b"None" + b"}" * 150,
    "digits": b"train_epoch = " + b"1" * DEPTH,
    "null": b"train_epoch = 1\0",
    "bytes": b"train_epoch = '\xff'",
    "utf16": "train_epoch = 1".encode("utf-16") + b"train_epoch",
    "hex": b"# coding: hex\ntrain_epoch = 1",
    "undefined": b"# coding: undefined\ntrain_epoch = 1",
    "unknown": b"# coding: nothing\ntrain_epoch = 1",
    "punycode": b"# coding: punycode\ntrain_epoch = 1-\xff",
    "escapes": b"# coding: unicode_escape\ntrain_epoch = '\\d'",
    "warning": b"train_epoch = 1 is 1\nx = '\\d'",
    "long": b"train_epoch = 1\n" + b"x = 1\n" * 1_600_000,
    "line": b"train_epoch = 1;" * 600_000,
}
FORMAT_4 = b'"nbformat": 4, "nbformat_minor": 4, "metadata": {"train_epoch": 1}}'
HOSTILE_BOOKS = {
    "list": b'["cells", "train_epoch"]',
    "cells are a number": b'{"cells": 3, ' + FORMAT_4,
    "cell is a number": b'{"cells": [3], ' + FORMAT_4,
    "brackets": b'{"cells": ' + b"[" * DEPTH + b'"train_epoch"',
    "version": b'{"cells": [], "nbformat": 99, "metadata": {"train_epoch": 1}}',
    "version is text": (
        b'{"cells": [], "nbformat": "4", "nbformat_minor": [], "metadata": {"train_epoch": 1}}'
    ),
    "huge number": b'{"cells": [], "nbformat": ' + b"9" * 5000 + b', "train_epoch": 1}',
    "not UTF-8": b'{"cells": ["train_epoch\xff"]}',
    "surrogate": notebook("train_epoch = '\ud800'"),
    "magics": notebook("!train_epoch\n" * 20_000),
    "spaces": notebook(" " * 90_000 + "!\ntrain_epoch = 1"),
    "questions": notebook("? " * 90_000 + "x\ntrain_epoch = 1"),
    "cells": notebook(*["train_epoch = 1"] * 3_000),
    "long": notebook("train_epoch = 1\n" + "x = 1\n" * 300_000),
}


@pytest.mark.parametrize(
    ("file", "data"),
    [
        *(pytest.param("z.py", data, id=name) for name, data in HOSTILE.items()),
        *(
            pytest.param("z.ipynb", data, id=f"notebook of {name}")
            for name, data in HOSTILE_BOOKS.items()
        ),
    ],
)
def test_hostile_sources_cost_little_and_leave_the_others(file: str, data: bytes) -> None:
    hostile = {file: data}
    tracemalloc.start()
    begin = time.process_time()
    alone = choose_definitions(hostile, [TRAINING])
    seconds, (_, peak) = time.process_time() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 20
    assert peak < 400_000_000
    assert isinstance(alone, Choice)
    assert all(
        reason and "\n" not in reason and len(reason) < 400 for _, reason in alone.unreadable
    )
    if alone.unreadable:
        assert alone.problem is not None
    else:
        assert alone.definitions[0].state in (State.DEFINED, State.STUB)
    beside = choose_definitions({**hostile, FILE: SOURCE}, [TRAINING])
    assert beside.definitions[0].file == FILE
    assert beside.problem is None


def test_there_is_an_end_to_how_much_is_parsed() -> None:
    files = {f"{number:03}.py": b"train_epoch = 1\n" + b"# \n" * 100_000 for number in range(30)}
    choice = choose_definitions(files, [TRAINING])
    assert choice.definitions[0].file == "000.py"
    assert 0 < len(choice.unreadable) < 30
    assert choice.unreadable[0][1] == "it was not read, because there is too much Python beside it"


def test_what_was_parsed_to_choose_is_not_parsed_again_to_load(tmp_path: Path) -> None:
    trees: sources.Trees = {}
    files = {
        "one.py": b"def move_batch(batch, device):\n    return 1\n",
        "two.py": b"x = '\\d'  # move_model\n",
    }
    choose_definitions(files, exercises_of("day8"), trees)
    assert len(trees) == 1, "the warning about the escape is to be printed when that file is loaded"
    (tmp_path / "one.py").write_bytes(files["one.py"])
    tree = trees[files["one.py"].decode(), 1]
    ast.increment_lineno(tree, 7)  # seen in what is loaded, if that is the tree
    loaded = load.load_submission(tmp_path / "one.py", trees=trees)
    assert loaded.names["move_batch"](None, None) == 1
    assert loaded.lines["move_batch"] == 8
    assert (files["one.py"].decode(), 1) not in trees
    assert load.load_submission(tmp_path / "one.py", trees=trees).lines["move_batch"] == 1
