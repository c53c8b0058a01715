"""`checkpointed`: activations that are recomputed in backward instead of being stored."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from gpudojo.days.day8.managing_memory.declaration import checkpointed
from gpudojo.days.day8.sprites import restored_generators, seeded_generator
from gpudojo.days.day8.tensor_values import ReturnedTensor, describe_returned
from gpudojo.grading.call import Call, array_of, nn, run_scenarios, torch, try_inputs
from gpudojo.grading.checks import runs
from gpudojo.grading.comparing import arrays_close
from gpudojo.grading.watching import (
    find_classes,
    keep_state,
    make_picklable,
    memory_curve,
    state_of,
)
from gpudojo.model.evidence import Array, Case, Cases, MemoryCurve
from gpudojo.model.exercise import Failed, Seen, with_article

KIB = 1024
COUNT = 4  # blocks
ROWS = 256
WIDTH = 8
NAMES = {"a_list": "a list", "two_blocks": "two blocks"}  # of scenarios, as students read them

# ---- scenarios ---------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _block_class() -> tuple[Any, ...]:
    """The class of the blocks, in a tuple. Made once, and only where torch is needed."""

    class CheckpointBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4, 1, WIDTH))
            self.key = keep_state([0])

        def forward(self, x: Any) -> Any:
            state_of(self.key)[0] += 1
            activations = (x * self.scale).tanh()
            return nn.functional.dropout(activations, 0.3, self.training).mean(0)

    return make_picklable(CheckpointBlock)


__getattr__ = find_classes(_block_class)


def _make_blocks(seed: int, device: Any, count: int = COUNT) -> tuple[list[Any], Any]:
    """Blocks that count their runs, and an input.

    Inside they need several times as much memory as between them.
    """
    make_block = _block_class()[0]
    with seeded_generator(seed):
        x = torch.rand(ROWS, WIDTH).to(device)
        blocks = [make_block().to(device) for _ in range(count)]
    return blocks, x


def _count_blocks_run(blocks: Any, at_least: int) -> int:
    """How many blocks have run at least so often."""
    counts = [state_of(block.key)[0] for block in blocks]
    return sum(count >= at_least for count in counts)


def _plain_loop(blocks: Any, x: Any) -> Any:
    """What `checkpointed` computes, with all activations stored."""
    for block in blocks:
        x = block(x)
    return x


class Through(Case, frozen=True):
    """Forward and backward through some blocks: the results, and the memory they took."""

    returned: ReturnedTensor
    ran: int  # blocks that ran in the forward pass
    error: str  # of the backward pass
    missing: int  # tensors without a gradient
    gradients: Array | None
    switched: bool  # the requires_grad of x
    recomputed: int  # blocks that ran again
    stored: int | None  # the peak after the forward pass, in bytes
    peak: int | None
    curve: MemoryCurve | None
    # The plain loop on a real GPU, whose random numbers are not the virtual device's.
    plain: Through | None = None

    def values_of_plain_loop(self, reference: Through) -> Through:
        """The pass with the right values: the reference's, unless the plain loop ran beside it."""
        return self.plain or reference


class Passes(Case, frozen=True, rename=NAMES):
    """The scenarios with blocks, and the memory in use after the plain loop's forward pass.

    The plain loop runs beside the reference, and on a real GPU, where memory is measured, beside
    the student's code.
    """

    a_list: Through
    two_blocks: Through
    stored: int | None = None  # bytes
    stored_curve: MemoryCurve | None = None


class PassSetting(NamedTuple):
    """One scenario: forward and backward through these blocks."""

    blocks: Any
    x: Any
    gradient: bool  # whether x requires one
    backward: bool = True
    drawn: bool = False  # whether there is a curve of the memory in use


def _go_through(call: Call, setting: PassSetting, function: Callable[..., Any]) -> Through:
    """Forward and backward through some blocks, by the student's function or by another one.

    Raises StudentRaised.
    """
    blocks = setting.blocks
    x = setting.x.detach().clone()
    x.requires_grad_(setting.gradient)
    parameters = []
    for block in blocks:
        parameters += block.parameters()
    for block in blocks:
        state_of(block.key)[0] = 0
    for parameter in parameters:
        parameter.grad = None
    ledger = call.bench.ledger
    with _seeded_random_numbers(call):
        meter = _PeakMeter(call.device)
        # Forward
        mark = ledger.mark()
        out = function(blocks, x)
        forward_ledger = ledger.since(mark, ledger.mark())
        ran = _count_blocks_run(blocks, at_least=1)
        stored = meter.peak()
        # Backward
        returned = describe_returned(out)
        mark = ledger.mark()  # without reading the values
        goes_back = returned.value is not None and setting.backward
        error = ""
        if goes_back:
            error = _run_backward(out)
        peak = meter.peak()
        curve = None
        if peak is not None and setting.drawn:
            backward_ledger = ledger.since(mark)
            curve = memory_curve(forward_ledger, backward_ledger, meter.base, peak)
    # Gradients
    tensors = [*parameters, x]
    needing = parameters
    if setting.gradient:
        needing = tensors
    parts = [tensor.grad.flatten() for tensor in tensors if tensor.grad is not None]
    gradients = None
    if parts:
        gradients = array_of(torch.cat(parts))
    return Through(
        returned=returned,
        ran=ran,
        error=error,
        missing=sum(tensor.grad is None for tensor in needing),
        gradients=gradients,
        switched=x.requires_grad is not setting.gradient,
        recomputed=_count_blocks_run(blocks, at_least=2),
        stored=stored,
        peak=peak,
        curve=curve,
    )


@contextlib.contextmanager
def _seeded_random_numbers(call: Call) -> Iterator[None]:
    """Seed torch's random numbers for a `with` block, and restore their state at its end.

    That includes the GPU's generator, which a student may restore for the second run.
    """
    with restored_generators(call.device):
        torch.manual_seed(call.seed)
        if call.device.type == "cuda":
            torch.cuda.manual_seed(call.seed)
        yield


class _PeakMeter:
    """Measures the peak memory of a device from now on, above what is allocated now."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"
        self.base = 0
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
            self.base = torch.cuda.memory_allocated(device)

    def peak(self) -> int | None:
        """The peak so far, in bytes; None without a GPU."""
        if not self.on_gpu:
            return None
        highest: int = torch.cuda.max_memory_allocated(self.device)
        return highest - self.base


def _run_backward(out: Any) -> str:
    """Run a backward pass, and return the error that it ended with; empty if there is none."""
    try:
        out.sum().backward()
    except Exception as error:  # what a student's own code does in backward is the student's
        message = str(error)[:200]
        return f"{type(error).__name__}: {message}"
    return ""


def _go_through_beside_plain_loop(call: Call, setting: PassSetting) -> Through:
    """Describe a call of the student's function, on a real GPU with the plain loop beside it.

    Raises StudentRaised.
    """
    found = _go_through(call, setting, call)
    if call.bench.kind != "cuda":
        return found
    plain = _go_through(call, setting, _plain_loop)
    return msgspec.structs.replace(found, plain=plain)


@checkpointed.probe
def passes(call: Call) -> Passes:
    """A list of blocks, and a ModuleList of two with data that requires no gradient."""
    blocks, x = _make_blocks(call.seed, call.device)
    if call.bench.kind == "cuda":  # real libraries allocate memory of their own at the first call
        blocks[0](x).sum().backward()
    whole = PassSetting(blocks, x, gradient=True, drawn=True)
    first_two = nn.ModuleList(blocks[:2])
    two = PassSetting(first_two, x, gradient=False)
    stored = None
    curve = None
    if call.reference or call.bench.kind == "cuda":
        plain = _go_through(call, whole, _plain_loop)
        stored = plain.stored
        curve = plain.curve
    found = run_scenarios(
        {
            "a_list": lambda: _go_through_beside_plain_loop(call, whole),
            "two_blocks": lambda: _go_through_beside_plain_loop(call, two),
        }
    )
    return Passes(**found, stored=stored, stored_curve=curve)


@checkpointed.probe(edge=True)
def few_blocks(call: Call) -> Cases[Through]:
    """One block, no blocks, and two blocks on the CPU."""
    blocks, x = _make_blocks(call.seed, call.device, 1)
    host_blocks, host_x = _make_blocks(call.seed, "cpu", 2)
    settings = {
        "one block": PassSetting(blocks, x, gradient=True, backward=False),
        "no blocks": PassSetting([], x, gradient=False, backward=False),
        "on the CPU": PassSetting(host_blocks, host_x, gradient=True),
    }
    return try_inputs(_go_through_beside_plain_loop, call, settings)


# ---- claims ------------------------------------------------------------------------------------

runs(checkpointed)


def _pass_in(seen: Seen, name: str) -> Through:
    """What was seen in a scenario. Raises ScenarioRaised after a student's error."""
    if name in NAMES:
        named: Through = getattr(seen[passes], name)
        return named
    return seen[few_blocks][name]


def _expect_same_output(name: str, seen: Seen, wanted: Seen) -> None:
    """Raises Failed unless the output is that of the plain loop, on its device.

    Raises ScenarioRaised where the student's code raised.
    """
    found = _pass_in(seen, name)
    right = _pass_in(wanted, name)
    where = f"({NAMES.get(name, name)})"
    returned = found.returned
    if returned.value is None:
        happened = f"{where} it returned {with_article(returned.kind)}"
        raise Failed(happened, "a tensor", at=("return",))
    if returned.device != right.returned.device:
        happened = f"{where} the output is on {returned.device}"
        at = ("cpu(", "return", "last return")
        raise Failed(happened, right.returned.device, at=at)
    right_output = found.values_of_plain_loop(right).returned
    if arrays_close(returned.value, right_output.value):
        return
    if found.ran < right.ran:
        happened = f"{where} {found.ran} of {right.ran} blocks ran"
        raise Failed(happened, "all of them, one after the other", at=("for",))
    raise Failed(f"{where} the output differs from the plain loop's", "the same values")


@checkpointed.check(points=0.25)
def gives_the_same_output(seen: Seen, wanted: Seen) -> None:
    """The output is that of the plain loop."""
    for name in NAMES:
        _expect_same_output(name, seen, wanted)


@checkpointed.check(points=0.25, needs=("runs", "gives_the_same_output"))
def gives_the_same_gradients(seen: Seen, wanted: Seen) -> None:
    """Every parameter and the input get the gradients of the plain loop, dropout included."""
    _expect_same_gradients("(a list)", "a_list", seen, wanted)
    _expect_same_gradients("(two blocks on the CPU)", "on the CPU", seen, wanted)


def _expect_same_gradients(
    where: str, name: str, seen: Seen, wanted: Seen, key: str | None = None
) -> None:
    """Raises Failed unless all gradients are there, with the plain loop's values.

    `where` begins the sentence of the failure; `key` is the mistake behind missing gradients.
    """
    found = _pass_in(seen, name)
    right = _pass_in(wanted, name)
    if found.error:
        happened = f"{where} backward() raised {found.error}"
        raise Failed(happened, "gradients", misconception=key)
    if found.missing > right.missing or found.gradients is None:
        if found.missing == 1:
            count = "1 tensor"
        else:
            count = f"{found.missing} tensors"
        happened = f"{where} {count} got no gradient"
        raise Failed(happened, "a gradient for each", misconception=key)
    right_gradients = found.values_of_plain_loop(right).gradients
    if not arrays_close(found.gradients, right_gradients):
        raise Failed(f"{where} the gradients differ from the plain loop's", "the same values")


SAME = ("runs", "gives_the_same_output", "gives_the_same_gradients")


@checkpointed.check(points=0.25, needs=SAME)
def trains_on_plain_data(seen: Seen, wanted: Seen) -> None:
    """The blocks get their gradients even if `x` is data that requires none."""
    where = "(two blocks, x requires no gradient)"
    if _pass_in(seen, "two_blocks").switched:
        happened = f"{where} the `x` that was passed in requires one afterwards"
        expected = "x unchanged: `use_reentrant=False` is enough"
        raise Failed(happened, expected, None, "input-modified")
    _expect_same_gradients(where, "two_blocks", seen, wanted, "reentrant-on-plain-data")


@checkpointed.check(points=0.25, needs=SAME)
def needs_less_memory(seen: Seen, wanted: Seen) -> None:
    """Activations are recomputed in backward instead of being stored, and the peak memory is
    lower."""
    found = seen[passes].a_list
    right = wanted[passes].a_list
    # Some ways of cutting a list into segments leave the last one out.
    if found.recomputed < COUNT / 2:
        blocks = "no block"
        if found.recomputed:
            blocks = f"only {found.recomputed} of {COUNT} blocks"
        happened = f"{blocks} ran again in backward: the activations were stored"
        raise Failed(happened, "blocks that run twice")
    if right.peak is None:
        return
    stored = seen[passes].stored or wanted[passes].stored
    assert found.peak is not None
    assert stored is not None
    if not found.peak <= 0.85 * stored:
        took = f"forward and backward took {found.peak // KIB} KiB"
        happened = f"{took}, the plain loop takes {stored // KIB}"
        expected = f"about {right.peak // KIB} KiB"
        raise Failed(happened, expected)


@checkpointed.check(points=0.25, needs=("runs", "gives_the_same_output"))
def copes_with_no_blocks(seen: Seen, wanted: Seen) -> None:
    """It works with a single block too, and without any the output is `x`."""
    for name in ("one block", "no blocks"):
        _expect_same_output(name, seen, wanted)
