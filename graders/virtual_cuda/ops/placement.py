"""Rules for operators whose arguments are on different devices."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.ops import kernels, messages, syncs
from virtual_cuda.ops.messages import argument_elsewhere, label_of, out_elsewhere, too_many_scalars, two_devices

ALLOWED: Final = object()

# Reductions give their output its place before the elementwise machinery looks at it.
_OUT_FIRST: Final = frozenset(
    {"all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "mean", "norm", "prod", "sum"}
)
# The probe met these with dimensions only; the rest is from the sources of the operators.
_STRICT: Final = {
    "aten.addcdiv.default": ["self", "tensor1", "tensor2"],
    "aten.addcdiv_.default": ["self", "tensor1", "tensor2"],
    "aten.logical_and.default": ["self"],
}


def _facts(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((pathlib.Path(__file__).with_name("facts") / name).read_text())
    return facts


@functools.cache
def _checks() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """{overload: (wrapper, [(argument, its name in the message), ...])}, in the order of comparison."""
    checks = {
        key: (method, [(n, n) for n in names]) for key, (method, names) in _facts("operators.json")["checks"].items()
    }
    checks.update({key: (method, names) for key, (method, names) in _facts("placement.json")["delegated"].items()})
    return checks


@functools.cache
def _strict() -> dict[str, list[str]]:
    """{overload: arguments that may not be CPU numbers}."""
    return {**_facts("placement.json")["strict"], **_STRICT}


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def on_host(tensor: Any) -> bool:
    return type(tensor) not in VIRTUAL


def named_arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    given = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)}
    given.update(kwargs)
    return given


def compare(method: str, order: Any, given: dict[str, Any]) -> None:
    """What torch's generated wrappers do first: every tensor is compared with the first one met."""
    common = None
    for name, said in order:
        for tensor in tensors_in(given.get(name)):
            if common is None:
                common = tensor.device
            elif tensor.device != common:
                raise argument_elsewhere(said, label_of(tensor), str(common), method)


def elementwise(func: Any, given: dict[str, Any], strict: Any = ()) -> list[tuple[int, str]]:
    """TensorIterator's rule; says which operands are taken for numbers: (operand, argument), the output being 0."""
    arguments = func._schema.arguments
    written = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    outputs = [(a.name, t) for a in written for t in tensors_in(given.get(a.name))]
    inputs = [(a.name, t) for a in arguments if a not in written for t in tensors_in(given.get(a.name))]
    common = next((label_of(t) for _, t in [*outputs, *inputs] if not on_host(t)), "cpu")
    for _, tensor in outputs:
        if label_of(tensor) != common:
            raise two_devices(common, label_of(tensor))
    # In place, the first argument is an input as well, so operands are counted from the output that is made.
    before = 1 if not outputs or written[0].kwarg_only else 2
    numbers: list[tuple[int, str]] = []
    for operand, (name, tensor) in enumerate(inputs, before):
        if label_of(tensor) == common:
            continue
        if not on_host(tensor) or tensor.dim() > 0 or name in strict:
            raise two_devices(common, label_of(tensor))
        if numbers:
            raise too_many_scalars()
        numbers.append((operand, name))
    return numbers


def _outputs_first(func: Any, given: dict[str, Any]) -> None:
    written = [a.name for a in func._schema.arguments if a.kwarg_only and a.alias_info is not None]
    source = next((t for name, v in given.items() if name not in written for t in tensors_in(v)), None)
    for name in written:
        for tensor in tensors_in(given.get(name)):
            if source is not None and tensor.device != source.device:
                raise out_elsewhere(label_of(tensor), label_of(source))


def judge(func: Any, args: Any, kwargs: Any, seen: Any) -> Any:
    """ALLOWED if the call may go on, or its finished result; raises CUDA's error if it may not."""
    given = named_arguments(func, args, kwargs)
    packet = func._schema.name.partition("::")[2]
    by_hand = BY_HAND.get(packet)
    if by_hand is not None:
        decided = by_hand(func, args, kwargs, given)
        if decided is not None:
            return decided
    elif packet.startswith("_foreach_"):
        return one_by_one(func, args, kwargs)
    key = str(func)
    check = _checks().get(key)
    if check is not None:
        compare(*check, given)
        return ALLOWED
    if packet in _OUT_FIRST:
        _outputs_first(func, given)
    numbers = elementwise(func, given, _strict().get(key, ()))
    as_numbers(packet, numbers)
    return ALLOWED


Rule = Callable[[Any, Any, Any, dict[str, Any]], Any]
BY_HAND: Final[dict[str, Rule]] = {}


def rule(*packets: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        BY_HAND.update(dict.fromkeys(packets, function))
        return function

    return register


# ---- what crosses ----------------------------------------------------------------------------------------------------


def _crossing(source: Any, target: Any) -> None:
    """CUDA copies `source` to where `target` is, and the host waits (what indexing waits for is in `syncs.py`)."""
    from virtual_cuda.device.transfers import HOST, record

    if label_of(source) == label_of(target):
        return
    plain = source if on_host(source) else source._inner
    if on_host(source):
        record("to_device", plain, False, False, HOST, label_of(target))
    elif on_host(target):
        record("to_host", plain, False, False, label_of(source), HOST)
    else:
        record("between_devices", plain, False, False, label_of(source), label_of(target))


def _opened(value: Any) -> Any:
    if type(value) in VIRTUAL:
        return value._inner
    if isinstance(value, (list, tuple)):
        return type(value)([_opened(item) for item in value])
    return value


def _stays(func: Any, args: Any, kwargs: Any, base: Any) -> Any:
    """The result is where `base` is: on the host the call ends here, since `general` would put it on the device."""
    if not on_host(base):
        return ALLOWED
    out = kernels.call_of(func)(*_opened(args), **{key: _opened(value) for key, value in kwargs.items()})
    if (tick := syncs.of(func)) is not None:
        tick(args, kwargs, out)
    return out


# ---- indices and masks -----------------------------------------------------------------------------------------------


@rule("index", "_unsafe_index")
def _index(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    base = given["self"]
    for index in tensors_in(given["indices"]):
        if not on_host(index) and index.device != base.device:
            raise messages.indices_elsewhere(label_of(base))
    return ALLOWED


@rule("_unsafe_masked_index")
def _masked_index(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    _index(func, args, kwargs, given)
    if given["mask"].device != given["self"].device:
        raise messages.mask_elsewhere(label_of(given["mask"]), label_of(given["self"]))
    return ALLOWED


@rule("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")
def _index_put(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    """Indices may be anywhere, and so may a value without dimensions."""
    base, values = given["self"], given["values"]
    if values.device != base.device and values.dim() > 0:
        masks = [i for i in tensors_in(given["indices"]) if not on_host(i) and i.dtype in (torch.bool, torch.uint8)]
        syncs.note("boolean index", len(masks))  # they have been counted by then
        sorted_first = given.get("accumulate", False) or torch.are_deterministic_algorithms_enabled()
        if not on_host(base) and sorted_first:
            raise messages.value_elsewhere(label_of(base), label_of(values))
        raise messages.two_devices(*_cuda_first(base, values))
    return _stays(func, args, kwargs, base)


def _cuda_first(one: Any, other: Any) -> tuple[str, str]:
    labels = label_of(one), label_of(other)
    return (labels[1], labels[0]) if labels[0] == "cpu" else labels


@rule("masked_fill", "masked_fill_")
def _masked_fill(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    base, mask, value = given["self"], given["mask"], given["value"]
    if on_host(base) and isinstance(value, torch.Tensor):
        raise messages.masked_fill_elsewhere()
    if mask.device != base.device:
        raise messages.mask_elsewhere(label_of(mask), label_of(base))
    return ALLOWED


@rule("where")
def _where(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    operands = [t for name in ("condition", "self", "other") for t in tensors_in(given.get(name))]
    first = next((t for t in operands if not on_host(t)), None)
    if first is None:
        return None
    for tensor in operands:
        if tensor.device != first.device and tensor.dim() > 0:
            raise messages.two_devices(label_of(first), label_of(tensor))
    return ALLOWED if "out" not in given else None


@rule("index_fill", "index_fill_")
def _index_fill(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    base = given["self"]
    elementwise(func, {"self": base, "index": given["index"]}, ("self",))
    return _stays(func, args, kwargs, base)


# ---- copies under another name ---------------------------------------------------------------------------------------


@rule("as_strided_scatter", "copy", "diagonal_scatter", "fill_", "select_scatter", "slice_scatter")
def _copies(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    base, source = given["self"], given.get("src", given.get("value"))
    if not (func._schema.name == "aten::fill_" and on_host(source)):  # a host number needs no copy
        _crossing(source, base)
    return _stays(func, args, kwargs, base)


@rule("resize_as_")
def _shape_only(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    return _stays(func, args, kwargs, given["self"])


@rule("is_same_size", "linspace", "logspace", "_use_cudnn_ctc_loss", "_use_miopen_ctc_loss")
def _anything_goes(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    return ALLOWED


# ---- layers ----------------------------------------------------------------------------------------------------------


def _asks_mkldnn(image: torch.Tensor, weight: torch.Tensor, given: dict[str, Any]) -> bool:
    """Whether torch gives this convolution on the CPU to oneDNN, which words the mistake in another way."""
    if image.dtype is not torch.float32:
        return False
    moves = any(s != 1 for s in given["stride"]) or any(d != 1 for d in given["dilation"])
    if not moves and image.shape[0] < 16 and all(side == 1 for side in weight.shape[2:][-2:]):
        return False  # a kernel of one point
    wide = weight.dim() > 3 and weight.shape[-1] > 3 and weight.shape[-2] > 3
    size = image.shape[0] * image.shape[1] * image[0, 0].numel() if image.dim() < 5 else image[..., 0].numel()
    return int(given["groups"]) > 1 or wide or image.shape[0] > 1 or size > 20480


@rule("convolution", "_convolution")
def _convolution(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    image, weight, bias = given["input"], given["weight"], given["bias"]
    others = [("weight", weight), ("bias", bias)] if bias is not None else [("weight", weight)]
    mkldnn = on_host(image) and _asks_mkldnn(image, weight, given)
    if on_host(image) and not mkldnn:
        dilated = any(d != 1 for d in given["dilation"])
        depth = 3 if weight.dim() == 5 else 2
        name = "slow_conv_transpose" if given["transposed"] else "slow_conv_dilated" if dilated else "_slow_conv"
        ending = "_forward" if name == "_slow_conv" else ""
        prefix = "wrapper_CUDA_" if name == "slow_conv_transpose" and depth == 2 else "wrapper_CUDA__"
        compare(f"{prefix}{name}{depth}d{ending}", [(n, n) for n in ("input", "weight", "bias")], given)
    for name, tensor in others:
        if tensor.device.type != image.device.type:
            raise messages.convolution_types(image, name, tensor, mkldnn)
    compare("wrapper_CUDA__cudnn_convolution", [("input", "self"), ("weight", "weight")], given)
    return None


@rule("native_batch_norm")
def _batch_norm(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    image = given["input"]
    complete = given["weight"] is not None and given["bias"] is not None
    if not on_host(image) and image.dim() >= 3 and complete and torch.backends.cudnn.enabled:
        names = ("input", "weight", "bias", "running_mean", "running_var")
        compare("wrapper_CUDA__cudnn_batch_norm", [(name, name) for name in names], given)
    return None


@rule("_ctc_loss", "_ctc_loss_backward")
def _ctc_loss(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    """CUDA reads the lengths on the host, wherever they are; cuDNN wants even the targets there."""
    targets = given["targets"]
    for_cudnn = targets.dtype is torch.int32 and targets.dim() == 1 and given.get("blank", 0) == 0
    backward = "backward" in func._schema.name
    names = ["grad"] * backward + ["log_probs", "targets"] + ["neg_log_likelihood", "log_alpha"] * backward
    if for_cudnn and on_host(targets):
        names.remove("targets")
    compare(f"wrapper_CUDA__{func._schema.name.partition('::')[2]}", [(n, n) for n in names], given)
    return ALLOWED


@rule("searchsorted")
def _searchsorted(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    sorter, boundaries = given.get("sorter"), given["sorted_sequence"]
    values = given["self"]
    same = not isinstance(values, torch.Tensor) or values.device == boundaries.device
    if sorter is not None and same and sorter.device != boundaries.device:
        raise messages.sorter_elsewhere(label_of(sorter), label_of(boundaries))
    return None


@rule("cholesky_solve")
def _cholesky_solve(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    raise messages.solve_elsewhere(label_of(given["self"]), label_of(given["input2"]))


@rule("block_diag")
def _block_diag(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    tensors = given["tensors"]
    for position, tensor in enumerate(tensors):
        if tensor.device != tensors[0].device:
            raise messages.block_elsewhere(label_of(tensors[0]), position, label_of(tensor))
    return ALLOWED


@rule("segment_reduce")
def _segment_reduce(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    name = "offsets" if given.get("lengths") is None else "lengths"
    raise messages.segments_elsewhere(name)


@rule("mse_loss")
def _mse_loss(func: Any, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
    """The reduction writes where the first argument is, and meets the other device there."""
    base, target = given["self"], given["target"]
    if on_host(base) and base.dim() == 0:
        raise messages.two_devices(label_of(base), label_of(target))
    return None


def as_numbers(packet: str, numbers: list[tuple[int, str]]) -> None:
    """Operators whose CUDA kernel does not take the CPU number that their checks let through."""
    base = packet.rstrip("_")
    for operand, name in numbers:
        if base == "addcmul" and name == "tensor1":
            raise messages.addcmul_scalar()
        if base in ("lerp", "smooth_l1_loss", "addcmul") and name not in ("weight", "tensor2"):
            raise messages.not_on_cuda(operand)


aten: Final = torch.ops.aten
_SINGLE: Final = {
    "clamp_max": ("clamp_max", "Tensor", "Tensor"),
    "clamp_min": ("clamp_min", "Tensor", "Tensor"),
    "copy": ("copy", "default", "default"),
    "maximum": ("clamp_min", "Tensor", "Tensor"),
    "minimum": ("clamp_max", "Tensor", "Tensor"),
    "pow": ("pow", "Tensor_Tensor", "Tensor"),
}


def _single(packet: str, overload: str) -> Any:
    """The operator that `_foreach_*` calls for each element when the fast path is closed."""
    name = packet.removeprefix("_foreach_")
    in_place = name.endswith("_")
    base = name.rstrip("_")
    if base in ("addcdiv", "addcmul"):
        target, kind = base, "default"
    elif base == "lerp":
        target, kind = base, "Tensor" if overload == "List" else "Scalar"
    else:
        target, *kinds = _SINGLE.get(base, (base, "Tensor", "Tensor"))
        kind = kinds[in_place]
    return getattr(getattr(aten, target + ("_" if in_place else "")), kind)


def one_by_one(func: Any, args: Any, kwargs: Any) -> Any:
    """The slow path of `_foreach_*`: lists that mix devices are taken element by element."""
    packet, overload = func._schema.name.partition("::")[2], func._overloadname
    first = next(value for value in args if isinstance(value, (list, tuple)))
    other = args[1] if overload == "Tensor" and len(args) > 1 else None
    if isinstance(other, torch.Tensor) and len({label_of(t) for t in first}) == 1:
        where = label_of(first[0])
        if not on_host(other) and label_of(other) != where:
            raise messages.scalar_elsewhere(where, label_of(other))
    results = []
    for position in range(len(first)):
        element = [[value[position]] if isinstance(value, (list, tuple)) else value for value in args]
        labels = {label_of(tensor) for tensor in tensors_in(element)}
        if len(labels) == 1:
            out = func(*element, **kwargs)
            results.append(out[0] if out else None)
            continue
        alone = [value[0] if isinstance(value, list) else value for value in element]
        single = _single(packet, overload)
        if packet.startswith("_foreach_addc"):  # the factor is named there
            results.append(single(*alone[:3], value=alone[3] if len(alone) > 3 else kwargs.get("value", 1)))
        else:
            results.append(single(*alone, **kwargs))
    return None if packet.endswith("_") else results
