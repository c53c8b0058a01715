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
from collections.abc import Callable, Container, Iterable, Iterator
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
        self, loader: Any, context: Callable[[ModuleType], AbstractContextManager[None]]
    ) -> None:
        """Load as `loader` does; `context` makes the `with` block for a module."""
        self.loader = loader
        self.context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)  # `get_code`, to run the module as a script

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the code of a module inside the context, with its own loader in its place.

        Raises what the code of the module raises.
        """
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        with self.context(module):
            self.loader.exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Has the modules that it wants loaded inside the `with` block of `loading`.

    The finders after it find them.
    """

    def wants_module(self, fullname: str) -> bool:
        """True for the name of a module that shall be loaded so."""
        raise NotImplementedError

    def loading(self, module: ModuleType) -> AbstractContextManager[None]:
        """The `with` block in which a module is loaded."""
        raise NotImplementedError

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module that this finder wants; None for any other.

        The finders behind this one find it, and its loader is replaced by one that loads it inside
        of `loading`. Raises what they raise.
        """
        if not self.wants_module(fullname):
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self.loading)
                return spec
        return None


@contextlib.contextmanager
def _finder_in_front(finder: _Finder) -> Iterator[None]:
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


def _answers_question(patch: Replaced) -> bool:
    """True if a patch answers questions about the device.

    Patched classes and all else are put aside during an import: torch keeps tables of them.
    """
    if isinstance(patch.put, type):
        return False
    return any(patch.owner is module for module in _ASKED)


_pinning: Final = find_internal("torch.utils.data._utils.pin_memory")
# Not an attribute of the finder, which everyone finds in `sys.meta_path`.
_patches_of: Final[weakref.WeakKeyDictionary[_Finder, AppliedPatches]] = weakref.WeakKeyDictionary()


class OriginalImports(_Finder):
    """While the device is open, has torch's own modules run with most patches put aside.

    So is all that they import. What they learn about the device stays with them; functions of ours
    that they have imported by name do not. `torch.testing` is loaded like a program's own module.
    """

    def __init__(self, patches: AppliedPatches) -> None:
        """Make a finder that puts these patches aside during imports; it is not in use yet."""
        _patches_of[self] = patches
        self.is_importing = False
        self.lock = threading.RLock()
        self.imported: list[ModuleType] = []  # meanwhile

    def wants_module(self, fullname: str) -> bool:
        """True for modules of torch, but for `torch.testing`, unless one is being imported."""
        # Tests call the functions that `torch.testing` keeps in its tables, as programs call them.
        if self.is_importing or fullname.startswith("torch.testing."):
            return False
        return fullname.startswith("torch.")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch imports for the length of a `with` block.

        A DataLoader's thread that pins memory waits for them: an import puts the patches aside for
        all threads. Afterwards the modules imported meanwhile have torch's own functions.
        """
        pinning = around(_pinning, "pin_memory", self._call_after_imports)
        try:
            with contextlib.ExitStack() as undo, _finder_in_front(self):
                patch([pinning], undo)
                yield
        finally:
            if self.imported:
                self._restore_imported_names()
                self.imported.clear()

    def _call_after_imports(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function, the `original`, while no import of a module of torch is under way.

        It waits for such an import in another thread. Gives and raises what the function does.
        """
        with self.lock:
            return original(*args, **kwargs)

    @contextlib.contextmanager
    def loading(self, module: ModuleType) -> Iterator[None]:
        """Put most patches aside for the length of a `with` block, and note what is loaded.

        `module` is the one that is imported. Inside another import nothing is done.
        """
        with self.lock:
            if self.is_importing:
                yield
                return
            self.is_importing = True
            before = set(sys.modules)
            try:
                with _patches_of[self].set_aside(_answers_question):
                    yield
            finally:
                self.is_importing = False
                self.imported.append(module)
                for name, imported in list(sys.modules.items()):
                    if name not in before and name.startswith("torch."):
                        self.imported.append(imported)

    def _restore_imported_names(self) -> None:
        """Give the modules that were imported meanwhile torch's own functions.

        They are those that the modules would have without the device.
        """
        originals = _originals_of_answers(_patches_of[self])
        for module in self.imported:
            if module in _ASKED:
                continue
            for name, value in list(vars(module).items()):
                if id(value) in originals:
                    setattr(module, name, originals[id(value)])


def _originals_of_answers(patches: AppliedPatches) -> dict[int, Any]:
    """By the id of a function of ours that answers a question: torch's own function."""
    first_patches: dict[tuple[int, str], Replaced] = {}
    originals: dict[int, Any] = {}
    for one in patches.replaced:
        # A function may be patched more than once: the first patch knows torch's own.
        first = first_patches.setdefault(one.target, one)
        if _answers_question(one) and callable(one.put):
            originals.setdefault(id(one.put), first.before)
    return originals


class _PatchingFinder(_Finder):
    """Patches modules of torch as soon as they are imported."""

    def __init__(self, makers: dict[str, Callable[[ModuleType], Iterable[Patch]]]) -> None:
        self.makers = makers
        self.patched: set[str] = set()  # names of modules
        self.undo = contextlib.ExitStack()

    def wants_module(self, fullname: str) -> bool:
        return fullname in self.makers and fullname not in self.patched

    @contextlib.contextmanager
    def loading(self, module: ModuleType) -> Iterator[None]:
        """Load a module, and patch it; `undo` restores it."""
        self.patched.add(module.__name__)
        yield
        patch(self.makers[module.__name__](module), self.undo)


@contextlib.contextmanager
def _patch_on_import(opening: Opening) -> Iterator[None]:
    """Apply the patches of `patches_on_import`, for the length of a `with` block."""
    finder = _PatchingFinder(opening.awaited)
    with finder.undo, _finder_in_front(finder):
        yield


def patches_on_import(
    opening: Opening, name: str, maker: Callable[[ModuleType], Iterable[Patch]]
) -> Iterable[Patch]:
    """The patches of a module, if that is imported already.

    If not, there are none: `opening` is told to have `maker` make and apply them when it is.
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
_OTHER_NAMES: Final = {DYNAMO: "torch", "_dynamo": STAND_IN, SHAPES: __name__}
_OTHER_CONSTANTS: Final = {"_inductor": "_without_inductor"}
# Where functions are that ask: how the names of their modules begin.
_ASKING_MODULES: Final = (
    "torch.optim.",
    "torch.utils.checkpoint",
    "torch.profiler.profiler",
    "torch.autograd",
    "torch._functorch.eager_transforms",
    "torch._refs",  # the kernels of "meta"
)
_META_MODULE: Final = "torch._refs"
_IN_META: Final = (DYNAMO,)  # what is exchanged there: shapes are asked by more names than these


def sym_eq(one: Any, other: Any) -> Any:
    """True if two shapes are equal.

    Where there are symbolic ones, torch's own function has been imported.
    """
    torchs_own = getattr(sys.modules.get(SHAPES), "sym_eq", operator.eq)
    return torchs_own(one, other)


def expect_true(condition: Any) -> bool:
    """True if a condition holds; torch's own function judges it, if that has been imported."""
    torchs_own = getattr(sys.modules.get(SHAPES), "expect_true", bool)
    result: bool = torchs_own(condition)
    return result


class WithoutDynamo:
    """What torch asks of `torch._dynamo` where nothing is compiled.

    For anything else, that is imported.
    """

    class config:
        # A checkpoint notes it, and uses it only where dynamo traces.
        error_on_nested_fx_trace = None

    class compiled_autograd:
        _disable = contextlib.nullcontext  # around `torch.func.grad`

    def graph_break(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: there is no graph."""

    def disable(self, fn: Any = None, *args: Any, **kwargs: Any) -> Any:
        """The function itself, or a decorator that returns it: there is nothing to disable."""
        if fn is None:
            return lambda function: function
        return fn

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(DYNAMO), name)


class _AskingFunction(NamedTuple):
    """A function of torch that asks `torch._dynamo`."""

    function: FunctionType
    code: CodeType
    code_without_dynamo: CodeType
    # What it calls with dynamo disabled; torch keeps an attribute there.
    disabled: FunctionType | None


@functools.cache
def _asking_functions() -> list[_AskingFunction]:
    """The functions of torch that ask `torch._dynamo`; searched once.

    They are in optimizers, checkpoints, autograd, the profiler and the kernels of "meta"; there are
    none in some releases.
    """
    values: dict[int, Any] = {}  # by identity: a module has names of others, too
    for name, module in sys.modules.items():
        if name.startswith(_ASKING_MODULES):
            values.update((id(value), value) for value in vars(module).values())
    candidates = list(values.values())
    for value in values.values():
        if isinstance(value, type):
            candidates += vars(value).values()
    found: dict[int, FunctionType] = {}
    for candidate in candidates:
        function = candidate
        while isinstance(function, FunctionType):
            is_of_meta = str(function.__module__).startswith(_META_MODULE)
            if _asks_dynamo(function.__code__, names=_IN_META if is_of_meta else _OTHER_NAMES):
                found[id(function)] = function
            function = _wrapped_by(function)
    return [_asking_function(function) for function in found.values()]


def _wrapped_by(function: FunctionType) -> Any:
    """The function that a function of torch calls in a wrapper's place; None if there is none."""
    wrapped = _closure_of(function).get("fn")
    if isinstance(wrapped, FunctionType):
        return wrapped
    return vars(function).get("__wrapped__")


def _closure_of(function: FunctionType) -> dict[str, Any]:
    """The values of a function's free variables, by name; those without a value are left out."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            found[name] = cell.cell_contents
    return found


def _asks_dynamo(code: CodeType, names: Container[str]) -> bool:
    """True if code has one of these names, or of the texts that are exchanged."""
    if any(name in names for name in code.co_names):
        return True
    return any(type(value) is str and value in _OTHER_CONSTANTS for value in code.co_consts)


def _asking_function(function: FunctionType) -> _AskingFunction:
    """What there is to know of a function that asks `torch._dynamo`."""
    code = function.__code__
    disabled = _closure_of(function).get("fn")
    return _AskingFunction(function, code, _code_without_dynamo(code), disabled)


def _code_without_dynamo(code: CodeType) -> CodeType:
    """The code of a function with the names and texts exchanged that lead to `torch._dynamo`."""
    names = tuple(_OTHER_NAMES.get(name, name) for name in code.co_names)
    constants = []
    for value in code.co_consts:
        constants.append(_OTHER_CONSTANTS.get(value, value) if type(value) is str else value)
    return code.replace(co_names=names, co_consts=tuple(constants))


class _DynamoImport(_Finder):
    """Makes torch ask `torch._dynamo` again as soon as that is imported."""

    def wants_module(self, fullname: str) -> bool:
        """False; but the first import of dynamo restores what asks it."""
        if fullname == DYNAMO:
            self.restore_functions()
        return False

    def restore_functions(self) -> None:
        """Give the functions that ask `torch._dynamo` their own code again."""
        for asking in _asking_functions():
            function: Any = asking.function
            if function.__code__ is not asking.code_without_dynamo:
                continue
            function.__code__ = asking.code
            disabled = asking.disabled
            if disabled is not None and vars(disabled).get("__dynamo_disable") is disabled:
                del vars(disabled)["__dynamo_disable"]


@contextlib.contextmanager
def few_imports() -> Iterator[None]:
    """Keep torch from importing what few programs need, for the length of a `with` block.

    Only compiled and distributed code needs it. Code of torch's functions is exchanged meanwhile,
    and `torch` has one more attribute; both are left alone where `torch._dynamo` is imported
    already, and inside another such block. C++ gets a stand-in for DTensor, once per process, which
    it keeps.
    """
    _let_cpp_find_stand_in()
    if DYNAMO in sys.modules or hasattr(torch, STAND_IN):
        yield
        return
    finder = _DynamoImport()
    setattr(torch, STAND_IN, WithoutDynamo())
    for asking in _asking_functions():
        function: Any = asking.function
        function.__code__ = asking.code_without_dynamo
    try:
        with _finder_in_front(finder):
            yield
    finally:
        finder.restore_functions()
        delattr(torch, STAND_IN)


@torch_patches()
def _import_patches(opening: Opening) -> Iterator[Patch]:
    """No patches of its own: enters what keeps imports few, and what patches later imports."""
    opening.enter(few_imports)
    opening.enter(functools.partial(_patch_on_import, opening))
    yield from ()


# ---- torch.distributed.tensor --------------------------------------------------------------------


class _DTensorImport(_Finder):
    """Waits for the first import of DTensor, and makes `stand_in` a base of it.

    C++ then takes one for the other.
    """

    def __init__(self, stand_in: Any) -> None:
        self.stand_in = stand_in

    def wants_module(self, fullname: str) -> bool:
        return fullname == DTENSOR

    @contextlib.contextmanager
    def loading(self, module: ModuleType) -> Iterator[None]:
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
def _let_cpp_find_stand_in() -> None:
    """Let torch's C++ find a stand-in for DTensor that costs nothing to import.

    C++ looks for the class once per process, with the first operation on a tensor subclass: one is
    run here, once. If it has asked, a finder in `sys.meta_path` waits for the real class from then
    on.
    """
    if DTENSOR in sys.modules:
        return
    stand_ins: list[type] = []  # one, if C++ has asked

    def make_stand_in(name: str) -> Any:
        """Make the class that C++ asks for, keep it in `stand_ins`, and return it.

        Raises AttributeError for any other name.
        """
        if name != "DTensor":
            raise AttributeError(name)
        stand_ins.append(type("DTensor", (), {"__module__": DTENSOR}))
        return stand_ins[0]

    module = ModuleType(DTENSOR)
    module.__getattr__ = make_stand_in  # type: ignore[method-assign]
    sys.modules[DTENSOR] = module
    try:
        _run_first_operation()
    finally:
        del sys.modules[DTENSOR]
    if stand_ins:
        sys.meta_path.insert(0, _DTensorImport(stand_ins[0]))


def _run_first_operation() -> None:
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

    def find_rule(op: Any, cls: Any) -> Any:
        """No rule for the device's own class; torch's answer for all others."""
        if cls in VIRTUAL or original is None:
            return None
        return original(op, cls)

    with contextlib.ExitStack() as undo:
        if original is not None:
            patch([(simple_registry, "find_torch_dispatch_rule", find_rule)], undo)
        torch.neg(make_shell(Subclass, (1,)))
