"""The operator registry: all that the virtual device knows about an operator, in one entry.

An operator needs an entry only where CUDA differs from the CPU kernel that computes it here. Each
family of operators has a file in this folder, which declares its entries:

    operator("bincount", kernel=_count_values, nondeterministic="_bincount_cuda")

A name is one of `torch.ops.aten`: "median" for all overloads, "median.dim" for one of them, whose
facts go first. An operator is declared once; a second declaration is refused. What a real GPU and
torch's own tables say is in `facts/*.json` (see `make_facts.py`) and becomes part of the same
entries.
"""

from __future__ import annotations

import functools
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from virtual_cuda.device.known_values import certain_values
from virtual_cuda.device.no_values import shape_only
from virtual_cuda.internals import nn_functions, torch_functions
from virtual_cuda.lacking import Lacking
from virtual_cuda.ledger.names import IMPLICIT_WAITS, ImplicitWait, require_one_of
from virtual_cuda.ops.library_shapes import result_of_shape_function
from virtual_cuda.trees import leaves_of, map_leaves

ALLOWED: Final = object()  # a placement rule's answer: the arguments may be where they are
NOT_EMULATED: Final = object()  # an emulation's answer: CUDA does not compute this either

Waits = tuple[ImplicitWait, int | Callable[[dict[str, Any]], int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The facts that are known of an operator.

    "Inner" tensors are the CPU tensors inside the device's.
    """

    # How it runs. The first four belong to one overload: the one named, or the default one.
    plan: Callable[[Any, Any, Any], Any] | None = None
    """Runs the operator in place of the dispatcher: function(func, args, kwargs)."""
    kernel: Callable[..., Any] | None = None
    """Computes in place of the CPU kernel: takes the operator's arguments, with inner tensors."""
    largest: Callable[..., Any] | None = None
    """Computes in place of the kernel in a run without values, where the shape depends on values.

    It gives tensors of "meta" with the largest shape there can be, or raises NeedsValues.
    """
    output: Callable[[Any, Any, Any], Any] | None = None
    """Gives the results their form on CUDA.

    function(inner arguments, kwargs, results) -> results
    """
    fast_path: str | None = None
    """A plan of `plans.py` that the schema does not ask for: "detach", "item", "like" or "view"."""
    binding: bool = False
    """Whether Python's own binding is called, which takes less time; for frequent operators."""
    whole: bool = False
    """Whether CUDA runs it as one kernel, although torch can make it of other operators."""
    front: bool = False
    """Whether its result is the front of a longer buffer, which stays.

    That is so for a loss: it is reduced in the memory of the single losses.
    """
    product: bool = False
    """Whether the result, a matrix product, can need far more memory than the factors."""
    workspaces: Callable[[Any, Any, Any], Any] | None = None
    """The memory that libraries take besides the results: a rule of `workspaces.py`.

    function(args, kwargs, results) -> Workspaces
    """
    emulate: Callable[[Any, Any, Any, Exception], Any] | None = None
    """Computes where the CPU kernel has raised and CUDA does not.

    function(func, inner, kwargs, error) -> results, or NOT_EMULATED
    """

    complex_half: bool = False
    """Whether CUDA computes complex32, which the CPU kernel refuses."""

    # When the host waits.
    waits: Waits | None = None
    """The ledger's name for the wait, and how often the host waits.

    That is a number, or a function of the arguments by name.
    """
    asserts: bool = False
    """Whether values are checked on the device: the host hears of a bad index at its next wait."""

    # What CUDA refuses, and in which words.
    placement: Callable[[Any], Any] | None = None
    """The rule for arguments on different devices.

    function(OperatorCall) -> ALLOWED, a result, or None for the general rules
    """
    strict: Sequence[str] = ()
    """Arguments that may not be CPU numbers."""
    output_first: bool = False
    """Whether the device of `out=` is checked before that of the inputs."""
    check: tuple[str, list[tuple[str, str]]] | None = None
    """The C++ function that compares devices, and the arguments in the order of comparison.

    Each argument stands with its name in the message.
    """
    refuse: Callable[[Any, Any], None] | None = None
    """Raises what CUDA raises for arguments that the CPU kernel takes: function(args, kwargs)."""
    absent: bool = False
    """Whether CUDA has no kernel at all."""
    forbidden: dict[str, str] | None = None
    """CUDA's refusals by dtype ("Half", or "integer" for all of those)."""
    nondeterministic: str | Callable[[Any], str | None] | None = None
    """The name in the alert of `torch.use_deterministic_algorithms`.

    It may be a function of the arguments that gives the name, or None for no alert.
    """
    exact_integers: bool = False
    """Whether whole numbers raise no such alert: they add up to the same in any order."""
    words: Callable[[Any, str], Exception | None] | None = None
    """CUDA's exception for a CPU kernel's: function(inner arguments, text)."""
    spoken: dict[str, str] | None = None
    """CUDA's messages by the CPU's, each with its exception's name."""

    single: str | None = None
    """The operator that `_foreach_NAME` calls for each element of lists on several devices.

    Without this fact it is `NAME`. Which overload runs, its arguments say.
    """
    by_hand: bool = False
    """Whether its refusals depend on more than the dtype.

    `make_facts.py` leaves out what a measurement says of it.
    """
    autocast: str | None = None
    """The autocast policy of the one overload: a key of `autocast.POLICIES`."""


class DuplicateOperator(ValueError):
    """An operator, or a fact about it, is declared in two places."""

    def __init__(self, name: str, places: tuple[str, str], fact: str = "") -> None:
        """Say where an operator is declared twice: two modules, and the fact, if it is one."""
        about = ""
        if fact:
            about = f" ({fact})"
        super().__init__(
            f"Operator {name!r} is declared twice{about}: in {places[0]} and in {places[1]}. "
            "Everything known about an operator stands in one entry."
        )


# Facts of one overload.
OVERLOADS: Final = ("plan", "kernel", "largest", "output", "fast_path", "autocast")
_entries: Final[dict[str, dict[str, Any]]] = {}
_declared_in: Final[dict[str, str]] = {}


def operator(*names: str, **facts: Any) -> None:
    """Declare what is known of these operators; the facts are the fields of `Operator`.

    They are added to the registry, with the name of the module that calls this. Raises
    `DuplicateOperator` for an operator that has an entry, TypeError for a fact that does not exist,
    and UnknownInLedger for a wait of no kind that the ledger has.
    """
    waits = Operator(**facts).waits
    if waits is not None:
        require_one_of(waits[0], IMPLICIT_WAITS)  # so that questions know the kind
    place = str(sys._getframe(1).f_globals.get("__name__"))
    for name in names:
        if name in _entries:
            raise DuplicateOperator(name, (_declared_in[name], place))
        _entries[name] = facts
        _declared_in[name] = place


def declared_operators() -> dict[str, Operator]:
    """The entries made by hand, by name."""
    return {name: Operator(**facts) for name, facts in _entries.items()}


@functools.cache
def measured_table(name: str) -> dict[str, Any]:
    """The table of this name in `facts/`; read once, then remembered.

    "operators" is torch's own; "placement" and "refusals" were measured on a GPU.
    """
    folder = pathlib.Path(__file__).parent / "facts"
    path = folder / f"{name}.json"
    table: dict[str, Any] = json.loads(path.read_text())
    return table


@functools.cache
def autocast_policies() -> dict[str, str]:
    """The autocast policy of each overload, named without "aten."; worked out once.

    The entries made by hand go before what was measured.
    """
    policies = {}
    for policy, names in measured_table("operators")["autocast"].items():
        for name in names:
            if autocast_knows(name):
                policies[_name_with_overload(name)] = policy
    for name, facts in _entries.items():
        if "autocast" in facts:
            policies[_name_with_overload(name)] = facts["autocast"]
    return policies


def autocast_knows(name: str) -> bool:
    """True if autocast of the installed torch knows this operator.

    The operator is one that autocast of the measured torch knows.
    """
    return _CAST_SINCE.get(name, _TORCH) <= _TORCH


def _name_with_overload(name: str) -> str:
    """The full name of an overload: "add.default" for "add"."""
    if "." in name:
        return name
    return f"{name}.default"


def name_of(func: Any) -> str:
    """The name of an operator without its overload: "add" of aten.add.Tensor."""
    return str(func._schema.name.partition("::")[2])


# Refusals of the torch that was measured (2.11) which a later one has lifted, with the first torch
# that is without them.
_LIFTED: Final = {"aten._embedding_bag_per_sample_weights_backward.default": {"BFloat16": (2, 13)}}
_CAST_SINCE: Final = {"rms_norm": (2, 12)}
_TORCH: Final = tuple(int(part) for part in torch.__version__.split(".")[:2])


def _measured_facts(func: Any) -> dict[str, Any]:
    """The facts of an overload from `facts/*.json`, by the name of the field of `Operator`."""
    key = str(func)
    operators = measured_table("operators")
    placement = measured_table("placement")
    refusals = measured_table("refusals")
    facts: dict[str, Any] = {
        "absent": key in refusals["absent"],
        "strict": placement["strict"].get(key, ()),
    }
    # Who compares the devices of the arguments.
    if key in placement["delegated"]:
        facts["check"] = placement["delegated"][key]
    elif key in operators["checks"]:
        method, names = operators["checks"][key]
        pairs = [(name, name) for name in names]
        facts["check"] = method, pairs
    # What CUDA refuses, and in which words.
    facts["spoken"] = _first_refusal(func, refusals["spoken"])
    forbidden = _first_refusal(func, refusals["forbidden"])
    if forbidden:
        forbidden = _refusals_of_this_torch(key, forbidden)
    facts["forbidden"] = forbidden
    return facts


def _first_refusal(func: Any, table: dict[str, dict[str, str]]) -> dict[str, str] | None:
    """What a table of refusals has for an overload, under the first name that it has; or None."""
    for name in _names_of_refusals(func):
        if name in table:
            return table[name]
    return None


def _names_of_refusals(func: Any) -> tuple[str, ...]:
    """The names under which refusals of an overload are known; the first that a table has counts.

    That may be the plain overload's: the in-place and `out=` forms launch the same kernel.
    """
    name = name_of(func)
    overload = func._overloadname
    if name.startswith("__"):
        base = name
    else:
        base = name.removesuffix("_")
    plain = overload.removesuffix("out").removesuffix("_") or "default"
    return (str(func), f"aten.{base}.{overload}", f"aten.{base}.{plain}")


def _refusals_of_this_torch(key: str, forbidden: dict[str, str]) -> dict[str, str]:
    """The refusals by dtype, without those that the installed torch has lifted."""
    versions = _LIFTED.get(key, {})
    remaining = {}
    for dtype, message in forbidden.items():
        if dtype not in versions or versions[dtype] > _TORCH:
            remaining[dtype] = message
    return remaining


@functools.cache
def facts_of(func: Any) -> Operator:
    """Everything that is known of an overload; worked out once.

    Its own entry goes first, then the entry for all overloads; measured facts are added. An
    operator outside of "aten" gets one without facts. Raises DuplicateOperator for a fact that was
    both declared and measured.
    """
    if getattr(func, "namespace", None) != "aten":  # a custom operator, or a function of torch
        return Operator()
    facts = _measured_facts(func)
    for fact, (key, value) in _declared_facts(func).items():
        if facts.get(fact):
            raise DuplicateOperator(key, (_declared_in[key], "facts/*.json"), fact)
        facts[fact] = value
    return Operator(**facts)


def _declared_facts(func: Any) -> dict[str, tuple[str, Any]]:
    """The declared facts of an overload, by name: each with the name of its entry, and its value.

    Those of its own entry replace those of the entry for all overloads.
    """
    name = name_of(func)
    overload = func._overloadname
    found = {}
    for fact, value in _entries.get(name, {}).items():
        if fact not in OVERLOADS or overload == "default":
            found[fact] = (name, value)
    own_name = f"{name}.{overload}"
    for fact, value in _entries.get(own_name, {}).items():
        found[fact] = (own_name, value)
    return found


def binding_of(func: Any) -> Any:
    """The callable that runs `func` on plain tensors.

    That is Python's own binding for a frequent operator, else `func`.
    """
    if not facts_of(func).binding:
        return func
    for argument in func._schema.arguments:
        if argument.kwarg_only and "Tensor" in str(argument.type):
            return func
    name = name_of(func)
    for home in (torch_functions, nn_functions, torch.Tensor.__base__):
        if not isinstance(home, Lacking) and hasattr(home, name):
            return getattr(home, name)
    return func


def call_of(func: Any) -> Any:
    """The callable that runs `func` on inner tensors: a kernel of ours, or the CPU's.

    Where the shape of the result depends on values, and the first tensor has none, it makes the
    largest result that there can be, by the rule `largest` of the registry, which may raise
    NeedsValues; for an operator of `torch.library`, by its own shape function.
    """
    facts = facts_of(func)
    call: Any = facts.kernel or _kernel_into_out(func) or binding_of(func)
    if hasattr(call, "_op_dk"):  # an overload: what it calls
        call = call._op
    largest = facts.largest
    if largest is None and func.namespace != "aten":
        largest = functools.partial(result_of_shape_function, func)
    if largest is None:
        return call
    return functools.partial(_call_with_or_without_values, call, largest)


def _kernel_into_out(func: Any) -> Callable[..., Any] | None:
    """The kernel of an overload with `out`, if the one without it has a kernel of ours.

    It computes by that kernel. None for all other overloads.
    """
    names = [argument.name for argument in func._schema.arguments if argument.is_out]
    if not names or func.namespace != "aten":
        return None
    plain = _overload_without_out(func)
    if plain is None:
        return None
    kernel = facts_of(plain).kernel
    if kernel is None:
        return None
    return functools.partial(_write_into_out, func, kernel, names)


def _overload_without_out(func: Any) -> Any:
    """The overload that takes the same arguments as one with `out`, but for that; None if none."""
    arguments = _arguments_without_out(func)
    packet = getattr(torch.ops.aten, name_of(func))
    for name in packet.overloads():
        overload = getattr(packet, name)
        if overload is not func and _arguments_without_out(overload) == arguments:
            return overload
    return None


def _arguments_without_out(func: Any) -> list[tuple[str, str]]:
    """The name and type of each argument of an overload that is not written into by `out`."""
    arguments = []
    for argument in func._schema.arguments:
        if not argument.is_out:
            arguments.append((argument.name, str(argument.type)))
    return arguments


def _write_into_out(
    func: Any, kernel: Callable[..., Any], names: list[str], /, *inner: Any, **named: Any
) -> Any:
    """Compute by `kernel`, and write into the arguments of these names; gives these.

    Where they have not the shape or the dtype of the results, torch's own `func` is called before,
    which resizes them, warns, or raises.
    """
    outs = [named[name] for name in names]
    others = {name: value for name, value in named.items() if name not in names}
    results = kernel(*inner, **others)
    if len(outs) == 1:
        results = [results]
    pairs = list(zip(outs, results, strict=True))
    for out, result in pairs:
        if out.numel() == 0:
            out.resize_(result.shape)
    if any((out.shape, out.dtype) != (result.shape, result.dtype) for out, result in pairs):
        func(*inner, **named)
    for out, result in pairs:
        out.copy_(result)
    if len(outs) == 1:
        return outs[0]
    return tuple(outs)


def _call_with_or_without_values(call: Any, largest: Any, /, *inner: Any, **named: Any) -> Any:
    """What `call` gives, or `largest` if the first argument is a tensor without values.

    Where the values of all tensors are known all the same, the shapes are those that they lead to.
    Raises what these raise.
    """
    if not (inner and isinstance(inner[0], torch.Tensor) and inner[0].is_meta):
        return call(*inner, **named)
    known = map_leaves(_values_if_certain, inner)
    if any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in leaves_of(known)):
        return largest(*inner, **named)
    return map_leaves(shape_only, call(*known, **named))


def _values_if_certain(value: Any) -> Any:
    """The values of an inner tensor if they are certain; else what is given."""
    if not isinstance(value, torch.Tensor):
        return value
    values = certain_values(value)
    return value if values is None else values
