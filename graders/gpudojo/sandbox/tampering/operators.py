"""Notices kernels that student code registers for operators of torch."""

from __future__ import annotations

from typing import Any, Final

import torch
from virtual_cuda.hooks import from_library

from gpudojo.sandbox.tampering.findings import Finding, FindingKind, make_finding

TORCHS_NAMESPACES: Final = frozenset({"aten", "prims", "prim", "_"})


class LibraryWatch:
    """Collects who makes a library of kernels in a namespace of torch.

    Such a kernel cannot be taken away again, so every function after it is not measured.
    """

    def __init__(self) -> None:
        """Replace the function of torch that makes libraries, for as long as the process lives."""
        self._findings: list[Finding] = []
        make_library = torch._C._dispatch_library

        def make_and_note(
            kind: str, namespace: str, dispatch_key: str, file: str, line: Any
        ) -> Any:
            if namespace in TORCHS_NAMESPACES and not from_library(file):
                what = "registered kernels for operators of torch (torch.library)"
                finding = make_finding(FindingKind.UNMEASURED, what, file, line)
                self._findings.append(finding)
            return make_library(kind, namespace, dispatch_key, file, line)

        torch._C._dispatch_library = make_and_note  # type: ignore[assignment]

    def findings(self) -> list[Finding]:
        """What was noticed so far."""
        return self._findings[:1]
