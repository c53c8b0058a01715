"""Which line of the student's code is running now?"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType
from typing import Final

import torch

_LIBRARIES: Final = tuple(
    os.path.join(os.path.realpath(path), "")
    for path in {
        os.path.dirname(torch.__file__),
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))),  # graders itself
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        os.path.dirname(os.__file__),
    }
)
# Per file name and not per code object: hashing a code object costs more than an operation.
_belongs_to_student: Final[dict[str, bool]] = {}


def _judge(filename: str) -> bool:
    library = filename.startswith("<frozen") or os.path.realpath(filename).startswith(_LIBRARIES)
    _belongs_to_student[filename] = not library
    return not library


def site(depth: int = 1) -> tuple[CodeType | None, int | None]:
    """The code object and instruction offset of the innermost frame that is not a library's."""
    frame = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        known = _belongs_to_student.get(name)
        if known or (known is None and _judge(name)):
            return code, frame.f_lasti
        frame = frame.f_back  # type: ignore[assignment]
    return None, None
