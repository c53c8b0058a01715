"""Rosters as platforms write them, and whose a submission is."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path

import pytest
from gpudojo.classes.names import name_key
from gpudojo.classes.roster import Roster
from gpudojo.classes.roster_file import read_roster
from gpudojo.model.errors import BadFile
from gpudojo.model.results import RosterRow
from gpudojo.submissions.submitters import Submitter

CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,Day 8 (17)
    Points Possible,,,,,20
"Example, Ada",10010,m-1,ada1,Mon,
"Sample, Bo",10011,m-2,bo2,Tue,
"Student, Test",99999,,x,Mon,
"""
MOODLE = """\ufeffIdentifier;Full name;Email address;Status;Grade;Last modified (submission)
Participant 551;Ada Example;ada@example.org;Submitted;;Friday, 20 November 2026, 11:58 PM
Participant 552;Bo Sample;bo@example.org;No submission;;-
"""
GITHUB = (
    '"identifier","github_username","github_id","name"\n'
    '"ada@example.org","ada-dev","77","Ada Example"\n'
)
CANVAS_ROW = RosterRow(
    "10010", "Ada Example", section="Mon", login="ada1", family="Example", more_ids=["m-1"]
)
GRADESCOPE = "First Name,Last Name,SID,Email,Sections\nAda,Example,17,ada@example.org,Mon\n"
PLAIN = "id,name,email,section,github\n17,Ada Example,ada@example.org,Mon,ada-dev\n"


def read(folder: Path, text: str) -> Roster:
    path = folder / "roster.csv"
    path.write_text(text, encoding="utf-8")
    return read_roster([path], datetime.timezone(datetime.timedelta(hours=1)))


@pytest.mark.parametrize(
    ("text", "first", "count"),
    [
        (
            CANVAS,
            CANVAS_ROW,
            2,
        ),
        (
            CANVAS.replace("ada1", "ada@example.org"),
            RosterRow(
                "10010",
                "Ada Example",
                "ada@example.org",
                "Mon",
                login="ada@example.org",
                family="Example",
                more_ids=["m-1"],
            ),
            2,
        ),
        (MOODLE, RosterRow("551", "Ada Example", "ada@example.org", participant="551"), 2),
        (
            GITHUB,
            RosterRow(
                "ada@example.org",
                "Ada Example",
                "ada@example.org",
                github="ada-dev",
                more_ids=["77"],
            ),
            1,
        ),
        (GRADESCOPE, RosterRow("17", "Ada Example", "ada@example.org", "Mon", family="Example"), 1),
        (PLAIN, RosterRow("17", "Ada Example", "ada@example.org", "Mon", "ada-dev"), 1),
        ("Name\nAda Example\n", RosterRow("Ada Example", "Ada Example"), 1),
        (
            CANVAS.replace("    Points", ",,,,,Manual Posting\n    Points"),
            CANVAS_ROW,
            2,
        ),
        (
            "Vorname;Nachname;E-Mail-Adresse;Gruppen\nAda;Example;a@x.org;Mo\n",
            RosterRow("a@x.org", "Ada Example", "a@x.org", "Mo", family="Example"),
            1,
        ),
        (
            "ID;Vollständiger Name;E-Mail-Adresse\nTeilnehmer/in 551;Ada Example;a@x.org\n",
            RosterRow("551", "Ada Example", "a@x.org", participant="551"),
            1,
        ),
        (
            "Prénom,Nom de famille,Adresse de courriel\nAda,Example,a@x.org\n",
            RosterRow("a@x.org", "Ada Example", "a@x.org", family="Example"),
            1,
        ),
        ('"id, or number";id;name\n;17;Ada Example\n', RosterRow("17", "Ada Example"), 1),
        ("sep=;\nid;name\n17;Ada Example\n", RosterRow("17", "Ada Example"), 1),
    ],
)
def test_rosters_of_platforms(tmp_path: Path, text: str, first: RosterRow, count: int) -> None:
    roster = read(tmp_path, text)
    assert (roster.rows[0], len(roster.rows)) == (first, count)


@pytest.mark.parametrize(
    ("text", "id_", "more_ids"),
    [
        ("ID;Vollständiger Name\nTeilnehmer/in551;Ada\n", "551", []),
        ("Identifiant;Nom complet\nParticipant551;Ada\n", "551", []),
        # By its two dates it is a worksheet, in whatever language.
        ("ID;Name;Байна (уу);Байна (дүн)\nОролцогч551;Ada;-;-\n", "551", []),
        (
            "ID;Name;Байна (уу);Байна (дүн);ID number\n参加者551;Ada;-;-;s730175\n",
            "551",
            ["s730175"],
        ),
        # Other ids stay whole.
        ("id,name\ns730175,Ada\n", "s730175", []),
        ("id,name\nparticipant17,Ada\n", "participant17", []),
        ("id,name,submitted\ngroup-17,Ada,-\n", "group-17", []),
        ("id,name\nlab 8 17,Ada\n", "lab 8 17", []),
    ],
)
def test_the_number_in_moodles_ids(
    tmp_path: Path, text: str, id_: str, more_ids: list[str]
) -> None:
    (row,) = read(tmp_path, text).rows
    assert (row.id, row.more_ids) == (id_, more_ids)


def test_students_of_one_name_are_told_apart_by_moodles_ids(tmp_path: Path) -> None:
    roster = read(
        tmp_path,
        "ID;Vollständiger Name\nTeilnehmer/in12588;Maja Meier\nTeilnehmer/in12616;Maja Meier\n",
    )
    assert roster.match_people("12616", ["Maja Meier"], []).rows == [1]


def test_the_date_of_moodles_worksheet(tmp_path: Path) -> None:
    assert read(tmp_path, MOODLE).submitted == {0: "2026-11-20T23:58:00+01:00"}
    odd = read(tmp_path, MOODLE.replace("Friday, 20 November 2026, 11:58 PM", "gestern"))
    assert odd.submitted == {}
    assert "line 2: the date 'gestern' cannot be read" in odd.notes[0]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", None, "it is empty"),
        ("id,name\n", None, "there is nobody in it"),
        ("ident,nmae\n1,Ada\n", 1, "did you mean"),
        (
            "Ada Byron,ada@x\n",
            1,
            (
                "the first line has to name the columns, one of them id, name, email or github; "
                "it has Ada"
            ),
        ),
        ("PK\3\4...", None, "this is a workbook, not CSV; save the table as CSV"),
        ("id,name\n1,Ada\n\n1,Bo\n", 4, "'1' is the id of line 2, too"),
        ("id,section\n,Mon\n", 2, "neither an id"),
        ('id,name\n1,Ada\n2,"Bo\n3,Cy\n', 3, "is a quotation mark not closed?"),
        (
            'id,name\n1,Ada\n2,"Bo\n3,"\n',
            3,
            "a name or id has several lines; is a quotation mark not closed?",
        ),
        ("name\nAda\nAda\n", 3, "'Ada' is in line 2, too; give both an id"),
        ("sep=,\nid,name\n1,Ada\n1,Bo\n", 4, "'1' is the id of line 3, too"),
    ],
)
def test_a_mistake_is_named_with_its_line(
    tmp_path: Path, text: str, line: int | None, said: str
) -> None:
    with pytest.raises(BadFile) as refused:
        read(tmp_path, text)
    assert (refused.value.line, said in refused.value.reason) == (line, True), refused.value


def test_a_roster_that_is_not_utf8_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"id,name\n1,Ada\n2,B\xf6\n")
    with pytest.raises(BadFile, match="line 3: this is not UTF-8"):
        read_roster([tmp_path / "x.csv"])


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_excels_unicode_text_is_read(tmp_path: Path, delimiter: str) -> None:
    (tmp_path / "x.csv").write_bytes(
        "id,name\r\n007,Bö\r\n".replace(",", delimiter).encode("utf-16")
    )
    assert read_roster([tmp_path / "x.csv"]).rows == [RosterRow("007", "Bö")]


@pytest.mark.parametrize(
    "name", ["Jose\u0301 Garci\u0301a", "\u200fJosé García\u200e", " JOSÉ  GARCÍA", "García, José"]
)
def test_names_are_compared_however_they_are_written(name: str) -> None:
    assert name_key(name) == name_key("José García")


@pytest.mark.parametrize(
    ("identifier", "name", "rows"),
    [
        ("10010", "exampleada", {0}),  # by Canvas's id
        (None, "m-2", {1}),  # by another id of the table
        (None, "BO2", {1}),
        (None, "exampleada", {0}),  # as Canvas writes names into files
        (None, "Ada Example", {0}),
        (None, "example_ada", {0}),
        (None, "10011_homework", {1}),
        (None, "Ada", set()),
        (None, "cy", set()),
    ],
)
def test_by_id_then_by_name(
    tmp_path: Path, identifier: str | None, name: str, rows: set[int]
) -> None:
    assert read(tmp_path, CANVAS).find_rows(identifier, name) == rows


def test_two_of_one_name_are_not_guessed(tmp_path: Path) -> None:
    roster = read(tmp_path, "id,name\n1,Ada Example\n2,Ada Example\n")
    advice = "write an id of the roster into the name of the submission"
    said = f"several on the roster match Ada Example: 1, 2; {advice}"
    assert roster.match_people(None, ("Ada Example",), ()) == ([], said, True)
    said = roster.match_people("907", ("Ada Example",), ()).problem
    assert said.endswith(
        "a table with 907 as one more `roster` tells who it is, such as Moodle's grading worksheet"
    )


def test_all_who_handed_in_together(tmp_path: Path) -> None:
    roster = read(tmp_path, "id,name,email\n1,Ada Example,a@x.org\n2,Bo Sample,b@x.org\n")
    both = [Submitter("A. Example", "1"), Submitter("B. Sample", "", "b@x.org")]
    assert roster.match_people("5", ("A & B",), both) == ([0, 1], "", False)
    found = roster.match_people("5", ("A & B",), [*both, Submitter("Cy")])
    assert found == ([0, 1], "nobody on the roster matches Cy", False)


ENGLISH = "Identifier;Full name;Last modified (submission);Last modified (grade)"
GERMAN = "ID-Nummer;Vollständiger Name;Zuletzt geändert (Abgabe);Zuletzt geändert (Bewertung)"
FRENCH = "Identifiant;Nom complet;Dernière modification (remise);Dernière modification (note)"
SPANISH = (
    "Identificador;Nombre completo;Última modificación (entrega);Última modificación (calificación)"
)
ITALIAN = "Identificativo;Nome completo;Ultima modifica (consegna);Ultima modifica (valutazione)"
DUTCH = "Identificatie;Volledige naam;Laatst gewijzigd (inzending);Laatst gewijzigd (cijfer)"
PORTUGUESE = "Identificador;Nome completo;Última modificação (envio);Última modificação (nota)"


@pytest.mark.parametrize(
    ("headings", "date"),
    [
        (ENGLISH, "Friday, 20 November 2026, 11:58 PM"),
        (ENGLISH, "Friday, November 20, 2026, 11:58 PM"),
        (GERMAN, "Freitag, 20. November 2026, 23:58"),
        (FRENCH, "vendredi 20 novembre 2026, 23:58"),
        (SPANISH, "viernes, 20 de noviembre de 2026, 23:58"),
        (ITALIAN, "venerdì, 20 novembre 2026, 23:58"),
        (DUTCH, "vrijdag, 20 november 2026, 23:58"),
        (PORTUGUESE, "sexta-feira, 20 de novembro de 2026 às 23:58"),
    ],
)
def test_moodle_tells_the_date_in_its_own_language(
    tmp_path: Path, headings: str, date: str
) -> None:
    roster = read(tmp_path, f"{headings}\nX 551;Ada Example;{date};?\nX 552;Bo Sample;-;-\n")
    assert (roster.submitted, roster.notes) == ({0: "2026-11-20T23:58:00+01:00"}, [])


def test_assignments_of_one_name_on_canvas_are_no_dates(tmp_path: Path) -> None:
    roster = read(
        tmp_path, CANVAS.replace("Day 8 (17)", "Quiz (17),Quiz (18)").replace("Mon,", "Mon,3,4")
    )
    assert (roster.submitted, roster.notes) == ({}, [])


def test_midnight_and_noon(tmp_path: Path) -> None:
    head = "Identifier;Full name;Last modified (submission)"
    for date, shown in (
        ("12:05 AM", "00:05"),
        ("12:05 PM", "12:05"),
        ("1:05 PM", "13:05"),
        ("13:05", "13:05"),
    ):
        roster = read(tmp_path, f"{head}\nParticipant 1;Ada;Friday, 20 November 2026, {date}\n")
        assert roster.submitted == {0: f"2026-11-20T{shown}:00+01:00"}


def test_files_complete_each_other(tmp_path: Path) -> None:
    """Moodle has groups in one table, and in another one when each handed in."""
    participants = tmp_path / "participants.csv"
    participants.write_text(
        "First name,Last name,ID number,Email address,Groups\n"
        "Ada,Example,77,ada@x.org,Mon\nBo,Bell,78,bo@x.org,Tue\n",
        encoding="utf-8",
    )
    worksheet = tmp_path / "worksheet.csv"
    worksheet.write_text(
        "Identifier,Full name,Email address,Last modified (submission)\n"
        "Participant 901,Bo Bell,BO@x.org,2026-11-02 10:00\n"
        "Participant 902,A. Example,ada@x.org,-\nParticipant 903,Cy Cole,cy@x.org,-\n",
        encoding="utf-8",
    )
    roster = read_roster([participants, worksheet])
    assert [(row.id, row.name, row.section, row.more_ids) for row in roster.rows] == [
        ("77", "Ada Example", "Mon", ["902"]),
        ("78", "Bo Bell", "Tue", ["901"]),
        ("903", "Cy Cole", "", []),
    ]
    assert roster.submitted == {1: "2026-11-02T10:00:00+00:00"}
    for name, row in (("901", 1), ("78", 1), ("bo@x.org", 1), ("A. Example", 0)):
        assert roster.find_rows(None, name) == {row}
    # Two of one name in one file stay two.
    twice = tmp_path / "twice.csv"
    twice.write_text("id,name\n1,Li Chen\n2,Li Chen\n", encoding="utf-8")
    assert len(read_roster([twice]).rows) == 2


def read_tables(folder: Path, *texts: str) -> Roster:
    paths = []
    for number, text in enumerate(texts):
        path = folder / f"{'abc'[number]}.csv"
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return read_roster(paths)


SECTION_A = "id,name,section\n1,Ada Example,A\n2,Bo Li,A\n"
SECTION_B = "id,name,section\n7,Ada Example,B\n8,Cy Oz,B\n"
BOTH = (
    "Full name,ID number,Email address\n"
    "Ada Example,s1,ada@x.org\nAda Example,s2,ada2@x.org\nBo Li,s3,bo@x.org\n"
)
SHEET_B = "Identifier,Full name,ID number,Email address\nParticipant 7,Ada Example,s2,ada2@x.org\n"


@pytest.mark.parametrize(
    ("tables", "count"),
    [
        # Other ids under one heading; other addresses; Moodle's numbers, and its ID numbers in two
        # languages.
        ([SECTION_A, SECTION_B], 4),
        (["name,email\nAda Example,a@x.org\n", "name,email\nAda Example,ada@x.org\n"], 2),
        (
            [
                "Identifier,Full name\nParticipant 5,Ada Example\n",
                "ID;Vollständiger Name\nTeilnehmer/in7;Ada Example\n",
            ],
            2,
        ),
        (
            [
                "Full name,ID number\nAda Example,s1\n",
                "Vollständiger Name;ID-Nummer\nAda Example;s2\n",
            ],
            2,
        ),
        # One table has both, another one of them.
        ([BOTH, SHEET_B], 3),
        # What a third table says of two others: an address of the one, and the id of the other.
        (["name,id\nAda,1\n", "name,email\nA. E.,a@x.org\n", "id,name,email\n1,Ada,a@x.org\n"], 1),
    ],
)
def test_the_order_of_tables_does_not_decide_who_is_one_person(
    tmp_path: Path, tables: list[str], count: int
) -> None:
    for texts in itertools.permutations(tables):
        assert len(read_tables(tmp_path, *texts).rows) == count, texts


def test_who_is_called_like_somebody_else_is_noted(tmp_path: Path) -> None:
    roster = read_tables(tmp_path, SECTION_A, SECTION_B)
    assert [row.shown_name for row in roster.rows] == [
        "Ada Example (1)",
        "Bo Li",
        "Ada Example (7)",
        "Cy Oz",
    ]


def test_two_people_of_one_name_are_told(tmp_path: Path) -> None:
    roster = read_tables(tmp_path, SECTION_A, SECTION_B)
    assert roster.notes == [
        "roster: taken for two people, of one name and with different ids or addresses: "
        "Ada Example (a.csv, line 2; b.csv, line 2); if that is one person, give the same id or "
        "address in both tables"
    ]
    assert read_tables(tmp_path, BOTH, SHEET_B).notes == []  # one table has both


@pytest.mark.parametrize(
    ("tables", "count", "said"),
    [
        (
            ["name,section\nAda Example,A\n", "name,id\nAda Example,7\n"],
            1,
            "taken for one person, by the name alone: Ada Example (a.csv, line 2; b.csv, line 2)",
        ),
        (
            ["id,name\n1,Ada Example\n2,Ada Example\n", "name,email\nAda Example,a@x.org\n"],
            3,
            (
                "who of one name is who cannot be known, and more students are counted than there "
                "may be: Ada Example (a.csv, line 2; b.csv, line 2; a.csv, line 3)"
            ),
        ),
        (
            ["id,name\n1,Ada Example\n", "id,name\n1,Bo Li\n"],
            1,
            (
                "taken for one person, with one id or address and different names: "
                "Ada Example and Bo Li (a.csv, line 2; b.csv, line 2)"
            ),
        ),
        (
            ["id,name\n1,Ada\n2,Ada E.\n", "id,name,student id\n1,Ada,2\n"],
            2,
            "an id or address belongs to two lines of one table: Ada E. and Ada (a.csv, line 3; ",
        ),
    ],
)
def test_what_cannot_be_known_is_asked(
    tmp_path: Path, tables: list[str], count: int, said: str
) -> None:
    for texts in itertools.permutations(tables):
        assert len(read_tables(tmp_path, *texts).rows) == count
    roster = read_tables(tmp_path, *tables)
    assert [said in note for note in roster.notes] == [True], roster.notes
