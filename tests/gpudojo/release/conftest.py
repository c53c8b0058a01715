"""A release, made once for all tests that look at it: it takes as long as all references do, three
times over.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from gpudojo.platforms import find_seals
from gpudojo.release import recording, student
from gpudojo.release.stubs import stubs_of_day

from tests.sharing import once

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "reference" / "day8"


@dataclass(frozen=True)
class Released:
    """A student's repository, and the evidence that went into its wheel."""

    folder: Path
    files: dict[str, bytes]
    evidence: bytes
    seconds: float

    @property
    def wheel(self) -> str:
        (found,) = (path for path in self.files if path.endswith(".whl"))
        return found


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    """As `dojo release student` does it."""
    return once(tmp_path_factory, "released", release)


def release(folder: Path) -> Released:
    """A release in a new folder beneath this one."""
    kept: list[bytes] = []
    record = recording.record_evidence

    def recorded(*given: object) -> bytes:
        kept.append(record(*given))  # type: ignore[arg-type]
        return kept[-1]

    began = time.perf_counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "record_evidence", recorded)
        files = student.write_release(ROOT, "day8", folder / "day8", find_seals())
    return Released(folder / "day8", files, kept[0], time.perf_counter() - began)


@pytest.fixture
def copied_reference(tmp_path: Path) -> Path:
    """A root with references of its own, to be spoiled."""
    folder = tmp_path / "root" / "reference" / "day8"
    folder.mkdir(parents=True)
    for name in stubs_of_day(REFERENCE):
        (folder / name).write_bytes((REFERENCE / name).read_bytes())
    return folder
