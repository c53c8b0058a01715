"""What has `dojo lint` found? Problems and warnings, by exercise, and what was counted."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    exercise: str
    text: str
    warning: bool = False


@dataclass
class Row:
    """What was counted for one exercise."""

    stem: str
    points: float
    functions: int
    checks: int
    enemies: int
    notes: int = 0  # what the author has still to do
    findings: list[Finding] = field(default_factory=list)


@dataclass
class Report:
    day: str
    rows: list[Row]
    general: list[Finding]

    @property
    def unfinished(self) -> list[str]:
        return [row.stem for row in self.rows if row.notes]

    @property
    def findings(self) -> list[Finding]:
        return [*self.general, *(finding for row in self.rows for finding in row.findings)]

    @property
    def problems(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.warning]
