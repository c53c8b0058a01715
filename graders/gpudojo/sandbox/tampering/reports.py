"""Reports what student code does that could lead it to the grader: an audit hook.

It refuses nothing. Inside one Python process nothing can be hidden for good, so an instructor is
told which line to read. Honest libraries do much of the same: only code that is no library's is
reported.
"""

from __future__ import annotations

import importlib
import os
import sys
from _thread import get_ident
from collections.abc import Callable, Iterator
from os import getpid  # student code may replace the module's
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, NamedTuple

from virtual_cuda.hooks import HIDDEN_IN_TENSORS, from_library

from gpudojo.grading import student_code, thread_tracing, watching
from gpudojo.sandbox.tampering import debugging
from gpudojo.sandbox.tampering.code_names import find_names, names_mentioned_in
from gpudojo.sandbox.tampering.findings import (
    OWN_PACKAGES,
    FindingKind,
    WatchFinding,
    make_finding,
)

Tell = Callable[[WatchFinding], None]

MOST_REPORTS: Final = 8  # of a kind that costs no points, from one child
COST_NOTHING: Final = (FindingKind.PUT_BACK, FindingKind.REPORTED)
# By Python's audit event: what student code did.
EVENTS: Final = {
    "gc.get_objects": "asked Python for all living objects (gc.get_objects)",
    "gc.get_referrers": "asked Python what refers to an object (gc.get_referrers)",
    "gc.get_referents": "asked Python what an object refers to (gc.get_referents)",
    "sys._current_frames": "asked for the call stacks of all threads (sys._current_frames)",
    "sys.monitoring.register_callback": "set a monitoring callback (sys.monitoring)",
    "sys.addaudithook": "added an audit hook (sys.addaudithook)",
    "cpython.PyInterpreterState_New": "started another Python in this process",
    "marshal.load": "made code from bytes (marshal)",
    "marshal.loads": "made code from bytes (marshal)",
    "ctypes.dlopen": "used Python's memory directly (ctypes)",
    "ctypes.dlsym": "used Python's memory directly (ctypes)",
    "ctypes.cdata": "used Python's memory directly (ctypes)",
    "ctypes.string_at": "used Python's memory directly (ctypes)",
    "ctypes.call_function": "used Python's memory directly (ctypes)",
    "ctypes.PyObj_FromPtr": "used Python's memory directly (ctypes)",
}
# Ways to a frame. They are reported only where the grader's code is on the same stack.
TO_FRAMES: Final = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
# Events that functions of Python's raise for whoever calls them.
FOR_SOMEBODY: Final = ("import", "exec", "ctypes.")
IMPORTING: Final = "<frozen importlib"  # how the names of Python's own importing files begin
# Modules that lead from one stack to another, or into Python's memory.
LEADING_MODULES: Final = frozenset(
    "greenlet greenlet._greenlet _testcapi _testinternalcapi _testlimitedcapi _ctypes_test".split()
)
# What students may import of ours.
PUBLIC_MODULES: Final = frozenset(
    """
    gpudojo gpudojo.sprite_display gpudojo.notebook virtual_cuda virtual_cuda.errors
    virtual_cuda.ledger
    """.split()
)
# Attributes that lead from a function to the variables of its module.
TO_VARIABLES: Final = frozenset({"__globals__", "__closure__"})
# Attributes of a frame that lead to what counts its lines, or stop it.
OF_LINE_COUNTS: Final = frozenset({"f_trace", "f_trace_lines", "f_trace_opcodes"})
BY_PROBES: Final = frozenset({watching.KEPT, watching.HOOK})  # events that our own code raises
# Files whose code stands between an object that student code holds and its state.
BESIDE_RECORDERS: Final = (
    watching.__file__,
    student_code.__file__,
    os.path.join(os.path.dirname(__file__), "watch.py"),
)
PARTS_OF_FUNCTIONS: Final = frozenset({"__code__", "__defaults__", "__kwdefaults__"})


class AuditEvent(NamedTuple):
    """An audit event, and the frame whose code raised it."""

    name: str
    args: tuple[Any, ...]
    caller: FrameType


class Reports:
    """The audit hook. It tells each thing once, with the first line that did it."""

    def __init__(self, own_folders: tuple[str, ...]) -> None:
        """Add the hook to this process and to all that are forked from it.

        `own_folders` are those of the grader, each with a separator at its end.
        """
        self._own_folders = own_folders
        self._tell: Tell | None = None
        self._process = 0  # that tells
        self._told: dict[str, FindingKind] = {}
        self._busy: set[int] = set()  # threads in the hook, which raises events itself
        # Functions that were given other code, with what they had before.
        self.changed_functions: list[tuple[FunctionType, str, Any]] = []
        sys.addaudithook(self._make_hook())

    def tell_to(self, tell: Tell) -> None:
        """Report by `tell` from now on; what was done before is not reported.

        Nor is what processes do that this one forks: the ranks of a parallel run, for example.
        """
        self._tell = tell
        self._process = getpid()

    def put_back_code_of_functions(self) -> None:
        """Give functions of libraries and of ours the parts back that student code replaced.

        Nothing is reported meanwhile. Empties `changed_functions`.
        """
        tell = self._tell
        self._tell = None
        while self.changed_functions:
            function, part, before = self.changed_functions.pop()
            setattr(function, part, before)
        self._tell = tell

    def _make_hook(self) -> Callable[[str, tuple[Any, ...]], None]:
        """Make the function that Python calls for every audit event; it judges few of them."""
        judge_event = self._judge_event

        # No method: Python asks a hook for an attribute before each call, and a method takes long
        # to answer.
        def hear(name: str, args: tuple[Any, ...]) -> None:
            """Note that a tracer is set, and judge an event of a kind that may be reported."""
            if name == "sys.settrace":
                thread_tracing.note_tracer()
            if name not in _JUDGES:
                return
            if name == "object.__getattr__" and args[1] not in TO_FRAMES:
                return  # torch asks functions for their code all the time
            judge_event(name, args)

        return hear

    def _judge_event(self, name: str, args: tuple[Any, ...]) -> None:
        """Report an event where student code is what raised it.

        Events that the hook itself raises meanwhile are not judged.
        """
        thread = get_ident()
        if self._tell is None or thread in self._busy:
            return
        self._busy.add(thread)
        try:
            # By far the most are our own, which want a line for the ledger: these end here.
            caller: FrameType | None = sys._getframe(2)
            if name.startswith(FOR_SOMEBODY):
                wanted = str(args[0]) if name == "import" else name
                caller = _frame_that_wants(wanted, caller)
            if caller is None:
                return
            if name in BY_PROBES or not from_library(caller.f_code.co_filename):
                for finding in _JUDGES[name](self, AuditEvent(name, args, caller)):
                    self.report(finding)
        finally:
            self._busy.discard(thread)

    def report_names(self, code: CodeType) -> None:
        """Report names in the code of a file that lead to the grader."""
        for finding in _findings_in(code):
            self.report(finding)

    def report(self, finding: WatchFinding) -> None:
        """Tell a finding, unless the same was told before, or too many that cost nothing.

        What was told is remembered. Only the process that called `tell_to` tells. Raises what
        telling raises.
        """
        if self._tell is None or finding.what in self._told or getpid() != self._process:
            return
        told_of_kind = [kind for kind in self._told.values() if kind is finding.kind]
        if finding.kind in COST_NOTHING and len(told_of_kind) >= MOST_REPORTS:
            return
        self._tell(finding)
        # Not before: at the end of the stack, telling fails.
        self._told[finding.what] = finding.kind

    # One function for each kind of event. Each yields what is to be reported.

    def _judge_question(self, event: AuditEvent) -> Iterator[WatchFinding]:
        yield _at(event.caller, EVENTS[event.name])

    def _judge_frame(self, event: AuditEvent) -> Iterator[WatchFinding]:
        """Yield a finding for a frame, or a way to one, if the grader's code is above it."""
        # A student's tracer is called from the module `debugging`.
        if debugging.has_graders_frame(event.caller, self._own_folders, debugging.__file__):
            yield _at(event.caller, "asked for a frame of the grader's call stack")

    def _judge_change(self, event: AuditEvent) -> Iterator[WatchFinding]:
        """Yield a finding for other code of a library's function, or other bases of its class.

        What a function had before is noted in `changed_functions`.
        """
        changed, part = event.args[0], event.args[1]
        if part not in PARTS_OF_FUNCTIONS and part != "__bases__":
            return
        name = f"{changed.__module__}.{changed.__qualname__}"
        if part == "__bases__":
            if changed.__module__ != event.caller.f_globals.get("__name__"):
                yield _at(event.caller, f"replaced the bases of {name}", FindingKind.UNMEASURED)
            return
        file = changed.__code__.co_filename
        if not from_library(file):
            return
        self.changed_functions.append((changed, part, getattr(changed, part)))
        is_ours = file.startswith(self._own_folders)
        kind = FindingKind.FORGED if is_ours else FindingKind.UNMEASURED
        yield _at(event.caller, f"replaced the code of {name}", kind)

    def _judge_import(self, event: AuditEvent) -> Iterator[WatchFinding]:
        name = str(event.args[0])
        if _is_private(name) or name in LEADING_MODULES:
            yield _at(event.caller, f"imported {name}")

    def _judge_code(self, event: AuditEvent) -> Iterator[WatchFinding]:
        """Yield a finding for code with the name of a library's file: what it does is not reported.

        Python itself compiles parts of such a file where it prints a traceback: these do not count.
        """
        source, name = event.args[0], event.args[1]
        # A name of a class of the student's own says what it likes when it is asked.
        if type(name) is str and not from_library(name):
            return
        is_students = "compile" in event.caller.f_code.co_names or event.name != "compile"
        if is_students or not _is_part_of_file(source, name):
            yield _at(event.caller, "compiled code under the name of a library's file")

    def _judge_exec(self, event: AuditEvent) -> Iterator[WatchFinding]:
        if not from_library(event.args[0].co_filename):
            yield from _findings_in(event.args[0])

    def _judge_state(self, event: AuditEvent) -> Iterator[WatchFinding]:
        """Yield a finding where other code than ours asks for the state of a probe's object.

        A library may ask for somebody, as a pool of threads does.
        """
        asking = _first_frame_outside(event.caller, BESIDE_RECORDERS.__contains__)
        if asking is None or self._is_graders(asking.f_code.co_filename):
            return
        what = "asked for what a probe has recorded"
        if from_library(asking.f_code.co_filename):
            library = asking.f_globals.get("__name__")
            yield make_finding(FindingKind.REPORTED, f"{what}, by `{library}`", "", None)
        else:
            yield _at(asking, what)

    def _judge_hook(self, event: AuditEvent) -> Iterator[WatchFinding]:
        """Yield a finding where other code than torch's calls a probe's hook."""
        calling = _first_frame_outside(event.caller, self._is_graders)
        if calling is not None and not from_library(calling.f_code.co_filename):
            what = "called a hook by which a probe records, which only torch should call"
            yield _at(calling, what)

    def _is_graders(self, file: str) -> bool:
        return file.startswith(self._own_folders)


_JUDGES: Final[dict[str, Callable[..., Iterator[WatchFinding]]]] = {
    **dict.fromkeys(EVENTS, Reports._judge_question),
    "sys._getframe": Reports._judge_frame,
    "object.__getattr__": Reports._judge_frame,
    "object.__setattr__": Reports._judge_change,
    "import": Reports._judge_import,
    "compile": Reports._judge_code,
    "code.__new__": Reports._judge_code,
    "exec": Reports._judge_exec,
    watching.KEPT: Reports._judge_state,
    watching.HOOK: Reports._judge_hook,
}


def _frame_that_wants(wanted: str, frame: FrameType | None) -> FrameType | None:
    """This frame, or the first above it that wants a module or a function of ctypes for itself.

    Passed over are frames that import for somebody, and those of the package that is wanted, unless
    that is ours. Returns None if all are passed over. `wanted` is the name of the module or event.
    """
    package = wanted.partition(".")[0]
    while frame is not None:
        file = frame.f_code.co_filename
        is_importing = file == importlib.__file__ or file.startswith(IMPORTING)
        home = str(frame.f_globals.get("__name__")).partition(".")[0]
        is_of_package = home == package and home not in OWN_PACKAGES and from_library(file)
        if not is_importing and not is_of_package:
            break
        frame = frame.f_back
    return frame


def _is_part_of_file(source: Any, file: Any) -> bool:
    """True if a text stands, as it is, in a file with Python code."""
    if type(source) is not bytes or type(file) is not str or not file.endswith(".py"):
        return False
    try:
        with open(file, "rb") as lines:
            return source in lines.read()
    except OSError:
        return False


def _first_frame_outside(frame: FrameType, is_inside: Callable[[str], bool]) -> FrameType | None:
    """This frame, or the first above it, whose file is not inside. None where there is none."""
    above: FrameType | None = frame
    while above is not None and is_inside(above.f_code.co_filename):
        above = above.f_back
    return above


def _at(frame: FrameType, what: str, kind: FindingKind = FindingKind.REPORTED) -> WatchFinding:
    return make_finding(kind, what, frame.f_code.co_filename, frame.f_lineno)


def _findings_in(code: CodeType) -> Iterator[WatchFinding]:
    """Yield what a code object, and those inside of it, name that leads to the grader.

    A name that leads to the variables of a function counts after something imported, as in
    `torch.manual_seed.__globals__`: those of a student's own functions are the student's.
    """
    if not any(map(_where_leads, names_mentioned_in(code))):
        return
    for name in find_names(code):
        where = _where_leads(name.text)
        if where and (name.text not in TO_VARIABLES or name.follows_import):
            what = f"names `{name.text}`, which leads to {where}"
            yield make_finding(FindingKind.REPORTED, what, code.co_filename, name.line)


def _where_leads(name: str) -> str:
    """What a name leads to. Empty for an ordinary one."""
    if name in TO_VARIABLES:
        return "the variables of a function"
    if name in OF_LINE_COUNTS:
        return "the count of executed lines"
    if name in HIDDEN_IN_TENSORS:
        return "the inside of a tensor on the virtual device"
    if _is_private(name) and name in sys.modules:
        return "the grader's own modules"
    return ""


def _is_private(module: str) -> bool:
    """True for the name of a module of ours that students have no need to import."""
    return module.partition(".")[0] in OWN_PACKAGES and module not in PUBLIC_MODULES


def folders_of(packages: tuple[str, ...]) -> tuple[str, ...]:
    """The folders of some loaded packages, each with a separator at its end, and as real paths.

    Raises KeyError for a package that is not loaded.
    """
    folders = []
    for name in packages:
        for folder in sys.modules[name].__path__:
            folders.append(os.path.join(os.path.realpath(folder), ""))
            folders.append(os.path.join(folder, ""))
    return tuple(folders)
