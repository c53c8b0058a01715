"""Imports of torch's own modules while the device is open, and how to do without some.

torch imports `torch._dynamo` with its first optimizer, checkpoint, profile or `torch.func.grad`,
sympy with the first backward pass that is given a gradient, and `torch.distributed.tensor` with the
first operation on a tensor subclass. Together they take longer than `import torch`, and only code
that uses them needs them. The functions of torch that would import them ask a stand-in instead,
until someone imports the real ones.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import operator
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import torch
import torch.utils.checkpoint

from virtual_cuda.device.tensor import VIRTUAL, make_shell
from virtual_cuda.internals import find_internal
from virtual_cuda.patching import (
    AppliedPatches,
    Opening,
    Patch,
    Replaced,
    around,
    patch,
    torch_patches,
)

DYNAMO: Final = "torch._dynamo"
DTENSOR: Final = "torch.distributed.tensor"


class _Loader(importlib.abc.Loader):
    """Loads one module inside a `with` block."""

    def __init__(
        self, loader: Any, around: Callable[[ModuleType], AbstractContextManager[None]]
    ) -> None:
        self.loader = loader
        self.around = around

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)  # `get_code`, to run the module as a script

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        with self.around(module):
            self.loader.exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Has the modules that it wants loaded inside `around`.

    The finders after it find them.
    """

    def wants(self, fullname: str) -> bool:
        raise NotImplementedError

    def around(self, module: ModuleType) -> AbstractContextManager[None]:
        raise NotImplementedError

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module that this finder wants; None for any other."""
        if not self.wants(fullname):
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self.around)
                return spec
        return None


@contextlib.contextmanager
def _found_by(finder: _Finder) -> Iterator[None]:
    """Put a finder before all others, for the length of a `with` block."""
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        # A program may have emptied the list; while the interpreter ends it is None.
        if finder in (sys.meta_path or ()):
            sys.meta_path.remove(finder)


# Where modules of torch ask, while they are imported, whether there is a device and what it can do.
# Not where they ask how torch was built: they import names then that this build of torch does not
# have.
_ASKED: Final = (torch.cuda, torch.accelerator, torch.version, torch.backends.cudnn)


def _answers(patch: Replaced) -> bool:
    """True if a patch answers questions about the device.

    Patched classes and all else are put aside during an import: torch keeps tables of them.
    """
    return any(patch.owner is home for home in _ASKED) and not isinstance(patch.put, type)


_pinning: Final = find_internal("torch.utils.data._utils.pin_memory")
# Not an attribute of the finder, which everyone finds in `sys.meta_path`.
_patches_of: Final[weakref.WeakKeyDictionary[_Finder, AppliedPatches]] = weakref.WeakKeyDictionary()


class OriginalImports(_Finder):
    """While the device is open, has torch's own modules run with most patches put aside.

    So is all that they import. What they learn about the device stays with them; functions of ours
    that they have imported by name do not.
    """

    def __init__(self, patches: AppliedPatches) -> None:
        _patches_of[self] = patches
        self.busy = False
        self.lock = threading.RLock()
        self.loaded: list[ModuleType] = []

    def wants(self, fullname: str) -> bool:
        return not self.busy and fullname.startswith("torch.")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch imports for the length of a `with` block.

        A DataLoader's thread that pins memory waits for them: an import puts the patches aside for
        all threads. Afterwards the modules imported meanwhile have torch's own functions.
        """
        pinning = around(_pinning, "pin_memory", self._call_after_imports)
        try:
            with contextlib.ExitStack() as undo, _found_by(self):
                patch([pinning], undo)
                yield
        finally:
            if self.loaded:
                self._close()
                self.loaded.clear()

    def _call_after_imports(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function while no import of a module of torch is under way."""
        with self.lock:
            return original(*args, **kwargs)

    @contextlib.contextmanager
    def around(self, module: ModuleType) -> Iterator[None]:
        """Put most patches aside for the length of a `with` block, and note what is loaded."""
        with self.lock:
            if self.busy:
                yield
                return
            self.busy = True
            before = set(sys.modules)
            try:
                with _patches_of[self].set_aside(_answers):
                    yield
            finally:
                self.busy = False
                names = [
                    name for name in sys.modules if name not in before and name.startswith("torch.")
                ]
                self.loaded += [module, *(sys.modules[name] for name in names)]

    def _close(self) -> None:
        """Give the modules that were imported meanwhile torch's own functions.

        They are those that the modules would have without the device.
        """
        first: dict[tuple[int, str], Any] = {}  # a function may be patched more than once
        for one in _patches_of[self].replaced:
            first.setdefault((id(one.owner), one.name), one.before)
        ours = [one for one in _patches_of[self].replaced if _answers(one) and callable(one.put)]
        originals = {id(one.put): first[id(one.owner), one.name] for one in reversed(ours)}
        for module in self.loaded:
            for name, value in list(vars(module).items()):
                if id(value) in originals and module not in _ASKED:
                    setattr(module, name, originals[id(value)])


class _Awaiting(_Finder):
    """Patches modules of torch as soon as they are imported."""

    def __init__(self, makers: dict[str, Callable[[ModuleType], Iterable[Patch]]]) -> None:
        self.makers, self.imported = makers, set[str]()
        self.undo = contextlib.ExitStack()

    def wants(self, fullname: str) -> bool:
        return fullname in self.makers and fullname not in self.imported

    @contextlib.contextmanager
    def around(self, module: ModuleType) -> Iterator[None]:
        self.imported.add(module.__name__)
        yield
        patch(self.makers[module.__name__](module), self.undo)


@contextlib.contextmanager
def _awaiting(opening: Opening) -> Iterator[None]:
    finder = _Awaiting(opening.awaited)
    with finder.undo, _found_by(finder):
        yield


def when_imported(
    opening: Opening, name: str, maker: Callable[[ModuleType], Iterable[Patch]]
) -> Iterable[Patch]:
    """The patches of a module, if that is imported already.

    If not, they are made and applied when it is.
    """
    if name in sys.modules:
        return maker(sys.modules[name])
    opening.awaited[name] = maker
    return ()


# ---- torch._dynamo -------------------------------------------------------------------------------

STAND_IN: Final = "_without_dynamo"  # the attribute of torch that stands for `torch._dynamo`
SHAPES: Final = "torch.fx.experimental.symbolic_shapes"
# Names in torch's code, and what they are while nobody uses dynamo. The profiler asks whether torch
# has `_inductor`, which is imported by that question.
_NAMES: Final = {DYNAMO: "torch", "_dynamo": STAND_IN, SHAPES: __name__}
_CONSTANTS: Final = {"_inductor": "_without_inductor"}
_HOMES: Final = (
    *("torch.optim.", "torch.utils.checkpoint", "torch.profiler.profiler"),
    *("torch.autograd", "torch._functorch.eager_transforms"),
)


def sym_eq(one: Any, other: Any) -> Any:
    """True if two shapes are equal.

    Where there are symbolic ones, torch's own function has been imported.
    """
    return getattr(sys.modules.get(SHAPES), "sym_eq", operator.eq)(one, other)


def expect_true(condition: Any) -> bool:
    """The condition, see `sym_eq`."""
    found: bool = getattr(sys.modules.get(SHAPES), "expect_true", bool)(condition)
    return found


class WithoutDynamo:
    """What torch asks of `torch._dynamo` where nothing is compiled.

    For anything else, that is imported.
    """

    class config:
        error_on_nested_fx_trace = (
            None  # a checkpoint notes it, and uses it only where dynamo traces
        )

    class compiled_autograd:
        _disable = contextlib.nullcontext  # around `torch.func.grad`

    def graph_break(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: there is no graph."""

    def disable(self, fn: Any = None, *args: Any, **kwargs: Any) -> Any:
        """The function itself, or a decorator that returns it: there is nothing to disable."""
        return (lambda function: function) if fn is None else fn

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(DYNAMO), name)


class _Asks(NamedTuple):
    """A function of torch that asks `torch._dynamo`."""

    function: FunctionType
    code: CodeType
    without: CodeType
    # What it calls with dynamo disabled; torch keeps an attribute there.
    disabled: FunctionType | None


@functools.cache
def _asking() -> list[_Asks]:
    """The functions of torch that ask `torch._dynamo`.

    They are in optimizers, checkpoints, autograd and the profiler; there are none in some releases.
    """
    homes = [module for name, module in sys.modules.items() if name.startswith(_HOMES)]
    values = {id(value): value for home in homes for value in vars(home).values()}.values()
    inside = [each for value in values if isinstance(value, type) for each in vars(value).values()]
    found: dict[int, FunctionType] = {}
    for function in (*values, *inside):
        while isinstance(function, FunctionType):
            code = function.__code__
            if not (
                _NAMES.keys().isdisjoint(code.co_names)
                and _CONSTANTS.keys().isdisjoint(_texts(code))
            ):
                found[id(function)] = function
            function = vars(function).get("__wrapped__")
    return [_asks(function) for function in found.values()]


def _asks(function: FunctionType) -> _Asks:
    code = function.__code__
    held = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    return _Asks(function, code, _without(code), held["fn"].cell_contents if "fn" in held else None)


def _without(code: CodeType) -> CodeType:
    """The code of a function with the names of `_NAMES` and `_CONSTANTS` exchanged."""
    constants = tuple(
        _CONSTANTS.get(each, each) if type(each) is str else each for each in code.co_consts
    )
    return code.replace(
        co_names=tuple(_NAMES.get(name, name) for name in code.co_names), co_consts=constants
    )


def _texts(code: CodeType) -> Iterator[str]:
    return (each for each in code.co_consts if type(each) is str)


class _DynamoImport(_Finder):
    """Makes torch ask `torch._dynamo` again as soon as that is imported."""

    def wants(self, fullname: str) -> bool:
        if fullname == DYNAMO:
            self.restore()
        return False

    def restore(self) -> None:
        for function, code, without, disabled in _asking():
            if function.__code__ is without:
                function.__code__ = code
                if disabled is not None and vars(disabled).get("__dynamo_disable") is disabled:
                    del vars(disabled)["__dynamo_disable"]


@contextlib.contextmanager
def few_imports() -> Iterator[None]:
    """Keep torch from importing what few programs need, for the length of a `with` block.

    Only compiled and distributed code needs it. Code of torch's functions is exchanged meanwhile,
    and `torch` has one more attribute.
    """
    _stand_in_for_dtensor()
    if DYNAMO in sys.modules or hasattr(torch, STAND_IN):
        yield
        return
    finder = _DynamoImport()
    setattr(torch, STAND_IN, WithoutDynamo())
    for function, _, without, _ in _asking():
        function.__code__ = without
    try:
        with _found_by(finder):
            yield
    finally:
        finder.restore()
        delattr(torch, STAND_IN)


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    opening.enter(few_imports)
    opening.enter(functools.partial(_awaiting, opening))
    yield from ()


# ---- torch.distributed.tensor --------------------------------------------------------------------


class _DTensorImport(_Finder):
    """Waits for the first import of DTensor, and makes `stand_in` a base of it.

    C++ then takes one for the other.
    """

    def __init__(self, stand_in: Any) -> None:
        self.stand_in = stand_in

    def wants(self, fullname: str) -> bool:
        return fullname == DTENSOR

    @contextlib.contextmanager
    def around(self, module: ModuleType) -> Iterator[None]:
        """Load the module; then stop waiting, and change the bases of its DTensor."""
        yield
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        real: Any = vars(module).get("DTensor")
        if isinstance(real, type) and self.stand_in not in real.__mro__:
            real.__bases__ = (*real.__bases__, self.stand_in)
            # C++ compares it with a subclass's.
            self.stand_in.__torch_dispatch__ = vars(real)["__torch_dispatch__"]


@functools.cache
def _stand_in_for_dtensor() -> None:
    """Let torch's C++ find a stand-in for DTensor that costs nothing to import.

    C++ looks for the class once per process, with the first operation on a tensor subclass.
    """
    if DTENSOR in sys.modules:
        return
    asked: list[type] = []

    def attribute(name: str) -> Any:
        if name != "DTensor":
            raise AttributeError(name)
        asked.append(type("DTensor", (), {"__module__": DTENSOR}))
        return asked[0]

    module = ModuleType(DTENSOR)
    module.__getattr__ = attribute  # type: ignore[method-assign]
    sys.modules[DTENSOR] = module
    try:
        _first_operation()
    finally:
        del sys.modules[DTENSOR]
    if asked:
        sys.meta_path.insert(0, _DTensorImport(asked[0]))


def _first_operation() -> None:
    """Run an operation on a tensor subclass.

    torch's C++ keeps what it asks before the first one of a process. That is also the function that
    looks for rules of a class, which takes longer than some operations, and there are none for the
    device's own.
    """

    class Subclass(torch.Tensor):
        @staticmethod
        def __torch_dispatch__(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
            return args[0]

    simple_registry = find_internal("torch._library.simple_registry", otherwise=None)
    original = getattr(simple_registry, "find_torch_dispatch_rule", None)
    with contextlib.ExitStack() as undo:
        if original is not None:
            rule = lambda op, kind: None if kind in VIRTUAL else original(op, kind)  # noqa: E731
            patch([(simple_registry, "find_torch_dispatch_rule", rule)], undo)
        torch.neg(make_shell(Subclass, (1,)))
