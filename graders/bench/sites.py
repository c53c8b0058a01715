"""Which line of the student's code is running now?"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType, FrameType
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


class _Files(dict[str, bool]):
    """Whether a file is a student's; by file name, because hashing a code object costs more than an operation."""

    def __missing__(self, filename: str) -> bool:
        library = filename.startswith("<frozen") or os.path.realpath(filename).startswith(_LIBRARIES)
        self[filename] = not library
        return not library


student_file: Final = _Files()


def site(depth: int = 1) -> tuple[CodeType | None, int | None]:
    """The code object and instruction offset of the innermost frame that is not a library's."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        if student_file[code.co_filename]:
            return code, frame.f_lasti
        frame = frame.f_back
    return None, None
