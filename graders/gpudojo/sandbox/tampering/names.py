"""Puts names back that student code has replaced.

Probes and the virtual device use names of torch and Python. A wrapper around one of them, to count
calls, to print, or to run on a laptop, is nothing bad; but what was recorded meanwhile may not be
true. Names of the grader itself are replaced by nobody who only solves exercises.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from operator import is_
from typing import Any, Final, NamedTuple

from virtual_cuda.errors import TorchUnsupported
from virtual_cuda.hooks import from_library

from gpudojo.sandbox.tampering.findings import FindingKind, WatchFinding, make_finding

# All names of these modules that are there when the sandbox starts, and all methods of the classes
# that they define.
PYTHON_MODULES: Final = """
    collections contextlib copy functools gc itertools math operator os random time
    msgspec
""".split()
# All names of these modules.
TORCH_MODULES: Final = """
    torch torch._C torch.accelerator torch.amp torch.autograd torch.cuda torch.distributed torch.nn
    torch.nn.functional torch.optim torch.profiler torch.utils.checkpoint torch.utils.data
    numpy
""".split()
# All methods of these classes, also those that they inherit.
CLASSES: Final = """
    torch.Tensor torch.Generator torch.nn.Module torch.nn.Parameter torch.nn.CrossEntropyLoss
    torch.optim.Optimizer torch.optim.SGD torch.optim.Adam torch.optim.AdamW
    torch.utils.data.DataLoader torch.amp.GradScaler torch.amp.autocast_mode.autocast
    torch.cuda.Event torch.cuda.Stream torch.cuda.CUDAGraph torch.autograd.graph.Node
    torch.autograd.Function torch.no_grad torch.inference_mode torch._ops.OpOverload
""".split()
# Only what people see depends on these, or a library sets them itself.
FREE: Final = frozenset(
    """
    print input help exit quit copyright credits license _ __repr__ __str__ __warningregistry__
    __annotations__ __slotnames__ __abstractmethods__ _abc_impl Storage
    """.split()
)
MISSING: Final = object()
MOST_TOLD: Final = 4  # replaced names, of a call


class Owner(NamedTuple):
    """A module or class whose names are guarded."""

    label: str
    owner: types.ModuleType | type
    names: Mapping[str, Any]  # as they are now, whenever somebody looks


Snapshot = list[dict[str, Any]]
"""All names of each module or class with their values, as they once were."""


class ReplacedName(NamedTuple):
    """A name that has another value than before."""

    owner: Owner
    name: str
    before: Any  # `MISSING` for a name that is new
    now: Any  # `MISSING` for a name that was deleted

    def make_finding(self, kind: FindingKind) -> WatchFinding:
        """What is told of it. The place is that of the function which took the name."""
        file, line = _place_of(self.now)
        what = f"replaced {self.owner.label}.{self.name}"
        return make_finding(kind, what, file, line)

    def put_back(self) -> None:
        """Give the name the value that it had in its module or class, or remove it if it is new."""
        self._set(self.before)

    def replace_again(self) -> None:
        """Give the name the value again that student code gave it, or delete it again."""
        self._set(self.now)

    def _set(self, value: Any) -> None:
        owner = self.owner.owner
        if value is not MISSING:
            setattr(owner, self.name, value)
        elif self.name in vars(owner):
            delattr(owner, self.name)


class GuardedName(NamedTuple):
    """One name, with the values that it may have."""

    owner: Owner
    name: str
    values: list[Any]  # in each snapshot; `MISSING` where the name was not there

    def find_replacements(self) -> Iterator[ReplacedName]:
        """Yield the name if it has another value now. The value before is the first one."""
        now = self.owner.names.get(self.name, MISSING)
        if any(now is value for value in self.values):
            return
        if _is_torchs_own(now, self.name):
            return
        yield ReplacedName(self.owner, self.name, self.values[0], now)


class FewNames:
    """A few names of some modules and classes, which are compared after every call."""

    def __init__(self, names: list[GuardedName]) -> None:
        self._names = names
        self._lookups = [(each.owner.names.get, each.name) for each in names]
        # Of all names, one list for each snapshot.
        values_of_names = [each.values for each in names]
        self._values = list(zip(*values_of_names, strict=True))

    def find_replacements(self) -> list[ReplacedName]:
        """Those names that have a value which they had in none of the snapshots."""
        now = [look_up(name, MISSING) for look_up, name in self._lookups]
        # All at once: hardly ever has one of them changed.
        if any(all(map(is_, now, values)) for values in self._values):
            return []
        return [found for each in self._names for found in each.find_replacements()]


class GuardedNames:
    """Finds names with new values in some modules and classes."""

    def __init__(self, owners: Iterable[Owner]) -> None:
        self._owners = list(owners)
        self._reachable = [_reachable_names(each) - FREE for each in self._owners]

    def take_snapshot(self) -> Snapshot:
        """All names with their values, as they are now."""
        return [dict(each.names) for each in self._owners]

    def choose(self, names: set[str], *snapshots: Snapshot) -> FewNames:
        """Those of these names that nobody may replace, in each module or class that has them.

        Each comes with its values in the snapshots. Data may be replaced. A name that a class only
        inherits has no value there: if it gets one, that hides the inherited one.
        """
        found = []
        each_owner = zip(self._owners, self._reachable, *snapshots, strict=True)
        for owner, reachable, *names_before in each_owner:
            for name in reachable & names:
                values = [before.get(name, MISSING) for before in names_before]
                if any(value is MISSING or _is_code(value) for value in values):
                    found.append(GuardedName(owner, name, values))
        return FewNames(found)

    def find_replacements(self, *snapshots: Snapshot) -> list[ReplacedName]:
        """Names with a value which they had in none of the snapshots.

        The value before is that of the first snapshot.
        """
        found: list[ReplacedName] = []
        for owner, *before in zip(self._owners, *snapshots, strict=True):
            is_known = any(_is_unchanged(owner.names, names) for names in before)
            if not is_known:
                found += _replaced_names(owner, before)
        return found


def _reachable_names(owner: Owner) -> frozenset[str]:
    """All names of a class, with those that it inherits; those that a module has by now."""
    if isinstance(owner.owner, type):
        return frozenset(dir(owner.owner))
    return frozenset(owner.names)


def owners_in_torch_and_python() -> Iterator[Owner]:
    """Yield the modules and classes of the lists above, those that this release of torch has.

    Modules are imported. Raises ImportError for a module that is not there.
    """
    for name in PYTHON_MODULES:
        yield from _module_with_classes(name)
    for name in TORCH_MODULES:
        module = importlib.import_module(name)
        yield Owner(name, module, vars(module))
    for name in CLASSES:
        home, _, own_name = name.rpartition(".")
        kind = getattr(importlib.import_module(home), own_name, None)
        if isinstance(kind, type):
            yield Owner(name, kind, vars(kind))


def owners_in_packages(packages: tuple[str, ...]) -> Iterator[Owner]:
    """The loaded modules of some packages, and the classes that they define."""
    for name in list(sys.modules):
        if name.partition(".")[0] in packages:
            yield from _module_with_classes(name)


def _module_with_classes(name: str) -> Iterator[Owner]:
    """Yield a module, and the classes that it defines. Imports it, and its lazy public names."""
    module = importlib.import_module(name)
    for public_name in getattr(module, "__all__", ()):
        # Some are loaded when they are first used; what this torch lacks cannot be.
        with contextlib.suppress(AttributeError, ImportError, TorchUnsupported):
            getattr(module, public_name)
    yield Owner(name, module, vars(module))
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and kind.__module__ == name:
            label = f"{name}.{kind.__name__}"
            yield Owner(label, kind, vars(kind))


def _replaced_names(owner: Owner, snapshots: list[dict[str, Any]]) -> Iterator[ReplacedName]:
    """Yield the names of one module or class with a value that they had in none of the snapshots.

    Each snapshot is a dict of its names. New names count if they hide something.
    """
    suspects = _changed_names(owner.names, snapshots[0])
    for before in snapshots[1:]:
        if not suspects:
            return
        suspects &= _changed_names(owner.names, before)
    new_names = set()
    for name in suspects - FREE:
        values = [before.get(name, MISSING) for before in snapshots]
        if all(value is MISSING for value in values):
            new_names.add(name)
        elif any(map(_is_code, values)):
            yield from GuardedName(owner, name, values).find_replacements()
    for name in _names_that_hide(owner, new_names):
        yield ReplacedName(owner, name, MISSING, owner.names[name])


def _is_unchanged(now: Mapping[str, Any], before: dict[str, Any]) -> bool:
    """True if these are the same names in the same order, with the same values.

    Thousands are compared after each function, so this is done by iterators of C.
    """
    return list(now) == list(before) and all(map(is_, now.values(), before.values()))


def _changed_names(now: Mapping[str, Any], before: dict[str, Any]) -> set[str]:
    """The names that have another value now than before, were deleted, or are new."""
    changed = now.keys() ^ before.keys()
    for name in now.keys() & before.keys():
        if now[name] is not before[name]:
            changed.add(name)
    return changed


def _is_code(value: Any) -> bool:
    """True for what nobody may replace: code, and no data."""
    return callable(value) or hasattr(type(value), "__get__")


def _names_that_hide(owner: Owner, new_names: set[str]) -> set[str]:
    """Those new names that hide what a class inherits, or what a module finds among builtins."""
    added = set()
    for name in new_names:
        if not _is_torchs_own(owner.names[name], name):
            added.add(name)
    if isinstance(owner.owner, type):
        return {name for name in added if _is_inherited(owner.owner, name)}
    if owner.owner is builtins:
        return set()
    return added & vars(builtins).keys()


def _is_inherited(kind: type, name: str) -> bool:
    """True if a base of a class has a name."""
    return any(name in vars(base) for base in kind.__mro__[1:])


def _is_torchs_own(value: Any, name: str) -> bool:
    """True for a function that torch's compiler puts in the place of another at its first use."""
    if type(value) is not types.FunctionType:
        return False
    if not from_library(value.__code__.co_filename):
        return False
    home = value.__globals__.get("__name__")
    if not isinstance(home, str) or home.partition(".")[0] != "torch":
        return False
    return home.startswith("torch._dynamo") or value.__name__ == name


def _place_of(value: Any) -> tuple[str, int | None]:
    """File and line of a function; an empty name and None for what is none of Python's."""
    function = getattr(value, "__func__", value)
    if type(function) is types.FunctionType:
        return function.__code__.co_filename, function.__code__.co_firstlineno
    return "", None
