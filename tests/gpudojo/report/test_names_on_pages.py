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


def test_an_anonymous_page_names_nobody_of_the_class() -> None:
    """Neither in code nor in messages; of partners, not by a part of the name either."""
    roll = Roll(b"secret")
    ada = replace(submission(1, "t1", "no"), group="t1", roster=RosterRow("41287", "Ada Ash"))
    partner = RosterRow("41091", "Bo Birch", email="bo@x.org", family="Birch")
    bo = replace(submission(2, "Bo Birch", "no"), group="t1", roster=partner)
    cy = replace(submission(3, "cole", "no"), roster=RosterRow("103", "Cy Cole", login="cole7"))
    people = [roll.add_person(row) for row in (ada, bo, cy)]
    code = "# with Birch, BIRCH, BO, bo@x.org, 41091; Cy Cole (cole7) has lr=10, wholecole"
    shown = people[0].hide_names(code)
    for name in ("Birch,", "bo@", "41091", "Cy", "cole7"):
        assert name not in shown, shown
    assert people[1].file.removeprefix("students/").removesuffix(".html") in shown
    assert shown.endswith("has lr=10, wholecole")
    assert "41287" not in people[2].hide_names("x = 41287")
