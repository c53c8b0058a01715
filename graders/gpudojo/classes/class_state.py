"""What is kept of a class between runs: `.dojo/class.json`.

It holds each student's submissions with the keys of their records. Results are made from these, the
course file, the roster and the overrides, without running student code.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from gpudojo.classes.names import name_key
from gpudojo.classes.store import FOLDER
from gpudojo.model.errors import BadClass, BadEvidence
from gpudojo.model.evidence import decode_untrusted_bytes
from gpudojo.model.results import AttemptRule, RosterRow, RunLimits
from gpudojo.model.results_file import encode_json, replacing_file
from gpudojo.submissions.entries import Naming, SubmissionEntry
from gpudojo.submissions.names import fold_case
from gpudojo.submissions.submitters import Submitter

STATE: Final = f"{FOLDER}/class.json"


class StoredSubmission(msgspec.Struct, omit_defaults=True):
    """One submission of a student, and its last grading."""

    name: str
    origin: str
    digest: str
    content: str  # equal if two are the same work, whatever their files are called
    at: str  # when it ran; the same work of somebody else may have run before
    record: str = ""  # its key; empty where it could not be read: then there is a problem
    reference: str = ""
    judging_key: str = msgspec.field(default="", name="measure")  # see `VerdictStore`
    only: list[str] = []
    problem: str = ""
    notes: list[str] = []
    submitted: str = ""  # says the platform, or a commit
    dated: str = ""  # the date in the roster when its files were given, as written there
    late: bool = False  # says the platform
    public_scenarios: bool = False  # students have them, too
    score: float = 0.0
    max_score: float = 0.0
    changes: list[str] = []  # against the submission before
    arrived: str = ""  # when it was first graded for this student

    @property
    def work(self) -> str:
        """Equal for the same work, whatever its files are called; of what cannot be read, the same
        files.
        """
        return self.digest if self.problem else self.content

    @property
    def order(self) -> str:
        """A time to sort by, where nobody knows when submissions were handed in."""
        return self.arrived or self.at


class Student(msgspec.Struct, omit_defaults=True):
    """Who handed in, as the names of files tell, and what; the latest is the last."""

    name: str
    student: str
    naming: str
    identifier: str | None = None
    people: list[Submitter] = []
    sent: list[StoredSubmission] = []

    @property
    def listed(self) -> RosterRow | None:
        """What Gradescope's own list says, in the form of a row of a roster; else None."""
        if self.naming != Naming.GRADESCOPE or not self.people:
            return None
        id_ = ""
        if len(self.people) == 1:
            id_ = self.people[0].sid
        emails = [person.email for person in self.people if person.email]
        return RosterRow(id_, self.student, ", ".join(emails))

    @property
    def listed_name(self) -> str:
        """The name on Gradescope's own list. Empty where there is none."""
        if self.listed:
            return self.listed.name
        return ""


class ClassState(msgspec.Struct, omit_defaults=True):
    """What is kept of a class."""

    day: str = ""
    bench: str = "virtual"
    seed: str = ""  # its name: the seed itself is in a file that only its owner reads
    limits: RunLimits | None = None
    course: str = ""  # the path of its file
    roster: str = ""
    attempt: AttemptRule | None = None
    reference: str = ""
    layers: dict[str, str] = {}
    torch: str = ""
    gpudojo: str = ""
    python: str = ""
    only: list[str] = []  # the functions that count; empty: all
    chosen: list[str] = []  # of these, what --only named; empty: the course says which count
    students: dict[str, Student] = {}
    version: int = 1


def load_state(out: Path) -> ClassState:
    """What is known of a class: nothing in a new folder. Raises BadClass if it cannot be read.

    `out` is the folder of its results.
    """
    path = out / STATE
    try:
        return decode_untrusted_bytes(msgspec.json.Decoder(ClassState).decode, path.read_bytes())
    except FileNotFoundError:
        return ClassState()
    except OSError as error:
        reason = error.strerror
    except BadEvidence as error:
        reason = error.reason
    raise BadClass(
        f"{path} cannot be read ({reason}); move it away, and grade the whole class again"
    )


def save_state(out: Path, state: ClassState) -> None:
    """Write what is known of a class to its file, which is replaced as a whole.

    Students are encoded one after another: together they may take megabytes. Raises OSError if it
    cannot be written.
    """
    settings = encode_json(replace(state, students={})).removesuffix(b"}")
    if settings != b"{":
        settings += b","
    with replacing_file(out / STATE) as file:
        file.write(settings + b'"students":{')
        separator = b""
        for key, student in state.students.items():
            file.write(separator)
            file.write(encode_json(key) + b":" + encode_json(student))
            separator = b",\n"
        file.write(b"}}")


def version_on_disk(out: Path) -> tuple[int, ...]:
    """Numbers that change whenever `save_state` has written.

    Empty where nothing is known of the class.
    """
    try:
        status = (out / STATE).stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


def key_of_student(entry: SubmissionEntry) -> str:
    """A text by which a student is known from one run to the next, such as `plain:ada`."""
    if entry.naming is Naming.GRADESCOPE and entry.people:
        # Gradescope's number is that of the submission, and not of the student.
        people = [name_key(person.sid or person.email or person.name) for person in entry.people]
        return f"gradescope:{'&'.join(people)}"
    if entry.identifier and entry.naming is not Naming.GRADESCOPE:
        return f"{entry.naming}:{fold_case(entry.identifier)}"
    return f"plain:{fold_case(entry.name)}"


def utc_now(timespec: str = "seconds") -> str:
    """The time now, in UTC, as ISO 8601. `timespec` is how exact, as in `datetime.isoformat`."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec=timespec)
