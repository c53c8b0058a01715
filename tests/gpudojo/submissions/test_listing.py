"""The submissions of a folder are found, each once, under its student's name, and nothing else."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest
from gpudojo.submissions.entries import Kind
from gpudojo.submissions.listing import list_submissions, unpack_class
from gpudojo.submissions.names import curriculum_name, natural_key
from gpudojo.submissions.reading import read_submission

from tests.gpudojo.submissions.making import FILE, SOURCE, notebook, write, zipped

POSIX = pytest.mark.skipif(
    sys.platform == "win32", reason="names and files that Windows does not have"
)
LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="file systems elsewhere do not store such names"
)


def test_each_child_of_a_class_is_one_submission(tmp_path: Path) -> None:
    write(tmp_path / "student-10" / FILE)
    write(tmp_path / "student-2" / "deep" / "down" / "work.py")
    write(tmp_path / "student-1.zip", zipped((FILE, SOURCE)))
    write(tmp_path / "student-3.tar.gz")
    write(tmp_path / "student-4.TGZ")
    write(tmp_path / "student-5.tar")
    write(tmp_path / "student-6.py")
    write(tmp_path / "student-7.ipynb", notebook("x = 1"))
    write(tmp_path / "student-8.rar")
    (tmp_path / "student-9").mkdir()
    write(tmp_path / "student-11" / ".git" / "HEAD")
    kinds = {entry.name: entry.kind for entry in list_submissions([tmp_path]).entries}
    assert kinds == {
        "student-1": Kind.ZIP,
        "student-2": Kind.FOLDER,
        "student-3": Kind.TAR,
        "student-4": Kind.TAR,
        "student-5": Kind.TAR,
        "student-6": Kind.PYTHON,
        "student-7": Kind.NOTEBOOK,
        "student-8": Kind.OTHER,
        "student-9": Kind.FOLDER,
        "student-10": Kind.FOLDER,
        "student-11": Kind.CHECKOUT,
    }
    assert list(kinds) == sorted(kinds, key=lambda name: int(name.split("-")[1])), "natural order"


def test_junk_is_passed_over_and_strays_are_named(tmp_path: Path) -> None:
    write(tmp_path / "student-01" / FILE)
    for junk in (
        ".git-old __pycache__ __MACOSX .ipynb_checkpoints venv .venv node_modules .pytest_cache "
        "build .idea"
    ).split():
        write(tmp_path / junk / "x.py")
    for junk in (".DS_Store", "Thumbs.db", "._student-01.zip"):
        write(tmp_path / junk)
    write(tmp_path / "README.txt")
    write(tmp_path / "roster.csv")
    found = list_submissions([tmp_path])
    assert [entry.name for entry in found.entries] == ["student-01"]
    assert [left.path.name for left in found.ignored] == ["README.txt", "roster.csv"]
    assert (
        found.ignored[0].reason
        == "it is neither a Python file, a notebook, an archive nor a folder"
    )


@pytest.mark.parametrize(
    "file",
    [
        FILE,
        "04_modifying_training_loop_gpu (1).py",
        "Copy of 04_Modifying_Training_Loop_GPU.ipynb",
        "day8.py",
        "day8.ipynb",
        "day8-Copy1.ipynb",
        f"exercises/day8/{FILE}",
        "exercises/day8/notes.txt",
        f"day8/{FILE}",
        ".git/HEAD",
    ],
)
def test_a_folder_with_work_in_it_is_one_submission(tmp_path: Path, file: str) -> None:
    folder = tmp_path / "student-01"
    write(folder / file)
    write(folder / "other" / "more.py")
    assert [(entry.name, entry.origin) for entry in list_submissions([folder]).entries] == [
        ("student-01", folder)
    ]


def test_a_folder_of_a_day_with_students_in_it_is_a_class(tmp_path: Path) -> None:
    write(tmp_path / "day8" / "student-01" / FILE)
    write(tmp_path / "day8" / "student-02" / FILE)
    assert [entry.name for entry in list_submissions([tmp_path / "day8"]).entries] == [
        "student-01",
        "student-02",
    ]


def test_paths_that_are_files_missing_or_given_twice(tmp_path: Path) -> None:
    file = write(tmp_path / "a" / "student-01.py")
    stray = write(tmp_path / "a" / "photo.png")
    found = list_submissions(
        [file, file, tmp_path / "a" / ".." / "a" / "student-01.py", stray, tmp_path / "nobody"]
    )
    assert [entry.origin for entry in found.entries] == [file]
    reasons = [left.reason for left in found.ignored]
    assert reasons[:2] == ["it was given twice"] * 2
    assert "neither a Python file" in reasons[2]
    assert reasons[3] == "it cannot be read: it does not exist"
    assert [entry.name for entry in list_submissions([tmp_path / "a", file]).entries] == [
        "student-01"
    ], "in its class and by itself"


def test_the_current_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "student-01" / FILE)
    monkeypatch.chdir(tmp_path / "student-01")
    assert [entry.name for entry in list_submissions([Path(".")]).entries] == ["student-01"]


def test_equal_names_are_told_apart_by_their_origin(tmp_path: Path) -> None:
    write(tmp_path / "morning" / "student-01" / FILE)
    write(tmp_path / "morning" / "student-01.zip")
    write(tmp_path / "evening" / "student-01" / FILE)
    write(tmp_path / "evening" / "student-02" / FILE)
    given = [tmp_path / "morning", tmp_path / "evening"]
    found = list_submissions(given).entries
    assert len({entry.name.casefold() for entry in found}) == 4
    assert {entry.student for entry in found} == {"student-01", "student-02"}
    assert found == list_submissions(given[::-1]).entries, "the order of the paths changes no name"
    folders = [tmp_path / "morning" / "student-01", tmp_path / "evening" / "student-01"]
    assert [entry.name for entry in list_submissions(folders).entries] == [
        "student-01-evening",
        "student-01-morning",
    ]
    files = [tmp_path / "morning" / "student-01.zip", tmp_path / "morning" / "student-01"]
    assert [entry.name for entry in list_submissions(files).entries] == [
        "student-01",
        "student-01.zip",
    ]


@LINUX
def test_names_that_differ_in_case_accents_or_bytes_only(tmp_path: Path) -> None:
    for name in (
        b"Student",
        b"student",
        b"Ren\xc3\xa9",
        b"Rene\xcc\x81",
        b"b\xff",
        b"b\xfe",
        b"c\n\x1b[2J",
    ):
        write(tmp_path / os.fsdecode(name) / FILE)
    found = list_submissions([tmp_path]).entries
    assert len({entry.name.casefold() for entry in found}) == 7
    assert all(entry.name.isprintable() and entry.name.encode() for entry in found)
    assert {"b%FF", "b%FE", "c__[2J"} < {entry.name for entry in found}


@POSIX
def test_links_and_pipes_in_a_class_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / FILE)
    folder = tmp_path / "class"
    write(folder / "student-01" / FILE)
    (folder / "student-02").symlink_to(tmp_path / "elsewhere")
    (folder / "student-03").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "student-04.py")
    found = list_submissions([folder])
    assert [entry.name for entry in found.entries] == ["student-01"]
    assert {left.path.name: left.reason.split(";")[0] for left in found.ignored} == {
        "student-02": "it is a link",
        "student-03": "it is a link",
        "student-04.py": "it is neither a file nor a folder",
    }
    assert [entry.name for entry in list_submissions([folder / "student-02"]).entries] == [
        "student-02"
    ], "a person may name a link"


def test_natural_order_is_total_and_plain_names_are_found() -> None:
    names = ["a10", "a2", "A2", "a", "2", "10", "a2b", "é", "", "²"]
    for pair in itertools.permutations(names, 2):
        assert (natural_key(pair[0]) < natural_key(pair[1])) != (
            natural_key(pair[1]) < natural_key(pair[0])
        )
    people = ["Zoë", "Petra", "Öz", "Anna", "Zoe", "Ångström", "Özlem"]
    in_order = ["Ångström", "Anna", "Öz", "Özlem", "Petra", "Zoe", "Zoë"]
    assert sorted(people, key=natural_key) == in_order
    stem = FILE.removesuffix(".py")
    for name in (
        FILE,
        f"day8/{FILE}",
        f"{stem} (1).py",
        f"{stem}(12).PY",
        f"{stem}-2.ipynb",
        f"{stem}-Copy1.ipynb",
        f"{stem} - Copy (2).py",
        f"Copy of {FILE}",
        f"Copy of Copy of {stem}.ipynb",
        f"examplead_LATE_101_9002_{stem}-1.py",
        f"Ada Example_12_assignsubmission_file_{FILE}",
        "04-modifying-training-loop-gpu.py",
        "04 Modifying Training Loop GPU.py",
    ):
        assert curriculum_name(name) == stem, name
    assert curriculum_name(f"my_{FILE}") != stem
    assert (
        curriculum_name("day8.py")
        == curriculum_name("Day8 (2).ipynb")
        == curriculum_name("Day 8.ipynb")
        == curriculum_name("day-8-2.py")
        == "day8"
    )
    assert curriculum_name("day88.py") != "day8"


@pytest.mark.parametrize(
    "loose", ["day8.py", "day8.ipynb", f"day8/{FILE}", f"exercises/day8/{FILE}", FILE]
)
@pytest.mark.parametrize("packed", [True, False])
def test_what_lies_loose_among_students_does_not_make_them_one(
    tmp_path: Path, loose: str, packed: bool
) -> None:
    for name in ("ada", "bob", "eve"):
        if packed:
            write(tmp_path / f"{name}.zip", zipped((FILE, SOURCE)))
        else:
            write(tmp_path / name / FILE)
    write(tmp_path / loose, notebook("x = 1") if loose.endswith(".ipynb") else SOURCE)
    found = [entry.name for entry in list_submissions([tmp_path]).entries]
    assert len(found) == 4
    assert {"ada", "bob", "eve"} < set(found)


def test_work_with_a_copy_of_it_beside_is_one_students(tmp_path: Path) -> None:
    write(tmp_path / "day8.py")
    write(tmp_path / "old" / "day8.py")
    write(tmp_path / "reference" / "day8" / FILE)
    write(tmp_path / "tests" / "day8" / FILE)
    assert [entry.name for entry in list_submissions([tmp_path]).entries] == [tmp_path.name]


def test_a_class_is_opened_as_a_platform_packs_it(tmp_path: Path) -> None:
    canvas = [
        ("examplead_LATE_101_9001_day8.py", SOURCE),
        ("samplebo_102_9002_day8.zip", zipped((FILE, SOURCE))),
    ]
    moodle = [
        (f"{name}_assignsubmission_file_/{FILE}", SOURCE)
        for name in ("Ada Example_12", "Bo Sample_13")
    ]
    gradescope = [(f"assignment_5_export/submission_{number}/{FILE}", SOURCE) for number in (1, 2)]
    below = tmp_path / "unpacked"
    for number, files in enumerate((canvas, moodle, gradescope)):
        path = write(tmp_path / f"{number}.zip", zipped(*files, ("../../outside.py", SOURCE)))
        for _ in range(2):  # the second time it is there already
            found = list_submissions([unpack_class(path, below)])
            assert len(found.entries) == 2, files
            assert all(len(read_submission(entry).files) == 1 for entry in found.entries)
        if files is canvas:
            assert [(entry.student, entry.identifier, entry.late) for entry in found.entries] == [
                ("examplead", "101", True), ("samplebo", "102", False)
            ]  # fmt: skip
    assert len(list(below.iterdir())) == 3
    assert not (tmp_path / "outside.py").exists()
    # One student's own zip, and what is none, stay as they are.
    named = zipped((f"examplead_101_9001_{FILE}", SOURCE))
    beside = zipped((f"examplead_101_9001_{FILE}", SOURCE), (FILE, SOURCE))
    for name, data in (
        ("one.zip", zipped((FILE, SOURCE))),
        ("one.zip", b"no zip"),
        ("one.zip", beside),
        ("examplead_101_9000_day8.zip", named),
    ):
        path = write(tmp_path / name, data)
        assert unpack_class(path, below) == path
    assert unpack_class(tmp_path, below) == tmp_path


@pytest.mark.parametrize(
    "inside", [f"Cy Cole_103_assignsubmission_file_/{FILE}", f"colecy_103_9001_{FILE}"]
)
def test_the_zip_of_a_class_with_one_student_in_it_is_opened(tmp_path: Path, inside: str) -> None:
    """As after a late round: the student is the one that the platform names."""
    path = write(tmp_path / "GPU-Task 8-9981.zip", zipped((inside, SOURCE), ("notes.txt", b"x")))
    (found,) = list_submissions([unpack_class(path, tmp_path / "unpacked")]).entries
    assert found.identifier == "103"
    # Among other submissions it is nobody's.
    if "Cy" in inside:
        (entry,) = list_submissions([path]).entries
        said = "It holds the work of several students; to grade them, give it by itself"
        assert (read_submission(entry).problem or "").startswith(said)


def test_a_class_in_a_folder_among_submissions_is_nobodys_work(tmp_path: Path) -> None:
    """Sections that were unpacked beside each other, or the folder above that of a class."""
    write(tmp_path / "terms" / "A" / "Ada Ash_101_assignsubmission_file_" / FILE)
    write(tmp_path / "terms" / "A" / "worksheet.csv")
    write(tmp_path / "terms" / "B" / f"ashada_101_9001_{FILE}")
    write(tmp_path / "terms" / "B" / f"birchbo_102_9002_{FILE}")
    write(tmp_path / "terms" / "C" / "submission_17" / FILE)
    write(tmp_path / "terms" / "C" / "submission_18" / FILE)
    for name in ("ada", "bo"):
        write(tmp_path / "terms" / "submissions" / name / FILE)
    write(tmp_path / "terms" / "submissions" / "course.toml", b"")
    # work of one student in several folders, and what is named for one
    for name in ("first", "second"):
        write(tmp_path / "terms" / "eve" / name / FILE)
    write(tmp_path / "terms" / "fay" / f"baufay_101_9001_{FILE}")
    listing = list_submissions([tmp_path / "terms"])
    assert [entry.name for entry in listing.entries] == ["eve", "fay"]
    assert {ignored.path.name for ignored in listing.ignored} == {"A", "B", "C", "submissions"}
    assert {ignored.reason for ignored in listing.ignored} == {
        "it holds the work of several students; to grade them, give it by itself: "
        "dojo grade PATH --out DIR"
    }
    sections = [tmp_path / "terms" / name for name in ("A", "B")]
    assert len(list_submissions(sections).entries) == 3
