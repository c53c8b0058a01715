"""Says what is wrong with the values of a picture.

Found are other weights, mixed channels, another distance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.vectorizing_pixel_loops.pictures import Picture
from gpudojo.grading.comparing import arrays_identical, numpy_values, values_close
from gpudojo.model.evidence import Array
from gpudojo.model.exercise import Failed, returned_other_type

WEIGHTS: Final = (0.299, 0.587, 0.114)
COMPARED: Final = frozenset({"int64", "int32", "float64", "float32", "float16"})
INDICES: Final = ("int64", "int32")  # the dtypes that indices may have
NEAR: Final = 1e-4  # as close as another order of addition leaves floats

# ---- comparing ---------------------------------------------------------------------------------


class Explanation(NamedTuple):
    """What is wrong with a picture."""

    happened: str
    misconception: str | None = None
    at: tuple[str, ...] = ()  # patterns for the line to show


Explain = Callable[[Picture, Picture], Explanation]  # gets the student's and the reference's


def have_same_values(found: Array | None, right: Array | None) -> bool:
    """True for equal integers, and for floats as close as another order of addition leaves them."""
    if found is None or right is None or found.shape != right.shape:
        return False
    if right.dtype in COMPARED and arrays_identical(found, right):
        return True
    found_values = numpy_values(found)
    right_values = numpy_values(right)
    if right_values.dtype.kind in "iu":
        return found.dtype in INDICES and bool((found_values == right_values).all())
    if found_values.dtype.kind != "f":
        return False
    return values_close(found_values, right_values, 0, NEAR)


def expect_same_pictures(
    seen: Mapping[str, Picture], wanted: Mapping[str, Picture], explain: Explain
) -> None:
    """Raises Failed where a picture is not the reference's.

    It may be no tensor, or have another shape, dtype or values, which `explain` puts into words.
    """
    for size, right in wanted.items():
        found = seen[size]
        if found.kind != "Tensor" or found.values is None:
            key = "trip-through-numpy" if found.kind == "ndarray" else None
            raise returned_other_type(found.kind, "a tensor", key=key)
        if have_same_values(found.values, right.values):
            continue
        if found.shape != right.shape:
            raise _other_shape(found, right)
        _expect_same_dtype(found, right)
        raise _other_values(found, right, explain(found, right))


def _other_shape(found: Picture, right: Picture) -> Failed:
    """The failure of a picture with a wrong shape."""
    happened = f"{right.given} gave the shape {tuple(found.shape)}"
    expected = f"the shape {tuple(right.shape)}"
    key = None
    if len(right.shape) == 4:
        count, channels, height, width = right.shape
        if found.shape == [count, height, width, channels]:
            key = "channels-last"
    return Failed(happened, expected, None, key, ("return",))


def _expect_same_dtype(found: Picture, right: Picture) -> None:
    """Raises Failed for a dtype that is neither the reference's nor as good."""
    allowed: tuple[str, ...] = (right.dtype, "float64")
    expected = right.dtype
    if right.dtype == "int64":
        allowed = INDICES
        expected = " or ".join(INDICES)
    if found.dtype not in allowed:
        happened = f"the result's dtype is {found.dtype}"
        raise Failed(happened, expected, at=("half(", "return"))


def _other_values(found: Picture, right: Picture, explanation: Explanation) -> Failed:
    """The failure of a picture with wrong values."""
    happened, key, at = explanation
    if key is None and found.changed:
        happened = f"{happened}, and `{found.changed[0]}` was modified"
        key = "input-modified"
    line = found.changing_line if key == "input-modified" else None
    return Failed(f"{right.given}: {happened}", "the loop's values", line, key, at)


# ---- explaining --------------------------------------------------------------------------------

MIXED: Final = Explanation(
    "red, green and blue of one pixel were taken from different pixels", "reshape-for-permute"
)


def _values_of(array: Array | None) -> Any:
    """The values of an array that is known to be there, for NumPy."""
    assert array is not None
    return numpy_values(array)


def _floats_of(array: Array | None) -> Any:
    """The values of an array that is known to be there, as NumPy's float64."""
    return _values_of(array).astype("float64")


def _are_close(found: Any, right: Any) -> bool:
    import numpy as np

    return bool(np.allclose(found, right, atol=NEAR))


def _rows_of_pixels(pictures: Any) -> Any:
    """Pictures with three channels as one row of red, green and blue for each pixel."""
    return pictures.transpose(0, 2, 3, 1).reshape(-1, 3)


def explain_difference(found: Picture, right: Picture) -> Explanation:
    """How many values differ, and the first of them, or that height and width are swapped."""
    found_values = _values_of(found.values)
    right_values = _values_of(right.values)
    floats = found_values.astype("float64")
    if _is_transposed(floats, right_values):
        return Explanation("height and width are swapped")
    differs = ~(abs(floats - right_values) <= NEAR)  # a NaN is not near anything
    count = int(differs.sum())
    place = _first_place(differs)
    gave = f"at {list(place)} it gave {found_values[place]:.6g}"
    happened = f"{count} of {floats.size} values differ; {gave}, not {right_values[place]:.6g}"
    return Explanation(happened)


def _is_transposed(found: Any, right: Any) -> bool:
    """True if square pictures have the values of the right ones with height and width swapped."""
    if found.ndim < 3:
        return False
    *_, height, width = found.shape
    if height != width:
        return False
    distances = abs(found - right.swapaxes(-1, -2))
    return bool((distances <= NEAR).all())


def _first_place(differs: Any) -> tuple[int, ...]:
    """The indices of the first True; of the first value where there is none."""
    import numpy as np

    number = int(differs.argmax())
    return tuple(int(index) for index in np.unravel_index(number, differs.shape))


def explain_grayscale(found: Picture, right: Picture) -> Explanation:
    """What is wrong with a gray picture, such as other weights, which can be computed."""
    import numpy as np

    gray = _floats_of(found.values).reshape(-1)
    sprites = _floats_of(right.first_input)
    mixed = sprites.reshape(-1, 3) @ WEIGHTS
    if _are_close(mixed, gray):
        return MIXED
    if not np.isfinite(gray).all():
        return explain_difference(found, right)
    # Which weights would give this picture?
    pixels = _rows_of_pixels(sprites)
    weights, *_ = np.linalg.lstsq(pixels, gray, rcond=None)
    if _are_close(pixels @ weights, gray):
        return _explain_weights(weights)
    return explain_difference(found, right)


def _explain_weights(weights: Any) -> Explanation:
    """What a sum of red, green and blue with these weights is."""
    import numpy as np

    factors = weights / WEIGHTS
    factor = factors[0]
    if abs(factor) > 1e-3 and np.allclose(factors, factor, rtol=1e-3):
        return Explanation(f"the result is {factor:.3g} times the loop's")
    red, green, blue = weights
    weighted = f"{red:.3f} red + {green:.3f} green + {blue:.3f} blue".replace("+ -", "- ")
    at = [f"numbers {red:.3g}, {green:.3g}, {blue:.3g}"]
    for weight in weights:
        if not np.isclose(weight, WEIGHTS, rtol=0, atol=1e-3).any():
            at.append(f"number {weight:.3g}")
    if np.ptp(weights) < 1e-3:
        at.append("mean(")
    return Explanation(f"the result is {weighted}", "wrong-weights", tuple(at))


def explain_nearest(found: Picture, right: Picture) -> Explanation:
    """What is wrong with indices, such as another measure of distance or another palette."""
    sprites = _floats_of(right.first_input)
    palette = _floats_of(right.last_input)
    indices = _values_of(found.values).reshape(-1)
    mixed = sprites.reshape(-1, 1, 3) - palette
    if _are_nearest(indices, (mixed**2).sum(2)):
        return MIXED
    apart = _rows_of_pixels(sprites)[:, None] - palette
    measures = {
        "nearest by the sum of the absolute differences": abs(apart).sum(2),
        "nearest by the square of the sum of the differences": apart.sum(2) ** 2,
        "the farthest": -(apart**2).sum(2),
    }
    for words, distances in measures.items():
        if len(palette) > 1 and _are_nearest(indices, distances):
            return Explanation(f"the colours are {words}")
    renumbered = _explain_renumbering(indices, _values_of(right.values).reshape(-1))
    return renumbered or explain_difference(found, right)


def _are_nearest(indices: Any, distances: Any) -> bool:
    """True if each index is that of the smallest distance in its row."""
    return bool((distances.argmin(1) == indices).all())


def _explain_renumbering(indices: Any, wanted: Any) -> Explanation | None:
    """The explanation that every index became another one.

    None where one became several, or several one.
    """
    pairs = set(zip(wanted.tolist(), indices.tolist(), strict=True))
    before = {index for index, _ in pairs}
    after = {index for _, index in pairs}
    if len(pairs) < 2 or len(before) < len(pairs) or len(after) < len(pairs):
        return None
    shifts = {new - old for old, new in pairs}
    at = ("palette =",) if len(shifts) > 1 else ()  # not all shifted: another order
    for old, new in sorted(pairs):
        if old != new:
            return Explanation(f"every index {old} became {new}", None, at)
    return None


def explain_recolor(found: Picture, right: Picture) -> Explanation:
    """What is wrong with a recoloured picture, such as channels mixed up with pixels."""
    found_values = _values_of(found.values)
    right_values = _values_of(right.values)
    mixed_up = _rows_of_pixels(right_values).reshape(right_values.shape)
    if _are_close(mixed_up, found_values):
        happened = "all numbers are there, but red, green and blue are mixed up with the pixels"
        return Explanation(happened, "reshape-for-permute")
    indices = _values_of(right.first_input).reshape(-1).tolist()
    colors = _colors_in_palette(found_values, _values_of(right.last_input))
    other_colors = _explain_colors(indices, colors) if colors else None
    return other_colors or explain_difference(found, right)


def _colors_in_palette(pictures: Any, palette: Any) -> list[int] | None:
    """For each pixel the number of its colour; None if one has no colour of the palette."""
    distances = abs(_rows_of_pixels(pictures)[:, None] - palette).max(2)
    if not (distances.min(1) <= NEAR).all():
        return None
    numbers: list[int] = distances.argmin(1).tolist()
    return numbers


def _explain_colors(indices: list[int], colors: list[int]) -> Explanation | None:
    """The explanation that all pixels of one index got the colour of another.

    None where the colours are right, and where pixels of one index got several colours.
    """
    pairs = set(zip(indices, colors, strict=True))
    if len(pairs) > len(set(indices)):
        return None
    for index, color in sorted(pairs):
        if index != color:
            return Explanation(f"pixels with the index {index} got colour {color} of the palette")
    return None
