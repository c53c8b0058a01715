"""`dojo status` says what has changed since an export."""

from __future__ import annotations

import pytest
from gpudojo.classes.class_status import ChangedPoints
from gpudojo.cli.status import _describe_changed
from gpudojo.model.results import Grade


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (Grade(6, 10), Grade(7.5, 10), "ada (6 → 7.5)"),
        (Grade(6, 6), Grade(6, 10), "ada (6 of 6 → 6 of 10)"),
        (Grade(6, 10), Grade(6, 10), "ada (6, other checks or comments)"),
        (Grade(6, 10), Grade(6.0000001, 10), "ada (6, other checks or comments)"),
        (None, Grade(6, 10), "ada (new: 6)"),
        (Grade(6, 10), None, "ada (not in the class any more)"),
    ],
)
def test_points_that_changed_are_told_with_what_they_are_out_of(
    before: Grade | None, after: Grade | None, said: str
) -> None:
    assert _describe_changed(ChangedPoints("ada", before, after)) == said
