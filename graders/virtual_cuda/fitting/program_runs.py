"""Runs the programs of a record on the virtual device, for the rows that they write."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.device.state import VirtualGpu
from virtual_cuda.devices import virtual_cuda
from virtual_cuda.fitting.records import Program
from virtual_cuda.ledger.rows import OperationRow, Row, StreamRow

# A recorder warms up until all memory that a step needs is cached.
_CACHED: Final = OperationRow(
    at=0.0,
    code=None,
    offset=None,
    name="aten.empty.memory_format",
    device="cuda:0",
    mode=0,
    autocast=None,
    bytes=1,
    live=1 << 50,
)


class ProgramRun(NamedTuple):
    """What a program wrote into the ledger."""

    rows: list[Row]
    first: int  # the number of the row at which its step begins

    @property
    def step_rows(self) -> list[Row]:
        """The rows of the step alone."""
        return self.rows[self.first :]


def run_programs(
    programs: Mapping[str, Program], with_values: bool = True
) -> dict[str, ProgramRun]:
    """Run every program, and return what it wrote, by its name.

    Executes the code that a record holds, without arithmetic first; what that raises is ignored.
    Raises what a program raises when it is run once more.
    Without values, programs may be larger than the memory.
    """
    found: dict[str, ProgramRun] = {}
    simplified = without_arithmetic() if with_values else contextlib.nullcontext()
    with simplified, virtual_cuda(memory="1 TiB", values=with_values) as gpu:
        for name, program in programs.items():
            # Any error: a solver that is given zeros, for one, raises its own.
            with contextlib.suppress(Exception):
                found[name] = _run_program(program, name, gpu)
    # What cannot do without arithmetic is run once more with it.
    failed = [name for name in programs if name not in found]
    if failed:
        with virtual_cuda(memory="1 TiB") as gpu:
            for name in failed:
                found[name] = _run_program(programs[name], name, gpu)
    return {name: found[name] for name in programs}


def _run_program(program: Program, name: str, gpu: VirtualGpu) -> ProgramRun:
    """Run a program as the recorder does, once to warm up and once for its rows.

    Clears the ledger before, and seeds torch. Of the rows before the step only the setting of TF32
    is kept. Raises what the program raises.
    """
    gpu.ledger.rows.clear()
    torch.manual_seed(0)
    scope: dict[str, Any] = {}
    exec(compile(program.setup, name, "exec"), scope)
    step = compile(program.step, name, "exec")
    exec(step, scope)
    torch.cuda.synchronize()
    first = len(gpu.ledger.rows)
    torch.cuda.Event(enable_timing=True).record()
    exec(step, scope)
    torch.cuda.Event(enable_timing=True).record()
    torch.cuda.synchronize()
    rows = gpu.ledger.rows
    # As many rows as there were: later ones refer to earlier ones by their numbers.
    before: list[Row] = []
    for row in rows[:first]:
        is_setting = isinstance(row, StreamRow) and row.what == "tf32"
        before.append(row if is_setting else _CACHED)
    return ProgramRun([*before, *rows[first:]], first)


# ---- operators that give zeros -------------------------------------------------------------------


@contextlib.contextmanager
def without_arithmetic() -> Iterator[None]:
    """Make products, convolutions, sorts and recurrent layers give zeros inside the block.

    Only shapes are wanted, and the host may be slow. Replaces torch's kernels, and uses
    one thread; both are put back at the end.
    """
    library = torch.library.Library("aten", "IMPL")
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced, which is what is meant
        for name, function in _STAND_INS.items():
            library.impl(name, function, "CPU")
        for name in ("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input"):
            library.impl(name, _network_without_arithmetic, "CompositeImplicitAutograd")
    torch.set_num_threads(1)
    try:
        yield
    finally:
        library._destroy()
        torch.set_num_threads(threads)


def _zeros(like: torch.Tensor, *shape: int) -> torch.Tensor:
    """Zeros in a shape, of the dtype of `like`."""
    return torch.zeros(shape, dtype=like.dtype)


def _laid_out_like(result: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """The result with its channels last in memory where those of the source are."""
    if source.dim() != 4 or source.is_contiguous():
        return result
    if not source.is_contiguous(memory_format=torch.channels_last):
        return result
    return result.contiguous(memory_format=torch.channels_last)


def _zeros_of_product(a: Any, b: Any) -> Any:
    """Zeros in the shape of `a @ b`."""
    rows = a.shape[:-1]
    columns = b.shape[-1]
    return _zeros(a, *rows, columns)


def _zeros_of_product_and_bias(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Zeros in the shape of `c + a @ b`."""
    return _zeros_of_product(a, b)


def _zeros_of_sort(x: Any, **named: Any) -> Any:
    """Zeros for the sorted values and for their places."""
    values = _zeros(x, *x.shape)
    places = torch.zeros(x.shape, dtype=torch.int64)
    return values, places


def _zeros_of_convolution(
    x: Any,
    weight: Any,
    bias: Any,
    strides: Any,
    paddings: Any,
    dilations: Any,
    transposed: bool,
    output_paddings: Any,
    groups: int,
) -> Any:
    """Zeros in the shape that a convolution, or a transposed one, would give.

    The arguments are those of `aten::convolution`.
    """
    lengths = []
    for axis, (length, window) in enumerate(zip(x.shape[2:], weight.shape[2:], strict=True)):
        stride = strides[axis]
        padded = 2 * paddings[axis]
        reach = dilations[axis] * (window - 1) + 1
        if transposed:
            lengths.append((length - 1) * stride - padded + reach + output_paddings[axis])
        else:
            lengths.append((length + padded - reach) // stride + 1)
    if transposed:
        channels = weight.shape[1] * groups
    else:
        channels = weight.shape[0]
    result = _zeros(x, x.shape[0], channels, *lengths)
    return _laid_out_like(result, x)


def _zeros_of_convolution_gradients(g: Any, x: Any, weight: Any, *rest: Any) -> Any:
    """Zeros for the gradients of input, weight and bias; None for those that are not wanted."""
    shapes = (x.shape, weight.shape, g.shape[1:2])
    output_mask = rest[-1]
    gradients = []
    for shape, is_wanted in zip(shapes, output_mask, strict=True):
        gradients.append(_zeros(x, *shape) if is_wanted else None)
    if gradients[0] is not None:
        gradients[0] = _laid_out_like(gradients[0], x)
    return tuple(gradients)


def _zeros_of_attention(query: Any, *rest: Any, **named: Any) -> Any:
    """Zeros for the result of attention, and for what its backward pass needs."""
    result = _zeros(query, *query.shape)
    log_of_sums = torch.zeros(query.shape[:3])
    return result, log_of_sums


def _zeros_of_attention_gradients(g: Any, q: Any, k: Any, v: Any, *rest: Any, **named: Any) -> Any:
    """Zeros for the gradients of query, key and value."""
    return tuple(_zeros(tensor, *tensor.shape) for tensor in (q, k, v))


def _network_without_arithmetic(x: Any, hx: Any, weights: Any, *rest: Any) -> Any:
    """The output of a recurrent network as zeros, and its states as given, linked to its weights.

    `hx` are its states, or the one; `rest` are the other arguments of `lstm.input`, the fifth of
    which says whether it goes both ways.
    """
    is_bidirectional = rest[4]
    states = hx if isinstance(hx, (list, tuple)) else [hx]
    linked_zero = weights[0].flatten()[0] * 0
    width = states[0].shape[2] * (2 if is_bidirectional else 1)
    out = _zeros(x, *x.shape[:2], width) + linked_zero
    return out, *(state + linked_zero for state in states)


# By the name of the operator.
_STAND_INS: Final[dict[str, Callable[..., Any]]] = {
    "mm": _zeros_of_product,
    "addmm": _zeros_of_product_and_bias,
    "bmm": _zeros_of_product,
    "baddbmm": _zeros_of_product_and_bias,
    "sort.stable": _zeros_of_sort,
    "convolution": _zeros_of_convolution,
    "convolution_backward": _zeros_of_convolution_gradients,
    "_scaled_dot_product_flash_attention_for_cpu": _zeros_of_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _zeros_of_attention_gradients,
}
