"""Uploads in 06 are compared with the number of pixels, also where they are always as large."""

from __future__ import annotations

import pytest
from gpudojo.days.day8.vectorizing_pixel_loops import claims
from gpudojo.days.day8.vectorizing_pixel_loops.inputs import GROWING, LARGE
from gpudojo.days.day8.vectorizing_pixel_loops.pictures import Cost, Growth
from gpudojo.model.exercise import Failed


def growth(uploaded: list[int], for_large: int = 0) -> Growth:
    costs = [Cost(3, 3, 0, 0, 0, 0, 0, None, each, 7) for each in uploaded]
    return Growth(costs, uploaded_for_large=for_large)


@pytest.mark.parametrize(
    "found",
    [
        growth([size.pixels for size in GROWING]),
        growth([1 << 17] * 3, 1 << 17),
        growth([LARGE.pixels] * 3, LARGE.pixels),
    ],
    ids=["as_large_as_the_picture", "far_more", "as_much_as_the_large_one_has_pixels"],
)
def test_a_result_that_is_uploaded_fails(found: Growth) -> None:
    with pytest.raises(Failed, match="bytes were copied to the device"):
        claims._expect_no_upload(found)


@pytest.mark.parametrize(
    "found",
    [growth([12] * 3), growth([48] * 3), growth([3072] * 3, 3072), growth([0, 0, 0])],
    ids=["weights", "palette", "table", "nothing"],
)
def test_weights_a_palette_and_a_table_may_be_uploaded(found: Growth) -> None:
    claims._expect_no_upload(found)
