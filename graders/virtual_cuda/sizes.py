"""Parses and formats memory sizes, and knows those of dtypes."""

from __future__ import annotations

import functools
import re
from fractions import Fraction
from typing import Final

from virtual_cuda.errors import BadSize

# Bytes of one element, by the name of the dtype.
ITEM_SIZES: Final = {
    "bool": 1, "int8": 1, "uint8": 1,
    "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "complex64": 8,
    "complex128": 16,
}  # fmt: skip

_UNITS: Final = {"": 1, "b": 1, "byte": 1, "bytes": 1} | {
    prefix + unit: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for unit, base in (("b", 1000), ("ib", 1024))
}

# At most 19 digits: enough for several exabytes, and no text can make the arithmetic slow.
_SIZE: Final = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)


def parse_size(size: str | int | float) -> int:
    """The bytes meant by a number or by a text with a unit: GB is 1000³ bytes, GiB is 1024³.

    Raises BadSize for what is no size of at least one byte.
    """
    if isinstance(size, bool):  # True is 1 to Python, and never a size to a reader
        raise BadSize(size)
    if isinstance(size, str):
        count = _bytes_in(size)
    elif isinstance(size, int) or (
        isinstance(size, float) and size.is_integer()
    ):  # 8e9, but not nan, inf or 1.5
        count = int(size)
    else:
        raise BadSize(size)
    if count < 1:
        raise BadSize(size)
    return count


@functools.lru_cache(maxsize=64)
def _bytes_in(text: str) -> int:
    """The bytes that a text such as "512MiB" names; raises BadSize."""
    match = _SIZE.fullmatch(text.strip())
    unit = None
    if match:
        unit = _UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise BadSize(text)
    # A fraction, because 0.1 GiB in floats may miss by a byte what 0.1 * 1024**3 says on paper.
    return int(Fraction(match[1]) * unit)


def format_size(count: int) -> str:
    """The size as torch prints it in an out-of-memory message: "512 bytes", "20.00 MiB"."""
    if count <= 1024:
        return f"{count} bytes"
    if count <= 1024**2:
        return f"{count / 1024:.2f} KiB"
    if count <= 1024**3:
        return f"{count / 1024**2:.2f} MiB"
    return f"{count / 1024**3:.2f} GiB"
