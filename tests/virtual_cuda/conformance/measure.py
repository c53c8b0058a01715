"""Runs one snippet on the device of this process: its result or exception, its synchronisations,
its bytes.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import linecache
import math
import signal
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.virtual_cuda.conformance.corpus import Record, Snippet
from tests.virtual_cuda.conformance.describe import describe, text, type_name

T = TypeVar("T")

ALARM_SECONDS = 20
MOST_WARNINGS = 10
SYNC_WARNING = "called a synchronizing CUDA operation"
SYNC_MODE_WARNING = "ynchronization debug mode"
NO_RESULT = object()

NAMES: dict[str, Any] = {
    "torch": torch,
    "nn": nn,
    "F": F,
    "copy": copy,
    "math": math,
    "warnings": warnings,
    "np": np,
    "checkpoint": checkpoint,
    "DataLoader": DataLoader,
    "TensorDataset": TensorDataset,
}
"""What a snippet finds already imported."""


class SnippetTimeout(BaseException):
    """Not an Exception, so that a snippet's own ``except Exception`` does not swallow it."""


def measure(snippet: Snippet) -> Record:
    """Run ``snippet`` as the module ``__snippet__`` and write down what happened."""
    cuda = bool(_try(torch.cuda.is_available))
    file = f"<snippet {snippet.id}>"
    linecache.cache[file] = (len(snippet.code), None, snippet.code.splitlines(True), file)
    module = types.ModuleType("__snippet__")
    vars(module).update(NAMES)
    sys.modules["__snippet__"] = module

    _reset(cuda)
    gc.collect()
    if cuda:
        _try(torch.cuda.empty_cache)  # so that block sizes do not depend on what ran before
    torch.manual_seed(0)
    if cuda:
        _try(torch.cuda.synchronize)
        _try(torch.cuda.reset_peak_memory_stats)
    before = _allocated(cuda)
    heard = _Warnings(file)
    error, counting = _execute(snippet.code, file, module, heard, cuda)
    _reset(cuda)

    record: Record = {
        "outcome": "ok",
        "result": None,
        "error_type": None,
        "message": None,
        "error_line": None,
    }
    result = None
    if error is None:
        result = vars(module).get("result", NO_RESULT)
    else:
        record |= _raised(error) | {"error_line": _line_in(file, error)}
        # The frames of the traceback keep the snippet's tensors alive.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        error = None
    record |= {
        "syncs": len(heard.sync_lines) if counting else None,
        "sync_lines": heard.sync_lines if counting else None,
        "warnings": heard.others,
    }
    record |= _memory(cuda, before, module)
    if record["outcome"] == "ok":
        try:
            missing = result is NO_RESULT
            record["result"] = (
                {"kind": "missing"} if missing else describe(result, random=snippet.random)
            )
        except Exception as late:  # an asynchronous device error surfaces at the first read
            record |= _raised(late) | {"error_stage": "describe"}
    return record


def _execute(
    code: str, file: str, module: types.ModuleType, heard: _Warnings, cuda: bool
) -> tuple[BaseException | None, bool]:
    """Run the code; the exception it raised, and whether synchronisations were counted."""
    counting = False
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = heard.show
        if cuda:
            with contextlib.suppress(Exception):
                torch.cuda.set_sync_debug_mode("warn")
                counting = True
        heard.forget()
        signal.signal(signal.SIGALRM, _too_long)
        signal.setitimer(signal.ITIMER_REAL, ALARM_SECONDS)
        try:
            exec(compile(code, file, "exec"), vars(module))
        except (Exception, SnippetTimeout, SystemExit) as raised:
            return raised, counting
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if counting:
                _try(lambda: torch.cuda.set_sync_debug_mode("default"))
    return None, counting


class _Warnings:
    """Sorts what is warned of into synchronisations and the rest, each with the snippet's line."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.sync_lines: list[int | None] = []
        self.others: list[list[Any]] = []

    def forget(self) -> None:
        self.sync_lines.clear()
        self.others.clear()

    def show(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        *_: object,
        **__: object,
    ) -> None:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        where = frame.f_lineno if frame is not None else None
        said = str(message)
        if SYNC_WARNING in said:
            self.sync_lines.append(where)
        elif len(self.others) < MOST_WARNINGS and SYNC_MODE_WARNING not in said:
            self.others.append([category.__name__, text(said, 160), where])


def _memory(cuda: bool, before: int | None, module: types.ModuleType) -> Record:
    """Bytes more than before: with the snippet's names alive, at the peak, and with only its result
    left.
    """
    named = _allocated(cuda)
    peak = _try(torch.cuda.max_memory_allocated) if cuda else None
    vars(module).clear()
    gc.collect()
    after = _allocated(cuda)
    if before is None:
        return {"mem_delta": None, "mem_delta_namespace": None, "peak_delta": None}
    return {
        "mem_delta": None if after is None else after - before,
        "mem_delta_namespace": None if named is None else named - before,
        "peak_delta": None if peak is None else max(peak - before, 0),
    }


def _raised(error: BaseException) -> Record:
    return {
        "outcome": "raise",
        "error_type": type_name(type(error)),
        "error_mro": [type_name(cls) for cls in type(error).__mro__ if cls is not object],
        "message": text(error),
    }


def _line_in(file: str, error: BaseException) -> int | None:
    """The innermost line of the snippet that the exception passed through."""
    line = None
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == file:
            line = step.tb_lineno
        step = step.tb_next
    return line


def _reset(cuda: bool) -> None:
    """Torch's global switches back to their defaults, so that measuring is not done under the
    snippet's.
    """
    steps: list[Callable[[], object]] = [
        lambda: torch.set_default_device(None),
        lambda: torch.set_default_dtype(torch.float32),
        lambda: torch.set_grad_enabled(True),
        lambda: torch.use_deterministic_algorithms(False),
        lambda: torch.autograd.set_detect_anomaly(False),
        lambda: torch.set_printoptions(profile="default"),  # type: ignore[no-untyped-call]
        torch.clear_autocast_cache,
        lambda: torch.set_float32_matmul_precision("highest"),
        lambda: setattr(torch.backends.cudnn, "benchmark", False),
        lambda: setattr(torch.backends.cudnn, "deterministic", False),
    ]
    if cuda:
        steps += [
            lambda: torch.cuda.set_device(0),
            lambda: torch.cuda.set_sync_debug_mode("default"),
        ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in steps:
            _try(step)


def _allocated(cuda: bool) -> int | None:
    return _try(torch.cuda.memory_allocated) if cuda else None


def _try(question: Callable[[], T]) -> T | None:
    """The answer, or None where this device has none: a gap there must not hide what the snippet
    itself did.
    """
    try:
        return question()
    except Exception:
        return None


def _too_long(signum: int, frame: types.FrameType | None) -> None:
    raise SnippetTimeout(f"snippet ran longer than {ALARM_SECONDS} s")
