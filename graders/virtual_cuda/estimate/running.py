"""Runs a script without values, for an estimate."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final, NamedTuple

from virtual_cuda.devices import virtual_cuda
from virtual_cuda.estimate.memory_record import MemoryRecord
from virtual_cuda.estimate.page import make_page
from virtual_cuda.estimate.result import Estimate, describe_run
from virtual_cuda.estimate.steps import EnoughSteps, StepWatch
from virtual_cuda.estimate.variants import changed
from virtual_cuda.ledger.texts import count_phrase
from virtual_cuda.recorder import nothing_above
from virtual_cuda.script_code import load_file

_PASSES_REMARK: Final = (
    "It was stopped after {passes} calls of a model and no step of an optimizer, because a loop "
    "that waits for a value (an end token) would not end. A longer text needs more memory: say how "
    "many calls there are with --steps N."
)
_ONE_STEP_REMARK: Final = (
    "There was one step of the optimizer. The next one may need more memory, since it finds the "
    "optimizer's states in place."
)
_ROOM: Final = "4096 TiB"  # of the device: how much the program needs is the question


class ScriptRun(NamedTuple):
    """What came of running a script without values."""

    estimate: Estimate | None  # None where nothing ran on the device
    failure: BaseException | None  # what the script raised
    is_interrupted: bool  # by Ctrl-C
    page: str  # as HTML; "" if none was asked for


def estimate_script(options: argparse.Namespace, progress: Any) -> ScriptRun:
    """Run a script without values, and return what came of it.

    `progress` is told what is watched.
    """
    nothing_above(__file__)
    failure: BaseException | None = None
    is_interrupted = False
    remarks: list[str] = []
    with virtual_cuda(gpu=options.gpu, memory=_ROOM, values=False) as gpu:
        memory = MemoryRecord(gpu.devices[0].memory, gpu.ledger.rows)
        gpu.devices[0].memory.observe(memory)
        watch = StepWatch(gpu, memory, options.steps, options.passes)
        progress.watched = watch
        with watch.watching():
            ended = "the script ended"
            try:
                with changed(options.change):
                    _run(options.script)
            except EnoughSteps:
                ended = f"stopped after {count_phrase(len(watch.steps), 'step')}"
                if not watch.steps:
                    ended = f"stopped after {watch.passes} forward passes"
                    if not options.is_limited:
                        remarks.append(_PASSES_REMARK.format(passes=watch.passes))
            except KeyboardInterrupt:
                ended = "interrupted: what is told is what was known by then"
                is_interrupted = True
            except SystemExit as error:
                ended = "the script ended"
                if error.code not in (None, 0):
                    failure = error
            except BaseException as error:  # whatever ends the script
                failure = error
                ended = f"the script raised {type(error).__name__}"
            else:
                if len(watch.steps) == 1 and options.steps != 1:
                    remarks.append(_ONE_STEP_REMARK)
        watch.end_script()
        watch.name_modules()
        gpu.devices[0].memory.observe(None)
        if not memory.events:
            return ScriptRun(None, failure, is_interrupted, "")
        estimate = describe_run(options.script[0], watch, memory, watch.steps, ended, remarks)
        page = ""
        if options.html is not None:
            page = make_page(estimate, memory, gpu.ledger, watch.steps_or_passes())
    return ScriptRun(estimate, failure, is_interrupted, page)


def _run(words: list[str]) -> None:
    """Run a script with its arguments, as `python` would; raises what it raises."""
    path, *arguments = words
    code = load_file(path, arguments)
    exec(code, sys.modules["__main__"].__dict__)
