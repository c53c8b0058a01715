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
from itertools import chain, compress
from operator import is_, is_not
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
_MISSING: Final = object()
MOST_TOLD: Final = 4  # replaced names, of a call


class Owner(NamedTuple):
    """A module or class whose names are guarded."""

    label: str
    owner: types.ModuleType | type
    names: Mapping[str, Any]  # as they are now, whenever somebody looks


class Snapshot(NamedTuple):
    """All names of some modules and classes with their values, as they once were."""

    names: list[dict[str, Any]]  # of each owner
    values: list[Any]  # of all owners, one after another


class ReplacedName(NamedTuple):
    """A name that has another value than before."""

    owner: Owner
    name: str
    before: Any  # `_MISSING` for a name that is new
    now: Any  # `_MISSING` for a name that was deleted

    def make_finding(self, kind: FindingKind) -> WatchFinding:
        """What is told of it. The place is that of the function which took the name."""
        file, line = _place_of(self.now)
        return make_finding(kind, f"replaced {self.owner.label}.{self.name}", file, line)

    def put_back(self) -> None:
        """Give the name the value that it had, or remove it."""
        if self.before is not _MISSING:
            setattr(self.owner.owner, self.name, self.before)
        elif self.name in vars(self.owner.owner):
            delattr(self.owner.owner, self.name)


class GuardedName(NamedTuple):
    """One name, with the values that it may have."""

    owner: Owner
    name: str
    values: list[Any]  # `_MISSING` where the name need not be there

    def find_replaced(self) -> Iterator[ReplacedName]:
        """Yield the name if it has another value now. The value before is the first one."""
        now = self.owner.names.get(self.name, _MISSING)
        is_known = any(now is value for value in self.values)
        if not is_known and not _is_torchs_own(now, self.name):
            yield ReplacedName(self.owner, self.name, self.values[0], now)


class GuardedNames:
    """Finds names with new values in some modules and classes."""

    def __init__(self, owners: Iterable[Owner]) -> None:
        self._owners = list(owners)
        self._values = [each.names.values() for each in self._owners]  # always the latest
        self._reachable = [_reachable_names(each) - FREE for each in self._owners]

    def take_snapshot(self) -> Snapshot:
        """All names with their values, as they are now."""
        names = [dict(each.names) for each in self._owners]
        return Snapshot(names, list(chain.from_iterable(self._values)))

    def guarded_among(self, names: set[str], *snapshots: Snapshot) -> list[GuardedName]:
        """Those of these names that nobody may replace, in each module or class that has them.

        Each comes with its values in the snapshots. Data may be replaced. A name that a class only
        inherits has no value there: if it gets one, that hides the inherited one.
        """
        found = []
        of_snapshots = [each.names for each in snapshots]
        each_owner = zip(self._owners, self._reachable, *of_snapshots, strict=True)
        for owner, reachable, *names_before in each_owner:
            for name in reachable & names:
                values = [before.get(name, _MISSING) for before in names_before]
                if any(value is _MISSING or _is_code(value) for value in values):
                    found.append(GuardedName(owner, name, values))
        return found

    def find_replaced(self, *snapshots: Snapshot) -> list[ReplacedName]:
        """Names with a value which they had in none of the snapshots.

        The value before is that of the first snapshot.
        """
        found: list[ReplacedName] = []
        if any(self._differs_only_in_data(each) for each in snapshots):
            return found
        for owner, *before in zip(self._owners, *(each.names for each in snapshots), strict=True):
            found += _replaced_names(owner, before)
        return found

    def _differs_only_in_data(self, snapshot: Snapshot) -> bool:
        """True if nothing but data has changed since the snapshot: then no name was replaced.

        All values are compared one by one, in the order of their owners and names.
        """
        if sum(map(len, self._values)) != len(snapshot.values):
            return False  # names were added or deleted
        values_now = chain.from_iterable(self._values)
        has_changed = map(is_not, values_now, snapshot.values)
        changed_values = compress(snapshot.values, has_changed)
        return not any(map(_is_code, changed_values))


def _reachable_names(owner: Owner) -> frozenset[str]:
    """All names of a class, with those that it inherits; those that a module has by now."""
    if isinstance(owner.owner, type):
        return frozenset(dir(owner.owner))
    return frozenset(owner.names)


def owners_in_torch_and_python() -> Iterator[Owner]:
    """The modules and classes of the lists above, those that this release of torch has."""
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
    """A module, and the classes that it defines."""
    module = importlib.import_module(name)
    for public_name in getattr(module, "__all__", ()):
        # Some are loaded when they are first used; what this torch lacks cannot be.
        with contextlib.suppress(AttributeError, ImportError, TorchUnsupported):
            getattr(module, public_name)
    yield Owner(name, module, vars(module))
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and kind.__module__ == name:
            yield Owner(f"{name}.{kind.__name__}", kind, vars(kind))


def _replaced_names(owner: Owner, snapshots: list[dict[str, Any]]) -> Iterator[ReplacedName]:
    """The names of one module or class with a value that they had in none of the snapshots."""
    for each in snapshots:
        # All names at once: hardly ever has one of them changed.
        if len(owner.names) == len(each) and all(map(is_, owner.names.values(), each.values())):
            return
    known = {name for snapshot in snapshots for name in snapshot} - FREE
    for name in known:
        values = [snapshot.get(name, _MISSING) for snapshot in snapshots]
        if any(map(_is_code, values)):
            yield from GuardedName(owner, name, values).find_replaced()
    for name in _names_that_hide(owner, known):
        yield ReplacedName(owner, name, _MISSING, owner.names[name])


def _is_code(value: Any) -> bool:
    """True for what nobody may replace: code, and no data."""
    return callable(value) or hasattr(type(value), "__get__")


def _names_that_hide(owner: Owner, known: Iterable[str]) -> set[str]:
    """New names that hide what a class inherits, or what a module finds among the builtins."""
    added = set()
    for name in set(owner.names) - set(known) - FREE:
        if not _is_torchs_own(owner.names[name], name):
            added.add(name)
    if isinstance(owner.owner, type):
        bases = owner.owner.__mro__[1:]
        return {name for name in added if any(name in vars(base) for base in bases)}
    if owner.owner is builtins:
        return set()
    return added & vars(builtins).keys()


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
