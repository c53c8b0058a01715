"""Names are put where submissions are named, and not into the names of files."""

from __future__ import annotations

from gpudojo.model.results import RosterRow
from gpudojo.report.people import Roll
from msgspec.structs import replace

from tests.gpudojo.report.classes import submission


def test_the_name_of_a_file_stays_as_it_is() -> None:
    row = replace(submission(1, "jonessam", "no"), roster=RosterRow("7", "Sam Jones"))
    roll = Roll(None)
    roll.add_person(row)
    file = "jonessam_1026_55025_day8.7z is an archive of a kind that is not supported"
    assert roll.replace_names(file) == file
    assert roll.replace_names("the same files as jonessam.") == "the same files as Sam Jones."


def test_with_pseudonyms_no_name_is_left_in_a_file_either() -> None:
    roll = Roll(b"secret")
    roll.add_person(submission(1, "jonessam", "no"))
    assert "jonessam" not in roll.replace_names("jonessam_1026_55025_day8.7z is an archive")
