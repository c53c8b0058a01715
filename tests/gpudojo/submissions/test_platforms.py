"""Students are recognised by the names that Canvas, Moodle, Gradescope and classrooms of
repositories give.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from gpudojo.submissions.commits import commit_time
from gpudojo.submissions.entries import Kind, Naming, SubmissionEntry
from gpudojo.submissions.listing import list_submissions
from gpudojo.submissions.submitters import Submitter

from tests.gpudojo.submissions.making import FILE, write


def by_name(found: list[SubmissionEntry]) -> dict[str, SubmissionEntry]:
    listed = {entry.name: entry for entry in found}
    assert len(listed) == len(found)
    return listed


def test_canvas_files_of_one_student_are_one_submission(tmp_path: Path) -> None:
    for name in (
        f"examplead_LATE_101_9001_{FILE}",
        "examplead_LATE_101_9002_05_modifying_evaluation_loop_gpu-2.py",
        "examplead_LATE_101_9003_report.pdf",
        "samplebo_102_9004_day8-2.ipynb",
        "samplebo_103_9005_day8.zip",
        "anon_aB3xY_9006_day8.ipynb",
    ):
        write(tmp_path / name)
    listed = by_name(list_submissions([tmp_path]).entries)
    assert set(listed) == {"examplead", "samplebo-102", "samplebo-103", "anon_aB3xY"}
    several = listed["examplead"]
    assert (several.student, several.identifier, several.late) == ("examplead", "101", True)
    assert (several.kind, several.naming) == (Kind.FILES, Naming.CANVAS)
    assert [name for name, _ in several.members] == [
        FILE,
        "05_modifying_evaluation_loop_gpu-2.py",
        "report.pdf",
    ]
    assert listed["samplebo-102"].members == (
        ("day8-2.ipynb", tmp_path / "samplebo_102_9004_day8-2.ipynb"),
    )
    assert listed["samplebo-103"].kind is Kind.ZIP
    assert not listed["samplebo-103"].late
    assert listed["anon_aB3xY"].identifier == "aB3xY"


def test_files_of_one_student_that_are_given_one_by_one_are_one_submission(tmp_path: Path) -> None:
    names = (f"examplead_101_9001_{FILE}", "examplead_101_9002_05_modifying_evaluation_loop_gpu.py")
    files = [write(tmp_path / name) for name in names]
    other = write(tmp_path / "elsewhere" / names[0])
    (entry,) = list_submissions(files).entries
    assert (entry.name, [path for _, path in entry.members]) == ("examplead", files)
    # The folder as well changes nothing; a file of the same name in another folder is another
    # submission.
    assert len(list_submissions([other.parent, *files, other]).entries) == 2


def test_a_teachers_own_numbers_are_not_canvas(tmp_path: Path) -> None:
    for name in ("lab_8_1_one.py", "lab_8_2_two.py"):
        write(tmp_path / name)
    assert [entry.name for entry in list_submissions([tmp_path]).entries] == [
        "lab_8_1_one",
        "lab_8_2_two",
    ]


def test_moodle_folders_and_files(tmp_path: Path) -> None:
    write(tmp_path / "Ada Example_1234567_assignsubmission_file_" / FILE)
    write(tmp_path / "Ada Example_1234567_assignsubmission_onlinetext_" / "onlinetext.html")
    write(tmp_path / "Bo Sample_1234568_assignsubmission_file" / FILE)
    write(tmp_path / f"Bo Sample_1234569_assignsubmission_file_{FILE}")
    write(tmp_path / "Bo Sample_1234569_assignsubmission_file_helpers.py")
    listed = by_name(list_submissions([tmp_path]).entries)
    assert set(listed) == {"Ada Example", "Bo Sample-1234568", "Bo Sample-1234569"}
    assert {entry.naming for entry in listed.values()} == {Naming.MOODLE}
    assert listed["Ada Example"].identifier == "1234567"
    assert len(listed["Ada Example"].members) == 2
    assert [name for name, _ in listed["Bo Sample-1234569"].members] == [FILE, "helpers.py"]
    (alone,) = list_submissions([tmp_path / "Bo Sample_1234568_assignsubmission_file"]).entries
    assert (alone.name, alone.identifier) == ("Bo Sample", "1234568")


METADATA = """---
submission_11111:
  :submitters:
  - :name: Ada Example
    :sid: '17'
    :email: ada@example.org
  :created_at: 2026-01-01 10:00:00.000000000 Z
  :history:
  - :submitters:
    - :name: Somebody Else
  :results:
    output: |
      submission_99999:
        :submitters:
        - :name: Forged By Output
submission_22222:
  :created_at: 2026-01-01 10:00:00.000000000 Z
  :submitters:
    - :name: "Bo \\"B\\u00f6\\" Sample"
    - :name: 'Cy O''Sample'
submission_33333:
  :submitters: []
"""


def test_gradescope_names_come_from_its_list(tmp_path: Path) -> None:
    for number in ("11111", "22222", "33333", "44444"):
        write(tmp_path / f"submission_{number}" / FILE)
    write(tmp_path / "submission_metadata.yml", METADATA.encode())
    found = list_submissions([tmp_path])
    assert [(entry.name, entry.student, entry.identifier) for entry in found.entries] == [
        ("submission_11111", "Ada Example", "11111"),
        ("submission_22222", 'Bo "Bö" Sample & Cy O\'Sample', "22222"),
        ("submission_33333", "submission_33333", "33333"),
        ("submission_44444", "submission_44444", "44444"),
    ]
    assert {entry.naming for entry in found.entries} == {Naming.GRADESCOPE}
    assert found.ignored == ()


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe\0", b"submission_11111:\n  :submitters:\n  - :name:\n", b"{" * 999]
)
def test_a_gradescope_list_that_says_nothing_names_nobody(tmp_path: Path, data: bytes) -> None:
    write(tmp_path / "submission_11111" / FILE)
    write(tmp_path / "submission_metadata.yml", data)
    assert [entry.student for entry in list_submissions([tmp_path]).entries] == ["submission_11111"]


@pytest.mark.parametrize(
    ("folder", "name", "account"),
    [
        ("class", "day8-ada-example", "ada-example"),
        ("class", "Day-8-Ada", "Ada"),
        ("class", "spring-day8-ada", "ada"),
        ("gpu-week-submissions", "gpu-week-ada", "ada"),
    ],
)
def test_repositories_of_a_classroom_name_an_account(
    tmp_path: Path, folder: str, name: str, account: str
) -> None:
    write(tmp_path / folder / name / ".git" / "HEAD")
    (found,) = list_submissions([tmp_path / folder]).entries
    assert (found.name, found.student, found.identifier) == (name, account, account)
    assert (found.naming, found.kind) == (Naming.CLASSROOM, Kind.CHECKOUT)


def test_files_that_canvas_has_twice_are_two_attempts(tmp_path: Path) -> None:
    for name in (
        f"examplead_101_9001_{FILE}",
        "examplead_101_9002_day8.py",
        "examplead_LATE_101_9007_day8-1.py",
    ):
        write(tmp_path / name)
    listed = by_name(list_submissions([tmp_path]).entries)
    first = listed["examplead (attempt 1)"]
    last = listed["examplead"]
    assert [name for name, _ in first.members] == [FILE, "day8.py"]
    assert [name for name, _ in last.members] == ["day8-1.py"]
    assert (first.attempt, last.attempt, first.late, last.late) == (1, 2, False, True)
    assert first.identifier == last.identifier == "101"


def test_gradescope_says_who_and_when(tmp_path: Path) -> None:
    for number in ("11111", "22222"):
        write(tmp_path / f"submission_{number}" / FILE)
    nested = METADATA.replace(
        "created_at: 2026-01-01 10:00:00.000000000 Z\n  :submitters",
        (
            "created_at: !ruby/object:ActiveSupport::TimeWithZone\n"
            "    utc: 2026-01-02 10:00:00.5 Z\n"
            "  :submitters"
        ),
    )
    write(tmp_path / "submission_metadata.yml", nested.encode())
    listed = by_name(list_submissions([tmp_path]).entries)
    assert listed["submission_11111"].submitted == "2026-01-01T10:00:00+00:00"
    assert listed["submission_22222"].submitted == "2026-01-02T10:00:00+00:00"
    assert listed["submission_11111"].people == (Submitter("Ada Example", "17", "ada@example.org"),)
    assert len(listed["submission_22222"].people) == 2


def test_a_checkout_was_handed_in_when_its_last_commit_was_made(tmp_path: Path) -> None:
    """Also where the repository's own settings name programs to run: none of them is run."""
    checkout = tmp_path / "class" / "day8-ada"
    write(checkout / FILE)
    date = {
        "GIT_COMMITTER_DATE": "2026-11-01T10:00:00+0200",
        "GIT_AUTHOR_DATE": "2026-10-01T10:00:00+0200",
    }
    who = ("-c", "user.name=a", "-c", "user.email=a@x.org")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "x")):
        subprocess.run(["git", *words], cwd=checkout, env=os.environ | date, check=True)
    trap = f"touch {tmp_path}/ran; false"
    with (checkout / ".git" / "config").open("a") as file:
        file.write(f'[core]\n\tfsmonitor = "{trap}"\n\tpager = "{trap}"\n\tsshCommand = "{trap}"\n')
        file.write(f'[log]\n\tshowSignature = true\n[gpg]\n\tprogram = "{trap}"\n')
    assert commit_time(checkout) == "2026-11-01T10:00:00+02:00"
    subprocess.run(["git", "-c", "core.fsmonitor=false", "gc", "-q"], cwd=checkout, check=True)
    (entry,) = list_submissions([tmp_path / "class"]).entries
    assert entry.submitted == "2026-11-01T10:00:00+02:00"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "head", ["", "ref: refs/heads/../../../etc/passwd", "ref: refs/heads/none", "f" * 40, "\0"]
)
def test_a_checkout_without_a_commit_has_no_date(tmp_path: Path, head: str) -> None:
    write(tmp_path / ".git" / "HEAD", head.encode())
    assert commit_time(tmp_path) == ""
    os.unlink(tmp_path / ".git" / "HEAD")
    os.mkfifo(tmp_path / ".git" / "HEAD")
    assert commit_time(tmp_path) == ""
