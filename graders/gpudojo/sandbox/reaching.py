"""Reports when student code in a child reaches for the grader: an audit hook, and a look at the names its code uses.

Nothing can be hidden inside one Python process. What leads to the grader's objects is therefore made visible: it is
told at once, in a message that cannot be taken back. Honest libraries do much of the same; what counts is who asked:
code of a file that is not a library's, or a library that was given the function to call.
"""

from __future__ import annotations

import _lsprof
import builtins
import contextlib
import cProfile
import ctypes
import dis
import functools
import gc
import importlib
import os
import sys
import threading
from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.reduction import ForkingPickler
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    ModuleType,
)
from typing import Any, Final, NamedTuple

import torch
from virtual_cuda.hooks import CUDAGraph, Parameter, Tensor, from_library, operator_hooks

import gpudojo
from gpudojo.grading.limits import LATE
from gpudojo.grading.thread_tracing import IN_THREADS, trace_threads
from gpudojo.grading.watching import HOOK, KEPT
from gpudojo.model.catalogue import registered_days
from gpudojo.sandbox.integrity import IN_PYTHON
from gpudojo.sandbox.integrity import NAMES as COMPARED

Tell = Callable[[str, str, int | None], None]  # gets what was reached for, the file and the line

MOST: Final = 8  # reports from one child
PUBLIC: Final = frozenset(
    "gpudojo gpudojo.sprite_display gpudojo.notebook virtual_cuda virtual_cuda.errors virtual_cuda.ledger".split()
)
OWN: Final = frozenset(
    {
        "gpudojo",
        "virtual_cuda",
        *(each.package.partition(".")[0] for each in registered_days().values()),
    }
)
PLAIN: Final = (
    str,
    int,
    bool,
    float,
    type(None),
    list,
    dict,
    tuple,
    set,
    frozenset,
    GetSetDescriptorType,
    type,
)
STACK: Final = {
    "sys._getframe": "asked for a frame of the call stack (sys._getframe)",
    "sys._current_frames": "asked for the call stacks of all threads (sys._current_frames)",
    "sys._current_exceptions": "asked for the exceptions of all threads (sys._current_exceptions)",
}
TRACERS: Final = {
    "sys.settrace": "set or removed a tracer (sys.settrace)",
    "sys.setprofile": "set or removed a profiler (sys.setprofile)",
}
MEMORY: Final = {
    f"ctypes.{name}": "used Python's memory directly (ctypes)"
    for name in "dlopen dlsym dlsym/handle cdata cdata/buffer string_at wstring_at call_function PyObj_FromPtr".split()
}
DIRECT: Final = {
    "gc.get_objects": "asked Python for all living objects (gc.get_objects)",
    "gc.get_referrers": "asked Python what refers to an object (gc.get_referrers)",
    "gc.get_referents": "asked Python what an object refers to (gc.get_referents)",
    "sys.monitoring.register_callback": "set a monitoring callback (sys.monitoring)",
    "sys.addaudithook": "added an audit hook (sys.addaudithook)",
    "code.__new__": "made a code object by hand",
    "marshal.loads": "loaded a code object from bytes (marshal.loads)",
    "cpython.PyInterpreterState_New": "started another Python in this process, which is not watched",
    **STACK,
    **TRACERS,
    **MEMORY,
}
FRAMES: Final = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
VARIABLES: Final = ("__globals__", "__closure__")
MEMBERS: Final = (*VARIABLES, "__builtins__")
PARTS: Final = frozenset({"__code__", "__defaults__", "__kwdefaults__", "__class__", "__bases__"})
WATCHED: Final = frozenset(
    {
        *DIRECT,
        *f"object.__getattr__ object.__setattr__ exec function.__new__ compile import open {KEPT} {HOOK}".split(),
    }
)
GIVING: Final = frozenset(
    {"walk_stack", "walk_tb", "getinnerframes", "get_stack", "<lambda>"}
)  # functions that hand out frames
FILES: Final = frozenset(
    "pathlib codecs tokenize linecache inspect shutil fileinput pkgutil mmap ast os".split()
)
# Attributes and modules that lead from an object that code holds to what it was not given, without an audit event.
_FRAME, _FUNCTION, _MEMORY = (
    "the variables and callers of a frame",
    "the variables of a function",
    "Python's memory",
)
OF_FUNCTIONS: Final = (*VARIABLES, "cell_contents", "getclosurevars")
NAMES: Final = {
    **dict.fromkeys(
        ("f_back", "f_locals", "f_globals", "f_builtins", "f_trace", "set_eval_frame"), _FRAME
    ),
    **dict.fromkeys(OF_FUNCTIONS, _FUNCTION),
    **dict.fromkeys(
        ("ctypes", "_ctypes", "pythonapi", "memmove", "stride_tricks.as_strided"), _MEMORY
    ),
    **dict.fromkeys(
        ("__array_interface__", "__array_struct__", "_construct_storage_from_data_pointer"), _MEMORY
    ),
    **dict.fromkeys(
        ("_new_with_weak_ptr", "_weak_ref", "TensorBase", "StorageBase"), "torch's own memory"
    ),
    **dict.fromkeys(
        ("_inner", "_block", "object.__getstate__"), "the inside of a tensor on the virtual device"
    ),
}
OF_ARRAYS: Final = frozenset({"data", "shape", "strides"})  # attributes of `array.ctypes`
READ: Final = frozenset(
    {"__array_interface__", "__array_struct__"}
)  # lead there only where they are defined
TESTING: Final = frozenset(
    "_testcapi _testinternalcapi _testlimitedcapi _testbuffer _ctypes_test greenlet greenlet._greenlet".split()
)  # of Python, and what leads from one stack to another
POINTERS: Final = ("_new_with_weak_ptr", "_weak_ref", "_set_cdata")  # of a storage, by its address
TORCHS: Final = frozenset({"aten", "prims", "prim", "_"})  # namespaces of operators
_ROOT: Final = os.path.join(
    os.path.dirname(os.path.dirname(os.path.realpath(gpudojo.__file__))), ""
)
_ROOTS: Final = tuple(
    os.path.join(_ROOT, *name.split("."), "") for name in ("gpudojo", "virtual_cuda")
)  # and days of other packages, which `_Files.ours` adds


class Reaching(NamedTuple):
    """What a child needs of the hook."""

    tell_to: Callable[[Tell], None]  # from now on; what was reached for before is not told
    remove_tracers: Callable[[], None]  # that student code has left in place
    rewritten: list[str]  # functions of ours that were given other code or defaults
    memory: list[str]  # what says that code which is not ours uses memory directly


# Functions of `inspect` that look for the source or docstring of what they are given, and hand out no more than that.
LOOKING_UP: Final = frozenset({"findsource", "_findclass", "_finddoc"})
READING: Final = frozenset({"open", "read_text", "read_bytes", "FileIO"})
COMPILING: Final = frozenset({"compile", "exec", "eval", "ast", "parse", "codeop"})


def install(inside: Iterable[str] = ()) -> Reaching:
    """Add the audit hook to this process and those that are forked from it.

    Each thing is told once, with the first line that did it. What the hook uses is bound here: student code may
    replace names of modules. `inside`: the names of what a tensor on the virtual device has inside.
    """
    files, told, tellers = _ReachedFiles(), set[str](), list[tuple[int, Tell]]()
    rewritten, memory = list[str](), list[str]()
    busy, looking = (
        set[int](),
        set[int](),
    )  # threads in the hook, whose own questions raise events too
    frame_at, thread, own_number, watched = sys._getframe, get_ident, os.getpid, WATCHED
    attributes, own_names = FRAMES | PARTS | {*MEMBERS}, globals()
    scan, judge, base, direct = _named, _reached, os.path.basename, DIRECT
    to_memory, device_tensor, members, lists = _MEMORY, Tensor, MEMBERS, _lists_members
    parts, function_type, in_memory = PARTS - {"__class__"}, FunctionType, MEMORY

    def report(what: str, frame: FrameType | None, file: str = "", line: int | None = None) -> None:
        while frame is not None and not file:
            name = frame.f_code.co_filename
            if files.students(name) and not name.startswith("<"):
                file, line = name, frame.f_lineno
            frame = frame.f_back
        if what not in told and len(told) < MOST and tellers and tellers[0][0] == own_number():
            tellers[0][1](what, base(file), line)
            told.add(what)  # not before: at the end of the stack, telling fails

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if (
            event not in watched
            or (event == "object.__getattr__" and args[1] not in attributes)
            or not tellers
        ):
            return
        me = thread()
        if me in busy:
            return
        busy.add(me)
        refused = False
        try:
            try:
                frame = frame_at(1)
            except (
                ValueError
            ):  # no Python code: a thread that runs a function of C, or whose error is printed
                if event not in ("open", "compile"):
                    report(
                        direct.get(event, f"had a thread do something without code ({event})"), None
                    )
                return
            if (
                me in looking
            ):  # at something of the student's, and a method of that may have been called
                if event in direct and frame.f_globals is not own_names:
                    report(direct[event], frame)
                return
            if event in direct and files.ours(
                frame.f_code.co_filename
            ):  # by far the most: lines of the ledger
                return
            looking.add(me)
            busy.discard(me)
            if event == "exec" or event == "function.__new__":
                name = _text(args[0].co_filename)
                if event == "exec" and _debugs_ours(frame, files):
                    rewritten.append("variables, in a debugger,")
                if files.students(name) and not (name.startswith("<") and _makes_code(frame)):
                    for what, line in scan(args[0]):
                        if what.endswith(to_memory) and not memory:
                            memory.append(what)
                        report(
                            what,
                            frame if name.startswith("<") else None,
                            name.partition("<")[0],
                            line,
                        )
                return
            if event in in_memory and not memory:
                memory.append(event)
            inside = (
                event == "object.__setattr__"
                and args[1] in parts
                and type(args[0]) is function_type
            )
            if inside and files.ours(args[0].__code__.co_filename):
                rewritten.append(f"{args[0].__module__}.{args[0].__qualname__}")
            if (
                event == "object.__setattr__"
                and args[1] == "__bases__"
                and issubclass(args[0], device_tensor)
            ):
                rewritten.append("the bases of a class of tensors")
            what = judge(event, args, frame, files)
            if what:
                report(what, frame)
            else:
                refused = (
                    event == "object.__getattr__"
                    and args[1] in members
                    and lists(args, frame, files)
                )
        except (RecursionError, MemoryError):  # what raised the event fails with it
            raise
        except Exception as error:  # an argument that is not what Python documents
            report(
                f"did something that could not be looked at ({event}: {type(error).__name__})", None
            )
        finally:
            if me in busy:
                busy.discard(me)
            else:
                looking.discard(me)
        if refused:
            raise AttributeError(f"'function' object has no attribute '{args[1]}'")

    def tell_to(tell: Tell) -> None:
        tellers[:] = [(own_number(), tell)]

    getters = [
        ("a tracer", sys.gettrace, sys.settrace),
        ("a profiler", sys.getprofile, sys.setprofile),
    ]
    getters += [
        (f"{what} for threads", getattr(threading, get.__name__), getattr(threading, put.__name__))
        for what, get, put in getters
    ]
    profiler = _lsprof.Profiler
    compiler = torch._C._dynamo.eval_frame.get_eval_frame_callback

    # Functions in these are called by Python or torch while the grader's code runs.
    hooks: list[tuple[str, Any]] = [
        ("a callback of the garbage collector", gc.callbacks),
        ("a hook for all operators of the virtual device", operator_hooks),
    ]
    for owner in map(sys.modules.get, ("torch.nn.modules.module", "torch.optim.optimizer")):
        named = ((name, table) for name, table in vars(owner).items() if name.startswith("_global"))
        hooks += [
            ("a hook for all modules or optimizers", table)
            for _, table in named
            if hasattr(table, "clear")
        ]

    dispatch = vars(Tensor)["__torch_dispatch__"]
    identity, ours = (
        object.__hash__,
        dict[int, Any](),
    )  # hooks of ours, which stay for as long as a device is open

    def remove_tracers() -> None:
        now = vars(Tensor)["__torch_dispatch__"]
        if now is not dispatch:
            code = _code_of(now)
            Tensor.__torch_dispatch__ = dispatch  # type: ignore[method-assign]
            report(
                "replaced how the virtual device computes", None, code.co_filename if code else ""
            )
        for what, held in hooks:
            for one in list(held) if held else ():
                function = one if isinstance(held, list) else held[one]
                if ours.get(identity(function)) is function:
                    continue
                code = _code_of(function)
                if code is not None and files.ours(code.co_filename):
                    ours[identity(function)] = function
                elif code is not None and files.students(code.co_filename):
                    report(f"left {what} in place", None, code.co_filename, code.co_firstlineno)
                    held.remove(one) if isinstance(held, list) else held.pop(one)
        if compiler():  # None or False where nothing is being compiled
            torch._C._dynamo.eval_frame.set_eval_frame(None)
            report("left a callback of torch's compiler in place, which gets every frame", None)
        for what, get, put in getters:
            function = get()
            if function is None:
                continue
            code = _code_of(function)
            if code is None or not files.ours(code.co_filename):
                put(None)
                if not isinstance(
                    function, profiler
                ):  # cProfile, which runs nothing of the student's
                    report(f"left {what} in place", None, code.co_filename if code else "")

    signals: Any = importlib.import_module("_signal")  # which the module `signal` uses
    signals.signal = _without_frames(signals.signal, files)
    storages = gc.get_referents(vars(torch._C.StorageBase))[0]
    for held, name in (
        (vars(torch._C), "_construct_storage_from_data_pointer"),
        *((storages, n) for n in POINTERS),
    ):
        held[name] = _telling(held[name], f"used torch's own memory ({name})", files, report)
    _hide_in(type, "__subclasses__", _telling_subclasses(type.__subclasses__, files, report))
    importlib.reload = _without_reloading(importlib.reload)
    torch._C._dispatch_library = _telling_library(torch._C._dispatch_library, files, rewritten)
    for name in ("enable", "disable"):
        setattr(cProfile.Profile, name, _by_cprofile(getattr(_lsprof.Profiler, name)))
    separate_builtins()  # before their variables are audited: it asks every function for them
    sys.addaudithook(hook)
    _audit_variables()
    _hide_inside(files, frozenset(inside))
    _guard_modules(files, report)
    trace_threads()
    reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for device_class in {
        Tensor,
        Parameter,
    } & reducers.keys():  # for other processes, which get the values
        original = reducers[device_class]
        reducers[device_class] = _telling(
            original, "shared the memory of a tensor on the device", files, report, True
        )
    return Reaching(tell_to, remove_tracers, rewritten, memory)


def _code_of(function: Any) -> CodeType | None:
    """The code that runs when this is called; None where it is not Python's."""
    for name in ("func", "__func__", "__call__", "__func__"):  # of a partial, a method, an object
        function = (
            function if isinstance(function, FunctionType) else getattr(function, name, function)
        )
    return getattr(function, "__code__", None)


def _without_frames(original: Any, files: _ReachedFiles) -> Any:
    """`signal.signal`, but handlers of student code get no frame."""

    def signal(number: Any, handler: Any) -> Any:
        code = _code_of(handler) if callable(handler) else None
        if code is not None and files.students(code.co_filename):
            return original(number, lambda number, frame: handler(number, None))
        return original(number, handler)

    return signal


def _telling(
    original: Any,
    what: str,
    files: _ReachedFiles,
    report: Callable[..., None],
    by_library: bool = False,
) -> Any:
    """A function, or a method of C, that tells when student code calls it, or has a library call it."""
    of_class = isinstance(original, ClassMethodDescriptorType)

    def call(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if by_library or files.students(frame.f_code.co_filename):
            report(what, frame)
        if of_class:
            return original.__get__(None, args[0])(*args[1:], **kwargs)
        return original(*args, **kwargs)

    return classmethod(call) if of_class else call


def _telling_subclasses(original: Any, files: _ReachedFiles, report: Callable[..., None]) -> Any:
    """`type.__subclasses__`, which tells when student code asks for those of a class that is not its own."""

    def subclasses(cls: type) -> list[type]:
        """Return a list of immediate subclasses."""
        frame = sys._getframe(1)
        # A library that names them uses them itself, and so does a check of an abstract class.
        named = "__subclasses__" in frame.f_code.co_names or _module(frame) == "abc"
        asked = files.students(frame.f_code.co_filename) or (not named and _above(frame, files))
        if asked and _not_students(cls, files):
            report("asked for all classes that are derived from one that is not its own", frame)
        found: list[type] = original(cls)
        return found

    return subclasses


def _without_reloading(original: Any) -> Any:
    """`importlib.reload`, but modules that probes use stay as they are: another copy of their functions is no gain."""
    kept = {"torch", "numpy", "msgspec", *IN_PYTHON, *(module.__name__ for module in COMPARED)}

    def reload(module: ModuleType) -> ModuleType:
        """Reload the module and return it."""
        if isinstance(module, ModuleType) and module.__name__.partition(".")[0] in kept:
            return module
        reloaded: ModuleType = original(module)
        return reloaded

    return reload


def _hide_in(kind: type, name: str, value: Any) -> None:
    """Put something into a class of C."""
    gc.get_referents(vars(kind))[0][name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _telling_library(original: Any, files: _ReachedFiles, rewritten: list[str]) -> Any:
    """`torch._C._dispatch_library`, by which all operators are registered; notes that student code replaces torch's."""

    def dispatch_library(kind: str, namespace: str, *rest: Any) -> Any:
        frame = sys._getframe(1)
        asked = files.students(frame.f_code.co_filename) or _asked(
            frame, files, "torch.library", "torch._library"
        )
        if asked and _text(namespace) in TORCHS:
            rewritten.append(f"the operators of torch (torch.library, {_text(namespace)})")
        return original(kind, namespace, *rest)

    return dispatch_library


MEMBER_AT: Final = 40  # bytes into the descriptor of a member: where its definition is
FLAGS_AT: Final = 24  # bytes into that
AUDITED: Final = 2  # the flag for which Python raises an event whenever the member is read


def _audit_variables() -> None:
    """Have Python raise an event for `function.__globals__` and the like, as it does for `__code__`.

    So they are noticed by whatever name, and whoever asks. Where the definition is not where it is expected, nothing
    is done: names that are written in code are still found.
    """
    for name in MEMBERS:
        if (member := _definition(name)) is not None:
            ctypes.c_int.from_address(member + FLAGS_AT).value |= AUDITED


def _definition(name: str) -> int | None:
    """Where Python's memory has the definition of this member of a function; None where it is not as expected."""
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 14):
        return None
    member = ctypes.c_void_p.from_address(id(vars(FunctionType)[name]) + MEMBER_AT).value or 0
    return member if ctypes.c_char_p.from_address(member).value == name.encode() else None


@functools.cache
def _audited() -> bool:
    """Whether Python raises an event for the variables of a function; then there is no need to look for their names."""
    return all(_definition(name) is not None for name in VARIABLES)


OFFSET_AT: Final = 16  # bytes into the definition of a member: where the member is in an object


def separate_builtins(frozen: Iterable[FunctionType] = ()) -> None:
    """Give our functions builtins of their own: what code puts into Python's, such as `__import__`, is not called.

    It would be told the variables of our modules, or what is inside of a tensor, also if it is there for a moment.
    Functions that `gc.freeze` has hidden are to be given, unless they have been separated before.
    """
    definition, pythons = _definition("__builtins__"), vars(builtins)
    if definition is None:
        return
    offset = ctypes.c_ssize_t.from_address(definition + OFFSET_AT).value
    function: Any = separate_builtins
    own: dict[str, Any] = function.__builtins__
    if own is pythons:  # called for the first time
        own = {
            name: value for name, value in pythons.items() if name != "_"
        }  # which is an interactive session's
    known: dict[
        int, bool
    ] = {}  # by the identity of variables: whether they are those of a module of ours
    for thing in [*frozen, *(thing for thing in gc.get_objects() if type(thing) is FunctionType)]:
        variables = thing.__globals__
        ours = known.get(id(variables))
        if ours is None:
            ours = known[id(variables)] = _text(variables.get("__name__")).partition(".")[0] in OWN
        if ours:
            held = ctypes.c_void_p.from_address(id(thing) + offset)
            if held.value == id(pythons):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(own))
                held.value = id(own)
    for name, module in list(sys.modules.items()):  # for functions that they make later
        if name.partition(".")[0] in OWN and name not in PUBLIC:
            vars(module)["__builtins__"] = own


def _hide_inside(files: _ReachedFiles, inside: frozenset[str]) -> None:
    """Leave what a tensor, storage or graph has inside out of its `__dict__`, by whatever way student code asks."""
    if sys.implementation.name == "cpython":
        for kind in (torch.Tensor, torch.UntypedStorage, CUDAGraph):
            _hide_attributes(kind, files, inside)
    base = gc.get_referents(vars(torch._C.TensorBase))[0]
    base["_make_subclass"] = staticmethod(_not_on_device(base["_make_subclass"].__func__, 0))
    base["as_subclass"] = _not_on_device(base["as_subclass"], 1)
    base["_make_wrapper_subclass"] = staticmethod(
        _not_on_device(base["_make_wrapper_subclass"].__func__, 0)
    )
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(torch._C.TensorBase))


def _hide_attributes(kind: Any, files: _ReachedFiles, inside: frozenset[str]) -> None:
    held = gc.get_referents(vars(kind))[0]
    attributes, frame_at = held["__dict__"], sys._getframe
    exchange = (
        torch.utils.swap_tensors.__code__.co_consts
    )  # which exchanges the attributes of two tensors

    def shown(self: Any) -> dict[str, Any]:
        found: dict[str, Any] = attributes.__get__(self)
        if inside.isdisjoint(found):
            return found
        code = frame_at(1).f_code
        if files.ours(code.co_filename) or any(code is each for each in exchange):
            return found
        return {name: value for name, value in found.items() if name not in inside}

    def state(self: Any) -> Any:
        found: dict[str, Any] = attributes.__get__(self)
        if inside.isdisjoint(found):
            return object.__getstate__(self)
        return {name: value for name, value in found.items() if name not in inside} or None

    held["__dict__"], held["__getstate__"] = property(shown, attributes.__set__), state
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _not_on_device(original: Any, place: int) -> Any:
    """A function of torch's that makes a tensor of a given class; not of the virtual device's, without an inside.

    An error about what is missing in such a tensor would say its name.
    """

    def make(*args: Any, **kwargs: Any) -> Any:
        if isinstance(cls := args[place], type) and issubclass(cls, Tensor):
            raise TypeError(f"a {cls.__name__} on the device cannot be made in this way")
        return original(*args, **kwargs)

    return make


def _guard_modules(files: _ReachedFiles, report: Callable[..., None]) -> None:
    """Put a stand-in where each private module of ours can be found by name; who reads or sets a name in it is told.

    Our own code goes on with the modules themselves. Classes are given to anyone: pickle looks them up by name.
    """
    real: dict[int, ModuleType] = {}
    looks_up = LOOKING_UP
    frame_at, identity, get, put, kind = sys._getframe, id, getattr, setattr, type

    def students(frame: FrameType) -> bool:
        through = ("inspect", "pkgutil", "importlib")
        return files.students(frame.f_code.co_filename) or (
            _module(frame) in through and _asked(frame, files, *through)
        )

    class Guarded(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            module = real[identity(self)]
            value = get(module, name)
            special = name.startswith("__") and name not in ("__dict__", "__builtins__")
            if (
                special
                or isinstance(value, kind)
                or identity(value) in real
                or not students(frame_at(1))
            ):
                return value
            code = frame_at(1).f_code
            if code.co_name not in looks_up or files.students(code.co_filename):
                report(f"read `{name}` of the grader's module {module.__name__}", frame_at(1))
            elif name == "__dict__":
                return {
                    n: v
                    for n, v in value.items()
                    if n in ("__name__", "__file__", "__loader__", "__spec__")
                }
            else:
                raise AttributeError(name)
            return value

        def __setattr__(self, name: str, value: Any) -> None:
            module = real[identity(self)]
            if students(frame_at(1)):
                report(f"set `{name}` in the grader's module {module.__name__}", frame_at(1))
            put(module, name, value)

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in OWN and name not in PUBLIC and "." in name:
            stand_in = sys.modules[name] = Guarded(name)
            real[id(stand_in)] = module
            parent, _, last = name.rpartition(".")
            above = real.get(id(sys.modules[parent]), sys.modules[parent])
            if vars(above).get(last) is module:
                vars(above)[last] = stand_in


def _by_cprofile(method: Any) -> Any:
    """The same method of C, called from here: Python reports its caller as one who sets a profiler."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs)

    return call


def _text(value: Any) -> str:
    """A text as a plain str, made by none of the methods of its class; empty for anything else."""
    return str.__str__(value) if issubclass(type(value), str) else ""


class _ReachedFiles:
    """Tells students' files from libraries' and from ours."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {
            IN_THREADS: True
        }  # where a function of C may be all that runs
        self._ours: dict[str, bool] = {}
        days = (
            sys.modules[each.package].__path__
            for each in registered_days().values()
            if each.package in sys.modules
        )
        self._roots = (
            *_ROOTS,
            *(os.path.join(os.path.realpath(path), "") for paths in days for path in paths),
        )
        # Of all modules that are loaded, by their folders: each child would resolve the path of every file.
        folder = functools.cache(os.path.realpath)
        for module in list(sys.modules.values()):
            if type(file := getattr(module, "__dict__", {}).get("__file__")) is str:
                self._ours[file] = os.path.join(folder(os.path.dirname(file)), "").startswith(
                    self._roots
                )
                self.students(file)

    def students(self, filename: str) -> bool:
        filename = filename if type(filename) is str else _text(filename)
        known = self._known.get(filename)
        if known is None:
            try:
                known = not from_library(filename) and not self.ours(filename)
            except (OSError, ValueError):  # a name that cannot be looked up is no library's
                known = True
            self._known[filename] = known
        return known

    def ours(self, filename: str) -> bool:
        filename = filename if type(filename) is str else _text(filename)
        known = self._ours.get(filename)
        if known is None:
            known = self._ours[filename] = os.path.realpath(filename).startswith(self._roots)
        return known


def _reached(event: str, args: tuple[Any, ...], frame: FrameType, files: _ReachedFiles) -> str:
    """What code in this frame reached for on the student's behalf; empty where it did not."""
    if event == KEPT:
        names = frame.f_globals  # which, unlike the code of a frame, raise no event
        while frame.f_back is not None and frame.f_globals is names:
            frame = frame.f_back
        return "" if files.ours(frame.f_code.co_filename) else "asked for what a probe has recorded"
    if event == HOOK:
        while frame.f_back is not None and files.ours(frame.f_code.co_filename):
            frame = frame.f_back
        # In a thread of autograd's own there is nothing above the hook.
        called = files.students(frame.f_code.co_filename)
        return (
            "called a hook by which a probe records, which only torch should call" if called else ""
        )
    code = frame.f_code
    students = files.students(code.co_filename)
    if event in DIRECT:
        asked = (
            not _tracer_ends(event, frame, files) if students else _for_student(event, frame, files)
        )
        return DIRECT[event] if asked else ""
    if event == "object.__getattr__" and args[1] in FRAMES:
        asked = students or (code.co_name in GIVING and _asked(frame, files, "inspect", "bdb"))
        return f"asked for a frame of the call stack ({args[1]})" if asked else ""
    if event == "object.__getattr__" and args[1] in MEMBERS:
        asked = students or (code.co_name == "getclosurevars" and _asked(frame, files, "inspect"))
        return (
            f"asked for the variables of a function ({args[1]})"
            if asked and _foreign(args[0], files)
            else ""
        )
    if event == "import":
        name = _text(args[0])
        internal = (name.partition(".")[0] in OWN and name not in PUBLIC) or name in TESTING
        # Not by a module of ours, which a student may import and which imports others.
        asked = students or (
            not files.ours(code.co_filename) and _asked(frame, files, "importlib", "_frozen")
        )
        return f"imported {name}" if internal and asked else ""
    if event == "open":
        path = os.fsdecode(args[0]) if type(args[0]) is bytes else _text(args[0])
        with contextlib.suppress(OSError, ValueError):  # no such path
            # Python itself reads sources to print a traceback.
            printed = (
                args[1] in ("r", "rb")
                and path.endswith(".py")
                and READING.isdisjoint(code.co_names)
            )
            if (
                path
                and not printed
                and files.ours(path)
                and (students or _asked(frame, files, *FILES))
            ):
                return f"opened a file of the grader ({os.path.basename(path)})"
        return ""
    if event == "object.__setattr__" and args[1] == "__bases__":
        # A library that names them, as `typing` does, changes a class that it makes.
        asked = students or ("__bases__" not in code.co_names and _above(frame, files))
        asked = asked and _not_students(args[0], files)
        return "changed the bases of a class that is not its own" if asked else ""
    if not students:
        return ""
    if event == "compile":
        if isinstance(args[0], bytes) and COMPILING.isdisjoint(code.co_names):
            return ""  # Python parses lines of a source itself to print a traceback
        library = type(args[1]) is not str or not files.students(args[1])
        return "compiled code under the name of a file that is not its own" if library else ""
    kinds = (
        (type(args[0]), *args[2:])
        if event == "object.__setattr__" and args[1] == "__class__"
        else ()
    )
    on_device = any(issubclass(kind, Tensor) for kind in kinds if isinstance(kind, type))
    if args[1] not in PARTS or not (on_device or _foreign(args[0], files)):
        return ""
    return f"{'changed' if event == 'object.__setattr__' else 'read'} `{args[1]}` of something that is not its own"


def _lists_members(args: tuple[Any, ...], frame: FrameType, files: _ReachedFiles) -> bool:
    """Whether a library asks for variables of a function on the student's behalf and goes on without them.

    `inspect.getmembers` asks for all attributes there are, and `typing.get_type_hints` for the variables in which it
    evaluates texts that student code may have put there. A library that names them otherwise uses them itself.
    """
    names, function = frame.f_code, args[0]
    ours = type(function) is FunctionType and files.ours(function.__code__.co_filename)
    if args[1] in names.co_consts:  # for `getattr`
        return ours and _above(frame, files)
    if args[1] in names.co_names:
        return False
    return _foreign(function, files) and _above(frame, files)


def _tracer_ends(event: str, frame: FrameType, files: _ReachedFiles) -> bool:
    """Whether Python itself removes a tracer in a student's frame, as it does when one ends by an exception.

    That is a debugger, or ours, which counts lines, where the time is up: the function then earns nothing.
    """
    if event != "sys.settrace" or "settrace" in frame.f_code.co_names:
        return False
    if (
        frame.f_code.co_code[max(frame.f_lasti, 0)] == dis.opmap["RESUME"]
    ):  # where no code of the student's is called
        return True
    by, ours = getattr(frame.f_trace, "__func__", None), _code_of(sys.gettrace()) if LATE else None
    return (by is not None and by.__module__ == "bdb") or (
        ours is not None and files.ours(ours.co_filename)
    )


def _for_student(event: str, frame: FrameType, files: _ReachedFiles) -> bool:
    """Whether a library, in this frame, raised the event only because student code had it do so."""
    code, module = frame.f_code, _module(frame)
    if files.ours(code.co_filename) or module in ("torch", "cProfile"):
        return False
    if event in MEMORY:
        return _asked(frame, files, "ctypes")
    if event in TRACERS and module == "threading":  # sets what was passed to it
        return True
    if (
        event in TRACERS and module == "bdb"
    ):  # which `pdb` uses; a debugger of the student's own is another matter
        return not _librarys_debugger(frame.f_locals.get("self"), files)
    if (
        event.rpartition(".")[2] not in code.co_names
    ):  # it was passed to a library, as the function to call
        return event != "marshal.loads" and event != "code.__new__" and _above(frame, files)
    return (
        event in STACK
        and (module == "inspect" or code.co_name in GIVING)
        and _asked(frame, files, "inspect")
    )


def _module(frame: FrameType) -> str:
    """The top-level name of the module whose code a frame runs."""
    return _text(frame.f_globals.get("__name__")).partition(".")[0]


def _owner(thing: Any) -> str:
    """The name of the module that an object's class is of."""
    return _text(vars(type)["__module__"].__get__(type(thing)))


def _librarys_debugger(debugger: Any, files: _ReachedFiles) -> bool:
    """Whether this is `pdb`, or another library's debugger, and no method of it is the student's."""
    bases = vars(type)["__mro__"].__get__(type(debugger))[:-1]
    held = [vars(type)["__dict__"].__get__(base) for base in bases]
    for value in (value for names in held for value in names.values()):
        function = (
            getattr(value, "__func__", None)
            if type(value) in (staticmethod, classmethod)
            else value
        )
        function = function.fget if type(function) is property else function
        if type(function) is FunctionType:
            plain = not files.students(function.__code__.co_filename)
        elif type(function) is BuiltinFunctionType:  # the handler of a signal
            plain = type(function.__self__) is ModuleType
        else:
            plain = type(function) in PLAIN
        if not plain:
            return False
    methods = {
        name for names in held for name, value in names.items() if type(value) is FunctionType
    }
    return _owner(debugger) != "bdb" and methods.isdisjoint(vars(debugger))


def _debugs_ours(frame: FrameType | None, files: _ReachedFiles) -> bool:
    """Whether a debugger, in this frame or one that called it, executes text where the grader's code runs."""
    while frame is not None and not files.students(frame.f_code.co_filename):
        if _module(frame) == "pdb":
            at = getattr(frame.f_locals.get("self"), "curframe", None)
            return type(at) is FrameType and files.ours(at.f_code.co_filename)
        frame = frame.f_back
    return False


def _makes_code(frame: FrameType) -> bool:
    """Whether a library, in this frame, executes text of its own making, and not what it was given."""
    pythons = {"site-packages", "dist-packages"}.isdisjoint(frame.f_code.co_filename.split(os.sep))
    return _module(frame) in ("dataclasses", "collections") or not pythons


def _asked(frame: FrameType, files: _ReachedFiles, *through: str) -> bool:
    """Whether a student's frame called the library in this one, directly or by way of these modules."""
    above = frame.f_back
    while above is not None and not files.students(above.f_code.co_filename):
        if not _text(above.f_globals.get("__name__")).startswith(through):
            return False
        above = above.f_back
    return above is not None


def _above(frame: FrameType, files: _ReachedFiles) -> bool:
    """Whether something of the student's is on the stack, or nothing of ours: then it is a thread of the student's."""
    above: FrameType | None = frame
    while above is not None:
        name = above.f_code.co_filename
        if files.students(name) or files.ours(name):
            return files.students(name)
        above = above.f_back
    return True


def _foreign(thing: Any, files: _ReachedFiles) -> bool:
    """Whether a function, module or object is ours, or a function a library's."""
    if type(thing) is FunctionType:
        return not files.students(thing.__code__.co_filename)
    module = issubclass(type(thing), ModuleType)
    name = (
        _text(vars(ModuleType)["__dict__"].__get__(thing).get("__name__"))
        if module
        else _owner(thing)
    )
    return name.partition(".")[0] in OWN


def _not_students(kind: Any, files: _ReachedFiles) -> bool:
    """Whether a class is ours or a library's: by its methods, or the module that it says it is of."""
    held = vars(type)["__dict__"].__get__(kind)
    if any(
        type(each) is FunctionType and not files.students(each.__code__.co_filename)
        for each in held.values()
    ):
        return True
    module = sys.modules.get(_text(vars(type)["__module__"].__get__(kind)))
    file = getattr(module, "__dict__", {}).get("__file__")
    return module is not None and (type(file) is not str or not files.students(file))


def _named(code: CodeType) -> Iterator[tuple[str, int | None]]:
    """What a code object, and those inside it, name that leads to the grader: in words, with the line."""
    if any(map(_leads, _texts((code.co_names, code.co_consts)))) or not TRIED.isdisjoint(
        code.co_names
    ):
        line: int | None = code.co_firstlineno
        before, imported = "", ""
        steps = [*dis.get_instructions(code)]
        for step, after in zip(steps, [*steps[1:], steps[-1]], strict=True):
            line = (
                step.starts_line
                if type(step.starts_line) is int
                else getattr(step, "line_number", None) or line
            )
            names = step.opname in _NAMING or (step.opname == "STORE_NAME" and step.argval in READ)
            for name in _texts([step.argval]) if names else ():
                owner = imported if step.opname == "IMPORT_FROM" else before
                whole = f"{owner}.{name}" if owner.partition(".")[0] in OWN else name
                # An attribute of a class of the student's.
                own = name in ("_inner", "_block") and (
                    before == "self" or "__slots__" in code.co_names
                )
                own = own or (name in READ and step.opname in ("LOAD_ATTR", "LOAD_METHOD"))
                # Of an array; the module has no such names.
                own = own or (
                    name == "ctypes" and step.opname == after.opname and after.argval in OF_ARRAYS
                )
                whole = pair if (pair := f"{owner.rpartition('.')[2]}.{name}") in NAMES else whole
                if not own and (
                    why := _leads(whole if whole in sys.modules or whole in NAMES else name)
                ):
                    yield f"names `{whole}`, which leads to {why}", line
            before = str(step.argval)
            imported = before if step.opname == "IMPORT_NAME" else imported
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _named(each)


TRIED: Final = OWN | {
    "as_strided",
    "__getstate__",
}  # what may lead there together with the name before it
_NAMING: Final = frozenset(
    "LOAD_ATTR LOAD_METHOD STORE_ATTR DELETE_ATTR IMPORT_NAME IMPORT_FROM LOAD_CONST KW_NAMES".split()
)


def _texts(values: Any) -> Iterator[str]:
    for value in values:
        if type(value) is str:
            yield value
        elif type(value) in (tuple, frozenset):
            yield from _texts(value)


def _leads(name: str) -> str:
    """What a name leads to; empty if it is an ordinary one."""
    if name in NAMES:
        return "" if name in OF_FUNCTIONS and _audited() else NAMES[name]
    first, dot, _ = name.partition(".")
    if not dot or first not in OWN or name in PUBLIC or not name.replace(".", "").isidentifier():
        return ""
    return "the grader's own modules"
