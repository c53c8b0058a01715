"""`checkpointed`: activations that are recomputed in backward instead of being stored."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from gpudojo.days.day8.managing_memory.declaration import checkpointed
from gpudojo.days.day8.sprites import restored_generators, seeded_generator
from gpudojo.days.day8.tensor_values import ReturnedTensor, describe_returned
from gpudojo.grading.call import Call, array_of, nn, run_scenarios, torch, try_inputs
from gpudojo.grading.checks import expect_mode_kept, runs
from gpudojo.grading.comparing import arrays_close
from gpudojo.grading.watching import (
    call_state,
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


class BlockRuns:
    """What a block did since this was last reset.

    It is how often it ran, when, from which line first, and with which random numbers.
    """

    def __init__(self, call: Call) -> None:
        """No runs so far, for a block that this call's student code gets."""
        self.call = call
        self.reset(0, [])

    def reset(self, number: int, order: list[int]) -> None:
        """Forget all runs. Each one from now on puts this number into `order`."""
        self.number = number
        self.order = order
        self.in_all = 0
        self.in_forward = 0
        self.training: bool | None = None  # the mode of the latest run
        self.line: int | None = None  # of the student's file, in the first run
        self.random_state = b""  # at the beginning of the first run
        self.draws_others = False  # whether a later run began with another random state

    def note_run(self, device: Any, training: bool) -> None:
        """Count one run on a device, and note its mode and whether its random state is another."""
        self.training = training
        random_state = _random_state(device)
        self.order.append(self.number)
        if not self.in_all:
            self.line = self.call.line_now()
            self.random_state = random_state
        self.draws_others = self.draws_others or random_state != self.random_state
        self.in_all += 1

    def end_forward_pass(self) -> None:
        """Note how many runs there were until now."""
        self.in_forward = self.in_all

    @property
    def ran_in_backward(self) -> bool:
        return self.in_all > self.in_forward


def _random_state(device: Any) -> bytes:
    """What decides which random numbers a device draws next."""
    if device.type == "cuda":
        state = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state = torch.mps.get_rng_state()
    else:
        state = torch.get_rng_state()
    found: bytes = state.numpy().tobytes()
    return found


@lru_cache(maxsize=1)
def _block_class() -> tuple[Any, ...]:
    """The class of the blocks, in a tuple. Made once, and only where torch is needed.

    A block multiplies its input by a scale, and notes its runs in a state outside of itself.
    """

    class CheckpointBlock(nn.Module):
        def __init__(self, call: Call) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4, 1, WIDTH) - 0.4)
            self.key = keep_state(BlockRuns(call))

        def forward(self, x: Any) -> Any:
            call_state(self.key, "note_run", x.device, self.training)
            activations = (x * self.scale).tanh()
            return nn.functional.dropout(activations, 0.3, self.training).mean(0)

    return make_picklable(CheckpointBlock)


__getattr__ = find_classes(_block_class)


def _make_blocks(call: Call, device: Any, count: int = COUNT) -> tuple[list[Any], Any]:
    """So many blocks that count their runs, and an input for the first, both on the device.

    The third is in evaluation mode, as a frozen part of a model in training may be. Inside they
    need several times as much memory as between them. Equal for the same seed; torch's random state
    is as before.
    """
    make_block = _block_class()[0]
    with seeded_generator(call.seed):
        x = (torch.rand(ROWS, WIDTH) - 0.5).to(device)
        blocks = [make_block(call).to(device) for _ in range(count)]
    for block in blocks[2:3]:
        block.eval()
    return blocks, x


def _plain_loop(blocks: Any, x: Any) -> Any:
    """What `checkpointed` computes, with all activations stored: `x` after all blocks in turn."""
    for block in blocks:
        x = block(x)
    return x


class Through(Case, frozen=True):
    """Forward and backward through some blocks: the results, and the memory they took."""

    returned: ReturnedTensor
    order: list[int]  # of the blocks' runs in the forward pass, each counted from 1
    modes: list[bool | None]  # of the blocks when they ran last in the forward pass: training?
    left: int  # blocks that are in `blocks` afterwards, as before
    error: str  # of the backward pass
    missing: int  # tensors without a gradient
    gradients: Array | None
    switched: bool  # the requires_grad of x
    recomputed: list[int]  # the blocks that ran again in backward, counted from 1
    lines: list[int | None]  # from where each block was run first
    other_numbers: list[int]  # the blocks that drew other random numbers when they ran again
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

    `function` is called with the blocks and a copy of the input. Resets the blocks' gradients and
    counters before, and leaves the new ones in them. Resets CUDA's peak of memory. Raises
    StudentRaised, but notes an error in the backward pass as a fact.
    """
    blocks = setting.blocks
    x = setting.x.detach().clone()
    x.requires_grad_(setting.gradient)
    parameters = []
    for block in blocks:
        parameters += block.parameters()
    runs_of_blocks: list[BlockRuns] = [state_of(block.key) for block in blocks]
    order: list[int] = []
    for number, each in enumerate(runs_of_blocks, 1):
        each.reset(number, order)
    for parameter in parameters:
        parameter.grad = None
    ledger = call.bench.ledger
    with _seeded_random_numbers(call):
        meter = _PeakMeter(call.device)
        # Forward
        mark = ledger.mark()
        given = copy.copy(blocks)
        if isinstance(blocks, nn.ModuleList):
            given = nn.ModuleList(blocks)
        out = function(given, x)
        forward_ledger = ledger.since(mark, ledger.mark())
        forward_order = list(order)
        modes = [each.training for each in runs_of_blocks]
        for each in runs_of_blocks:
            each.end_forward_pass()
        stored = meter.peak()
        # Backward
        returned = describe_returned(out)
        mark = ledger.mark()  # without reading the values
        goes_back = returned.value is not None and setting.backward
        error = ""
        if goes_back:
            error = _run_backward(out)
        peak = meter.peak()
        if peak is not None and stored is not None:
            peak = max(peak, stored)  # a hook may have had CUDA's peak forgotten
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
        order=forward_order,
        modes=modes,
        left=sum(one is other for one, other in zip(given, blocks, strict=False)),
        error=error,
        missing=sum(tensor.grad is None for tensor in needing),
        gradients=gradients,
        switched=x.requires_grad is not setting.gradient,
        recomputed=[
            number for number, each in enumerate(runs_of_blocks, 1) if each.ran_in_backward
        ],
        lines=[each.line for each in runs_of_blocks],
        other_numbers=[
            number for number, each in enumerate(runs_of_blocks, 1) if each.draws_others
        ],
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
        """Begin to measure: on a GPU, resets CUDA's peak and keeps what is allocated now."""
        self.device = device
        self.on_gpu = device.type == "cuda"
        self.base = 0
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
            self.base = torch.cuda.memory_allocated(device)

    def peak(self) -> int | None:
        """The most bytes allocated so far, above those at the beginning; None without a GPU."""
        if not self.on_gpu:
            return None
        highest: int = torch.cuda.max_memory_allocated(self.device)
        return highest - self.base


def _run_backward(out: Any) -> str:
    """Run a backward pass from the sum of a result, and return the error that it ended with.

    It is "type: message", and empty without an error. Raises nothing. Gradients are added to all
    that the result was computed from.
    """
    try:
        out.sum().backward()
    except Exception as error:  # what a student's own code does in backward is the student's
        message = str(error)[:200]
        return f"{type(error).__name__}: {message}"
    return ""


def _go_through_beside_plain_loop(call: Call, setting: PassSetting) -> Through:
    """Describe a call of the student's function, on a real GPU with the plain loop beside it.

    The plain loop runs first: the student's function may leave the blocks in another mode. Raises
    StudentRaised.
    """
    if call.bench.kind != "cuda":
        return _go_through(call, setting, call)
    plain = _go_through(call, setting, _plain_loop)
    found = _go_through(call, setting, call)
    return msgspec.structs.replace(found, plain=plain)


@checkpointed.probe
def passes(call: Call) -> Passes:
    """A list of blocks, and a ModuleList of two with data that requires no gradient.

    Raises StudentRaised for the first error of the student's function.
    """
    blocks, x = _make_blocks(call, call.device)
    if call.bench.kind == "cuda":  # real libraries allocate memory of their own at the first call
        blocks[0](x).sum().backward()
    whole = PassSetting(blocks, x, gradient=True, drawn=True)
    two_blocks, _ = _make_blocks(call, call.device, 2)  # those that the first scenario left alone
    two = PassSetting(nn.ModuleList(two_blocks), x, gradient=False)
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
    """One block, no blocks, and two blocks on the CPU.

    Raises StudentRaised for an error about a closed device or memory.
    """
    blocks, x = _make_blocks(call, call.device, 1)
    host_blocks, host_x = _make_blocks(call, "cpu", 2)
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
    _expect_same_runs(where, found.order, right.order)
    for number, (mode, right_mode) in enumerate(zip(found.modes, right.modes, strict=True), 1):
        if mode is not None and right_mode is not None:
            expect_mode_kept(f"{where} block {number}", right_mode, mode)
    raise Failed(f"{where} the output differs from the plain loop's", "the same values")


def _expect_same_runs(where: str, order: list[int], right: list[int]) -> None:
    """Raises Failed unless the blocks ran in the forward pass as those of the reference did.

    `order` and `right` have the number of the block of each run. `where` begins the sentence.
    """
    count = len(right)
    ran = len(set(order))
    if ran < count:
        happened = f"{where} {ran} of {count} blocks ran"
        raise Failed(happened, "all of them, one after the other", at=("for",))
    if len(order) > count:
        happened = f"{where} the {count} blocks ran {len(order)} times in the forward pass"
        raise Failed(happened, "each of them once")
    if order != right:
        happened = f"{where} the blocks ran in the order {', '.join(map(str, order))}"
        expected = ", ".join(map(str, right))
        raise Failed(happened, expected, at=("reversed(", "[::-1]", "insert(", "pop(", "for"))


@checkpointed.check(points=0.25)
def gives_the_same_output(seen: Seen, wanted: Seen) -> None:
    """The output is that of the plain loop, and `blocks` is as it was passed in."""
    for name in NAMES:
        _expect_same_output(name, seen, wanted)
        _expect_blocks_kept(name, seen, wanted)


def _expect_blocks_kept(name: str, seen: Seen, wanted: Seen) -> None:
    """Raises Failed if `blocks` has lost some, or has them in another order.

    Raises ScenarioRaised where the student's code raised.
    """
    left = _pass_in(seen, name).left
    right = _pass_in(wanted, name).left
    if left < right:
        happened = f"({NAMES[name]}) {left} of {right} blocks are in their place in `blocks` after"
        at = ("pop(", "popleft(", "remove(", "reverse(", "clear(")
        raise Failed(f"{happened} the call", "`blocks` as it was", None, "input-modified", at)


@checkpointed.check(points=0.25, needs=("runs", "gives_the_same_output"))
def gives_the_same_gradients(seen: Seen, wanted: Seen) -> None:
    """Every parameter and the input get the gradients of the plain loop, dropout included."""
    _expect_same_gradients("(a list)", "a_list", seen, wanted)
    _expect_same_gradients("(two blocks on the CPU)", "on the CPU", seen, wanted)


def _expect_same_gradients(
    where: str, name: str, seen: Seen, wanted: Seen, key: str | None = None
) -> None:
    """Raises Failed unless all gradients are there, with the plain loop's values.

    `name` is the scenario; `where` begins the sentence of the failure; `key` is the mistake behind
    missing gradients. Raises ScenarioRaised where the student's code raised.
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
    if arrays_close(found.gradients, right_gradients):
        return
    happened = f"{where} the gradients differ from the plain loop's"
    if not found.other_numbers:
        raise Failed(happened, "the same values")
    again, never_again = _blocks_run_again(found, right)
    if never_again:
        expected = "every block to run again, in its own place"
        happened = f"{happened}; in backward {never_again} did not run again, {again} did"
        raise Failed(happened, expected, at=("lambda", "preserve_rng_state="))
    first = found.other_numbers[0]
    happened = f"{happened}: block {first} drew other random numbers when it ran again"
    expected = "the random numbers of the first run, so that dropout drops the same values"
    raise Failed(happened, expected, at=("preserve_rng_state=",))


def _blocks_run_again(found: Through, right: Through) -> tuple[str, str]:
    """The blocks that ran again in backward, and those that only did so in the reference's pass.

    In words for people; "" for none.
    """
    never_again = [number for number in right.recomputed if number not in found.recomputed]
    return _blocks_in_words(found.recomputed), _blocks_in_words(never_again)


def _blocks_in_words(numbers: Sequence[int]) -> str:
    """The numbers of blocks for people: "block 4", "blocks 1, 2 and 3"; "" for none."""
    if not numbers:
        return ""
    *others, last = numbers
    if not others:
        return f"block {last}"
    return f"blocks {', '.join(map(str, others))} and {last}"


SAME = ("runs", "gives_the_same_output", "gives_the_same_gradients")


@checkpointed.check(points=0.25, needs=SAME)
def trains_on_plain_data(seen: Seen, wanted: Seen) -> None:
    """The blocks get their gradients even if `x` is data that requires none."""
    where = "(two blocks, x requires no gradient)"
    if _pass_in(seen, "two_blocks").switched:
        happened = f"{where} the `x` that was passed in requires one afterwards"
        expected = "`x` as it was passed in"
        raise Failed(happened, expected, None, "input-modified")
    _expect_same_gradients(where, "two_blocks", seen, wanted, "reentrant-on-plain-data")


@checkpointed.check(points=0.25, needs=SAME)
def needs_less_memory(seen: Seen, wanted: Seen) -> None:
    """Every block's activations are recomputed in backward instead of being stored, and the peak
    memory is lower."""
    found = seen[passes].a_list
    right = wanted[passes].a_list
    _expect_all_recomputed("", found, right)
    two = "(two blocks, x requires no gradient) "
    if not seen[passes].two_blocks.error:  # that is another check's
        _expect_all_recomputed(two, seen[passes].two_blocks, wanted[passes].two_blocks)
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


def _expect_all_recomputed(where: str, found: Through, right: Through) -> None:
    """Raises Failed unless every block that the reference recomputes ran again in backward.

    `where` begins the sentence.
    """
    stored = [number for number in right.recomputed if number not in found.recomputed]
    if not stored:
        return
    count = len(right.recomputed)
    happened = (
        f"{where}{_blocks_in_words(stored)} of {count} did not run again in backward: "
        "the activations were stored"
    )
    raise Failed(happened, f"all {count} blocks run a second time", found.lines[stored[0] - 1])


@checkpointed.check(points=0.25, needs=("runs", "gives_the_same_output"))
def copes_with_no_blocks(seen: Seen, wanted: Seen) -> None:
    """It works with a single block too, and without any the output is `x`."""
    for name in ("one block", "no blocks"):
        _expect_same_output(name, seen, wanted)
