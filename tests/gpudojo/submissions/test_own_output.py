"""What dojo wrote is told from what students hand in."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from gpudojo.model.errors import BadClass
from gpudojo.platforms._bundles import make_zip
from gpudojo.release.student import write_new_folder
from gpudojo.submissions.own_output import MARK, is_own_output, marking_output

FILES = {"exercises/day8/a.py": b"def f(): ...\n", "README.md": b"# read\n", ".gitignore": b"x\n"}


def test_a_folder_that_a_command_filled_is_ours(tmp_path: Path) -> None:
    with marking_output(tmp_path / "new" / "out", "dojo export"):
        (tmp_path / "new" / "out" / "ada.py").write_text("x = 1\n")
    assert is_own_output(tmp_path / "new" / "out")
    with marking_output(tmp_path / "new" / "out", "dojo export"):  # again
        pass
    assert is_own_output(tmp_path / "new" / "out")


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ada.py").write_text("x = 1\n")
    said = "holds files that are not of `dojo`, which may be submissions: ada.py; give a new or an"
    with pytest.raises(BadClass, match=said), marking_output(tmp_path, "dojo export"):
        pytest.fail("the command runs")
    assert [path.name for path in tmp_path.iterdir()] == ["ada.py"]


def test_in_the_folder_of_a_class_the_new_folders_are_ours(tmp_path: Path) -> None:
    """Submissions may lie there, too."""
    (tmp_path / ".dojo").mkdir()
    (tmp_path / "ada").mkdir()
    with marking_output(tmp_path, "dojo feedback"):
        (tmp_path / "students").mkdir()
    assert is_own_output(tmp_path / "students")
    assert not is_own_output(tmp_path)
    assert not is_own_output(tmp_path / "ada")


def test_after_an_error_nothing_is_left(tmp_path: Path) -> None:
    for folder in (tmp_path / "new", tmp_path):
        with pytest.raises(KeyError), marking_output(folder, "dojo export"):
            raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_release_is_ours_until_somebody_works_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "released"
    write_new_folder(FILES, folder)
    assert is_own_output(folder)
    (folder / ".pytest_cache").mkdir()  # tried, and not changed
    (folder / ".pytest_cache" / "x").write_text("")
    assert is_own_output(folder)
    (folder / ".git").mkdir()  # cloned with the mark
    assert not is_own_output(folder)
    (folder / ".git").rmdir()
    (folder / "exercises" / "day8" / "a.py").write_text("def f(): return 1\n")
    assert not is_own_output(folder)


def test_a_zip_of_ours_says_so(tmp_path: Path) -> None:
    (tmp_path / "gradescope.zip").write_bytes(make_zip(FILES))
    assert is_own_output(tmp_path / "gradescope.zip")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.py", "x")
    (tmp_path / "ada.zip").write_bytes(stream.getvalue())
    assert not is_own_output(tmp_path / "ada.zip")
    (tmp_path / "empty.zip").write_bytes(b"")
    assert not is_own_output(tmp_path / "empty.zip")
    assert not is_own_output(tmp_path / "gone")


def test_a_mark_that_is_a_link_or_damaged_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / MARK).symlink_to(tmp_path / "nowhere")
    assert not is_own_output(tmp_path)
    (tmp_path / MARK).unlink()
    (tmp_path / MARK).write_bytes(b"unchanged \xff")
    assert not is_own_output(tmp_path)
