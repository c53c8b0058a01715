"""Replaces attributes of torch for a while, and restores them afterwards.

A patch is declared as a tuple: a module or class, the name of an attribute, and its new value.
`around` makes one whose function gets the original as its first argument, `if_present` one of a
name that not every release of torch has. `patch` applies patches, and has an ExitStack undo them.

Modules of `torch_api` register functions that make the patches of the virtual device, with
`torch_patches`. They are made for the first device that opens. Later devices use the same ones:
`kept_patches` holds them meanwhile.
"""

from __future__ import annotations

import contextlib
import enum
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from virtual_cuda.errors import DuplicatePatch
from virtual_cuda.identity import identity
from virtual_cuda.lacking import Lacking
from virtual_cuda.lookalikes import Lookalikes

if TYPE_CHECKING:
    from virtual_cuda.device.state import VirtualGpu

Patch = tuple[Any, str, Any]  # owner, attribute, value
LEFT_OUT: Final = object()  # the value of a patch of something that this torch does not have
_MISSING: Final = object()  # stands for an attribute that is not there


# ---- applying and undoing ------------------------------------------------------------------------


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

    @property
    def target(self) -> tuple[int, str]:
        """What is patched, as the key of a table."""
        return identity(self.owner), self.name


def _own_attribute(owner: Any, name: str) -> Any:
    """What a module or class itself has under a name, or `_MISSING`.

    Not `getattr`: an attribute that a class inherits has to be inherited again afterwards.
    """
    return vars(owner).get(name, _MISSING)


class AppliedPatches:
    """Patches that were applied together, and what each of them replaces."""

    def __init__(self) -> None:
        """Begin without patches."""
        # In the order in which they were applied. An attribute may be patched more than once.
        self.replaced: list[Replaced] = []
        # Tables of these, made when they are needed: every device asks for them when it opens.
        self._attributes: list[Replaced] | None = None
        self._originals: dict[int, Replaced] | None = None

    def apply(self, patches: Iterable[Patch]) -> None:
        """Replace attributes, and note what was there.

        A function that a package has from one of its modules is replaced in that module, too.
        Patches of what this torch does not have are left out. What making the patches raises is
        raised; those that were applied by then stay until `undo`.
        """
        _in_force.append(self)
        lookalikes = Lookalikes()
        # By target: the original of a function that was replaced along with another.
        replaced_along: dict[tuple[int, str], Any] = {}
        for owner, name, value in patches:
            if value is LEFT_OUT or isinstance(owner, Lacking):
                continue
            before = _own_attribute(owner, name)
            original = replaced_along.pop((identity(owner), name), before)
            if original is _MISSING and isinstance(owner, type):
                original = getattr(owner, name, None)  # which it inherits
            put = lookalikes.make(owner, original, value)
            self.replaced.append(Replaced(owner, name, before, put))
            home = _home_of_function(owner, name, before)
            if home is not None:
                also = Replaced(home, name, before, put)
                replaced_along[also.target] = before
                self.replaced.append(also)
                setattr(home, name, put)
            setattr(owner, name, put)

    def undo(self) -> None:
        """Restore what the patches have replaced; they are no longer in force.

        Raises ValueError where they are not in force.
        """
        _in_force.remove(self)
        self._originals = None
        _restore(self._patched_attributes())

    def put_in_place(self) -> None:
        """Put patches in place that were undone, or that somebody has overwritten.

        They are in force afterwards.
        """
        if self not in _in_force:
            _in_force.append(self)
        for owner, name, _, put in self._patched_attributes():
            if _own_attribute(owner, name) is not put:
                setattr(owner, name, put)

    def originals_are_there(self) -> bool:
        """True if torch has everything again that the patches have replaced."""
        for owner, name, before, _ in self._patched_attributes():
            if _own_attribute(owner, name) is not before:
                return False
        return True

    def _patched_attributes(self) -> list[Replaced]:
        """Each attribute once: what torch had there, and what was put there last.

        The list is worked out once, and kept until patches are set aside.
        """
        if self._attributes is None:
            by_target: dict[tuple[int, str], Replaced] = {}
            for one in self.replaced:
                first = by_target.get(one.target, one)
                by_target[one.target] = one._replace(before=first.before)
            self._attributes = list(by_target.values())
        return self._attributes

    @contextlib.contextmanager
    def set_aside(
        self, stays: Callable[[Replaced], bool] = lambda replaced: False
    ) -> Iterator[None]:
        """Undo patches for the length of a `with` block, except those that `stays` chooses.

        Afterwards they are in place again; what was changed meanwhile is what they replace.
        """
        moved = [one for one in self._patched_attributes() if not stays(one)]
        values = [(one, _own_attribute(one.owner, one.name)) for one in moved]
        _restore(moved)
        try:
            yield
        finally:
            self._note_changes(moved)
            for one, value in values:
                if value is not _MISSING:  # which somebody had taken away
                    setattr(one.owner, one.name, value)

    def _note_changes(self, moved: list[Replaced]) -> None:
        """Note what torch has now in the place of patches that are set aside.

        That is what they replace from now on; the tables made of the patches are forgotten.
        """
        self._attributes = None
        self._originals = None
        targets = {one.target for one in moved}
        for index, one in enumerate(self.replaced):
            if one.target in targets:
                targets.remove(one.target)  # later patches of it replace the first one
                self.replaced[index] = one._replace(before=_own_attribute(one.owner, one.name))

    def originals(self) -> dict[int, Replaced]:
        """The patches of names in modules, by the identity of what they replace.

        The table is kept until the patches are undone: it is asked for in every call.
        """
        if self._originals is None:
            self._originals = {}
            for one in self.replaced:
                if isinstance(one.owner, ModuleType):
                    self._originals[identity(one.before)] = one
        return self._originals


_in_force: Final[list[AppliedPatches]] = []  # all that are applied and not undone


def _restore(replaced: list[Replaced]) -> None:
    """Restore in torch what these patches have replaced.

    A name that torch did not have is removed, unless somebody has given it another value since:
    that should stay visible.
    """
    for owner, name, before, put in replaced:
        if before is not _MISSING:
            setattr(owner, name, before)
        elif _own_attribute(owner, name) is put:
            delattr(owner, name)


def _home_of_function(owner: Any, name: str, function: Any) -> ModuleType | None:
    """The module that defines a function, or None.

    It is None where that module is `owner`, or where it no longer has the function.
    """
    if type(function) is not FunctionType or not isinstance(owner, ModuleType):
        return None
    module = sys.modules.get(function.__module__)
    if module is None or module is owner or vars(module).get(name) is not function:
        return None
    return module


def patch(patches: Iterable[Patch], undo: contextlib.ExitStack) -> AppliedPatches:
    """Replace attributes, and have `undo` restore them in reverse order; gives what was replaced.

    Patches that a closed device has left in place are undone first. What making the patches raises
    is raised.
    """
    kept_patches.undo()
    applied = AppliedPatches()
    undo.callback(applied.undo)
    applied.apply(patches)
    return applied


def around(owner: Any, name: str, function: Callable[..., Any]) -> Patch:
    """The patch that calls `function` with what is there now as its first argument.

    It is returned, not applied. Where nothing is there, as in a release of torch without the
    function, `patch` will leave it out.
    """
    if isinstance(owner, Lacking) or not hasattr(owner, name):
        return owner, name, LEFT_OUT
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        """Call `function` with the original in front; gives and raises what it does."""
        return function(original, *args, **kwargs)

    call.__name__ = call.__qualname__ = name
    return owner, name, call


def if_present(owner: Any, name: str, value: Any) -> Patch:
    """The patch that replaces what is there now by `value`.

    It is returned, not applied. Where nothing is there, as in a release of torch without the name,
    `patch` will leave it out.
    """
    if isinstance(owner, Lacking) or not hasattr(owner, name):
        return owner, name, LEFT_OUT
    return owner, name, value


def patches_in_force() -> list[Replaced]:
    """Everything that is replaced now, in the order in which that was done."""
    found: list[Replaced] = []
    for applied in _in_force:
        found += applied.replaced
    return found


def find_patch(owner: Any, name: str) -> Replaced | None:
    """The patch of one attribute that is in force, the last one; None where it is not patched."""
    target = (identity(owner), name)
    found = [one for one in patches_in_force() if one.target == target]
    return found[-1] if found else None


@contextlib.contextmanager
def without_patches() -> Iterator[None]:
    """Undo everything that is in force, for the length of a `with` block."""
    with contextlib.ExitStack() as stack:
        for applied in reversed(_in_force):
            stack.enter_context(applied.set_aside())
        yield


def originals_in_force(wanted: set[int]) -> dict[int, Any]:
    """What stands now in the place of functions of modules, by the identity of the original.

    `wanted` are the identities of the originals that are looked for.
    """
    found = {}
    for applied in _in_force:
        originals = applied.originals()
        for key in wanted & originals.keys():
            replaced = originals[key]
            found[key] = vars(replaced.owner)[replaced.name]
    return found


def original_function(function: Any) -> Any:
    """The function of torch that a function of ours replaces.

    A method keeps its object. A function that replaces nothing is returned as it is.
    """
    if isinstance(function, MethodType):
        return MethodType(original_function(function.__func__), function.__self__)
    for one in reversed(patches_in_force()):
        if one.put is not function:
            continue
        if one.existed:
            function = one.before
        elif isinstance(one.owner, ModuleType):
            # A module that looks for its functions elsewhere.
            function = type(one.owner).__getattr__(one.owner, one.name)
    return function


# ---- the patches of the virtual device -----------------------------------------------------------


class Stage(enum.IntEnum):
    """The order of the patches.

    One stage patches a target at most once; a later stage wraps an earlier one's patch.
    """

    REPLACE = 0  # the device's own version of a function
    WRAP = 1  # around functions of torch, and around those of the first stage
    RECORD = 2  # the ledger's, around everything


@dataclass
class Opening:
    """What a function that makes patches may use: it says what else is to be done for a device."""

    gpu: VirtualGpu  # the device that the patches are for now
    undo: contextlib.ExitStack  # restores torch
    # Opens a device in a process that was spawned: gets its number of devices, memory and GPU.
    open_in_child: Callable[[int, int, str | None], None]
    # Each is called with every later device that the patches are used for.
    on_next_device: list[Callable[[VirtualGpu], object]] = field(default_factory=list)
    # Each is called when a device closes.
    on_close: list[Callable[[], object]] = field(default_factory=list)
    # They are entered whenever the patches are put in place: see `enter`.
    contexts: list[Callable[[], AbstractContextManager[object]]] = field(default_factory=list)
    # By the name of a module that is not imported: makes its patches. See `patches_on_import`.
    awaited: dict[str, Callable[[ModuleType], Iterable[Patch]]] = field(default_factory=dict)

    def enter(self, context: Callable[[], AbstractContextManager[object]]) -> None:
        """Enter this context now, and whenever the patches are put in place again.

        It is left when they are undone.
        """
        self.contexts.append(context)
        self.undo.enter_context(context())


PatchMaker = Callable[[Opening], Iterable[Patch]]


class PatchRegistry:
    """All functions that make patches of the virtual device, by stage."""

    def __init__(self) -> None:
        self.makers: dict[Stage, list[PatchMaker]] = {stage: [] for stage in Stage}

    def register(self, stage: Stage = Stage.REPLACE) -> Callable[[PatchMaker], PatchMaker]:
        """A decorator that adds a function to those which make patches in this stage."""

        def add_maker(maker: PatchMaker) -> PatchMaker:
            """Add a function to the makers of the stage, and return it."""
            self.makers[stage].append(maker)
            return maker

        return add_maker

    def patches(self, opening: Opening) -> Iterator[Patch]:
        """Every patch, stage by stage, to be applied while iterating.

        Functions that make patches may also add to `opening` what is to be done later. The patches
        of a stage are made before the first of them is applied, so that the order of the modules
        does not matter. Raises DuplicatePatch where two functions of a stage patch the same name.
        """
        for makers in self.makers.values():
            patches: list[Patch] = []
            makers_of_targets: dict[tuple[int, str], str] = {}
            for maker in makers:
                title = f"{maker.__module__}.{maker.__qualname__}"
                for patch in maker(opening):
                    owner, name, _ = patch
                    if isinstance(owner, Lacking):
                        continue
                    target = (identity(owner), name)
                    if target in makers_of_targets:
                        spelled = f"{getattr(owner, '__name__', owner)}.{name}"
                        raise DuplicatePatch(spelled, makers_of_targets[target], title)
                    makers_of_targets[target] = title
                    patches.append(patch)
            yield from patches


registry: Final = PatchRegistry()
torch_patches: Final = registry.register


class DevicePatches:
    """All patches of the virtual device, in place or undone.

    To make them takes longer than many calls of student code do. So they are made once, and used
    for one device after the other.
    """

    def __init__(
        self, applied: AppliedPatches, opening: Opening, undo: contextlib.ExitStack
    ) -> None:
        """Take over patches that are in place; `undo` restores torch."""
        self.opening = opening
        self.in_place = True
        self._applied = applied
        self._undo = undo

    def put_in_place(self) -> bool:
        """Put the patches in place, wherever they are not; returns True.

        Returns False, with nothing changed, where they were undone and do not fit any more: modules
        that they wait for were imported, or somebody has changed what they replace.
        """
        if self.in_place:
            self._applied.put_in_place()
            return True
        imported = any(name in sys.modules for name in self.opening.awaited)
        if imported or not self._applied.originals_are_there():
            return False
        with contextlib.ExitStack() as undo:
            for context in self.opening.contexts:
                undo.enter_context(context())
            undo.callback(self._applied.undo)
            self._applied.put_in_place()
            self._undo = undo.pop_all()
        self.in_place = True
        return True

    def use_for(self, gpu: VirtualGpu) -> None:
        """Use the patches for another device; nothing in them leads to the last one any longer."""
        self.opening.gpu = gpu
        for function in self.opening.on_next_device:
            function(gpu)

    def undo(self) -> None:
        """Restore torch, if the patches are in place."""
        if self.in_place:
            self.in_place = False
            self._undo.close()


class KeptPatches:
    """Holds the patches of a device that has closed, for the next one to use.

    They are undone when a device closes, unless `stay_in_place` is set.
    """

    def __init__(self) -> None:
        self.stay_in_place = False
        self._patches: DevicePatches | None = None

    @property
    def in_place(self) -> bool:
        """True if a closed device has left its patches in place."""
        return self._patches is not None and self._patches.in_place

    def take(self, gpu: VirtualGpu) -> DevicePatches | None:
        """The patches of an earlier device, put in place for the one that opens now.

        None if there are none that fit. Whatever it returns, nothing is kept any longer.
        """
        patches = self._patches
        self._patches = None
        if patches is None or not patches.put_in_place():
            return None
        with contextlib.ExitStack() as undo:
            undo.callback(patches.undo)
            patches.use_for(gpu)
            undo.pop_all()
        return patches

    def keep(self, patches: DevicePatches) -> None:
        """Keep the patches of a device that has closed, and undo them unless they stay in place."""
        self._patches = patches
        if not self.stay_in_place:
            patches.undo()

    def undo(self) -> None:
        """Undo the patches that are still in place; the next device can still use them."""
        if self._patches is not None:
            self._patches.undo()

    def forget(self) -> None:
        """Undo the patches, and keep them no longer: the next device makes new ones."""
        self.undo()
        self._patches = None


kept_patches: Final = KeptPatches()
