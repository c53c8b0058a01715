"""09: managing memory."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import msgspec
from virtual_cuda.ledger import Backward, Forward, OptimizerStep, questions

from gpudojo.days.day8.loops_over_batches import expect_ran_on, why_a_loop_raised
from gpudojo.days.day8.sprites import CLASSES, SIZE, make_sprites
from gpudojo.days.day8.watched_objects import Hook, Sealed, WatchLog
from gpudojo.grading.call import (
    Call,
    StudentRaised,
    array_of,
    device_name,
    nn,
    run_scenarios,
    torch,
    try_scenarios,
)
from gpudojo.grading.checks import count_in_words, runs, scenario_pairs
from gpudojo.grading.comparing import arrays_close
from gpudojo.grading.watching import (
    find_classes,
    keep_state,
    make_picklable,
    memory_curve,
    state_of,
)
from gpudojo.model.evidence import Array, Case, Cases, MemoryCurve, Raised
from gpudojo.model.exercise import Exercise, Failed, Seen, with_article

exercise = Exercise(
    "09_managing_memory",
    "Managing the GPU's memory",
    points=6,
    reading=("notes/cuda.html", "checkpoint.html", "notes/amp_examples.html"),
)

peak_memory = exercise.function("peak_memory")

largest_batch = exercise.function("largest_batch")

accumulate = exercise.function("accumulate_gradients")

checkpointed = exercise.function("checkpointed")
HALVING: tuple[str, ...] = ("start =", "//", "/", "-", "except", "for", "return")
WRAPPING = ("checkpoint(", "checkpoint_sequential(", "save_on_cpu(", "for", "return", "last return")
GRADIENTS = ("fork_rng(", "get_rng_state(", "detach(", "no_grad(", *WRAPPING)


# ---- peak_memory -----------------------------------------------------------------------------------------------------

KIB = 1024


class Measured(Case, frozen=True):
    """One answer; bytes are counted from what this process had allocated before."""

    kind: str
    value: int | None
    shown: str
    calls: int  # of `fn`
    sizes: dict[
        str, int
    ]  # allocated before `fn`, inside it at the peak and at the end, and long before


def _measured(call: Call, *told: Any) -> Cases[Measured]:
    """One call for each way of naming a device."""
    return try_scenarios({repr(device): partial(_measured_on, call, device) for device in told})


def _measured_on(call: Call, device: Any) -> Measured:
    """A peak in the middle of `fn`, something allocated before, and an earlier, higher peak that is over.

    All blocks are small ones, which the allocator counts to the byte whatever it has cached.
    """
    draw = random.Random(call.seed).randrange
    sizes = {
        "before": draw(40, 90),
        "highest": 3 * draw(200, 300),
        "left": draw(100, 160),
        "earlier": 4 * draw(900, 1000),
    }
    sizes = {name: size * KIB for name, size in sizes.items()}
    on_gpu = torch.device(device).type == "cuda"

    def block(size: int) -> Any:
        return torch.empty(size, dtype=torch.uint8, device=device)

    calls: list[int] = []
    left: list[Any] = []

    def fn() -> str:
        calls.append(1)
        first, second = block(sizes["highest"] // 3), block(sizes["highest"] // 3 * 2)
        del first, second
        left.append(block(sizes["left"]))
        return "the result of fn is not used"

    base = torch.cuda.memory_allocated(device) if on_gpu else 0
    before = block(sizes["before"])
    earlier = [block(sizes["earlier"] // 4) for _ in range(4)]
    earlier.clear()
    value = call(Sealed(fn), device)
    del before
    whole = isinstance(value, int) and not isinstance(value, bool)
    return Measured(
        type(value).__name__, value - base if whole else None, repr(value)[:60], len(calls), sizes
    )


@peak_memory.probe
def peaks(call: Call) -> Cases[Measured]:
    """The device, by every name."""
    gpu = call.device.type == "cuda"
    return _measured(call, *(("cuda", "cuda:0", torch.device("cuda")) if gpu else ("cpu",)))


@peak_memory.probe(machine="two gpus", edge=True)
def on_the_second_gpu(call: Call) -> Cases[Measured]:
    """The first GPU, which is the current one, has another peak."""
    other = torch.empty(300 * KIB, dtype=torch.uint8, device="cuda:0")
    found = _measured(call, "cuda:1")
    del other
    return found


@peak_memory.probe(edge=True)
def on_the_cpu(call: Call) -> Cases[Measured]:
    """On a machine that also has a GPU, with something on it."""
    other = torch.empty(300 * KIB, dtype=torch.uint8, device=call.device)
    found = _measured(call, "cpu", torch.device("cpu"))
    del other
    return found


@peak_memory.probe(machine="laptop", edge=True)
def without_a_gpu(call: Call) -> Cases[Measured]:
    return _measured(call, "cpu")


def _about_cuda(raised: Raised, seen: Seen) -> str | None:
    """An error about CUDA although the CPU was asked for, on a machine without a GPU too."""
    about = "cuda" in raised.message.lower() or "nvidia" in raised.message.lower()
    return (
        "cuda-for-every-device"
        if "cpu" in raised.scenario and about and seen[without_a_gpu].errors
        else None
    )


runs(peak_memory, diagnose=_about_cuda)
EARLIER = "a peak that was over before `fn` was called"


def _mistake(found: Measured, right: Measured) -> str | None:
    """What else the allocator tells, if that is the answer; empty for the right one, None for any other number."""
    before, highest, left, earlier = (
        right.sizes[name] for name in ("before", "highest", "left", "earlier")
    )
    told = {
        right.value: "",
        earlier + before: EARLIER,
        left + before: "what is left after `fn`",
        highest: "what `fn` added",
        left: "what `fn` left behind",
    }
    return told.get(found.value)


def _answers(
    seen: Cases[Measured], wanted: Cases[Measured]
) -> Iterator[tuple[str, Measured, Measured]]:
    """Name, answer and right answer. Raises Failed for an answer that is no int, and if `fn` was not called once."""
    for name, found, right in scenario_pairs(seen, wanted):
        if found.value is None:
            happened = f"device={name} gave {found.shown}, {with_article(found.kind)}"
            raise Failed(happened, "a number of bytes, as an int")
        if found.calls != 1:
            said = f"called {count_in_words(found.calls)}" if found.calls else "never called"
            raise Failed(f"device={name}: `fn` was {said}", "called once", at=("last fn(",))
        yield name, found, right


def _kib(size: int | None) -> str:
    return f"{(size or 0) / KIB:g} KiB" if not 0 < (size or 0) < KIB else f"{size} bytes"


@peak_memory.check(points=0.5)
def finds_the_highest_moment(seen: Seen, wanted: Seen) -> None:
    """It calls `fn` once and returns the most bytes that were allocated meanwhile, earlier ones included."""
    for name, found, right in _answers(seen[peaks], wanted[peaks]):
        mistake = _mistake(found, right)
        if mistake not in ("", EARLIER):  # the second is another check's
            note = f": {mistake}" if mistake else ""
            raise Failed(
                f"device={name} gave {_kib(found.value)}{note}", f"{_kib(right.value)}, the peak"
            )


@peak_memory.check(points=0.25, needs=("runs", "finds_the_highest_moment"))
def forgets_earlier_peaks(seen: Seen, wanted: Seen) -> None:
    """A peak from before the call does not count."""
    for name, found, right in _answers(seen[peaks], wanted[peaks]):
        if _mistake(found, right) == EARLIER:
            happened = f"device={name} gave {_kib(found.value)}, {EARLIER}"
            raise Failed(happened, f"{_kib(right.value)}, the peak while `fn` ran")


@peak_memory.check(points=0.25)
def measures_the_right_device(seen: Seen, wanted: Seen) -> None:
    """It measures the device passed in, even if another one is current."""
    # What is mistaken in the same way on one GPU is another check's.
    usual = {_mistake(found, right) for _, found, right in _answers(seen[peaks], wanted[peaks])}
    for name, found, right in _answers(seen[on_the_second_gpu], wanted[on_the_second_gpu]):
        mistake = _mistake(found, right)
        if mistake is None or (mistake and mistake not in usual):
            note = f": {mistake}" if mistake else ""
            happened = f"with two GPUs, device={name} gave {_kib(found.value)}{note}"
            at = ("reset_peak_memory_stats(",) if mistake == EARLIER else ()
            key = "current-gpu-used" if mistake not in usual else None
            raise Failed(happened, f"{_kib(right.value)}: the memory of that one", None, key, at)


@peak_memory.check(points=0.25)
def is_nothing_on_the_cpu(seen: Seen, wanted: Seen) -> None:
    """On the CPU `fn` is also called once, and the answer is 0."""
    for probe in (on_the_cpu, without_a_gpu):
        for name, found, _ in _answers(seen[probe], wanted[probe]):
            if found.value != 0:
                raise Failed(f"device={name} gave {found.value}", "0")


# ---- largest_batch ---------------------------------------------------------------------------------------------------

ENOUGH = 40  # tries after which an endless loop is ended


class _Trial:
    """A `try_batch` that fits up to some size, fails in a given way, and leaves something in the cache each time."""

    def __init__(
        self, call: Call, fits: int, instead: Exception | None = None, at: int = 0
    ) -> None:
        self.call = call
        self.fits = fits
        self.instead = instead
        self.at = at
        self.sizes: list[float] = []
        self.lines: list[int | None] = []  # from where it was called
        self.cached: list[int] = []
        self.met = 0  # the number of tries when the other error was raised
        self.last = ""

    def __call__(self, size: Any) -> str:
        self.sizes.append(size if isinstance(size, (int, float)) else -1)
        self.lines.append(self.call.line_now())
        gpu = self.call.device.type == "cuda"
        if gpu:
            self.cached.append(torch.cuda.memory_reserved(self.call.device))
        try:
            self._run(size, gpu)
        finally:
            if gpu:  # now, not before: an allocation that fails empties the cache by itself
                scratch = torch.empty(48 << 20, dtype=torch.uint8, device=self.call.device)
                del scratch
        return "the result of try_batch is not used"

    def _run(self, size: Any, gpu: bool) -> None:
        if len(self.sizes) > ENOUGH or 1 <= size <= self.fits:
            return
        if self.instead is not None and size == self.at:
            self.met = len(self.sizes)
            raise self.instead
        try:
            if gpu:
                torch.empty(1 << 50, dtype=torch.uint8, device=self.call.device)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1024.00 TiB.")
        except torch.OutOfMemoryError as error:
            self.last = str(error)
            raise


class Search(Case, frozen=True):
    """One call: what it returned or raised, and the sizes it tried."""

    start: int
    fits: int
    value: int | None
    shown: str
    error: Raised | None
    sizes: list[int | float]
    lines: list[int | None]  # of the tries
    kept: int  # bytes in the cache when a later try began
    last: str  # the message of the last out-of-memory error
    met: int

    @property
    def tried(self) -> str:
        shown = ", ".join(map(str, self.sizes[:8]))
        return shown + ", …" if len(self.sizes) > 8 else shown or "nothing"


def _search(
    call: Call, start: int, fits: int, instead: Exception | None = None, at: int = 0
) -> Search:
    from virtual_cuda import patch

    if call.device.type == "cuda":
        torch.cuda.empty_cache()  # of an earlier search
    trial = _Trial(call, fits, instead, at)
    value = None
    raised = None
    # On the plain CPU `torch.accelerator.empty_cache()` raises, where `torch.cuda.empty_cache()` does nothing.
    missing = call.device.type == "cpu" and hasattr(torch.accelerator, "empty_cache")
    try:
        with contextlib.ExitStack() as undo:
            if missing:
                patch([(torch.accelerator, "empty_cache", lambda: None)], undo)
            value = call(Sealed(trial), start)
    except StudentRaised as error:
        raised = error.evidence
        expected = instead is not None or not fits or raised.type == "OutOfMemoryError"
        if not (trial.sizes and expected):
            raise  # the function itself is wrong
    return Search(
        start=start,
        fits=fits,
        value=int(value) if isinstance(value, int) and not isinstance(value, bool) else None,
        shown=f"{value!r:.60}",
        error=raised,
        sizes=trial.sizes[: ENOUGH + 1],
        lines=trial.lines[: ENOUGH + 1],
        kept=max((later - trial.cached[0] for later in trial.cached[1:]), default=0),
        last=trial.last,
        met=trial.met,
    )


def _cases(seed: int) -> dict[str, tuple[int, int]]:
    """Where to start, and what fits: other numbers for every seed. Odd ones are on the way, and 5, 2, 1 at its end."""
    draw = random.Random(seed).randrange
    odd = draw(91, 127, 2)
    exact = 8 * draw(9, 15)
    return {
        "several_halvings": (odd, draw(odd // 8 + 1, odd // 4)),
        "the_first_fits": (n := draw(50, 90), n),
        "only_one_fits": (draw(20, 24), 1),
        "one_fits_exactly": (exact, exact // 4),
        "start_is_one": (1, 1),
    }


def error_start(seed: int) -> int:
    """Where the searches with another error start: half of it is more than ENOUGH tries away for who subtracts one."""
    return 16 * random.Random(seed).randrange(6, 9)


@largest_batch.probe
def searches(call: Call) -> dict[str, Cases[Search]]:
    """Some size fits. Nothing fits. Or try_batch has a bug: at once, after some halvings, and one about memory."""
    draw = random.Random(call.seed).randrange
    start = error_start(call.seed)
    access = "CUDA error: an illegal memory access was encountered"
    errors = {
        "ValueError": (ValueError(f"{draw(100)} is an odd number of sprites"), start),
        "RuntimeError": (
            RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({draw(9)}x2 and 3x4)"),
            start // 2,
        ),
        "RuntimeError about memory": (RuntimeError(access), start // 4),
    }
    return {
        "something_fits": try_scenarios(
            {name: partial(_search, call, *case) for name, case in _cases(call.seed).items()}
        ),
        "nothing_fits": try_scenarios(
            {f"nothing_fits_{n}": partial(_search, call, n, 0) for n in (draw(10, 12), 1)}
        ),
        "another_error": try_scenarios(
            {n: partial(_search, call, start, 1, error, at) for n, (error, at) in errors.items()}
        ),
    }


runs(largest_batch, scenarios=_cases(0))


@largest_batch.check(points=0.5)
def halves_until_it_fits(seen: Seen, wanted: Seen) -> None:
    """It tries start, start // 2, ... and returns the first that does not run out of memory."""
    for _, found, right in scenario_pairs(
        seen[searches]["something_fits"], wanted[searches]["something_fits"]
    ):
        where = f"(start={right.start}, {right.fits} fits)"
        raised = f"raised {found.error.type}" if found.error else ""
        if found.sizes != right.sizes:
            line = None
            at = HALVING
            if len(found.sizes) < 2:
                line, at = found.error.line if found.error else None, ("raise", "except")
            elif len(found.sizes) < len(right.sizes):
                at = ("raise", *HALVING)
            elif found.sizes[: len(right.sizes)] == right.sizes:  # it had found the size
                line, at = found.lines[len(right.sizes)], ()
            raise Failed(
                f"{where} it tried {found.tried}{raised and ' and ' + raised}",
                right.tried,
                line,
                None,
                at,
            )
        if found.value != right.value:
            line, at = found.error.line if found.error else None, ()
            if found.error is None:  # of what was returned, or of the try that fitted
                again = ("unused largest_batch(",)
                line, at = (
                    (found.lines[-1], again) if found.shown == "None" else (None, ("return",))
                )
            raise Failed(
                f"{where} it {raised or 'returned ' + found.shown}",
                f"{right.value} returned",
                line,
                None,
                at,
            )


@largest_batch.check(points=0.25)
def gives_the_cache_back(seen: Seen, wanted: Seen) -> None:
    """Cached memory is freed between two tries."""
    for _, found, right in scenario_pairs(
        seen[searches]["something_fits"], wanted[searches]["something_fits"]
    ):
        if len(found.sizes) < min(2, len(right.sizes)):
            raise Failed(
                f"(start={right.start}, {right.fits} fits) it tried {found.tried}", right.tried
            )
        if not found.kept <= right.kept + (20 << 20):
            happened = f"{found.kept >> 20} MiB were still in the cache when the next try began"
            raise Failed(happened, "torch.cuda.empty_cache() first")


@largest_batch.check(points=0.25)
def raises_when_nothing_fits(seen: Seen, wanted: Seen) -> None:
    """If not even 1 fits, the error of the last try is raised."""
    expected = "the OutOfMemoryError of the last try"
    for _, found, right in scenario_pairs(
        seen[searches]["nothing_fits"], wanted[searches]["nothing_fits"]
    ):
        name = f"start={right.start}"
        assert right.error is not None
        if found.error is None:
            at = () if any(size < 1 for size in found.sizes) else ("last return",)
            raise Failed(f"({name}) nothing fits, and it returned {found.shown}", expected, at=at)
        if found.error.type != right.error.type or found.error.message != found.last:
            happened = (
                f"({name}) it raised {found.error.type}: {found.error.message.partition('.')[0]}"
            )
            raise Failed(happened, expected, found.error.line)
        if found.sizes != right.sizes:
            raise Failed(f"({name}) it tried {found.tried}", right.tried)


@largest_batch.check(points=0.5)
def swallows_nothing_else(seen: Seen, wanted: Seen) -> None:
    """Any other error is raised at once, unchanged."""
    for _, found, right in scenario_pairs(
        seen[searches]["another_error"], wanted[searches]["another_error"]
    ):
        raised = found.error
        expected = right.error
        assert expected is not None
        if not found.met:
            happened = (
                f"a batch of {right.sizes[-1]}, which raises a {expected.type}, was never tried"
            )
            line = raised.line if raised else None
            raise Failed(f"{happened}; tried: {found.tried}", right.tried, line)
        if raised is None or len(found.sizes) > found.met:
            raise Failed(
                f"{expected.type} ({expected.message}) was taken for out of memory; tried: {found.tried}",
                f"the {expected.type} itself, after {right.tried}",
                misconception="swallowed-every-error",
            )
        if (raised.type, raised.message) != (expected.type, expected.message):
            happened = f"a {expected.type} was raised as {raised.type}: {raised.message}"
            raise Failed(happened, f"{expected.type}: {expected.message}", raised.line)


# ---- accumulate_gradients --------------------------------------------------------------------------------------------


class Accumulated(Case, frozen=True):
    """One pass over a loader."""

    value: int | None
    shown: str
    devices: list[str]
    wanted_device: str
    after: list[Array]  # the weights
    taken: int  # optimizer steps
    own: bool  # whether it was the optimizer passed in that stepped
    emptied: bool  # whether one of its steps found no gradients
    step_line: int | None
    extra_line: (
        int | None
    )  # of the first step with no backward pass since the one before, else of the first
    backward_line: int | None
    per_step: list[int]  # backward passes before each step
    unused: int  # backward passes after the last step
    ahead: bool  # whether a step came between a forward pass and its backward
    scales: list[float]  # what each loss was multiplied by
    clean: list[bool]  # for each backward pass, whether the gradients were zero before it
    batches: int
    steps: int
    training: bool  # the mode before the call
    whole: list[bool]  # whether it was in training mode, in every pass and afterwards
    part: list[bool]  # the same of a part that was in the other mode
    calls: int


def _accumulated(
    call: Call, device: Any, count: int, steps: int, mode: bool = True, **before: bool
) -> Accumulated:
    """One call with this many sprites, in batches of two."""
    pictures, classes = make_sprites(9, call.seed + 1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(call.seed)
        model: Any = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, CLASSES))
    moved, dirty, state = (before.get(name) for name in ("moved", "dirty", "state"))
    if moved:
        model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for parameter in model.parameters():
        if state:  # as after earlier steps
            optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, 0.25)
        if dirty:
            parameter.grad = torch.ones_like(parameter)
    stepped: list[bool] = []
    optimizer.register_step_pre_hook(
        Hook(lambda *_: stepped.append(model[1].bias.grad is not None))
    )
    model.train(mode)
    model[0].train(not mode)  # one part in the other mode, as batch norm may be for fine-tuning
    whole: list[bool] = []
    part: list[bool] = []
    places: set[str] = set()

    def called_with(module: Any, inputs: Any) -> None:
        (part if module is model[0] else whole).append(module.training)
        places.add(str(inputs[0].device))

    for child in model.children():
        child.register_forward_pre_hook(Hook(called_with))
    scales: list[Any] = []
    clean: list[bool] = []
    bias = model[1].bias  # as clean as the weights, and smaller

    def backward_begins(gradient: Any) -> None:
        scales.append(gradient.detach())  # 1 / steps where the loss was divided
        clean.append(bias.grad is None or not bias.grad.any())

    def loss_fn(outputs: Any, targets: Any) -> Any:
        loss = nn.functional.cross_entropy(outputs, targets)
        if loss.requires_grad:
            loss.register_hook(Hook(backward_begins))
        return loss

    log = WatchLog(call)
    loader = log.make_loader(pictures[:count], classes[:count], batch_size=2)
    with log.explaining_errors():
        value = call(model, loader, Sealed(loss_fn), optimizer, device, steps)
    records = tuple(r for r in call.ledger if isinstance(r, Forward | Backward | OptimizerStep))
    taken = questions.optimizer_steps(records)
    passes = questions.backward_passes(records)
    return Accumulated(
        value=int(value) if isinstance(value, int) and not isinstance(value, bool) else None,
        shown=f"{value!r:.60}",
        devices=sorted(places),
        wanted_device=device_name(device),
        after=[array_of(p) for p in model.parameters()],
        taken=len(taken),
        own=bool(stepped),
        emptied=False in stepped,
        step_line=call.first_line(taken),
        extra_line=call.first_line((*questions.steps_without_backward(records), *taken)),
        backward_line=call.first_line(passes),
        per_step=list(questions.backwards_per_step(records)),
        unused=len(questions.backwards_after_last_step(records)),
        ahead=_ahead(records),
        scales=[round(scale, 4) for scale in torch.stack(scales).tolist()] if scales else [],
        clean=clean,
        batches=log.batches,
        steps=steps,
        training=mode,
        whole=[*whole, model.training, model[1].training],
        part=[*part, model[0].training],
        calls=len(whole),
    )


def _ahead(records: tuple[Any, ...]) -> bool:
    """Whether there were more forward passes than backward passes before a step."""
    found = 0
    for record in records:
        found += isinstance(record, Forward) and not record.depth
        found -= isinstance(record, Backward)
        if isinstance(record, OptimizerStep) and found > 0:
            return True
    return False


@accumulate.probe
def accumulations(call: Call) -> Cases[Accumulated]:
    """The device is tried where it matters, the counting on the CPU, where it is faster."""
    device = call.device
    return try_scenarios(
        {
            "model_on_the_cpu": lambda: _accumulated(call, device, 4, steps=2),
            "model_already_there": lambda: _accumulated(call, str(device), 1, steps=2, moved=True),
            "told_to_use_the_cpu": lambda: _accumulated(call, "cpu", 8, steps=2),
            "dirty_gradients": lambda: _accumulated(call, device, 2, steps=1, dirty=True),
            "in_evaluation_mode": lambda: _accumulated(
                call, "cpu", 4, steps=1, mode=False, state=True
            ),
            "with_a_remainder": lambda: _accumulated(call, "cpu", 9, steps=3, state=True),
        }
    )


@accumulate.probe(machine="two gpus", edge=True)
def accumulations_on_the_second_gpu(call: Call) -> Cases[Accumulated]:
    return try_scenarios({"on_the_second_gpu": lambda: _accumulated(call, "cuda:1", 2, steps=1)})


TRAINED = ("model_on_the_cpu", "model_already_there", "told_to_use_the_cpu")
runs(accumulate, scenarios=TRAINED, diagnose=why_a_loop_raised)


def _passes_over(
    seen: Seen, wanted: Seen, *names: str
) -> Iterator[tuple[str, Accumulated, Accumulated]]:
    """Batches and steps, what was seen and what the reference did, for these passes."""
    found, expected = (
        each.cases(accumulations, accumulations_on_the_second_gpu) for each in (seen, wanted)
    )
    for _, case, right in scenario_pairs(found, expected, *names):
        yield f"{right.batches} batch{'es' * (right.batches > 1)}, steps={right.steps}", case, right


@accumulate.check(points=0.25)
def works_on_the_device(seen: Seen, wanted: Seen) -> None:
    """The model is trained on the device passed in, even if another GPU is current."""
    passes = list(_passes_over(seen, wanted, *TRAINED, "on_the_second_gpu"))
    if not any(found.devices for _, found, _ in passes):
        raise Failed("the model was never called", "a pass over the loader")
    for _, found, right in passes:
        if found.devices:
            expect_ran_on(right.wanted_device, found.devices)


@accumulate.check(points=0.5)
def steps_after_every_group(seen: Seen, wanted: Seen) -> None:
    """The optimizer steps after every `steps` batches, with the mean of their gradients."""
    anywhere = _steps_somewhere(seen)
    for name, found, right in _passes_over(
        seen, wanted, "model_on_the_cpu", "told_to_use_the_cpu", "in_evaluation_mode"
    ):
        if found.taken != right.taken or not arrays_close(found.after, right.after):
            raise _unlike(name, found, right, anywhere)


def _steps_somewhere(seen: Seen) -> bool:
    """Whether any pass made a step: then in one without a step, the call is there and the condition is wrong.

    To be asked before the passes are looked at: the line shown for a failure is one of the pass looked at last.
    """
    return any(found.taken for found in dict.values(seen[accumulations]))


def _unlike(name: str, found: Accumulated, right: Accumulated, anywhere: bool) -> Failed:
    """Why the weights are not those of the reference; `anywhere`: some pass made a step."""
    where = f"({name}) "
    steps = right.steps
    step_line = found.step_line
    backward_line = found.backward_line
    if not found.scales:
        happened = f"{where}there was no backward pass"
        expected = "a backward pass for every batch"
        return Failed(happened, expected, misconception="missing-backward")
    if found.batches < right.batches:
        happened = f"{where}only {found.batches} of {right.batches} batches were used"
        return Failed(happened, "all of them", None, "loop-left-early", ("continue", "for"))
    if found.taken != right.taken:
        key = None if anywhere else "missing-step"
        stepped = f"stepped {count_in_words(found.taken)}" if found.taken else "never stepped"
        line = found.extra_line if found.taken > right.taken else step_line
        return Failed(f"{where}the optimizer {stepped}", count_in_words(right.taken), line, key)
    if not found.own:
        happened = f"{where}another optimizer than the one passed in stepped, without its momentum"
        return Failed(happened, "the optimizer that was passed in", None, "another-optimizer")
    if found.emptied and all(found.per_step):
        happened = f"{where}the gradients were zeroed between backward() and step()"
        return Failed(
            happened,
            "backward(), step(), zero_grad()",
            step_line,
            None,
            ("zero_grad( 2", "zero_grad("),
        )
    together = (
        len(found.scales) > sum(found.per_step) + found.unused
    )  # several losses in one backward pass
    if found.per_step != right.per_step and not together:
        early = found.unused and found.ahead and found.batches == right.batches
        batches = " and ".join(f"{n} batch" if n == 1 else f"{n} batches" for n in found.per_step)
        expected = (
            f"a step after every {steps} batches" if steps > 1 else "a step after every batch"
        )
        return Failed(
            f"{where}you stepped after {batches}",
            expected,
            step_line,
            "step-before-backward" if early else None,
        )
    if steps > 1 and found.scales and all(scale == 1 for scale in found.scales):
        return Failed(
            f"{where}the losses were not divided: each step is up to {steps} times too large",
            f"each batch's loss divided by {steps}",
            backward_line if together else None,
            "loss-not-divided",
        )
    if found.scales != right.scales:
        return Failed(
            f"{where}the losses were scaled by {found.scales}",
            f"{right.scales}",
            at=("/", "*", "backward("),
        )
    added = list(zip(found.clean, right.clean, strict=False))
    if (False, True) in added:
        happened = f"{where}backward() added to gradients that an earlier step had used"
        return Failed(happened, "gradients zeroed after every step", step_line, "missing-zero-grad")
    if (True, False) in added:
        happened = f"{where}the gradients were zeroed in the middle of a group, so a step used its last batch only"
        expected = f"the gradients of {steps} batches added up"
        return Failed(happened, expected, at=("zero_grad( 2", "zero_grad("))
    happened = (
        f"{where}every loss was scaled as it should be, but the weights differ from the reference's"
    )
    at = (".grad =", "div_(", "mul_(", "clip_grad_norm_(", "clip_grad_value_(")
    return Failed(happened, "steps with the mean of the gradients, not changed otherwise", at=at)


@accumulate.check(points=0.5, needs=("runs", "steps_after_every_group"))
def steps_for_the_remainder(seen: Seen, wanted: Seen) -> None:
    """Batches left over at the end get one more step."""
    anywhere = _steps_somewhere(seen)
    # The longer one first: with one batch, different mistakes look alike.
    for name, found, right in _passes_over(seen, wanted, "with_a_remainder", "model_already_there"):
        if found.taken < right.taken:
            unused = right.batches - sum(found.per_step)
            happened = f"({name}) no step used the gradients of {unused} of {right.batches} batches"
            raise Failed(happened, "one more step for them", misconception="remainder-dropped")
        if not arrays_close(found.after, right.after):
            raise _unlike(name, found, right, anywhere)


@accumulate.check(points=0.25, needs=("runs", "steps_after_every_group"))
def starts_from_nothing(seen: Seen, wanted: Seen) -> None:
    """Gradients from before the call do not leak into the first step."""
    for _, found, right in _passes_over(seen, wanted, "dirty_gradients"):
        if not arrays_close(found.after, right.after):
            happened = "gradients from before the call went into the first step"
            raise Failed(
                happened, "gradients zeroed before the loop", found.backward_line, "stale-gradients"
            )


@accumulate.check(points=0.25)
def leaves_the_mode_alone(seen: Seen, wanted: Seen) -> None:
    """Training or evaluation mode is the caller's choice and is not changed."""
    for _, found, right in _passes_over(seen, wanted, *TRAINED, "in_evaluation_mode"):
        mode, other = ("training", "evaluation") if right.training else ("evaluation", "training")
        if not found.calls:
            raise Failed("the model was never called", f"a pass over the loader in {mode} mode")
        if any(was is not right.training for was in found.whole):
            raise Failed(
                f"a model in {mode} mode was put into {other} mode", f"{mode} mode throughout"
            )
        if any(was is right.training for was in found.part):
            happened = (
                f"a part in {other} mode, of a model in {mode} mode, was put into {mode} mode"
            )
            raise Failed(happened, "the mode of each part unchanged")


@accumulate.check(points=0.25)
def returns_the_number_of_steps(seen: Seen, wanted: Seen) -> None:
    """It returns the number of optimizer steps, as an int."""
    anywhere = _steps_somewhere(seen)
    for name, found, right in _passes_over(seen, wanted, *TRAINED):
        if not found.taken:
            # Without a remainder it steps: then what is missing is the step after the loop.
            group = "remainder-dropped" if right.batches < right.steps else None
            key = group if anywhere else "missing-step"
            raise Failed(
                f"({name}) the optimizer never stepped",
                count_in_words(right.taken),
                misconception=key,
            )
        if found.value is None or found.value != found.taken:
            raise Failed(
                f"({name}) it returned {found.shown}", f"{found.taken}, the number of steps"
            )


# ---- checkpointed ----------------------------------------------------------------------------------------------------

COUNT = 4
ROWS = 256
WIDTH = 8


@lru_cache(maxsize=1)
def _block_class() -> tuple[Any, ...]:
    """A class made once, and only where torch is needed."""

    class CheckpointBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4, 1, WIDTH))
            self.key = keep_state([0])

        def forward(self, x: Any) -> Any:
            state_of(self.key)[0] += 1
            return nn.functional.dropout((x * self.scale).tanh(), 0.3, self.training).mean(0)

    return make_picklable(CheckpointBlock)


__getattr__ = find_classes(_block_class)


def _blocks(seed: int, device: Any, count: int = COUNT) -> tuple[list[Any], Any]:
    """Blocks that count their runs, and need several times as much memory inside as between them."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        x = torch.rand(ROWS, WIDTH).to(device)
        return [_block_class()[0]().to(device) for _ in range(count)], x


class Through(Case, frozen=True):
    """Forward and backward through some blocks: the results, and the memory they took."""

    kind: str
    out: Array | None
    device: str
    ran: int  # blocks that ran in the forward pass
    error: str  # of the backward pass
    missing: int  # tensors without a gradient
    gradients: Array | None
    switched: bool  # the requires_grad of x
    recomputed: int  # blocks that ran again
    stored: int | None  # the peak after the forward pass, in bytes
    peak: int | None
    curve: MemoryCurve | None
    plain: Through | None = (
        None  # the plain loop on a real GPU, whose random numbers are not the virtual device's
    )


NAMES = {"a_list": "a list", "two_blocks": "two blocks"}


class Passes(Case, frozen=True, rename=NAMES):
    """The scenarios with blocks, and the memory in use after the plain loop's forward pass.

    The plain loop runs beside the reference, and on a real GPU, where memory is measured, beside the student's code.
    """

    a_list: Through
    two_blocks: Through
    stored: int | None = None  # bytes
    stored_curve: MemoryCurve | None = None


def _through(
    call: Call,
    blocks: Any,
    x: Any,
    gradient: bool,
    backward: bool = True,
    go: Callable[..., Any] | None = None,
    drawn: bool = False,
) -> Through:
    """Forward and backward through some blocks, with a curve of the memory in use if `drawn`."""
    device = call.device
    gpu = call.device.type == "cuda"
    x = x.detach().clone().requires_grad_(gradient)
    tensors = [p for block in blocks for p in block.parameters()]
    for block in blocks:
        state_of(block.key)[0] = 0
    for tensor in tensors:
        tensor.grad = None
    with torch.random.fork_rng(devices=[device.index or 0] if gpu else []):
        torch.manual_seed(call.seed)
        base = 0
        if gpu:
            torch.cuda.manual_seed(
                call.seed
            )  # the GPU's generator, which a student may restore for the second run
            torch.cuda.reset_peak_memory_stats(device)
            base = torch.cuda.memory_allocated(device)
        ledger = call.bench.ledger
        start = ledger.mark()
        out = (go or call)(blocks, x)
        forward = ledger.since(start, ledger.mark())
        ran = sum(state_of(block.key)[0] > 0 for block in blocks)
        stored = torch.cuda.max_memory_allocated(device) - base if gpu else None
        values = None
        place = ""
        said = ""
        if isinstance(out, torch.Tensor):
            values = array_of(out)
            place = str(out.device)
            start = ledger.mark()  # without reading the values
            try:
                if backward:
                    out.sum().backward()
            except (
                Exception
            ) as error:  # what a student's own code does in backward is the student's
                said = f"{type(error).__name__}: {str(error)[:200]}"
        peak = torch.cuda.max_memory_allocated(device) - base if gpu else None
        curve = (
            memory_curve(forward, ledger.since(start), base, peak)
            if peak is not None and drawn
            else None
        )
    gradients = [t.grad.flatten() for t in [*tensors, x] if t.grad is not None]
    return Through(
        stored=stored,
        peak=peak,
        curve=curve,
        kind=type(out).__name__,
        out=values,
        device=place,
        ran=ran,
        error=said,
        missing=sum(t.grad is None for t in [*tensors, x][: None if gradient else -1]),
        gradients=array_of(torch.cat(gradients)) if gradients else None,
        switched=x.requires_grad is not gradient,
        recomputed=sum(state_of(block.key)[0] > 1 for block in blocks),
    )


@checkpointed.probe
def passes(call: Call) -> Passes:
    """A list of blocks, and a ModuleList of two with data that requires no gradient."""
    blocks, x = _blocks(call.seed, call.device)
    if call.bench.kind == "cuda":  # real libraries allocate memory of their own at the first call
        blocks[0](x).sum().backward()
    stored = None
    curve = None
    if call.reference or call.bench.kind == "cuda":
        plain = _through(call, blocks, x, gradient=True, go=_plainly, drawn=True)
        stored = plain.stored
        curve = plain.curve
    found = run_scenarios(
        {
            "a_list": lambda: _beside_plain(call, blocks, x, gradient=True, drawn=True),
            "two_blocks": lambda: _beside_plain(call, nn.ModuleList(blocks[:2]), x, gradient=False),
        }
    )
    return Passes(**found, stored=stored, stored_curve=curve)


def _beside_plain(call: Call, blocks: Any, x: Any, **options: Any) -> Through:
    found = _through(call, blocks, x, **options)
    if call.bench.kind != "cuda":
        return found
    return msgspec.structs.replace(found, plain=_through(call, blocks, x, go=_plainly, **options))


@checkpointed.probe(edge=True)
def few_blocks(call: Call) -> Cases[Through]:
    (blocks, x), (hosted, there) = _blocks(call.seed, call.device, 1), _blocks(call.seed, "cpu", 2)
    return try_scenarios(
        {
            "one block": lambda: _beside_plain(call, blocks, x, gradient=True, backward=False),
            "no blocks": lambda: _beside_plain(call, [], x, gradient=False, backward=False),
            "on the CPU": lambda: _beside_plain(call, hosted, there, gradient=True),
        }
    )


def _plainly(blocks: Any, x: Any) -> Any:
    for block in blocks:
        x = block(x)
    return x


runs(checkpointed)


def _beside(name: str, seen: Seen, wanted: Seen) -> tuple[Through, Through, Through]:
    """What was seen, what the reference did, and the case with the right values.

    Where only the reference's evidence was made on the virtual device, as in a released repository, and the student's
    on a real GPU, the right values are those of the plain loop that ran beside the student's.
    """
    found, right = (
        getattr(each[passes], name) if name in NAMES else each[few_blocks][name]
        for each in (seen, wanted)
    )
    return found, right, (found.plain if right.plain is None else None) or right


def _same_output(name: str, seen: Seen, wanted: Seen) -> None:
    (found, right, values), where = _beside(name, seen, wanted), f"({NAMES.get(name, name)})"
    if found.out is None:
        raise Failed(f"{where} it returned {with_article(found.kind)}", "a tensor", at=("return",))
    if found.device != right.device:
        raise Failed(
            f"{where} the output is on {found.device}",
            right.device,
            at=("cpu(", "return", "last return"),
        )
    if not arrays_close(found.out, values.out):
        if found.ran < right.ran:
            raise Failed(
                f"{where} {found.ran} of {right.ran} blocks ran",
                "all of them, one after the other",
                at=("for",),
            )
        raise Failed(f"{where} the output differs from the plain loop's", "the same values")


@checkpointed.check(points=0.25)
def gives_the_same_output(seen: Seen, wanted: Seen) -> None:
    """The output is that of the plain loop."""
    for name in NAMES:
        _same_output(name, seen, wanted)


@checkpointed.check(points=0.25, needs=("runs", "gives_the_same_output"))
def gives_the_same_gradients(seen: Seen, wanted: Seen) -> None:
    """Every parameter and the input get the gradients of the plain loop, dropout included."""
    _same_gradients("(a list) ", *_beside("a_list", seen, wanted), None)
    _same_gradients("(two blocks on the CPU) ", *_beside("on the CPU", seen, wanted), None)


def _same_gradients(
    where: str, found: Through, right: Through, values: Through, misconception: str | None
) -> None:
    if found.error:
        raise Failed(
            f"{where}backward() raised {found.error}", "gradients", misconception=misconception
        )
    if found.missing > right.missing or found.gradients is None:
        count = "1 tensor" if found.missing == 1 else f"{found.missing} tensors"
        raise Failed(
            f"{where}{count} got no gradient", "a gradient for each", misconception=misconception
        )
    if not arrays_close(found.gradients, values.gradients):
        raise Failed(f"{where}the gradients differ from the plain loop's", "the same values")


@checkpointed.check(
    points=0.25, needs=("runs", "gives_the_same_output", "gives_the_same_gradients")
)
def trains_on_plain_data(seen: Seen, wanted: Seen) -> None:
    """The blocks get their gradients even if `x` is data that requires none."""
    cases = _beside("two_blocks", seen, wanted)
    where = "(two blocks, x requires no gradient) "
    if cases[0].switched:
        happened = f"{where}the `x` that was passed in requires one afterwards"
        raise Failed(
            happened, "x unchanged: `use_reentrant=False` is enough", None, "input-modified"
        )
    _same_gradients(where, *cases, "reentrant-on-plain-data")


@checkpointed.check(
    points=0.25, needs=("runs", "gives_the_same_output", "gives_the_same_gradients")
)
def needs_less_memory(seen: Seen, wanted: Seen) -> None:
    """Activations are recomputed in backward instead of being stored, and the peak memory is lower."""
    stored, (found, right, _) = (
        seen[passes].stored or wanted[passes].stored,
        _beside("a_list", seen, wanted),
    )
    if (
        found.recomputed < COUNT / 2
    ):  # some ways of cutting a list into segments leave the last one out
        happened = f"only {found.recomputed} of {COUNT} blocks" if found.recomputed else "no block"
        raise Failed(
            f"{happened} ran again in backward: the activations were stored",
            "blocks that run twice",
        )
    if right.peak is not None:
        assert found.peak is not None
        assert stored is not None
        if not found.peak <= 0.85 * stored:
            took = f"forward and backward took {found.peak // KIB} KiB, the plain loop takes {stored // KIB}"
            raise Failed(took, f"about {right.peak // KIB} KiB")


@checkpointed.check(points=0.25, needs=("runs", "gives_the_same_output"))
def copes_with_no_blocks(seen: Seen, wanted: Seen) -> None:
    """It works with a single block too, and without any the output is `x`."""
    for name in ("one block", "no blocks"):
        _same_output(name, seen, wanted)
