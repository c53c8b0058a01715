"""Reading always ends, with the same answer and within its limits, whatever bytes it is given.

While it works, Python itself reports every file that is opened: none to write, and none outside of
the submission.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from pathlib import Path

import pytest
from gpudojo.model.catalogue import exercises_of
from gpudojo.submissions.choosing import choose_definitions
from gpudojo.submissions.entries import (
    Kind,
    ReadLimits,
    ReadSubmission,
    SourceFile,
    SubmissionEntry,
    digest_of,
)
from gpudojo.submissions.listing import list_submissions
from gpudojo.submissions.names import name_in_text
from gpudojo.submissions.reading import read_submission
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpudojo.submissions.making import (
    FILE,
    SOURCE,
    STUB,
    entry,
    notebook,
    tarred,
    write,
    zipped,
)
from tests.gpudojo.submissions.watching import watched

EXERCISES = exercises_of("day8")
LIMITS = ReadLimits(
    files=4, file_bytes=3_000, total_bytes=8_000, archive_bytes=20_000, entries=50, depth=3, notes=5
)
TRIED = settings(max_examples=settings().max_examples // 2)


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """What is imported at the first notebook is none of the watch's business."""
    choose_definitions({"day8.ipynb": notebook(SOURCE.decode())}, EXERCISES)


def test_the_watch_sees_what_it_should(tmp_path: Path) -> None:
    inside = write(tmp_path / "in" / "a.py")
    with watched(tmp_path / "in"):
        inside.read_bytes()
    with pytest.raises(AssertionError), watched(tmp_path / "in"):
        write(tmp_path / "b.py").read_bytes()
    with pytest.raises(AssertionError), watched(tmp_path / "in"):
        inside.write_bytes(b"")
    with pytest.raises(AssertionError), watched(tmp_path / "in"):
        exec(compile("x = 1", "<submission>", "exec"))
    outside = write(tmp_path / "b.py")
    with pytest.raises(AssertionError), watched(tmp_path / "in"):
        outside.read_bytes()


def examined(found: ReadSubmission, limits: ReadLimits) -> None:
    """What holds of every submission."""
    assert (found.problem is None) <= bool(found.files), "where there is nothing, it is said"
    assert len(found.files) <= limits.files
    assert all(0 < len(file.data) <= limits.file_bytes for file in found.files)
    assert sum(len(file.data) for file in found.files) <= limits.total_bytes
    assert len(found.notes) <= limits.notes
    for sentence in (*found.notes, *([found.problem] if found.problem is not None else [])):
        assert sentence.isprintable()
        assert sentence.endswith(".")
        assert len(sentence) < 400
    below = Path(os.sep, "somewhere")
    folded = [file.path.casefold() for file in found.files]
    assert len(set(folded)) == len(folded)
    for file in found.files:
        assert file.path.casefold().endswith((".py", ".ipynb"))
        assert file.path.isprintable()
        assert os.path.normpath(below / file.path) == str(below / file.path), (
            "it stays where it is put"
        )
        assert not set(file.path) & set('\\:<>"|?*')
    assert found.digest == digest_of(found.files)


def tried(name: str, data: bytes) -> ReadSubmission:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(os.path.realpath(made))
        one = entry(write(folder / name, data))
        with watched(folder):
            found = read_submission(one, LIMITS)
        examined(found, LIMITS)
        assert read_submission(one, LIMITS) == found
        assert os.listdir(folder) == [name]
    return found


FILES = (
    ("a/b.py", SOURCE),
    (FILE, STUB),
    ("day8.ipynb", notebook("x = 1", SOURCE.decode())),
    ("n.txt", b"text"),
)
LINKED = zipfile.ZipInfo("link.py")
LINKED.external_attr = 0o120777 << 16
WHOLE = {
    "s.zip": zipped(*FILES, ("in.zip", zipped(*FILES)), (LINKED, b"/etc/passwd")),
    "stored.zip": zipped(*FILES, ("in.tgz", tarred(*FILES)), method=zipfile.ZIP_STORED),
    "s.tar": tarred(*FILES, ("in.zip", zipped(*FILES)), mode="w"),
    "s.tar.gz": tarred(*FILES, ("a" * 150 + ".py", SOURCE)),
    "s.ipynb": notebook("x = 1", "!ls", SOURCE.decode()),
    "s.py": SOURCE,
}


@st.composite
def mangled(draw: st.DrawFn) -> tuple[str, bytes]:
    """One of the above, cut off, with bytes changed, taken out, put in or repeated."""
    name = draw(st.sampled_from(sorted(WHOLE)))
    data = bytearray(WHOLE[name])
    for _ in range(draw(st.integers(1, 6))):
        # Headers and directories lie at the ends; damage there is what archives are most sensitive
        # to.
        at = draw(st.one_of(st.integers(0, len(data)), st.integers(0, min(len(data), 600))))
        at = len(data) - at if draw(st.booleans()) else at
        change = draw(st.sampled_from(["cut", "flip", "drop", "insert", "repeat", "blank"]))
        size = draw(st.integers(1, 40))
        if change == "cut":
            del data[at:]
        elif change == "drop":
            del data[at : at + size]
        elif change == "insert":
            data[at:at] = draw(st.binary(max_size=40))
        elif change == "repeat":
            data[at:at] = data[at : at + size]
        elif change == "blank":
            data[at : at + size] = draw(st.sampled_from([b"\0", b"\xff", b"7"])) * len(
                data[at : at + size]
            )
        elif at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
    return name, bytes(data)


@TRIED
@given(mangled())
def test_mangled_submissions_are_read(case: tuple[str, bytes]) -> None:
    found = tried(*case)
    chosen(found.files)


@TRIED
@given(st.sampled_from(["a.zip", "a.tar", "a.tgz", "a.py", "a.ipynb"]), st.binary(max_size=2_000))
def test_any_bytes_are_read(name: str, data: bytes) -> None:
    chosen(tried(name, data).files)


NAME = st.one_of(
    st.lists(
        st.sampled_from(
            [
                "a",
                "A",
                "b.py",
                "B.PY",
                "..",
                ".",
                "",
                "C:",
                "con",
                ".git",
                "é",
                "e\u0301",
                "x.zip",
                " ",
                "\x1b",
            ]
        ),
        min_size=1,
        max_size=6,
    ).map(lambda parts: "/".join(parts) + ".py"),
    st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30
    ).map("{}.py".format),
)


@TRIED
@given(st.lists(st.tuples(NAME, st.binary(max_size=50)), max_size=8), st.booleans())
def test_any_names_are_placed_or_refused(files: list[tuple[str, bytes]], tar: bool) -> None:
    files = list(dict(files).items())
    found = tried("s.tar", tarred(*files, mode="w")) if tar else tried("s.zip", zipped(*files))
    assert {file.data for file in found.files} <= {data for _, data in files}


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=20),
        st.just(SOURCE.decode()),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
CELL = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {"cell_type": st.one_of(st.sampled_from(["code", "markdown", "raw", "heading"]), JSON)},
        optional={
            "source": st.one_of(
                st.text(max_size=60), st.just(SOURCE.decode()), st.lists(st.text(max_size=9)), JSON
            ),
            "metadata": st.one_of(st.just({}), JSON),
            "outputs": st.one_of(st.just([]), JSON),
            "execution_count": st.one_of(st.none(), JSON),
            "id": JSON,
        },
    ),
)
BOOK = st.fixed_dictionaries(
    {"cells": st.one_of(st.lists(CELL, max_size=4), JSON), "note": st.just("train_epoch")},
    optional={
        "nbformat": st.one_of(st.just(4), st.integers(-1, 6), JSON),
        "nbformat_minor": st.one_of(st.just(4), JSON),
        "metadata": st.one_of(st.just({}), JSON),
        "worksheets": JSON,
    },
)


def chosen(files: tuple[SourceFile, ...]) -> None:
    given_in = {file.path: file.data for file in files}
    with tempfile.TemporaryDirectory() as nowhere, watched(Path(nowhere)):
        choice = choose_definitions(given_in, EXERCISES)
    assert choice == choose_definitions(dict(reversed(given_in.items())), EXERCISES)
    assert len(choice.definitions) == sum(len(exercise.functions) for exercise in EXERCISES)
    for one in choice.definitions:
        assert one.file is None or one.file in given_in
        assert one.line is None or one.line >= 1
        assert (one.cell is not None) <= str(one.file).casefold().endswith(".ipynb")
        assert one.note.isprintable()


@TRIED
@given(st.one_of(BOOK, JSON))
def test_any_json_as_a_notebook_is_chosen_from(content: object) -> None:
    data = json.dumps(content).encode()
    chosen((SourceFile("day8.ipynb", data), SourceFile("a.py", STUB)))
    tried("day8.ipynb", data)


@TRIED
@given(st.lists(st.text("def train_epoch(=):\n \t#'\"\\%!?é0", max_size=60), max_size=3))
def test_any_text_as_a_source_is_chosen_from(texts: list[str]) -> None:
    files = [SourceFile(f"{number}.py", text.encode()) for number, text in enumerate(texts)]
    chosen((*files, SourceFile("n.ipynb", notebook(*texts, "train_epoch")), SourceFile(FILE, STUB)))


CHILD = st.one_of(
    st.sampled_from(
        [
            "a_1_2_x.py",
            "a_LATE_1_3_y.zip",
            "b_1_2_",
            "Ada Example_12_assignsubmission_file_",
            "submission_1",
            "submission_metadata.yml",
            "day8-",
            "day8-a",
            "s.py",
            "S.py",
            "s.zip",
            "s",
            ".py",
            "build",
        ]
    ),
    st.text("aA_1. -é()", min_size=1, max_size=12).filter(lambda name: name.strip(".") != ""),
)


@TRIED
@given(st.dictionaries(CHILD, st.booleans(), max_size=10), st.binary(max_size=60))
def test_any_class_is_listed_with_each_thing_once(children: dict[str, bool], data: bytes) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(os.path.realpath(made), "class")
        folder.mkdir()
        for name, is_folder in children.items():
            if (folder / name).exists():  # where case does not count
                continue
            write(folder / name / "w.py" if is_folder else folder / name, data)
        with watched(folder):
            found = list_submissions([folder])
        assert found == list_submissions([folder])
        names = [one.name.casefold() for one in found.entries]
        assert len(set(names)) == len(names)
        places = [path for one in found.entries for _, path in one.members] + [
            one.path for one in found.ignored
        ]
        assert len(set(places)) == len(places)
        for one in found.entries:
            assert one.name.isprintable()
            assert one.student
            examined(read_submission(one, LIMITS), LIMITS)


def test_an_entry_made_by_hand_is_read_too(tmp_path: Path) -> None:
    write(tmp_path / FILE)
    assert read_submission(SubmissionEntry("x", "x", tmp_path, Kind.FOLDER)).files[0].path == FILE


@pytest.mark.parametrize("name", ["\0" * 80, "a\0" * 500, "\u202e" * 38 + "x" * 1000])
def test_a_name_of_invisible_characters_is_shown_short(name: str) -> None:
    assert name_in_text(name).isprintable()
    assert len(name_in_text(name)) <= 120
