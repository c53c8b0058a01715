"""`to_numpy`: a tensor as a NumPy array, whatever its device, dtype and graph."""

from __future__ import annotations

from typing import Any

from gpudojo.days.day8.minimizing_transfers.declaration import to_numpy
from gpudojo.days.day8.sprites import make_sprites
from gpudojo.grading.call import Call, StudentRaised, array_of, nn, torch, try_inputs
from gpudojo.grading.checks import check_scenarios, device_mistake, runs
from gpudojo.model.evidence import Array, Case, Cases, Raised
from gpudojo.model.exercise import Failed, Seen, with_article

NUMBERS = ("float32", "float16", "float64", "int64", "uint8")
DTYPES = (*NUMBERS, "bool")
GRADED = ("that is a parameter", "that requires grad", "with a graph behind it")
SMALL = ("without a dimension", "without elements", "of one pixel")
ON_THE_CPU = " on the CPU"  # the end of a scenario's name

# ---- scenarios ---------------------------------------------------------------------------------


class Converted(Case, frozen=True):
    """The result for one tensor, and whether the tensor was changed."""

    kind: str
    value: Array | None
    switched: bool  # its requires_grad
    moved: bool  # its device, shape, or place in a graph
    left: Array  # its values afterwards


def _make_tensors(seed: int, device: Any) -> dict[str, Any]:
    """One tensor for each thing that can make a conversion fail, by name; no two share memory.

    Those of a dtype have numbers that do not fit into a smaller one.
    """
    pictures, _ = make_sprites(2, seed)
    numbers = pictures * 200
    tensors = {}
    for name in NUMBERS:
        tensor = numbers.to(getattr(torch, name))
        tensors[name] = _move_if_possible(tensor, device)
    large = numbers > 100
    tensors["bool"] = large.to(device)
    base = pictures.to(device)
    weight = base.clone().requires_grad_()
    tensors["transposed"] = base.clone().transpose(1, 3)
    tensors["that is a parameter"] = nn.Parameter(base.clone())
    tensors["that requires grad"] = weight
    tensors["with a graph behind it"] = weight * 2
    # The largest number and not the mean, which differs between devices.
    tensors["without a dimension"] = base.amax()
    tensors["without elements"] = base[:0]
    tensors["of one pixel"] = base[:1, :, :1, :1].clone()
    return tensors


def _move_if_possible(tensor: Any, device: Any) -> Any:
    """A tensor on the device; itself if it is of float64, and the device is MPS, which has none."""
    kind = torch.device(device).type
    if kind == "mps" and tensor.dtype == torch.float64:
        return tensor
    return tensor.to(device)


def _state_of(tensor: Any) -> tuple[Any, ...]:
    """What a call must not change of a tensor, beside its values and `requires_grad`."""
    return tensor.device, tensor.is_leaf, tensor.shape


def _call_to_numpy(call: Call, tensor: Any) -> Converted:
    """Call the student's function and describe the array, and the tensor afterwards.

    Raises StudentRaised, with the line that had copied the tensor to the host.
    """
    import numpy as np

    required_gradient = tensor.requires_grad
    before = _state_of(tensor)
    try:
        value = call(tensor)
    except StudentRaised as error:
        copied = _line_of_copy(call, tensor.nbytes)
        raise error.with_facts(copied=copied) from None
    array = None
    if isinstance(value, np.ndarray):
        data = b""
        if value.dtype.kind in "biuf":
            data = value.tobytes()
        array = Array(value.dtype.name, value.shape, data)
    return Converted(
        kind=type(value).__name__,
        value=array,
        switched=tensor.requires_grad != required_gradient,
        moved=_state_of(tensor) != before,
        left=array_of(tensor),
    )


def _line_of_copy(call: Call, size: int) -> dict[str, int | None]:
    """The line that first copied a tensor of so many bytes to the host; empty if none did."""
    for copy in call.ledger.transfers_to_host():
        if copy.bytes == size:
            return {"tensor": call.line_of(copy)}
    return {}


@to_numpy.probe
def arrays(call: Call) -> Cases[Converted]:
    """The arrays of all tensors, on the device and on the CPU.

    Raises StudentRaised for an error about a closed device or memory.
    """
    tensors = _make_tensors(call.seed, call.device)
    on_the_cpu = _make_tensors(call.seed, "cpu")
    for name, tensor in on_the_cpu.items():
        tensors[name + ON_THE_CPU] = tensor
    return try_inputs(_call_to_numpy, call, tensors)


# ---- claims ------------------------------------------------------------------------------------


def _why_it_raises(raised: Raised, seen: Seen) -> str | None:
    """The misconception behind an error about devices; None for other errors."""
    return device_mistake(raised)


runs(to_numpy, scenarios=("float32", "int64"), diagnose=_why_it_raises)


def _on_both(*names: str) -> tuple[str, ...]:
    """The scenarios of these tensors, on the device and on the CPU."""
    on_the_cpu = [name + ON_THE_CPU for name in names]
    return (*names, *on_the_cpu)


def _expect_same_array(scenario: str, found: Converted, right: Converted) -> None:
    """Raises Failed unless a tensor gave the reference's array."""
    gave = f"{_name_of_tensor(scenario)} gave"
    value = found.value
    wished = right.value
    assert wished is not None
    if value is None:
        happened = f"{gave} {with_article(found.kind)}"
        raise Failed(happened, "a numpy.ndarray")
    if value.dtype != wished.dtype:
        happened = f"{gave} an array of {value.dtype}"
        raise Failed(happened, wished.dtype)
    if value.shape != wished.shape:
        happened = f"{gave} shape {value.shape}"
        raise Failed(happened, str(wished.shape))
    if value.data != wished.data:
        raise Failed(f"{gave} other values", "the values of the tensor")


def _name_of_tensor(scenario: str) -> str:
    """How a failure names the tensor of a scenario: "a bool tensor on the CPU"."""
    kind = scenario.removesuffix(ON_THE_CPU)
    if kind in DTYPES:
        return f"a {kind} tensor{scenario.removeprefix(kind)}"
    return f"a tensor {scenario}"


@check_scenarios(to_numpy, arrays, points=0.5, names=_on_both(*DTYPES, "transposed"))
def keeps_values_and_dtype(scenario: str, found: Converted, right: Converted) -> None:
    """The array has the tensor's values, dtype and shape, whatever these are."""
    _expect_same_array(scenario, found, right)


@check_scenarios(to_numpy, arrays, points=0.5, names=_on_both(*GRADED))
def converts_what_requires_grad(scenario: str, found: Converted, right: Converted) -> None:
    """It also works for parameters, for tensors that require a gradient, and for results computed
    from them."""
    _expect_same_array(scenario, found, right)


@check_scenarios(to_numpy, arrays, points=0.25, names=_on_both(*SMALL))
def converts_small_tensors(scenario: str, found: Converted, right: Converted) -> None:
    """A single number, a single pixel and a tensor without elements keep their shapes too."""
    _expect_same_array(scenario, found, right)


@to_numpy.check(points=0.25, needs=("runs", "keeps_values_and_dtype"))
def leaves_the_tensor_alone(seen: Seen, wanted: Seen) -> None:
    """The tensor is not changed: its device, its values, and whether it requires a gradient."""
    for name, right in wanted[arrays].items():
        found = seen[arrays].get(name)
        if found is None:  # an error is another check's
            continue
        tensor = _name_of_tensor(name)
        expected = "the tensor as before"
        if found.switched:
            happened = f"the requires_grad of {tensor} was changed"
            raise Failed(happened, expected, None, "requires-grad-left-off")
        if found.moved:
            happened = f"device, shape or graph of {tensor} changed"
            raise Failed(happened, expected, None, "input-modified")
        if found.left != right.left:
            happened = f"the values of {tensor} changed"
            raise Failed(happened, expected, None, "input-modified")
