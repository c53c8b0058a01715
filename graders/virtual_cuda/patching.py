"""Replaces attributes of torch for a while, and restores them afterwards.

A patch is one such replacement. Modules of the virtual device register functions that make their
patches; `registry` holds them, and `kept` the patches that stay for the next device.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from operator import call, is_
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from virtual_cuda.errors import AlreadyOpen, DuplicatePatch
from virtual_cuda.lacking import Lacking

if TYPE_CHECKING:
    from virtual_cuda.device.state import VirtualGpu

Patch = tuple[Any, str, Any]  # owner, attribute, value
LEFT_OUT: Final = object()  # the value of a patch of something that this torch does not have


class Replaced(NamedTuple):
    """One patch in force: what was there before, and what was put there."""

    owner: Any
    name: str
    before: Any
    put: Any

    @property
    def existed(self) -> bool:
        """True if torch had something under this name; False if the patch added it."""
        return self.before is not _MISSING


# Unlike `id`, it raises no audit event, which takes long where there is a hook.
identity: Final = object.__hash__
DEEPEST: Final = 3  # how far lists in lists are searched
_MISSING: Final = object()
# What `patch` has replaced and not yet restored, by the identity of each list.
_in_force: Final[dict[int, list[Replaced]]] = {}
# Of these, what is replaced in modules, by its identity.
_originals: Final[dict[int, dict[int, Replaced]]] = {}


class ClassWatch:
    """Tells a sandbox when the device's own code changes torch or a class of its tensors.

    A sandbox sets `before` and `after`. What changes at another time was changed by somebody else.
    """

    def __init__(self) -> None:
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        self._depth = (
            0  # told once for changes within others: to look takes longer than most of them
        )

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self.before()

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.after()


class_watch: Final = ClassWatch()


def patch(patches: Iterable[Patch], undo: contextlib.ExitStack) -> list[Replaced]:
    """Replace attributes, and have `undo` restore them in reverse order.

    Returns what was replaced, for `aside`. Patches that a closed device has left in place are
    undone first. A function that a package has from one of its modules is replaced in that module,
    too.
    """
    kept.restore()
    done: list[Replaced] = []
    like = _Like()
    # What was there, where a function was replaced along with another.
    along: dict[tuple[int, str], Any] = {}
    _put_in_force(identity(done), done, undo)
    undo.callback(_put_back, done)
    with class_watch:
        for owner, name, value in patches:
            if value is LEFT_OUT or isinstance(owner, Lacking):
                continue
            # vars() and not getattr: an attribute that a class inherits has to be inherited again
            # afterwards.
            before = vars(owner).get(name, _MISSING)
            put = like(owner, name, along.pop((identity(owner), name), before), value)
            done.append(Replaced(owner, name, before, put))
            if (home := _home(owner, name, before)) is not None:
                along[identity(home), name] = before
                done.append(Replaced(home, name, before, put))
                setattr(home, name, put)
            setattr(owner, name, put)
    return done


def _home(owner: Any, name: str, function: Any) -> ModuleType | None:
    """The module that defines a function, or None.

    It is None where that module is `owner`, or where it no longer has the function.
    """
    if type(function) is not FunctionType or not isinstance(owner, ModuleType):
        return None
    module = sys.modules.get(function.__module__)
    return (
        module
        if module is not owner and module is not None and vars(module).get(name) is function
        else None
    )


def _put_in_force(key: int, done: list[Replaced], undo: contextlib.ExitStack) -> None:
    """Count these patches as in force until `undo` is closed."""
    _in_force[key] = done
    undo.callback(_originals.pop, key, None)
    undo.callback(_in_force.pop, key)


def _in_modules(done: list[Replaced]) -> dict[int, Replaced]:
    """The patches of names in modules, by the identity of what they replace."""
    return {identity(one.before): one for one in done if isinstance(one.owner, ModuleType)}


def patches_in_force() -> list[Replaced]:
    """Everything that `patch` has replaced and not yet restored, in that order."""
    return [one for done in _in_force.values() for one in done]


_PLAIN: Final = frozenset({int, float, str, type(None)})


def _without_object(value: Any) -> Any:
    """A function that leads to no object of the device's.

    A method or a partial function leads to such objects, so a plain function is returned that calls
    it. Any other value is returned as it is.
    """
    held = (
        value.__self__
        if isinstance(value, MethodType)
        else value
        if isinstance(value, functools.partial)
        else None
    )
    if held is None or isinstance(held, (type, ModuleType)):
        return value
    # A partial function of plain values alone can stay.
    plain = (
        isinstance(value, functools.partial)
        and type(value.func) is FunctionType
        and not value.keywords
    )
    if plain and all(type(argument) in _PLAIN for argument in value.args):
        return value  # it leads to nothing, and can be pickled

    # All others are hidden in the closure of a function.
    def call(*args: Any, **kwargs: Any) -> Any:
        return value(*args, **kwargs)

    inner = value.func if isinstance(value, functools.partial) else value
    call.__name__ = call.__qualname__ = getattr(inner, "__name__", "call")
    call.__doc__ = inner.__doc__
    return call


class _Like:
    """Makes the functions that replace torch's, with their names, documentation and signatures.

    What is one function in two modules of torch is one here, too. None has a `__wrapped__`: who
    follows that would go around the device.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def __call__(self, owner: Any, name: str, before: Any, value: Any) -> Any:
        """The value to put in the place of `before`, with the name and the signature of that.

        A value that replaces no function is returned nearly as it is: see `_without_object`.
        """
        built_in = type(before) is BuiltinFunctionType and isinstance(owner, ModuleType)
        if before is _MISSING and isinstance(owner, type):
            before = getattr(owner, name, None)  # which it inherits
        if not built_in and type(before) not in (FunctionType, MethodDescriptorType):
            return _without_object(value)
        key = identity(before), *_parts(value)
        if key not in self._made:
            put = _without_object(value)
            if type(put) is FunctionType:
                if put is value and not _is_its_own(put):  # it may stand for others of torch's, too
                    put = _copy(put)
                _name(put, before, owner.__name__ if built_in else None)
            self._made[key] = value, put  # the value too: nothing else may get its identity
        return self._made[key][1]


def _parts(value: Any) -> Iterator[int]:
    """The identities of what a function is made of.

    Two functions with the same ones do the same.
    """
    if isinstance(value, MethodType):
        yield from (identity(value.__func__), identity(value.__self__))
    elif type(value) is FunctionType:
        yield identity(value.__code__)
        yield from map(identity, value.__defaults__ or ())
        yield from map(identity, (value.__kwdefaults__ or {}).values())
        for cell in value.__closure__ or ():
            held = cell.cell_contents
            yield from _parts(held) if isinstance(held, MethodType) else (identity(held),)
    else:
        yield identity(value)


def _is_its_own(function: FunctionType) -> bool:
    """True if a function refers to itself.

    It does so to hand itself to a `__torch_function__`, so it was made for one function of torch.
    """
    return any(cell.cell_contents is function for cell in function.__closure__ or ())


def _copy(function: FunctionType) -> Any:
    """A function that does what this one does and can be given another name."""
    # A copy would have to be given these defaults, and a sandbox takes that for tampering.
    if function.__kwdefaults__:

        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__dict__.update(vars(function))
    return copy


def _name(function: FunctionType, before: Any, module: str | None) -> None:
    """Give a function the name, documentation and signature of one of torch's.

    `module` is where pickle finds a function that is built in; None for all others.
    """
    function.__name__, function.__doc__ = before.__name__, before.__doc__
    function.__qualname__ = before.__qualname__ if module is None else before.__name__
    function.__module__ = module or getattr(before, "__module__", None) or function.__module__
    if type(before) is FunctionType:
        function.__annotations__ = before.__annotations__
        if (signature := _signature(before)) is not None:
            function.__signature__ = signature  # type: ignore[attr-defined]


@functools.cache
def _signature(function: FunctionType) -> inspect.Signature | None:
    # A function may claim to have a signature that it has not.
    with contextlib.suppress(ValueError, TypeError):
        return inspect.signature(function)
    return None


def around(owner: Any, name: str, function: Callable[..., Any]) -> Patch:
    """The patch that calls `function` with what is there now as its first argument.

    Where nothing is there, as in a release of torch without the function, `patch` will leave it
    out.
    """
    if isinstance(owner, Lacking) or not hasattr(owner, name):
        return owner, name, LEFT_OUT
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    call.__name__ = call.__qualname__ = name
    return owner, name, call


def unpatched(function: Any) -> Any:
    """The function of torch that a function of ours replaces.

    A method keeps its object. A function that replaces nothing is returned as it is.
    """
    if isinstance(function, MethodType):
        return MethodType(unpatched(function.__func__), function.__self__)
    for done in reversed(_in_force.values()):
        for one in reversed(done):
            if one.put is function and one.before is not _MISSING:
                function = one.before
            # A module that looks for its functions elsewhere.
            elif one.put is function and isinstance(one.owner, ModuleType):
                function = type(one.owner).__getattr__(one.owner, one.name)
    return function


@contextlib.contextmanager
def aside(
    done: list[Replaced], stays: Callable[[Replaced], bool] = lambda one: False
) -> Iterator[None]:
    """Undo patches for the length of a `with` block, except those that `stays` chooses.

    Afterwards they are in place again, and `done` says anew what they replace.
    """
    moved = [one for one in done if not stays(one)]
    now = [
        (one.owner, one.name, vars(one.owner)[one.name])
        for one in moved
        if one.name in vars(one.owner)
    ]
    _put_back(moved)
    try:
        yield
    finally:
        _originals.clear()
        seen = set()
        for i, (owner, name, _, put) in enumerate(done):
            # What was changed meanwhile is what there is to restore.
            if not stays(done[i]) and (id(owner), name) not in seen:
                seen.add((id(owner), name))
                done[i] = Replaced(owner, name, vars(owner).get(name, _MISSING), put)
        with class_watch:
            for owner, name, value in now:
                setattr(owner, name, value)


def _put_back(done: list[Replaced]) -> None:
    """Restore what patches have replaced, the last one first.

    A name that torch did not have is removed, unless somebody has given it another value since.
    """
    with class_watch:
        for owner, name, before, put in reversed(done):
            if before is not _MISSING:
                setattr(owner, name, before)
            # Where it is another value, somebody has overwritten it: that should stay visible.
            elif vars(owner).get(name) is put:
                delattr(owner, name)


@contextlib.contextmanager
def patch_imported_names(names: dict[str, Any]) -> Iterator[None]:
    """Apply the patches in force to the names of a file, for the length of a `with` block.

    The file was run before the device was opened. So `from torch.cuda import is_available` at its
    top, or a table of such functions, holds the original. Afterwards the names have their values
    again.
    """
    # Which functions of the file are originals of a patch?
    held = list(_held(names))
    own = {identity(value) for _, _, value in held}
    for key in _in_force.keys() - _originals.keys():
        _originals[key] = _in_modules(_in_force[key])
    every = [_originals[key] for key in _in_force]
    found = [(key, known[key]) for known in every for key in own & known.keys()]
    # By the identity of the original: what stands in its place now.
    replaced = {key: vars(one.owner)[one.name] for key, one in found}
    taken = (
        [(holder, key, value) for holder, key, value in held if identity(value) in replaced]
        if replaced
        else []
    )
    for holder, key, value in taken:
        holder[key] = replaced[identity(value)]
    try:
        yield
    finally:
        for holder, key, value in taken:
            with contextlib.suppress(LookupError):  # the student's code may have changed it since
                if holder[key] is replaced[identity(value)]:
                    holder[key] = value


def _held(holder: Any, depth: int = 0) -> Iterator[tuple[Any, Any, Any]]:
    """Every function among a file's names, each with its holder and its key there.

    Lists and dicts among the names are searched, too.
    """
    for key, value in holder.items() if type(holder) is dict else enumerate(holder):
        if type(value) is dict or type(value) is list:
            if depth < DEEPEST and key != "__builtins__":
                yield from _held(value, depth + 1)
        elif callable(value):  # not None, which a file has of its own
            yield holder, key, value


# ---- the registry of the virtual device's patches ------------------------------------------------


class Stage(enum.IntEnum):
    """The order of the patches.

    One stage patches a target at most once; a later stage wraps an earlier one's patch.
    """

    REPLACE = 0  # the device's own version of a function
    WRAP = 1  # around functions of torch, and around those of the first stage
    RECORD = 2  # the ledger's, around everything


@dataclass
class Opening:
    """What a function that makes patches may use.

    Patches may stay for another device: see `Kept`.
    """

    gpu: VirtualGpu  # the first device; later the one they are used for
    undo: contextlib.ExitStack
    # Each runs whenever the device closes.
    closing: list[Callable[[], object]] = field(default_factory=list)
    # Each gets the next device and returns what it replaces for it.
    again: list[Callable[[VirtualGpu], Iterable[Patch]]] = field(default_factory=list)
    around: list[Callable[[], AbstractContextManager[object]]] = field(default_factory=list)
    # See `when_imported`.
    awaited: dict[str, Callable[[ModuleType], Iterable[Patch]]] = field(default_factory=dict)
    # Classes with so many subclasses that to change one takes long. Where patches are kept, theirs
    # stay in place between devices: without one, they must do what they replace does.
    lasting: list[type] = field(default_factory=list)

    def enter(self, context: Callable[[], AbstractContextManager[object]]) -> None:
        """Enter this context now, and whenever the patches are put in place again.

        It is left when they are undone.
        """
        self.around.append(context)
        self.undo.enter_context(context())


class _Values:
    """Values that names of modules and classes should have.

    `_MISSING` stands for a name that should not be there. All are compared at once: this is done
    for every device that opens.
    """

    def __init__(self) -> None:
        self._asked: list[Callable[..., Any]] = []
        self._names: list[str] = []
        self._values: list[Any] = []
        self._missing: list[Any] = []
        self._places: dict[tuple[int, str], int] = {}

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Expect this value under the name from now on."""
        place = self._places.setdefault((identity(owner), name), len(self._values))
        if place < len(self._values):
            self._values[place] = value
            return
        self._asked.append(vars(owner).get)
        self._names.append(name)
        self._values.append(value)
        self._missing.append(_MISSING)

    @property
    def in_place(self) -> bool:
        return all(map(is_, map(call, self._asked, self._names, self._missing), self._values))


class _Target:
    """What is replaced in one module or class."""

    def __init__(self, owner: Any, lasting: bool = False) -> None:
        self.owner, self.held, self.lasting = owner, vars(owner), lasting
        self.plain = type(owner) is ModuleType
        self.before: dict[str, Any] = {}
        self.put: dict[str, Any] = {}
        self.added: set[str] = set()  # names that the owner itself did not have

    def add(self, name: str, before: Any, put: Any) -> None:
        if name not in self.put and before is _MISSING:
            self.added.add(name)
        elif name not in self.put:
            self.before[name] = before
        self.put[name] = put

    def holds(self, values: dict[str, Any]) -> bool:
        """True if the names have these values now."""
        return all(map(is_, map(self.held.get, values), values.values()))

    def fill(self, values: dict[str, Any]) -> None:
        """Give the names these values.

        All at once in a plain module: this is done for every device that opens.
        """
        if self.plain:
            self.held.update(values)
        elif values:
            owner = self.owner
            for name, value in values.items():
                setattr(owner, name, value)

    def restore(self, foreign: bool = True) -> None:
        """Undo what was replaced; without `foreign`, only where it is still what was put there."""
        before = self.before
        if not foreign:
            before = {
                name: value
                for name, value in before.items()
                if self.held.get(name) is self.put[name]
            }
        self.fill(before)
        for name in self.added:
            if self.held.get(name) is self.put[name]:  # as in `_put_back`
                delattr(self.owner, name)


class Patched:
    """The patches of a virtual device, in place or undone."""

    def __init__(
        self, patches: list[Replaced], opening: Opening, undo: contextlib.ExitStack
    ) -> None:
        """Take over patches that are in place; `undo` restores what they replace."""
        self.opening = opening
        self.undo = undo
        self._patches = patches
        self._read: list[Replaced] = []
        self._targets: dict[int, _Target] = {}
        self._in_modules: dict[int, Replaced] = {}
        self._put = self._lasting = self._before = self._before_lasting = _Values()
        self._stayed = False  # whether those that last stayed when the others were undone
        self._read_patches()

    def _read_patches(self) -> None:
        """Note what is to be restored.

        It is read again where modules of torch, when they were imported, have changed it.
        """
        if len(self._read) == len(self._patches) and all(map(is_, self._read, self._patches)):
            return
        # By module or class: what was there, and what was put there.
        self._read, known, self._targets = [*self._patches], self._targets, {}
        self._in_modules = _in_modules(self._read)
        for owner, name, before, put in self._read:  # a function may be patched more than once
            if (target := self._targets.get(identity(owner))) is None:
                target = self._targets[identity(owner)] = _Target(
                    owner, owner in self.opening.lasting
                )
            target.add(name, before, put)
        for key, target in known.items():
            self._targets[key].put.update(target.put)
        # The values to compare, before and after.
        self._put, self._lasting, self._before, self._before_lasting = (
            _Values(),
            _Values(),
            _Values(),
            _Values(),
        )
        for target in self._targets.values():
            for name, value in target.put.items():
                self._expect(target, name, value)
            before = self._before_lasting if target.lasting else self._before
            for name, value in (
                *target.before.items(),
                *((name, _MISSING) for name in target.added),
            ):
                before.put(target.owner, name, value)

    def _expect(self, target: _Target, name: str, value: Any) -> None:
        """Expect this value under a name of the target from now on."""
        self._put.put(target.owner, name, value)
        if target.lasting:
            self._lasting.put(target.owner, name, value)

    def renew(self, gpu: VirtualGpu) -> None:
        """Use the patches, which are in place, for another device.

        Those that somebody has replaced are put back.
        """
        with class_watch:
            for target in () if self._put.in_place else self._targets.values():
                if not target.holds(target.put):
                    target.fill(target.put)
            self._use(gpu)

    def _use(self, gpu: VirtualGpu) -> None:
        """Use the patches for another device, and put those in place that differ for it."""
        with class_watch:
            for owner, name, value in self.hand_over(gpu):
                setattr(owner, name, value)

    def hand_over(self, gpu: VirtualGpu) -> list[Patch]:
        """Make the patches use another device, so that they do not keep the last one alive.

        Returns those whose values differ for it; the caller puts them in place.
        """
        self.opening.gpu = gpu
        made = (patch for renewed in self.opening.again for patch in renewed(gpu))
        changed = []
        like = _Like()
        for owner, name, value in made:
            before = self._targets[identity(owner)].before.get(name, _MISSING)
            put = like(owner, name, before, value)
            home = sys.modules.get(before.__module__) if type(before) is FunctionType else None
            for place in (owner, home) if home is not owner else (owner,):
                target = self._targets.get(identity(place))
                if target is not None and target.before.get(name, _MISSING) is before:
                    changed.append((place, name, put))
                    target.put[name] = put
                    self._expect(target, name, put)
        return changed

    def put_again(self, gpu: VirtualGpu) -> bool:
        """Put the patches in place for another device, after they were undone.

        Returns False, with nothing put in place, where what they replace has changed since they
        were made.
        """
        self._read_patches()
        # Those that stayed in place need not be put there again.
        targets = [
            target for target in self._targets.values() if not (self._stayed and target.lasting)
        ]
        same = (
            self._before.in_place
            and (self._lasting if self._stayed else self._before_lasting).in_place
        )
        if any(map(sys.modules.__contains__, self.opening.awaited)) or not same:
            self.restore_lasting()
            return False
        # Nothing has changed: put everything in place, as `patch` does.
        with contextlib.ExitStack() as undo:
            for context in self.opening.around:
                undo.enter_context(context())
            _put_in_force(identity(self), self._patches, undo)
            _originals[identity(self)] = self._in_modules
            undo.callback(self._restore)
            with class_watch:
                for target in targets:
                    target.fill(target.put)
                self._use(gpu)
            self._stayed = False
            self.undo = undo.pop_all()
        return True

    def _restore(self) -> None:
        """Undo the patches; those that last stay in place while patches are kept."""
        self._read_patches()
        self._stayed = kept.keeping
        with class_watch:
            for target in self._targets.values():
                if not (self._stayed and target.lasting):
                    target.restore()

    def restore_lasting(self) -> None:
        """Undo the patches that stayed, except where somebody has replaced them."""
        if self._stayed:
            self._stayed = False
            with class_watch:
                for target in self._targets.values():
                    if target.lasting:
                        target.restore(foreign=False)


class Kept:
    """Patches of a closed device, still in place or undone, for the next device to use.

    To make new ones takes longer than many calls do.
    """

    def __init__(self) -> None:
        self.keeping = False
        self._in_place: Patched | None = None
        self._undone: Patched | None = None

    @property
    def in_place(self) -> bool:
        return self._in_place is not None

    def take(self, gpu: VirtualGpu) -> Patched | None:
        """The patches of an earlier device, in place for the one that opens now, or None.

        Whatever it returns, nothing is kept any longer.
        """
        patched = self._in_place
        undone = self._undone
        self._in_place = self._undone = None
        if patched is None:
            return undone if undone is not None and undone.put_again(gpu) else None
        with contextlib.ExitStack() as undo:
            undo.callback(patched.undo.close)
            patched.renew(gpu)
            undo.pop_all()
        return patched

    def leave(self, patched: Patched) -> None:
        """Take over the patches of a device that has closed; undo them unless they are kept."""
        self._in_place = patched
        if not self.keeping:
            self.restore()

    def restore(self) -> None:
        """Undo the patches that are still in place; the next device can still use them."""
        if (patched := self._in_place) is not None:
            self._in_place = None
            self._undone = patched
            patched.undo.close()

    def restore_all(self, modules: bool = True) -> None:
        """Undo the patches that are still in place; with `modules`, the lasting ones, too."""
        self.restore()
        if modules and self._undone is not None:
            self._undone.restore_lasting()

    def stop(self) -> None:
        """Undo all patches, and keep none from now on."""
        self.keeping = False
        self.restore_all()
        self._undone = None


kept: Final = Kept()


PatchMaker = Callable[[Opening], Iterable[Patch]]


class PatchRegistry:
    """All functions that make patches of the virtual device, by stage."""

    def __init__(self) -> None:
        self.makers: dict[Stage, list[PatchMaker]] = {stage: [] for stage in Stage}
        self._checked = False

    def register(self, stage: Stage = Stage.REPLACE) -> Callable[[PatchMaker], PatchMaker]:
        """A decorator for functions that make patches.

        They are called each time patches are made for a device.
        """

        def registered(maker: PatchMaker) -> PatchMaker:
            self.makers[stage].append(maker)
            self._checked = False
            return maker

        return registered

    def patches(self, opening: Opening) -> Iterator[Patch]:
        """Every patch, stage by stage, to be applied while iterating.

        Raises DuplicatePatch where two functions of a stage patch the same name. The patches of a
        stage are made before the first of them is applied, so that the order of the modules does
        not matter.
        """
        for makers in self.makers.values():
            made = [
                (maker, patch)
                for maker in makers
                for patch in maker(opening)
                if not isinstance(patch[0], Lacking)
            ]
            known: dict[tuple[int, str], str] = {}
            # Checked once: the targets are the same at every opening.
            for maker, (owner, name, _) in () if self._checked else made:
                title = f"{maker.__module__}.{maker.__qualname__}"
                if (id(owner), name) in known:
                    target = f"{getattr(owner, '__name__', owner)}.{name}"
                    raise DuplicatePatch(target, known[id(owner), name], title)
                known[id(owner), name] = title
            yield from (patch for _, patch in made)
        self._checked = True


registry: Final = PatchRegistry()
torch_patches: Final = registry.register


# ---- one device at a time ------------------------------------------------------------------------


_claimed: str | None = None  # the device that is open in this process


@contextlib.contextmanager
def claim(device: str) -> Iterator[None]:
    """Let no other device open for the length of a `with` block.

    Two recorders would each see half of what happens. Raises AlreadyOpen where one is open.
    """
    global _claimed
    if _claimed is not None:
        raise AlreadyOpen(_claimed)
    _claimed = device
    try:
        yield
    finally:
        _claimed = None
