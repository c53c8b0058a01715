"""Notices kernels that student code registers for operators of torch."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Final

import torch
import torch.library
from virtual_cuda.hooks import from_library

from gpudojo.sandbox.tampering.findings import FindingKind, WatchFinding, make_finding

TORCHS_NAMESPACES: Final = frozenset({"aten", "prims", "prim", "_"})


class LibraryWatch:
    """Collects who makes a library of kernels in a namespace of torch.

    Such a kernel cannot be taken away again, so every function after it is not measured.
    """

    def __init__(self) -> None:
        """Replace the function of torch that makes libraries, for as long as the process lives.

        In a release of torch without that function, nothing is noticed.
        """
        self._findings: list[WatchFinding] = []
        make_library: Any = getattr(torch._C, "_dispatch_library", None)
        if make_library is None:
            return

        def make_and_note(kind: str, namespace: str, *where: Any) -> Any:
            if namespace in TORCHS_NAMESPACES:
                self._note_caller(sys._getframe(1))
            return make_library(kind, namespace, *where)

        torch._C._dispatch_library = make_and_note  # type: ignore[assignment]

    def _note_caller(self, frame: FrameType | None) -> None:
        """Note the line that makes a library of kernels, unless that is a library's own.

        `frame` is that of the call; frames of `torch.library` above it are passed over.
        """
        while frame is not None and frame.f_code.co_filename == torch.library.__file__:
            frame = frame.f_back
        if frame is not None and not from_library(frame.f_code.co_filename):
            what = "registered kernels for operators of torch (torch.library)"
            file = frame.f_code.co_filename
            self._findings.append(make_finding(FindingKind.UNMEASURED, what, file, frame.f_lineno))

    def findings(self) -> list[WatchFinding]:
        """What was noticed so far: the first finding, or nothing."""
        return self._findings[:1]
