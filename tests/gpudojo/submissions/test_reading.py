"""Everything that can be graded is read from a folder or an archive.

The rest is named in a sentence.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from gpudojo.submissions import folders
from gpudojo.submissions.entries import ReadLimits, SourceFile, Unreadable, digest_of
from gpudojo.submissions.listing import list_submissions
from gpudojo.submissions.reading import read_submission

from tests.gpudojo.submissions.making import (
    FILE,
    SOURCE,
    entry,
    notebook,
    paths,
    submitted,
    tarred,
    write,
    zipped,
)

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="files that Windows does not have")
LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="file systems elsewhere do not store such names"
)


def test_a_folder_gives_its_sources_and_counts_the_rest(tmp_path: Path) -> None:
    write(tmp_path / "s" / "deep" / "down" / "helper.py")
    write(tmp_path / "s" / FILE)
    write(tmp_path / "s" / "day8.IPYNB", notebook("x = 1"))
    for name in ("photo.png", "notes.txt", "data.csv"):
        write(tmp_path / "s" / name)
    for junk in (
        "__pycache__/a.py",
        ".venv/b.py",
        "env2/pyvenv.cfg",
        "env2/lib/c.py",
        ".hidden.py",
        "build/d.py",
    ):
        write(tmp_path / "s" / junk)
    found = submitted(tmp_path / "s")
    assert paths(found) == [FILE, "day8.IPYNB", "deep/down/helper.py"]
    assert found.problem is None
    assert found.notes == ("3 files that are not exercises were ignored.",)
    assert found.files[0].data == SOURCE


def test_what_holds_nothing_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "others" / "photo.png")
    write(tmp_path / "others" / "notes.txt")
    write(tmp_path / "blank" / "a.py", b" \n")
    write(tmp_path / "none.zip", zipped())
    write(tmp_path / "nil.zip", b"")
    write(tmp_path / "old.rar", b"Rar!")
    write(tmp_path / "packed" / "none.zip", zipped())
    write(tmp_path / "squeezed" / "old.7z", b"7z")
    write(tmp_path / "squeezed" / "text.html", b"<p>")
    said = {one.name: read_submission(one) for one in list_submissions([tmp_path]).entries}
    assert {name: one.problem for name, one in said.items()} == {
        "empty": "It is empty.",
        "others": "There is no Python file or notebook among the 2 files.",
        "blank": "a.py is empty.",
        "none": "It is empty.",
        "nil": "nil.zip is empty.",
        "packed": "none.zip has no files in it.",
        "squeezed": "old.7z is an archive of a kind that is not supported (.7z); hand in a .zip.",
        "old": "old.rar is an archive of a kind that is not supported (.rar); hand in a .zip.",
    }
    assert all(one.files == () for one in said.values())


def test_platform_files_are_read_under_the_names_students_gave(tmp_path: Path) -> None:
    write(tmp_path / f"examplead_LATE_101_9001_{FILE}")
    write(
        tmp_path / "examplead_LATE_101_9002_more.zip",
        zipped(("helper.py", SOURCE), ("in.zip", zipped())),
    )
    (found,) = list_submissions([tmp_path]).entries
    assert paths(read_submission(found)) == [FILE, "more.zip/helper.py"]
    write(
        tmp_path / "m" / "Ada Example_12_assignsubmission_file_" / "work.zip",
        zipped((FILE, SOURCE)),
    )
    (found,) = list_submissions([tmp_path / "m"]).entries
    assert paths(read_submission(found)) == [f"work.zip/{FILE}"]


def test_the_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    one = submitted(
        write(tmp_path / "a.zip", zipped(("x/a.py", b"1"), ("b.py", b"2"), ("n.txt", b"3")))
    )
    other = submitted(write(tmp_path / "b.tar.gz", tarred(("b.py", b"2"), ("x/a.py", b"1"))))
    assert one.digest == other.digest
    assert len(one.digest) == 64
    assert (
        one.digest
        != submitted(write(tmp_path / "c.zip", zipped(("x/a.py", b"2"), ("b.py", b"1")))).digest
    )
    assert digest_of([SourceFile("ab", b"c")]) != digest_of([SourceFile("a", b"bc")])


@pytest.mark.parametrize(
    ("limits", "taken", "said"),
    [
        (
            ReadLimits(files=2),
            2,
            "There are 4 Python files and notebooks; only the first 2 were read.",
        ),
        (ReadLimits(file_bytes=100), 2, "b.py is larger than 100 bytes."),
        (ReadLimits(total_bytes=950), 2, "c.py goes beyond the 950 bytes that are read in total."),
        (ReadLimits(path_length=4), 3, "d/e.py has a path of more than 4 bytes."),
        (ReadLimits(entries=2), 2, "There are more than 2 files; the rest was ignored."),
        (ReadLimits(depth=0), 3, "d lies more than 0 folders deep."),
    ],
)
def test_limits(tmp_path: Path, limits: ReadLimits, taken: int, said: str) -> None:
    write(tmp_path / "a.py", b"1" * 50)
    write(tmp_path / "b.py", b"1" * 800)
    write(tmp_path / "c.py", b"1" * 101 if limits.file_bytes > 100 else b"1")
    write(tmp_path / "d" / "e.py", b"1" * 400)
    found = submitted(tmp_path, limits)
    assert said in found.notes
    assert len(found.files) == taken
    assert found.problem is None


def test_many_remarks_are_counted(tmp_path: Path) -> None:
    for number in range(40):
        write(tmp_path / "s" / f"{number}.py", b"")
    write(tmp_path / "s" / FILE)
    found = submitted(tmp_path / "s")
    assert len(found.notes) == 20
    assert found.notes[0] == "0.py is empty."
    assert found.notes[-1] == "There are 21 more remarks like these."


@POSIX
def test_links_pipes_and_devices_in_a_folder_are_never_opened(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret.py", b"SECRET = 1\n")
    folder = tmp_path / "s"
    write(folder / FILE)
    write(folder / "inner" / "helper.py")
    (folder / "out.py").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path)
    (folder / "round").symlink_to(folder)
    (folder / "alias.py").symlink_to(folder / "inner" / "helper.py")
    (folder / "gone.py").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "pipe.py")
    found = submitted(folder)  # who opens a pipe waits for ever
    assert paths(found) == [FILE, "inner/helper.py"]
    assert set(found.notes) == {
        "alias.py is a link, which is not followed; what it points to is read at its own path.",
        "round is a link, which is not followed; what it points to is read at its own path.",
        "out.py is a link that leads out of the submission.",
        "up is a link that leads out of the submission.",
        "gone.py is a link that leads out of the submission.",
        "pipe.py is neither a file nor a folder but a pipe, socket or device.",
    }


@POSIX
def test_a_file_swapped_after_it_was_listed_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to(write(tmp_path / "secret.py"))
    os.mkfifo(tmp_path / "pipe.py")
    for name in ("link.py", "pipe.py", "nobody.py"):
        with pytest.raises(Unreadable):
            folders.read_file(tmp_path / name, 10)
    assert folders.read_file(tmp_path / "secret.py", 10) == SOURCE[:11], (
        "one more, which shows that there is more"
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied"), "a.py cannot be read: Permission denied."),
        (FileNotFoundError(2, "No such file"), "a.py cannot be read: it does not exist."),
        (
            OSError(40, "Too many levels of symbolic links"),
            "a.py cannot be read: Too many levels of symbolic links.",
        ),
    ],
)
def test_a_file_that_cannot_be_opened_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    write(tmp_path / "s" / FILE)
    write(tmp_path / "s" / "a.py")
    real = os.open

    def refuse(path: Any, *more: Any, **named: Any) -> int:
        if str(path).endswith("a.py"):
            raise error
        return real(path, *more, **named)

    monkeypatch.setattr(folders.os, "open", refuse)
    found = submitted(tmp_path / "s")
    assert paths(found) == [FILE]
    assert found.notes == (said,)


def test_a_folder_that_may_not_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "s" / FILE)
    write(tmp_path / "s" / "closed" / "a.py")
    real = os.scandir

    def refuse(path: Any) -> Any:  # nothing is forbidden to root, who may be running this
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(folders.os, "scandir", refuse)
    found = submitted(tmp_path / "s")
    assert paths(found) == [FILE]
    assert found.notes == ("closed cannot be read: Permission denied.",)


def test_an_entry_that_vanishes_is_a_problem(tmp_path: Path) -> None:
    for path in (write(tmp_path / "a.py"), write(tmp_path / "b.zip")):
        found = entry(path)
        path.unlink()
        assert read_submission(found).problem == f"{path.name} cannot be read: it does not exist."


def test_nothing_is_raised_whatever_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = entry(write(tmp_path / "a.zip", zipped((FILE, SOURCE))))
    monkeypatch.setattr("gpudojo.submissions.reading.list_zip", lambda *_: 1 / 0)
    assert read_submission(found).problem == "It could not be read (ZeroDivisionError)."


@LINUX
def test_a_name_that_not_every_system_can_store_is_changed(tmp_path: Path) -> None:
    names = {
        b"\xff.py": "_.py",
        b"a\nb.py": "a_b.py",
        b"c:d.py": "c_d.py",
        b"e\\f.py": "e_f.py",
        b"con.py": "_con.py",
        b" g.py": "_g.py",
        b"h. /i|j.py": "h_/i_j.py",
        b"fine.py": "fine.py",
    }
    for name in names:
        write(tmp_path / "s" / os.fsdecode(name))
    found = submitted(tmp_path / "s")
    assert set(paths(found)) == set(names.values())
    assert len(found.notes) == len(names) - 1
    assert all(note.isprintable() for note in found.notes)
    assert "con.py is read as _con.py, because not every system can store its name." in found.notes
    write(tmp_path / "t:u?.py")
    assert paths(submitted(tmp_path / "t:u?.py")) == ["t_u_.py"]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        (
            "a.py",
            b"# gr\xfc\xdfe\n",
            "a.py is not UTF-8 text: byte 0xfc in line 1; save it as UTF-8.",
        ),
        ("a.py", "x = 1".encode("utf-16"), "a.py is UTF-16 text; save it as UTF-8."),
        ("a.py", b"x = 1\0", "a.py is not text: it has a null byte in it."),
        ("a.py", b"# -*- coding: latin-1 -*-\n# \xfc\n", None),
        ("a.py", b"\xef\xbb\xbfx = 1\n", None),
        ("a.ipynb", notebook("x = 1")[:-1], "a.ipynb is not a notebook, or one that is cut off."),
        ("a.ipynb", b"x = 1\n", "a.ipynb is not a notebook."),
        ("a.ipynb", b'{"a": 1}', "a.ipynb is not a notebook: it has no cells."),
        (
            "a.ipynb",
            b"# coding: latin-1\n\xfc",
            "a.ipynb is not UTF-8 text: byte 0xfc in line 2; save it as UTF-8.",
        ),
    ],
)
def test_a_source_that_is_no_text_is_a_problem_alone_and_a_note_beside_others(
    tmp_path: Path, name: str, data: bytes, said: str | None
) -> None:
    alone = submitted(write(tmp_path / "alone" / name, data))
    assert alone.problem == said
    write(tmp_path / "s" / name, data)
    write(tmp_path / "s" / FILE)
    beside = submitted(tmp_path / "s")
    assert beside.problem is None
    assert beside.notes == (() if said is None else (said,))
    assert len(beside.files) == 2, "its student is told where it breaks when it is run"
