"""People are found by what somebody typed, and by nothing less."""

from __future__ import annotations

import pytest
from gpudojo.classes.names import (
    NamesOfPerson,
    find_people,
    name_key,
    split_name,
    suggest_people,
)
from gpudojo.model.results import split_sections

PEOPLE = {
    number: NamesOfPerson.from_names(own, others)
    for number, (own, others) in enumerate(
        [
            ("ada", ["Ada Example", "s1001", "ada@example.org", ""]),
            ("liwei", ["Li Wei", "s1002"]),
            ("weili", ["Wei Li", "s1003"]),
            ("muellerj", ["Jörg Müller", "s1004"]),
        ]
    )
}


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("ada", [0]),
        ("S1001", [0]),
        ("Example, Ada", [0]),
        ("Example Ada", [0]),
        ("ADA@example.org", [0]),
        ("Li Wei", [1]),  # not who has the words in another order
        ("Li, Wei", [2]),
        ("Muller Jorg", [3]),
        ("Ada E", []),
        ("s100", []),
        ("", []),
    ],
)
def test_who_is_meant(typed: str, found: list[int]) -> None:
    assert find_people(typed, PEOPLE) == found


def test_who_may_be_meant() -> None:
    people = PEOPLE.values()
    assert suggest_people("s1005", people, "") in {
        f"; did you mean s100{number}?" for number in (1, 2, 3, 4)
    }
    assert suggest_people("exampl", people) == "; names with it: ada"
    assert suggest_people("zzz", people, "") == ""


@pytest.mark.parametrize("typed", ["Zhag Wei", "Wei Zhag", "zhnagwei", "zhang.wie"])
def test_a_slip_is_found_whatever_the_order_of_the_words(typed: str) -> None:
    people = [
        NamesOfPerson.from_names("1030", ["Zhang, Wei", "wz1"]),
        NamesOfPerson.from_names("1031", ["Roux, Yann", "yr1"]),
    ]
    assert suggest_people(typed, people, "") == "; did you mean Zhang, Wei?"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("Ada Example", ("Ada Example", "", "")),
        ("Example, Ada", ("Ada", "Example", "")),
        ("Sanchez, Jr., Wanda Maria", ("Wanda Maria", "Sanchez", "Jr.")),
        ("Maria Sanchez, Jr., Wanda", ("Wanda", "Maria Sanchez", "Jr.")),
        ("Wanda Sanchez, III", ("Wanda Sanchez", "", "III")),
        ("Ng, Vi", ("Vi", "Ng", "")),
        ("Example, Ada, Bea", ("Ada Bea", "Example", "")),
    ],
)
def test_the_parts_of_a_name(name: str, parts: tuple[str, str, str]) -> None:
    assert split_name(name) == parts


def test_a_suffix_makes_no_other_person() -> None:
    keys = {name_key(name) for name in ("Sanchez, Jr., Wanda", "Wanda Sanchez, Jr.")}
    assert keys == {"wanda sanchez jr."}


def test_who_is_in_two_sections_makes_no_third() -> None:
    cells = ["Mon", "Wed", "Mon and Wed", "Research and Development", ""]
    assert split_sections(cells) == {
        "Mon": ["Mon"],
        "Wed": ["Wed"],
        "Mon and Wed": ["Mon", "Wed"],
        "Research and Development": ["Research and Development"],
    }
    cells = ["Lecture and Lab 1", "Lecture and Lab 2", "Lab 1", "Lecture, Lab 1, and Lab 2"]
    assert split_sections(cells)["Lecture and Lab 2"] == ["Lecture", "Lab 2"]
    assert split_sections(cells)["Lecture, Lab 1, and Lab 2"] == ["Lecture", "Lab 1", "Lab 2"]
