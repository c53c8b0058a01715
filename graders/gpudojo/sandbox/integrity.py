"""Detects changes to the grader's own code in a child."""

from __future__ import annotations

import builtins
import contextlib
import copyreg
import ctypes
import dis
import functools
import gc
import hashlib
import os
import random
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, getitem, is_, itemgetter
from typing import Any, Final, NamedTuple, Protocol

import numpy
import torch
from virtual_cuda import open_device
from virtual_cuda.hooks import class_watch, device_classes, keep_patches, operators_run

from gpudojo.grading import call
from gpudojo.model.catalogue import registered_days
from gpudojo.model.exercise import Exercise, Function

DAYS: Final = tuple(f"{each.package}." for each in registered_days().values())
OWN: Final = ("gpudojo.", "virtual_cuda.", *DAYS)
OWN_BUILTINS: Final = "the grader's own builtins."
OFTEN: Final = 0.01  # seconds
SOMETIMES: Final = 0.25
# What makes evidence: compared after calls of a student's function, and not only before evidence is sent.
OBSERVING: Final = ("gpudojo.grading.", *DAYS)
# Compared beside gpudojo's own names: names that its code relies on. Honest code replaces none of them; new names, and
# settings such as torch's default type, may change.
SHOWN: Final = frozenset(
    "print input help exit quit __repr__".split()
)  # only what is shown to people depends on these
NAMES: Final = {
    builtins: tuple(n for n in vars(builtins) if not n.startswith("_") and n not in SHOWN),
    os: ("write", "getpid", "_exit", "fork", "open", "close"),
    gc: ("freeze", "collect", "get_objects"),
    hashlib: ("blake2b", "sha256"),
    time: tuple(
        "perf_counter perf_counter_ns monotonic monotonic_ns time time_ns process_time process_time_ns sleep".split()
    ),
}
RELIED_ON: Final = frozenset(
    "torch torch.nn torch.cuda torch.distributed numpy msgspec time os sys builtins gc".split()
)
IN_TORCH: Final = {
    "torch": "tensor zeros ones empty rand arange equal allclose is_tensor device Tensor Generator",
    "torch.cuda": "synchronize Event Stream is_available device_count memory_allocated max_memory_allocated",
    "torch.accelerator": "synchronize is_available",
}
METHODS: Final = (
    types.FunctionType,
    staticmethod,
    classmethod,
    property,
    types.MethodDescriptorType,
)
IN_TORCH_CLASSES: Final = (
    ("torch", "Tensor"),
    ("torch.nn", "Module"),
    ("torch.optim", "Optimizer"),
    ("torch._ops", "OpOverload"),
)
# Modules whose classes and functions probes use, and of which honest code replaces nothing.
IN_PYTHON: Final = "collections contextlib copy dataclasses functools itertools math operator random struct msgspec".split()


Changed = Callable[[], str | None]


class Namespace(NamedTuple):
    """A module or class, with the names in it that must not change."""

    where: str
    held: Mapping[str, Any]
    names: tuple[str, ...]
    values: tuple[Any, ...]


def watch(
    first: Callable[[], None] = lambda: None,
    rewritten: list[str] | None = None,
    memory: Sequence[str] = (),
) -> Changed:
    """A function that returns the name of something that has changed since now, even if it was put back; or None.

    Things are compared when that function is called, and also right after calls of a student's function. There `first`
    is called before that. In `rewritten` an audit hook notes functions of ours that are given other code or defaults;
    where there is such a hook, they are compared only if something in `memory` says that memory was used directly: in a
    forked process, to look at every function copies most of Python's memory.
    """
    noticed: list[str] = [] if rewritten is None else rewritten
    clock, chance, last, often, sometimes = (
        time.perf_counter,
        random.SystemRandom().random,
        [0.0],
        OFTEN,
        SOMETIMES,
    )

    def compare() -> None:
        first()
        for changed_now in (torchs(), spied()):
            if changed_now is not None:
                noticed.append(changed_now)
        # Short functions are called dozens of times; of these only some calls are checked, at random.
        now = clock()
        if now - last[0] < often and chance() > sometimes:
            return
        last[0] = now
        found = quick() or kernels()
        if found is not None:
            noticed.append(found)

    def before_call() -> Callable[[], None]:
        torchs(looking=False)
        begin()
        return compare

    call.watch_calls(before_call)  # first, since it must not change either
    for name in [name for name in sys.modules if name.startswith(OWN)]:
        # Python adds this name to the module that a warning is about, which may be the caller of a student's function.
        vars(sys.modules[name]).setdefault("__warningregistry__", {})
        for kind in [
            value for value in vars(sys.modules[name]).values() if isinstance(value, type)
        ]:
            _complete(kind)
    every = tuple(_namespaces())
    spaces = tuple(
        Namespace(*found, tuple(found[1][name] for name in found[2])) for found in every if found[2]
    )
    kernels, torchs = (
        _kernels(),
        _exchanged([space for space in spaces if space.where.startswith("torch.")], memory),
    )
    begin, spied = _spied(memory)
    replaced, named = list[str](), list[str]()
    with keep_patches() as restore:
        every_time = None if rewritten is None else lambda: bool(memory)
        thorough = _comparison(spaces, memory, replaced, every_time, restore)
    quick = _comparison(
        tuple(_observing(spaces)), memory, replaced, None if rewritten is None else lambda: False
    )
    added = _additions(((where, held) for where, held, _ in every if where.startswith(OWN)), memory)

    def changed() -> str | None:
        found = noticed[0] if noticed else thorough() or kernels() or added()
        if found is not None:
            named.append(found)
        return found if found is not None or named or not replaced else replaced[0]

    return changed


def _kernels() -> Callable[[], str | None]:
    """A function that returns the name of an operator which the device runs and which is no longer torch's own."""
    operators, own = operators_run(), types.BuiltinFunctionType
    called, every, each, kind, first = attrgetter("_op"), set, map, type, next

    def changed() -> str | None:
        if every(each(kind, each(called, operators))) <= {own}:
            return None
        return first(f"torch.ops.{one}" for one in operators if kind(called(one)) is not own)

    return changed


class Exchanged(Protocol):
    """Returns a name which has another value than when it was last called; without `looking` it only takes them in."""

    def __call__(self, looking: bool = True) -> str | None: ...


def _exchanged(spaces: Sequence[Namespace], memory: Sequence[str]) -> Exchanged:
    """The comparison of names of torch.

    Before and after each call of a student's function: while a device is open, names of torch have values of ours.
    """
    getters = tuple(itemgetter(space.names[0], *space.names) for space in spaces)
    held, known = (
        tuple(space.held for space in spaces),
        [getter(s.held) for getter, s in zip(getters, spaces, strict=True)],
    )
    touched, same, every, each, together, first = _touched(held, memory), is_, all, map, zip, next
    compilers = _by_the_compiler

    def exchanged(looking: bool = True) -> str | None:
        found = None
        for place in touched():
            before = known[place]
            try:
                now = known[place] = getters[place](held[place])
            except KeyError as error:
                return f"{spaces[place].where}{error.args[0]}"
            if looking and not every(each(same, now, before)):
                names = (spaces[place].names[0], *spaces[place].names)
                others = (
                    n
                    for n, a, b in together(names, now, before)
                    if a is not b and not compilers(a, n)
                )
                found = first((f"{spaces[place].where}{name}" for name in others), found)
        return found

    return exchanged


# Classes and modules of torch whose functions the device calls with what a tensor has inside.
CLASSES_ASKED: Final = (
    *(
        ("torch", "Tensor"),
        ("torch", "UntypedStorage"),
        ("torch.nn", "Parameter"),
        ("torch._ops", "OpOverload"),
    ),
    *(("torch._ops", "OpOverloadPacket"), ("torch.nn.parameter", "_ParameterMeta")),
)
MODULES_ASKED: Final = (
    "torch torch._C torch._C._nn torch._C._autograd torch._tensor torch._tensor_str torch._utils torch._ops "
    "torch.autograd torch.autograd.function torch.functional torch.nn.functional torch.overrides torch.utils._pytree"
).split()

SETTINGS: Final = (
    "_set_default_dtype",
    "_set_default_tensor_type",
)  # by which torch's own code sets a name of torch


def _spied(memory: Sequence[str]) -> tuple[Callable[[], None], Callable[[], str | None]]:
    """Functions for the beginning and the end of a call; the second returns what was changed for a moment in between.

    A method such as `__getattribute__` that is in a tensor's class for a moment is told what the device keeps in a
    tensor, and so is a function of torch's that the device calls. During a call, only our own code changes such a
    class, and it tells `class_watch`. Classes of ours are never changed by others, also between two calls.
    """
    if not _has_versions():
        return lambda: None, lambda: None
    ours, kinds = tuple(_disguised()), device_classes()

    def setting(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any) -> Any:
            alone = (
                joined(views) == known and kind_of(args[0]) in settings
            )  # which are looked at without student code
            try:
                return original(*args)
            finally:
                if alone:  # what somebody else has changed is still to be told
                    settle()

        return call

    settings = (torch.dtype, type(torch.FloatTensor))
    for name in SETTINGS:
        function = getattr(torch._C, name)
        setattr(torch._C, name, setting(getattr(function, "__wrapped__", function)))
    torchs = [
        vars(sys.modules[home])[name]
        for home, name in CLASSES_ASKED
        if hasattr(sys.modules.get(home), name)
    ]
    for kind in (*ours, *torchs):
        _complete(kind)
    modules = [vars(sys.modules[name]) for name in MODULES_ASKED if name in sys.modules]
    for names_of_one in modules:
        names_of_one.setdefault(
            "__warningregistry__", {}
        )  # as above: a warning of torch's changes nothing
    copied = dict[str, Any].copy  # unlike `dict`, it copies a large one at once
    copies = [*map(copied, modules)]
    watched: list[Any] = [
        *modules,
        *ours,
        *torchs,
    ]  # and classes that the device has made of students' classes
    # As bytes, which are joined and compared at once: this is done in every call.
    views = [_version(held if isinstance(held, dict) else vars(held)).cast("B") for held in watched]
    torchs_at, fixed, made = len(modules) + len(ours), len(watched), set(kinds)
    joined, calling, found = b"".join, False, list[str]()
    each, same, every, some, size, known = map, is_, all, any, len(modules), joined(views)
    version, names, kind_of, module = _version, vars, type, types.ModuleType

    def put_back(place: int) -> bool:
        """Whether a module has all values that it had, and was not only added to by an import."""
        before, now = copies[place], modules[place]
        copies[place] = copied(now)
        imported = some(kind_of(now[name]) is module for name in now.keys() - before)
        return not imported and every(each(same, before.values(), each(now.get, before)))

    def look() -> None:
        nonlocal known
        before, known = known, joined(views)
        if before != known and not memory:
            for place in changes(before):
                told(place)

    def changes(before: bytes) -> list[int]:
        return [
            at // 8 for at in range(0, len(before), 8) if before[at : at + 8] != known[at : at + 8]
        ]

    def told(place: int) -> None:
        if place < size:
            if put_back(place) and calling:
                found.append(f"a function of {modules[place]['__name__']} (and put it back)")
        elif calling or not torchs_at <= place < fixed:
            found.append(f"a method of {watched[place].__name__}")

    def settle() -> None:
        nonlocal known, made
        if made != kinds:
            made = {*kinds}
            watched[fixed:] = [kind for kind in made if kind not in ours]
            views[fixed:] = [version(names(kind)).cast("B") for kind in watched[fixed:]]
        before, known = known[: size * 8], joined(views)
        if not known.startswith(before):
            for place in changes(before):
                copies[place] = copied(modules[place])

    def begin() -> None:
        nonlocal calling
        look()
        calling = True

    def end() -> str | None:
        nonlocal calling
        look()
        calling = False
        return found[0] if found else None

    class_watch.before, class_watch.after = look, settle
    return begin, end


def _complete(kind: type) -> None:
    """Have Python add to a class what it adds when somebody first asks for it, or copies or pickles an object of it."""
    with contextlib.suppress(AttributeError, TypeError):  # a class of C takes nothing
        kind.__annotations__, copyreg._slotnames(kind)  # type: ignore[attr-defined]


def _disguised() -> Iterator[type]:
    """The classes of the device's tensors, storages, streams and others, which say that they are torch's."""
    seen = set[type]()
    for module in [
        module for name, module in sys.modules.items() if name.startswith("virtual_cuda.")
    ]:
        for kind in vars(module).values():
            if isinstance(kind, type) and kind not in seen and kind.__module__.startswith("torch"):
                seen.add(kind)
                if vars(sys.modules.get(kind.__module__, module)).get(kind.__name__) is not kind:
                    yield kind


VERSION_AT: Final = (
    24  # bytes into a dict: a number that each change of the dict replaces by one never used before
)


def _touched(
    dicts: Sequence[Mapping[Any, Any]], memory: Sequence[str]
) -> Callable[[], Sequence[int]]:
    """A function that returns the places of those that may have changed since it was last called.

    To look at every name takes longer than most calls of students do, and in a forked process copies the memory of all
    that is looked at. Where something in `memory` says that memory was used directly, and in a Python that keeps no
    versions, the places of all are returned.
    """
    every = range(len(dicts))
    if not _has_versions() or not dicts:
        return lambda: every
    read = _versions(dicts)
    known, different, numbered = read(), numpy.not_equal, numpy.flatnonzero
    whole, count = numpy.frombuffer, numpy.uint64

    def touched() -> Sequence[int]:
        nonlocal known
        before, known = known, read()
        if memory:
            return every
        if before == known:
            return []
        found: list[int] = numbered(different(whole(before, count), whole(known, count))).tolist()
        return found

    return touched


def _version(held: Mapping[Any, Any]) -> memoryview:
    """The version of a dict, or of the one behind the names of a class; it reads the memory where that stands."""
    return memoryview(ctypes.c_uint64.from_address(_version_at(held)))


def _version_at(held: Mapping[Any, Any]) -> int:
    """The address of the version of a dict, or of the one behind the names of a class."""
    return id(held if isinstance(held, dict) else gc.get_referents(held)[0]) + VERSION_AT


def _versions(dicts: Sequence[Mapping[Any, Any]]) -> Callable[[], bytes]:
    """A function that reads the versions of dicts, or of those behind the names of classes, where they stand in memory.

    All at once, from an array that reaches from the first to the last of them and of which nothing else is read.
    """
    places = [_version_at(held) for held in dicts]
    first, size = min(places), ctypes.sizeof(ctypes.c_uint64)
    reach = ctypes.c_uint64 * ((max(places) - first) // size + 1)
    take = numpy.frombuffer(memoryview(reach.from_address(first)), numpy.uint64).take
    index = numpy.array([(place - first) // size for place in places])
    return lambda: take(index).tobytes()


@functools.cache
def _has_versions() -> bool:
    """Whether the version is where it is expected, and changes with each way of changing a dict."""
    threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 14) or threaded:
        return False
    module, kind = types.ModuleType("example"), type("Example", (), {})

    def put(owner: Any, value: int) -> None:
        owner.name = value

    changes: list[Callable[[Any, int], Any]] = [
        *[put] * 50,  # often enough for Python to specialise it
        lambda owner, value: setattr(owner, "name", value),
        lambda owner, value: delattr(owner, "name"),
    ]
    direct: list[Callable[[dict[str, Any], int], Any]] = [
        lambda names, value: names.__setitem__("name", value),
        lambda names, value: names.update(name=-value),
        lambda names, value: names.pop("name"),
        lambda names, value: names.setdefault("name", value),
        lambda names, value: names.clear(),
    ]
    for owner, ways in ((module, [*changes, *direct]), (kind, changes)):
        held = vars(owner)
        read, seen = _versions([held]), set[bytes]()
        for value, way in enumerate(ways, 1):
            way(held if way in direct else owner, value)
            if (now := read()) in seen:
                return False
            seen.add(now)
    return True


def _additions(
    spaces: Iterable[tuple[str, Mapping[str, Any]]], memory: Sequence[str] = ()
) -> Callable[[], str | None]:
    """A function that returns a new name in our modules that hides a built-in one, or a new method of our classes."""
    known = tuple((where, held, frozenset(held)) for where, held in spaces)
    touched = _touched([held for _, held, _ in known], memory)
    hides, methods, dictionary, is_one = (
        frozenset(vars(builtins)),
        (*METHODS, types.BuiltinFunctionType),
        dict,
        isinstance,
    )

    def added() -> str | None:
        for place in touched():
            where, held, before = known[place]
            for name in () if held.keys() <= before else held.keys() - before:
                if name in hides if is_one(held, dictionary) else is_one(held[name], methods):
                    return f"{where}{name}"
        return None

    return added


def _observing(spaces: tuple[Namespace, ...]) -> Iterator[Namespace]:
    """The functions and classes of the modules that make evidence: few, since they are compared often."""
    for space in spaces:
        if space.where in _others() and not space.where.startswith("torch"):
            yield space
        elif space.where.startswith(OBSERVING) and ".checks" not in space.where:
            own = [(n, v) for n, v in zip(space.names, space.values, strict=True) if _is_ours(v)]
            if own:
                names, values = zip(*own, strict=True)
                yield space._replace(names=names, values=values)


def _is_ours(value: Any) -> bool:
    return isinstance(value, (Exercise, *METHODS)) or (
        isinstance(value, type) and value.__module__.startswith(OWN)
    )


def _comparison(
    spaces: tuple[Namespace, ...],
    memory: Sequence[str],
    replaced: list[str],
    with_parts: Callable[[], bool] | None,
    restore: Callable[[], None] | None = None,
) -> Callable[[], str | None]:
    """A function that returns the name of something in these that has changed; `with_parts`: whether also of functions.

    Without `with_parts`, functions are compared each time. For `memory` see `_touched`. In `replaced` it notes what was
    replaced and put back before it was called. With `restore`, names of torch may have what the virtual device puts
    there; where they have something else, it is called, and they are compared again.
    """
    # The first name twice: an itemgetter of one name would return no tuple.
    getters = tuple((p, itemgetter(p.names[0], *p.names), (p.values[0], *p.values)) for p in spaces)
    touched = _touched([space.held for space in spaces], memory)
    functions = tuple({id(f): f for f in _functions(spaces)}.values())
    inside = _parts(functions)
    lists = tuple(
        (f"{what} of {name}", vars(owner), what, held, tuple(held))
        for name, owner, what, held in _lists(spaces)
    )
    cells = tuple(
        (f, cell, cell.cell_contents)
        for f in functions
        for cell in f.__closure__ or ()
        if _fixed(cell)
    )
    looks = tuple(
        (probe, probe.look)
        for _, _, what, held in _lists(spaces)
        if what == "probes"
        for probe in held
    )
    variables, values = tuple(cell for _, cell, _ in cells), tuple(before for _, _, before in cells)
    probes, looking = tuple(probe for probe, _ in looks), tuple(before for _, before in looks)
    contents, look = attrgetter("cell_contents"), attrgetter("look")
    things = tuple(_held(spaces))
    tables = tuple(_tables(things))
    filled = _touched([table for _, table, _, _ in tables], memory)
    grown = tuple(_grown(things))
    # A method can be hidden by an attribute of the object.
    objects = tuple(
        (where, vars(thing), names - vars(thing).keys()) for where, thing, names in _objects(things)
    )
    attributed = _touched([held for _, held, _ in objects], memory)
    # A name that a class has inherited can be hidden by one of its own.
    hidden = tuple(
        (p.where, p.held, frozenset(_inherited(p.where)) - p.held.keys()) for p in spaces
    )
    hidden = tuple(one for one in hidden if one[2])
    extended = _touched([held for _, held, _ in hidden], memory)
    patched, covers = dict[int, tuple[Any, ...]](), dict[int, dict[str, Any]]()
    if restore is not None:
        with open_device("virtual"):
            patched = {
                n: get(p.held)
                for n, (p, get, _) in enumerate(getters)
                if p.where.startswith("torch.")
            }
            for n, (_, held, names) in enumerate(hidden):
                covers[n] = {name: held[name] for name in names if name in held}
        restore()
    parts, filling = (
        tuple(kept for *_, kept, _ in lists),
        tuple(one for *_, before in lists for one in before),
    )
    sizes, owners = [len(part) for part in parts], tuple(owner for _, owner, *_ in lists)
    attributes, joined = tuple(name for _, _, name, *_ in lists), chain.from_iterable
    same, every, each, together, size, first, kind, truth, get = (
        is_,
        all,
        map,
        zip,
        len,
        next,
        type,
        bool,
        getitem,
    )
    compilers, never, nothing = _by_the_compiler, (object(),), dict[str, Any]()
    # We never change what these hold: where something was touched, it was replaced and put back.
    kept = (*OBSERVING, "virtual_cuda.ledger.", OWN_BUILTINS)
    numbered = {
        n for n, p in enumerate(spaces) if p.where.startswith(kept) and not _sets_globals(p)
    }
    numbered = numbered if _has_versions() else set()

    def exchanged(places: Iterable[int]) -> str | None:
        for place in places:
            space, getter, before = getters[place]
            try:
                now = getter(space.held)
            except KeyError as error:
                return f"{space.where}{error.args[0]}"
            if not (
                every(each(same, now, before)) or every(each(same, now, patched.get(place, never)))
            ):
                differ = (
                    n for n, v in together(space.names, space.values) if space.held[n] is not v
                )
                if name := first((n for n in differ if not compilers(space.held[n], n)), ""):
                    return space.where + name
            if place in numbered and not memory:
                what = "a function" if isinstance(space.held, dict) else "a method"
                replaced.append(f"{what} of {space.where[:-1]} (and put it back)")
        return None

    def covered(places: Iterable[int]) -> str | None:
        for place in places:
            where, held, names = hidden[place]
            if names.isdisjoint(held):
                continue
            ours = covers.get(place, nothing)
            for name in names & held.keys():
                if name not in ours or held[name] is not ours[name]:
                    return where + name
        return None

    def compared() -> str | None:
        for find, changes in ((exchanged, touched), (covered, extended)):
            places = changes()
            changed = find(places)
            if changed is not None and restore is not None:
                with contextlib.suppress(
                    Exception
                ):  # where what it takes is gone, the comparison says what changed
                    restore()
                changed = find([*places, *changes()])
            if changed is not None:
                return changed
        if with_parts is None or with_parts():
            changed = inside()
            if changed is not None:
                return changed
        # All at once, because these are compared most often; one by one only where something differs.
        if not (
            every(each(same, each(contents, variables), values))
            and every(each(same, each(look, probes), looking))
        ):
            for function, cell, before in cells:
                if cell.cell_contents is not before:
                    return f"a variable of {function.__module__}.{function.__qualname__}"
            return first(
                f"the probe {probe.name}" for probe, before in looks if probe.look is not before
            )
        if not (
            every(each(same, each(get, owners, attributes), parts))
            and [*each(size, parts)] == sizes
            and every(each(same, joined(parts), filling))
        ):
            return first(
                where
                for where, owner, name, kept, before in lists
                if owner[name] is not kept
                or size(kept) != size(before)
                or not every(each(same, kept, before))
            )
        for place in filled():
            where, table, keys, before = tables[place]
            if not every(each(same, each(table.get, keys), before)):
                return where
        for where, table, looked_at in grown:
            right = kind(table)()
            for key in table.keys() - looked_at:
                if kind(table[key]) is truth and table[key] != right[key]:
                    return where
                looked_at.add(key)
        for place in attributed():
            where, held, names = objects[place]
            if not names.isdisjoint(held):
                return f"{where}.{first(name for name in held if name in names)}"
        return None

    return compared


_TORCH: Final = os.path.join(os.path.dirname(torch.__file__), "")


def _by_the_compiler(now: Any, name: str) -> bool:
    """Whether this is a function that torch's compiler puts in the place of another when it is first used."""
    code = getattr(now, "__code__", None)
    file = code.co_filename if type(code) is types.CodeType else ""
    return file.startswith(f"{_TORCH}_dynamo") or (file.startswith(_TORCH) and now.__name__ == name)


def _sets_globals(space: Namespace) -> bool:
    """Whether this is a package, which modules are added to, or a module with functions that set its variables."""
    if not isinstance(space.held, dict):
        return False
    codes = _codes(space.held, space.where[:-1])
    return "__path__" in space.held or any(
        dis.opmap["STORE_GLOBAL"] in code.co_code[::2] for code in codes
    )


def _parts(functions: tuple[types.FunctionType, ...]) -> Callable[[], str | None]:
    """A function that returns the name of a function with other code or defaults than now.

    What functions refer to is compared first, all at once: to read `__code__` raises an audit event each time.
    """
    for function in functions:
        function.__annotations__  # noqa: B018 - which Python makes when they are first asked for
    parts = attrgetter("__code__", "__defaults__", "__kwdefaults__")
    known = tuple(map(parts, functions))
    refer, same, every, each, size, together = gc.get_referents, is_, all, map, len, zip
    before = refer(*functions)

    def changed() -> str | None:
        nonlocal before
        now = refer(*functions)
        if size(now) == size(before) and every(each(same, now, before)):
            return None
        for function, held in together(functions, known):
            if not every(each(same, parts(function), held)):
                return f"{function.__module__}.{function.__qualname__}"
        before = now  # something else: an attribute, or a docstring
        return None

    return changed


def _namespaces() -> Iterator[tuple[str, Mapping[str, Any], tuple[str, ...]]]:
    """Namespaces, each with the names in it that must not change."""
    for name, module in list(sys.modules.items()):
        if not (name.startswith(OWN) and isinstance(module, types.ModuleType)):
            continue
        held, constants = (
            vars(module),
            {n for n, kind in module.__annotations__.items() if str(kind).startswith("Final")},
        )
        names = tuple(
            n for n, v in held.items() if (n in constants or _stays(v)) and not n.startswith("__")
        )
        yield f"{name}.", held, names
        for value in list(held.values()):
            if isinstance(value, type) and value.__module__ == name:
                yield f"{name}.{value.__name__}.", vars(value), _methods(value)
    yield (
        "sys.modules: ",
        sys.modules,
        tuple(n for n in sys.modules if n.startswith(OWN) or n in RELIED_ON),
    )
    for module, names in NAMES.items():
        yield f"{module.__name__}.", vars(module), names
    function: Any = _namespaces
    own = function.__builtins__
    if own is not vars(builtins):  # see `reaching.separate_builtins`
        yield OWN_BUILTINS, own, tuple(own)
    for name, listed in _used_of_torch().items():
        if name in sys.modules:
            held = vars(sys.modules[name])
            yield f"{name}.", held, tuple(n for n in listed if n in held)
    for name in IN_PYTHON:
        yield (
            f"{name}.",
            vars(sys.modules[name]),
            tuple(n for n in dir(sys.modules[name]) if not n.startswith("_")),
        )
    for where, kind in _others().items():
        yield where, vars(kind), tuple(name for name in _methods(kind) if name not in SHOWN)


@functools.cache
def _used_of_torch() -> dict[str, list[str]]:
    """By module, the names of torch that the code which makes evidence uses, and those that are listed above."""
    found = {name: set(listed.split()) for name, listed in IN_TORCH.items()}
    for module in [module for name, module in sys.modules.items() if name.startswith(OBSERVING)]:
        for code in _codes(vars(module), module.__name__):
            owner = ""
            for is_global, name in _names_loaded(code) if not NN.isdisjoint(code.co_names) else ():
                if is_global:
                    owner = {"torch": "torch", "nn": "torch.nn"}.get(name, "")
                elif owner and name:
                    found.setdefault(owner, set()).add(name)
                    owner = inner if (inner := f"{owner}.{name}") in sys.modules else ""
                else:
                    owner = ""
    return {name: sorted(names) for name, names in found.items()}


NN: Final = frozenset({"torch", "nn"})
CACHE, EXTENDED_ARG, LOAD_GLOBAL = dis.opmap["CACHE"], dis.EXTENDED_ARG, dis.opmap["LOAD_GLOBAL"]
# The opcodes that load an attribute, and by how many bits the number of its name is shifted: the rest are flags.
ATTRIBUTES: Final = {
    dis.opmap[name]: int(name == "LOAD_ATTR" and sys.version_info >= (3, 12))
    for name in ("LOAD_ATTR", "LOAD_METHOD")
    if name in dis.opmap
}


def _names_loaded(code: types.CodeType) -> Iterator[tuple[bool, str]]:
    """The name of each global that is loaded, with True; of each attribute, with False; other instructions have none.

    As by `dis.get_instructions`, which takes several times as long.
    """
    steps, names, high = code.co_code, code.co_names, 0
    for opcode, low in zip(steps[::2], steps[1::2], strict=True):
        if opcode == CACHE:
            continue
        if opcode == EXTENDED_ARG:
            high = (high | low) << 8
            continue
        if opcode == LOAD_GLOBAL:
            yield True, names[(high | low) >> 1]
        elif (shift := ATTRIBUTES.get(opcode)) is not None:
            yield False, names[(high | low) >> shift]
        else:
            yield False, ""
        high = 0


def _codes(names: Mapping[str, Any], module: str) -> Iterator[types.CodeType]:
    """All code of the functions and classes of a module."""
    for value in names.values():
        value = getattr(value, "__wrapped__", value)  # of one that keeps its results
        if isinstance(value, type) and value.__module__ == module:
            yield from _codes(vars(value), module)
        elif isinstance(value, types.FunctionType) and value.__module__ == module:
            waiting = [value.__code__]
            while waiting:
                yield (code := waiting.pop())
                waiting += [each for each in code.co_consts if isinstance(each, types.CodeType)]


@functools.cache
def _others() -> dict[str, type]:
    """Classes that are not ours and whose methods must not change."""
    named = ((name, value) for name, names in _used_of_torch().items() for value in names)
    kinds = {
        (name, cls): vars(sys.modules[name]).get(cls)
        for name, cls in (*IN_TORCH_CLASSES, *named)
        if name in sys.modules
    }
    torchs = {
        f"{name}.{cls}.": kind
        for (name, cls), kind in kinds.items()
        if isinstance(kind, type) and _methods(kind)
    }
    own = [vars(module) for name, module in list(sys.modules.items()) if name.startswith(OWN)]
    own.append(vars(sys.modules["contextlib"]))  # whose classes are used by way of the module
    used = {
        base
        for names in own
        for value in names.values()
        if isinstance(value, type)
        for base in value.__mro__
    }
    pythons = (kind for kind in used if kind.__module__ in IN_PYTHON and _methods(kind))
    return torchs | {f"{kind.__module__}.{kind.__qualname__}.": kind for kind in pythons}


def _inherited(where: str) -> list[str]:
    """The names that a class which is not ours has from its bases."""
    kind = _others().get(where)
    # Not the lists and dicts that Python itself adds, such as `__slotnames__`.
    bases = () if kind is None else kind.__mro__[1:-1]
    found = ((n, value) for base in bases for n, value in vars(base).items())
    return [n for n, value in found if not isinstance(value, (list, dict)) and n not in SHOWN]


def _stays(value: Any) -> bool:
    """Functions, classes, modules and objects must not change; numbers, texts and None may, unless they are Final."""
    return not isinstance(value, (int, float, str, type(None)))


def _methods(kind: type) -> tuple[str, ...]:
    return tuple(n for n, value in vars(kind).items() if isinstance(value, METHODS))


def _functions(spaces: tuple[Namespace, ...]) -> Iterator[types.FunctionType]:
    """Every function of gpudojo in these namespaces, and the probes of its exercises."""
    for space in spaces:
        for value in space.values:
            inner = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            inner = value.fget if isinstance(value, property) else inner
            if isinstance(inner, types.FunctionType) and (inner.__module__ or "").startswith(OWN):
                yield inner
    for _, _, what, held in _lists(spaces):
        if what == "probes":
            yield from (probe.look for probe in held if isinstance(probe.look, types.FunctionType))


def _fixed(cell: types.CellType) -> bool:
    """Whether a variable of a closure holds a function, class or module, which our code does not replace."""
    try:
        kinds = (
            type,
            types.ModuleType,
            types.BuiltinFunctionType,
            functools._lru_cache_wrapper,
            *METHODS,
        )
        return isinstance(cell.cell_contents, kinds)
    except ValueError:  # it is empty
        return False


def _held(spaces: tuple[Namespace, ...]) -> Iterator[tuple[str, Any]]:
    """Each object that a module of gpudojo has under a name, once."""
    own = (space for space in spaces if space.where.startswith(OWN))
    named = (
        (f"{s.where}{name}", value)
        for s in own
        for name, value in zip(s.names, s.values, strict=True)
    )
    yield from {id(value): (where, value) for where, value in named}.values()


Things = Sequence[tuple[str, Any]]  # as `_held` yields them


def _tables(
    things: Things,
) -> Iterator[tuple[str, dict[Any, Any], tuple[Any, ...], tuple[Any, ...]]]:
    """Tables with what is in them now. More may be added, since some are filled as they are used."""
    for where, value in things:
        if isinstance(value, dict) and value:
            yield where, value, tuple(value), tuple(value.values())


def _grown(things: Things) -> Iterator[tuple[str, dict[Any, Any], set[Any]]]:
    """Tables that find out by themselves what is missing; where that is True or False, it can be found out again."""
    for where, value in things:
        if isinstance(value, dict) and hasattr(value, "__missing__"):
            yield where, value, set(value)


def _objects(things: Things) -> Iterator[tuple[str, Any, frozenset[str]]]:
    """Objects of our classes, with the names of their methods."""
    for where, value in things:
        if (
            not isinstance(value, type)
            and type(value).__module__.startswith(OWN)
            and hasattr(value, "__dict__")
        ):
            yield (
                where,
                value,
                frozenset(n for kind in type(value).__mro__[:-1] for n in _methods(kind)),
            )


def _lists(
    spaces: tuple[Namespace, ...],
) -> Iterator[tuple[str, Exercise | Function, str, list[Any]]]:
    """What an exercise holds: its functions, and their probes."""
    found = {
        id(value): value
        for space in spaces
        for value in space.values
        if isinstance(value, Exercise)
    }
    for exercise in found.values():
        yield exercise.stem, exercise, "functions", exercise.functions
        for function in exercise.functions:
            yield function.name, function, "probes", function.probes
