"""Says what is wrong with the values of a picture.

Found are other weights, mixed channels, another distance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.vectorizing_pixel_loops.pictures import Picture
from gpudojo.grading.comparing import arrays_identical, numpy_values, values_close
from gpudojo.model.evidence import Array
from gpudojo.model.exercise import Failed, returned_other_type

WEIGHTS: Final = (0.299, 0.587, 0.114)
COMPARED: Final = frozenset({"int64", "int32", "float64", "float32", "float16"})
NEAR: Final = 1e-4  # as close as another order of addition leaves floats


class Explanation(NamedTuple):
    """What is wrong with a picture."""

    happened: str
    misconception: str | None = None
    at: tuple[str, ...] = ()  # patterns for the line to show


Explain = Callable[[Picture, Picture], Explanation]  # gets the student's and the reference's
MIXED: Final = Explanation(
    "red, green and blue of one pixel were taken from different pixels", "reshape-for-permute"
)


def have_same_values(found: Array | None, right: Array | None) -> bool:
    """True for equal integers, and for floats as close as another order of addition leaves them."""
    if found is None or right is None or found.shape != right.shape:
        return False
    if right.dtype in COMPARED and arrays_identical(found, right):
        return True
    a = numpy_values(found)
    b = numpy_values(right)
    if b.dtype.kind in "iu":
        return found.dtype in ("int64", "int32") and bool((a == b).all())
    return a.dtype.kind == "f" and values_close(a, b, 0, NEAR)


def expect_same_pictures(
    seen: dict[str, Picture], wanted: dict[str, Picture], explain: Explain
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
        dtypes = ("int64", "int32") if right.dtype == "int64" else (right.dtype, "float64")
        if found.dtype not in dtypes:
            expected = " or ".join(dtypes) if right.dtype == "int64" else right.dtype
            happened = f"the result's dtype is {found.dtype}"
            raise Failed(happened, expected, at=("half(", "return"))
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


def _other_values(found: Picture, right: Picture, explanation: Explanation) -> Failed:
    """The failure of a picture with wrong values."""
    happened, key, at = explanation
    if key is None and found.changed:
        happened = f"{happened}, and `{found.changed[0]}` was modified"
        key = "input-modified"
    line = found.changing_line if key == "input-modified" else None
    return Failed(f"{right.given}: {happened}", "the loop's values", line, key, at)


def _floats(array: Array | None) -> Any:
    """The values of an array that is known to be there, as NumPy's float64."""
    assert array is not None
    return numpy_values(array).astype("float64")


def explain_difference(found: Picture, right: Picture) -> Explanation:
    """How many values differ, and the first of them, or that height and width are swapped."""
    assert found.values is not None
    assert right.values is not None
    a = numpy_values(found.values)
    b = numpy_values(right.values)
    floats = a.astype("float64")
    is_square = a.ndim > 2 and a.shape[-1] == a.shape[-2]
    if is_square and (abs(floats - b.swapaxes(-1, -2)) <= NEAR).all():
        return Explanation("height and width are swapped")
    differs = ~(abs(floats - b) <= NEAR)  # a NaN is not near anything
    places = list(zip(*differs.nonzero(), strict=True))
    place = tuple(int(index) for index in places[0]) if places else (0,) * a.ndim
    count = f"{int(differs.sum())} of {a.size} values differ"
    return Explanation(f"{count}; at {list(place)} it gave {a[place]:.6g}, not {b[place]:.6g}")


def explain_grayscale(found: Picture, right: Picture) -> Explanation:
    """What is wrong with a gray picture, such as other weights, which can be computed."""
    import numpy as np

    gray = _floats(found.values).reshape(-1)
    channels = _floats(right.first_input)
    if np.allclose(channels.reshape(-1, 3) @ WEIGHTS, gray, atol=NEAR):
        return MIXED
    pixels = np.moveaxis(channels, 1, -1).reshape(-1, 3)
    weights = np.linalg.lstsq(pixels, gray, rcond=None)[0]
    if np.isfinite(gray).all() and np.allclose(pixels @ weights, gray, atol=NEAR):
        return _explain_weights(weights)
    return explain_difference(found, right)


def _explain_weights(weights: Any) -> Explanation:
    """What a sum of red, green and blue with these weights is."""
    import numpy as np

    factors = weights / WEIGHTS
    if abs(factors[0]) > 1e-3 and np.allclose(factors, factors[0], rtol=1e-3):
        return Explanation(f"the result is {factors[0]:.3g} times the loop's")
    red, green, blue = weights
    weighted = f"{red:.3f} red + {green:.3f} green + {blue:.3f} blue".replace("+ -", "- ")
    at = [f"numbers {red:.3g}, {green:.3g}, {blue:.3g}"]
    for weight in weights:
        if min(abs(weight - right) for right in WEIGHTS) > 1e-3:
            at.append(f"number {weight:.3g}")
    if np.ptp(weights) < 1e-3:
        at.append("mean(")
    return Explanation(f"the result is {weighted}", "wrong-weights", tuple(at))


def explain_nearest(found: Picture, right: Picture) -> Explanation:
    """What is wrong with indices, such as another measure of distance or another palette."""
    sprites = _floats(right.first_input)
    palette = _floats(right.last_input)
    assert found.values is not None
    assert right.values is not None
    indices = numpy_values(found.values).reshape(-1)
    mixed = ((sprites.reshape(-1, 1, 3) - palette) ** 2).sum(2)
    if (mixed.argmin(1) == indices).all():
        return MIXED
    apart = sprites.transpose(0, 2, 3, 1).reshape(-1, 1, 3) - palette
    measures = {
        "nearest by the sum of the absolute differences": abs(apart).sum(2),
        "nearest by the square of the sum of the differences": apart.sum(2) ** 2,
        "the farthest": -(apart**2).sum(2),
    }
    for words, distances in measures.items():
        if len(palette) > 1 and (distances.argmin(1) == indices).all():
            return Explanation(f"the colours are {words}")
    renamed = _explain_renamed(indices, numpy_values(right.values).reshape(-1))
    return renamed or explain_difference(found, right)


def _explain_renamed(indices: Any, wanted: Any) -> Explanation | None:
    """The explanation that every index became another one.

    None where one became several, or several one.
    """
    became = dict(zip(wanted.tolist(), indices.tolist(), strict=True))
    if len(became) < 2 or len(set(became.values())) < len(became):
        return None
    if [became[index] for index in wanted.tolist()] != indices.tolist():
        return None
    shifts = set((indices - wanted).tolist())
    at = ("palette =",) if len(shifts) > 1 else ()  # not all shifted: another order
    for index in sorted(became):
        if became[index] != index:
            return Explanation(f"every index {index} became {became[index]}", None, at)
    return None


def explain_recolor(found: Picture, right: Picture) -> Explanation:
    """What is wrong with a recoloured picture, such as channels mixed up with pixels."""
    import numpy as np

    assert found.values is not None
    assert right.values is not None
    assert right.first_input is not None
    assert right.last_input is not None
    a = numpy_values(found.values)
    b = numpy_values(right.values)
    if np.allclose(np.moveaxis(b, 1, -1).reshape(b.shape), a, atol=NEAR):
        happened = "all numbers are there, but red, green and blue are mixed up with the pixels"
        return Explanation(happened, "reshape-for-permute")
    indices = numpy_values(right.first_input).reshape(-1).tolist()
    palette = numpy_values(right.last_input)
    distances = abs(np.moveaxis(a, 1, -1).reshape(-1, 1, 3) - palette).max(2)
    if (distances.min(1) <= NEAR).all():  # each pixel has a colour of the palette
        pairs = set(zip(indices, distances.argmin(1).tolist(), strict=True))
        wrong = sorted(pair for pair in pairs if pair[0] != pair[1])
        if wrong and len(pairs) == len(set(indices)):  # one colour for each index
            index, color = wrong[0]
            return Explanation(f"pixels with the index {index} got colour {color} of the palette")
    return explain_difference(found, right)
