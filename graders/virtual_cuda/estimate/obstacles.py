"""Says in a sentence why a script could not be estimated: on which line, and what to do."""

from __future__ import annotations

import importlib.util
import socket
import traceback
import urllib.error
from collections.abc import Iterator, Sequence
from typing import Final

from virtual_cuda.device.no_values import WHAT_IS_READ, WHAT_IS_READ_FROM_ZEROS
from virtual_cuda.errors import NeedsValues
from virtual_cuda.estimate.result import AssumptionCount
from virtual_cuda.ledger.texts import short_line
from virtual_cuda.libraries import from_library

# Packages with which programs write kernels of their own, by the first part of their names.
_KERNEL_PACKAGES: Final = frozenset({"triton", "numba", "cupy", "pycuda", "cutlass", "tilelang"})
_KERNEL_MODULE: Final = "torch.utils.cpp_extension"
_OTHER_KERNELS: Final = "the virtual GPU cannot run kernels of"  # begins what the device raises
_NOTEBOOK_NAME: Final = "get_ipython"  # in scripts that `jupyter nbconvert` has made
_NETWORK_ERRORS: Final = (urllib.error.URLError, socket.gaierror, ConnectionError)
# Packages whose errors all come from the network, or from being without one.
_NETWORK_PACKAGES: Final = frozenset({"requests", "urllib3", "httpx", "httpcore", "aiohttp"})
_OFFLINE_NAMES: Final = frozenset({"OfflineModeIsEnabled", "LocalEntryNotFoundError"})


def describe_obstacle(failure: BaseException) -> str | None:
    """The sentence on a failure of something that no estimate can do; None for any other."""
    line = line_of_failure(failure)
    for error in _chain_of(failure):
        if isinstance(error, NeedsValues):
            return f"{line}{error}"
        if _is_about_kernels(error):
            return (
                f"{line}this uses kernels of its own, which can be neither run nor timed without a "
                "GPU; for the estimate, use operators of PyTorch with the same shapes in their "
                "place"
            )
        if isinstance(error, NameError) and error.name == _NOTEBOOK_NAME:
            return (
                f"{line}this is a command of a notebook (%…, !… or get_ipython), which a script "
                "cannot run; leave the line out"
            )
        if _is_about_network(error):
            return (
                f"{line}this needs the network, which cannot be reached ({_last_line(error)}); for "
                "the estimate, make data of the same shape (torch.rand, torch.randint) and the "
                "model from its configuration (from_config, weights=None), or name files that are "
                "on this machine"
            )
    return None


def describe_reads(failure: BaseException, assumptions: Sequence[AssumptionCount]) -> str | None:
    """The sentence on a failure that may come from values which were read; None if none were."""
    reads = [each for each in assumptions if each.what in (WHAT_IS_READ, WHAT_IS_READ_FROM_ZEROS)]
    if not reads or not isinstance(failure, Exception):
        return None
    where = short_line(reads[0].line) or "a library"
    return (
        f"{line_of_failure(failure)}before the error above, the script read a value that an "
        f"estimate does not have, and got 0 or what zeros lead to ({where}); if that is why, leave "
        "out what depends on it (early stopping, a check of the loss), or stop before it with "
        "--steps N"
    )


def line_of_failure(failure: BaseException) -> str:
    """The script's line that a failure comes from, with a colon; "" where it has none."""
    found = ""
    for frame in traceback.extract_tb(failure.__traceback__):
        if frame.filename.startswith("<") or from_library(frame.filename):
            continue
        found = f"{short_line(f'{frame.filename}:{frame.lineno}')}: "
    return found


def _chain_of(failure: BaseException) -> Iterator[BaseException]:
    """A failure, and those that it came from."""
    seen: list[BaseException] = []
    error: BaseException | None = failure
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def _is_about_kernels(error: BaseException) -> bool:
    """True for an error of something that makes kernels, or that it is not installed."""
    if isinstance(error, ImportError):
        return (error.name or "").partition(".")[0] in _KERNEL_PACKAGES
    if str(error).startswith(_OTHER_KERNELS):
        return True
    extension = importlib.util.find_spec(_KERNEL_MODULE)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in _KERNEL_PACKAGES:
            return True
        if extension is not None and frame.f_code.co_filename == extension.origin:
            return True
    return False


def _is_about_network(error: BaseException) -> bool:
    """True for an error of somebody who asked for something on the network."""
    if isinstance(error, _NETWORK_ERRORS):
        return True
    package = type(error).__module__.partition(".")[0]
    return package in _NETWORK_PACKAGES or type(error).__name__ in _OFFLINE_NAMES


def _last_line(error: BaseException) -> str:
    """The last line of what an error says, or its name."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1]
