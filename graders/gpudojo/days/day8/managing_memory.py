"""09: managing memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from gpudojo.days.day8.sprites import CLASSES, SIZE, sprites
from gpudojo.days.day8.watched_batches import WatchedBatches
from gpudojo.grading.call import Call, StudentRaised, array, nn, several, torch
from gpudojo.grading.judge import diagnosis, runs
from gpudojo.grading.watching import memory_curve
from gpudojo.model.evidence import Array
from gpudojo.model.exercise import Exercise, Failed, Seen, called

exercise = Exercise(
    "09_managing_memory",
    "Managing the GPU's memory",
    points=6,
    reading=("notes/cuda.html", "checkpoint.html", "notes/amp_examples.html"),
)

peak_memory = exercise.function(
    "peak_memory",
    "`torch.cuda.max_memory_allocated(device)` is the highest since `torch.cuda.reset_peak_memory_stats(device)`.",
    "Reset before `fn()`, read after it. `memory_allocated` is what is left when `fn()` is over, not the peak.",
    "On the CPU there are no such figures: call `fn()` and return 0.",
)

largest_batch = exercise.function(
    "largest_batch",
    "`try:` calls try_batch, `except torch.OutOfMemoryError:` catches that one error and no other.",
    "At 1 there is nothing left to halve: a bare `raise` inside the except block raises the error again.",
    "`torch.cuda.empty_cache()` between two tries gives back what the failed one left in the cache.",
    "Try `start`, then half of it (`// 2`) and so on, each size once; return the first that ran.",
)

accumulate = exercise.function(
    "accumulate_gradients",
    "`backward()` adds up: zero the gradients before the loop and after each step, not for every batch.",
    "`(loss_fn(outputs, targets) / steps).backward()`; after `steps` batches a step, and only then zeroed gradients.",
    "After the loop: if batches are left that no step has used, step once more.",
    "Before the loop `model.to(device)`, and neither `train()` nor `eval()`; in it inputs and targets to the device.",
    "Count every `optimizer.step()`, the one for the remainder too, and return the count.",
)

checkpointed = exercise.function(
    "checkpointed",
    "`torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)` is `block(x)` without its activations kept.",
    "One checkpoint for each block: one around all of them recomputes everything at once and saves nothing.",
    "With `use_reentrant=True`, a block whose input requires no gradient gets no gradients either.",
    "A loop over no blocks does nothing, and leaves `x` as it is.",
)
peak_memory.when("forgets_earlier_peaks", "finds_the_highest_moment", hint=2, at=("return", "last return"))
peak_memory.when("measures_the_right_device", hint=1, at=("max_memory_allocated(", "return", "last return"))
peak_memory.when("is_nothing_on_the_cpu", "hard-coded-cuda", hint=3, at=("first return",))
largest_batch.when("halves_until_it_fits", hint=4, at=("except", "for", "return"))
largest_batch.when("gives_the_cache_back", hint=3, at=("empty_cache(", "except"))
largest_batch.when("raises_when_nothing_fits", hint=2, at=("except",))
accumulate.when("runs", "works_on_the_device", "leaves_the_mode_alone", hint=4, at=("eval(", "train(", "to(", "for"))
accumulate.when("steps_after_every_group", hint=2, at=("step(", "backward("))
accumulate.when("missing-step", "step-before-backward", "loss-not-divided", hint=2)
accumulate.when("steps_for_the_remainder", "remainder-dropped", hint=3, at=("last step(", "step("))
accumulate.when("returns_the_number_of_steps", hint=5, at=("return", "last return"))
WRAPPING = ("checkpoint(", "checkpoint_sequential(", "return", "last return")
checkpointed.when("runs", "needs_less_memory", hint=2, at=WRAPPING)
checkpointed.when("gives_the_same_output", "gives_the_same_gradients", hint=1, at=("detach(", "no_grad(", *WRAPPING))
checkpointed.when("trains_on_plain_data", "reentrant-on-plain-data", hint=3, at=("requires_grad_(", *WRAPPING))
checkpointed.when("copes_with_no_blocks", hint=4, at=WRAPPING)


KIB = 1024
# What is allocated before `fn`, at most and at last inside it, and long before.
BLOCKS = {"before": 64 * KIB, "highest": 768 * KIB, "left": 128 * KIB, "earlier": 4096 * KIB}


def _measured(call: Call, device: Any, told: Any) -> dict[str, Any]:
    """A peak in the middle of `fn`, something there before, and an earlier, higher peak that is over.

    All blocks are small ones, which the allocator counts to the byte whatever it has cached.
    """
    on_gpu = torch.device(device).type == "cuda"

    def block(size: int) -> Any:
        return torch.empty(size, dtype=torch.uint8, device=device)

    calls: list[int] = []
    kept: list[Any] = []

    def fn() -> str:
        calls.append(1)
        first, second = block(BLOCKS["highest"] // 3), block(BLOCKS["highest"] // 3 * 2)
        del first, second
        kept.append(block(BLOCKS["left"]))
        return "what fn returns is nobody's business"

    base = torch.cuda.memory_allocated(device) if on_gpu else 0
    before = block(BLOCKS["before"])
    earlier = [block(BLOCKS["earlier"] // 4) for _ in range(4)]
    earlier.clear()
    value = call(fn, told)
    del before
    whole = isinstance(value, int) and not isinstance(value, bool)
    return {
        "class": type(value).__name__,
        "value": value - base if whole and on_gpu else value if whole else None,
        "shown": repr(value)[:60],
        "calls": len(calls),
        "blocks": BLOCKS,
    }


def _on_this_device(call: Call) -> dict[str, Any]:
    """Every way of naming the device; where it is no CUDA device, the CPU only."""
    if call.device.type != "cuda":
        return {"'cpu'": _measured(call, "cpu", "cpu")}
    spelled: dict[str, Any] = {"'cuda'": "cuda", "'cuda:0'": "cuda:0", "device('cuda')": torch.device("cuda")}
    return {name: _measured(call, call.device, told) for name, told in spelled.items()}


def _on_the_cpu(call: Call) -> dict[str, Any]:
    """On a machine that has a GPU as well, with something on it."""
    other = torch.empty(300 * KIB, dtype=torch.uint8, device=call.device)
    found = {"'cpu'": _measured(call, "cpu", "cpu"), "device('cpu')": _measured(call, "cpu", torch.device("cpu"))}
    del other
    return found


@peak_memory.probe
def peaks(call: Call) -> dict[str, Any]:
    return several({"on_this_device": lambda: _on_this_device(call), "on_the_cpu": lambda: _on_the_cpu(call)})


@peak_memory.probe(machine="two gpus")
def on_the_second_gpu(call: Call) -> dict[str, Any]:
    """The first one, which is the current one, has a peak of its own."""
    other = torch.empty(300 * KIB, dtype=torch.uint8, device="cuda:0")
    found = {"'cuda:1'": _measured(call, "cuda:1", "cuda:1")}
    del other
    return found


@peak_memory.probe(machine="laptop")
def without_a_gpu(call: Call) -> dict[str, Any]:
    return {"'cpu'": _measured(call, "cpu", "cpu")}


ENOUGH = 40  # tries after which a loop that never ends is let go


class _Trial:
    """A `try_batch` that fits up to some size, fails as it is told, and leaves something in the cache each time."""

    def __init__(self, call: Call, fits: int, instead: Exception | None = None, at: int = 0) -> None:
        self.call, self.fits, self.instead, self.at = call, fits, instead, at
        self.sizes: list[float] = []
        self.cached: list[int] = []
        self.met = 0  # how many tries there were when the other error came up
        self.last = ""

    def __call__(self, size: Any) -> str:
        self.sizes.append(size if isinstance(size, (int, float)) else -1)
        gpu = self.call.device.type == "cuda"
        if gpu:
            self.cached.append(torch.cuda.memory_reserved(self.call.device))
        try:
            self._run(size, gpu)
        finally:
            if gpu:  # now, not before: an allocation that fails empties the cache by itself
                scratch = torch.empty(48 << 20, dtype=torch.uint8, device=self.call.device)
                del scratch
        return "what try_batch returns is nobody's business"

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


@contextlib.contextmanager
def _no_accelerator_to_empty(call: Call) -> Iterator[None]:
    """On the plain CPU `torch.accelerator.empty_cache()` raises, where `torch.cuda.empty_cache()` does nothing."""
    if call.device.type == "cpu" and hasattr(torch.accelerator, "empty_cache"):
        with mock.patch.object(torch.accelerator, "empty_cache", return_value=None):
            yield
    else:
        yield


def _search(call: Call, start: int, fits: int, instead: Exception | None = None, at: int = 0) -> dict[str, Any]:
    if call.device.type == "cuda":
        torch.cuda.empty_cache()  # of what an earlier search has left
    trial = _Trial(call, fits, instead, at)
    found: dict[str, Any] = {}
    try:
        with _no_accelerator_to_empty(call):
            value = call(trial, start)
        found["value"] = int(value) if isinstance(value, int) and not isinstance(value, bool) else None
        found["shown"] = f"{value!r:.60}"
    except StudentRaised as error:
        expected = instead is not None or not fits or error.evidence.type == "OutOfMemoryError"
        if not (trial.sizes and expected):
            raise  # nothing went wrong but the function itself
        found["raised"] = error.evidence.type
        found["message"] = error.evidence.message
        found["line"] = error.evidence.line
    kept = [later - trial.cached[0] for later in trial.cached[1:]]
    sizes = trial.sizes[: ENOUGH + 1]
    return {**found, "sizes": sizes, "kept": max(kept, default=0), "last": trial.last, "met": trial.met}


def _halving(call: Call) -> dict[str, Any]:
    """(start, what fits): several halvings, odd numbers on the way, the first fits, only 1 fits, 1 is asked for."""
    cases = ((100, 13), (64, 64), (5, 1), (96, 24), (1, 1))
    return {f"start {start}, {fits} fits": _search(call, start, fits) for start, fits in cases}


def _nothing_fits(call: Call) -> dict[str, Any]:
    return {f"start {start}": _search(call, start, 0) for start in (5, 1)}


def _another_error(call: Call) -> dict[str, Any]:
    """A bug in try_batch: at once, after some halvings, and one whose message speaks of memory."""
    access = "CUDA error: an illegal memory access was encountered"
    return {
        "ValueError": _search(call, 32, 4, ValueError("an odd number of sprites"), at=32),
        "RuntimeError": _search(call, 32, 4, RuntimeError("mat1 and mat2 shapes cannot be multiplied"), at=16),
        "RuntimeError about memory": _search(call, 32, 4, RuntimeError(access), at=8),
    }


@largest_batch.probe
def searches(call: Call) -> dict[str, Any]:
    return several(
        {
            "halving": lambda: _halving(call),
            "nothing_fits": lambda: _nothing_fits(call),
            "another_error": lambda: _another_error(call),
        }
    )


def _classifier(seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, CLASSES))


def _accumulated(
    call: Call, device: Any, data: Any, steps: int, dirty: bool = False, mode: bool = True, moved: bool = False
) -> dict[str, Any]:
    from virtual_cuda.ledger import Backward, OptimizerStep
    from virtual_cuda.ledger import questions as training

    model = _classifier(call.seed)
    if moved:
        model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if dirty:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
    model.train(mode)
    model[0].train(not mode)  # one part apart, as batch norm may be for fine-tuning
    modes: list[bool] = []
    model[0].register_forward_pre_hook(lambda module, inputs: modes.append(not module.training))
    model[1].register_forward_pre_hook(lambda module, inputs: modes.append(module.training))
    scales: list[Any] = []
    clean: list[bool] = []
    bias = model[1].bias  # as clean as the weights, and smaller

    def backward_begins(gradient: Any) -> None:
        scales.append(gradient.detach())  # 1 / steps where the loss was divided
        clean.append(bias.grad is None or not bias.grad.any())

    def loss_fn(outputs: Any, targets: Any) -> Any:
        loss = nn.functional.cross_entropy(outputs, targets)
        if loss.requires_grad:
            loss.register_hook(backward_begins)
        return loss

    batches = WatchedBatches(call, torch.utils.data.DataLoader(data, batch_size=2))
    with batches.followed():
        value = call(model, batches, loss_fn, optimizer, device, steps)
    records = tuple(r for r in call.ledger if isinstance(r, Backward | OptimizerStep))
    taken, passes = training.optimizer_steps(records), training.backward_passes(records)
    return {
        "class": type(value).__name__,
        "value": int(value) if isinstance(value, int) and not isinstance(value, bool) else None,
        "shown": f"{value!r:.60}",
        "devices": sorted({str(p.device) for p in model.parameters()}),
        "wanted_device": str(torch.empty(0, device=device).device),
        "after": [array(p) for p in model.parameters()],
        "taken": len(taken),
        "step_line": call.line_of(taken[0]) if taken else None,
        "backward_line": call.line_of(passes[0]) if passes else None,
        "per_step": list(training.backwards_per_step(records)),
        "unused": len(training.backwards_after_last_step(records)),
        "scales": [round(scale, 4) for scale in torch.stack(scales).tolist()] if scales else [],
        "clean": clean,
        "batches": batches.handed_out,
        "steps": steps,
        "training": mode,
        "modes": modes,
        "mode_after": model.training is model[1].training is not model[0].training and model.training,
    }


@accumulate.probe
def accumulations(call: Call) -> dict[str, Any]:
    """In batches of two. What the device matters for is tried there, the counting where it costs less."""
    device = call.device
    pictures, classes = sprites(9, call.seed + 1)

    def first(count: int) -> Any:
        return torch.utils.data.TensorDataset(pictures[:count], classes[:count])

    return several(
        {
            "model_on_the_cpu": lambda: {"2 batches by 2": _accumulated(call, device, first(4), 2)},
            "model_already_there": lambda: {"1 batch by 2": _accumulated(call, str(device), first(1), 2, moved=True)},
            "dirty_gradients": lambda: {"1 batch by 1": _accumulated(call, device, first(2), 1, dirty=True)},
            "told_to_use_the_cpu": lambda: {
                "4 batches by 2": _accumulated(call, "cpu", first(8), 2),
                "2 batches by 1": _accumulated(call, "cpu", first(4), 1, mode=False),
                "5 batches by 3": _accumulated(call, "cpu", first(9), 3),
            },
        }
    )


COUNT, ROWS, WIDTH = 4, 256, 8


def _blocks(seed: int, device: Any) -> tuple[list[Any], Any]:
    """Blocks that count their runs, and need several times as much memory inside as between them."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4, 1, WIDTH))
            self.runs = 0

        def forward(self, x: Any) -> Any:
            self.runs += 1
            return nn.functional.dropout((x * self.scale).tanh(), 0.3, self.training).mean(0)

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return [Block().to(device) for _ in range(COUNT)], torch.rand(ROWS, WIDTH).to(device)


def _through(
    call: Call,
    blocks: Any,
    x: Any,
    gradient: bool,
    backward: bool = True,
    go: Callable[..., Any] | None = None,
    drawn: bool = False,
) -> dict[str, Any]:
    """Forward and backward through some blocks; what came out, and how much memory it took, when `drawn` as a curve."""
    device, gpu = call.device, call.device.type == "cuda"
    x = x.detach().clone().requires_grad_(gradient)
    tensors = [p for block in blocks for p in block.parameters()]
    for block in blocks:
        block.runs = 0
    for tensor in tensors:
        tensor.grad = None
    with torch.random.fork_rng(devices=[device.index or 0] if gpu else []):
        torch.manual_seed(call.seed)
        base = 0
        if gpu:
            torch.cuda.manual_seed(call.seed)  # its own dice, which a student may want to put back for the second run
            torch.cuda.reset_peak_memory_stats(device)
            base = torch.cuda.memory_allocated(device)
        ledger = call.bench.ledger
        start = ledger.mark()
        out = (go or call)(blocks, x)
        forward = ledger.since(start, ledger.mark())
        found: dict[str, Any] = {"class": type(out).__name__, "out": None, "device": "", "error": ""}
        if isinstance(out, torch.Tensor):
            found["out"], found["device"] = array(out), str(out.device)
            start = ledger.mark()  # without what has just been read for the evidence
            try:
                if backward:
                    out.sum().backward()
            except Exception as error:  # what a student's own code does in backward is the student's
                found["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        found["peak"] = torch.cuda.max_memory_allocated(device) - base if gpu else None
        if gpu and drawn:
            found["curve"] = memory_curve(forward, ledger.since(start), base, found["peak"])
    gradients = [t.grad.flatten() for t in [*tensors, x] if t.grad is not None]
    found["missing"] = sum(t.grad is None for t in [*tensors, x][: None if gradient else -1])
    found["gradients"] = array(torch.cat(gradients)) if gradients else None
    found["switched"] = x.requires_grad is not gradient
    found["recomputed"] = sum(block.runs > 1 for block in blocks)
    return found


def _stored(call: Call, blocks: list[Any], x: Any) -> tuple[int | None, dict[str, Any] | None]:
    """The memory that the plain loop takes up to its last block, when every activation is there, and its curve."""
    if x.device.type != "cuda":
        return None, None
    with torch.random.fork_rng(devices=[x.device.index or 0]):
        if call.bench.kind == "cuda":  # whose libraries take memory of their own at the first call
            blocks[0](x).sum().backward()
        x = x.detach().clone().requires_grad_()  # as the student's is
        torch.cuda.reset_peak_memory_stats(x.device)
        base, ledger = torch.cuda.memory_allocated(x.device), call.bench.ledger
        start = ledger.mark()
        x = _plainly(blocks, x)
        stored, turn = torch.cuda.max_memory_allocated(x.device) - base, ledger.mark()
        x.sum().backward()
    peak = torch.cuda.max_memory_allocated(x.device) - base
    return stored, memory_curve(ledger.since(start, turn), ledger.since(turn), base, peak)


def _without_blocks(call: Call, x: Any) -> dict[str, Any]:
    try:
        out = call([], x)
    except StudentRaised as error:
        return {"raised": f"{error.evidence.type}: {error.evidence.message}", "line": error.evidence.line}
    return {"class": type(out).__name__, "out": array(out) if isinstance(out, torch.Tensor) else None}


@checkpointed.probe
def passes(call: Call) -> dict[str, Any]:
    """A list of blocks, a ModuleList of two with data that requires no gradient, one block, and none."""
    blocks, x = _blocks(call.seed, call.device)
    stored, curve = _stored(call, blocks, x)
    found = several(
        {
            "a list": lambda: _through(call, blocks, x, gradient=True, drawn=True),
            "two blocks": lambda: _through(call, nn.ModuleList(blocks[:2]), x, gradient=False),
            "one block": lambda: _through(call, blocks[:1], x, gradient=True, backward=False),
            "no blocks": lambda: _without_blocks(call, x),
        }
    )
    if call.bench.kind == "cuda":  # whose dice fall otherwise than those of the virtual device
        found["plain"] = {
            "a list": _through(call, blocks, x, gradient=True, go=_plainly),
            "two blocks": _through(call, blocks[:2], x, gradient=False, go=_plainly),
            "one block": _through(call, blocks[:1], x, gradient=True, backward=False, go=_plainly),
        }
    return {**found, "stored": stored, "stored_curve": curve, "blocks": COUNT}


def _plainly(blocks: list[Any], x: Any) -> Any:
    for block in blocks:
        x = block(x)
    return x


def _about_cuda(scenario: str, said: str) -> str | None:
    """A complaint about CUDA where the CPU was asked for."""
    return "hard-coded-cuda" if scenario == "on_the_cpu" and "cuda" in said.lower() else None


runs(peak_memory, diagnose=_about_cuda)


def _earlier(right: dict[str, Any]) -> int:
    """The peak that was over before `fn` was called."""
    return int(right["blocks"]["earlier"] + right["blocks"]["before"])


def _mistaken(right: dict[str, Any]) -> dict[int, str]:
    """What else can be read off the allocator, and what it is."""
    before, highest, left = (right["blocks"][name] for name in ("before", "highest", "left"))
    return {left + before: "what is left after `fn`", highest: "what `fn` added", left: "what `fn` left behind"}


def _measured_cases(
    seen: dict[str, Any], wanted: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, answer and right answer of every measurement; one that is no int is refused on the way."""
    for name, right in wanted.items():
        facts = seen[name]
        if facts["value"] is None:
            raise Failed(
                f"device={name} gave {facts['shown']}, {called(facts['class'])}", "a number of bytes, as an int"
            )
        yield name, facts, right


def _here(seen: Seen, wanted: Seen) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    return _measured_cases(seen["peaks"].facts["on_this_device"], wanted["peaks"].facts["on_this_device"])


@peak_memory.check(points=0.25)
def forgets_earlier_peaks(seen: Seen, wanted: Seen) -> None:
    """A peak from before the call does not count."""
    for name, facts, right in _here(seen, wanted):
        if facts["value"] == _earlier(right) != right["value"]:
            raise Failed(
                f"device={name} gave {_kib(facts)}, a peak that was over before `fn` was called",
                f"{_kib(right)}, the highest while `fn` ran",
            )


@peak_memory.check(points=0.5)
def finds_the_highest_moment(seen: Seen, wanted: Seen) -> None:
    """It is the highest number of bytes allocated while `fn` runs, what was there before included."""
    for name, facts, right in _here(seen, wanted):
        if facts["calls"] != 1:
            raise Failed(f"device={name}: `fn` was called {facts['calls']} times", "once", at=("last fn(",))
        value = facts["value"]
        if value in (right["value"], _earlier(right)):  # the second is another check's business
            continue
        told = _mistaken(right).get(value)
        raise Failed(f"device={name} gave {_kib(facts)}" + (f": {told}" if told else ""), f"{_kib(right)}, the peak")


@peak_memory.check(points=0.25)
def measures_the_right_device(seen: Seen, wanted: Seen) -> None:
    """It is the memory of the device passed in, also where another one is current."""
    for name, facts, right in _measured_cases(seen["on_the_second_gpu"].facts, wanted["on_the_second_gpu"].facts):
        if facts["value"] not in (right["value"], _earlier(right), *_mistaken(right)):
            raise Failed(f"with two GPUs, device={name} gave {_kib(facts)}", f"{_kib(right)}: the memory of that one")


@peak_memory.check(points=0.25)
def is_nothing_on_the_cpu(seen: Seen, wanted: Seen) -> None:
    """On the CPU `fn` is called too, once, and the answer is 0."""
    pairs = [
        (seen["peaks"].facts["on_the_cpu"], wanted["peaks"].facts["on_the_cpu"]),
        (seen["without_a_gpu"].facts, wanted["without_a_gpu"].facts),
    ]
    for found, expected in pairs:
        for name, facts, _ in _measured_cases(found, expected):
            if facts["calls"] != 1:
                raise Failed(f"device={name}: `fn` was called {facts['calls']} times", "once", at=("last fn(",))
            if facts["value"] != 0:
                raise Failed(f"device={name} gave {facts['value']}", "0")


def _kib(facts: dict[str, Any]) -> str:
    return f"{facts['value'] / KIB:g} KiB"


runs(largest_batch)


def _searches(seen: Seen, wanted: Seen, scenario: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for name, right in wanted["searches"].facts[scenario].items():
        yield name, seen["searches"].facts[scenario][name], right


@largest_batch.check(points=0.5)
def halves_until_it_fits(seen: Seen, wanted: Seen) -> None:
    """It tries start, start // 2, ... and returns the first that does not run out of memory."""
    for name, facts, right in _searches(seen, wanted, "halving"):
        if facts["sizes"] != right["sizes"]:
            ended = f" and raised {facts['raised']}" if "raised" in facts else ""
            raise Failed(f"({name}) it tried {_listed(facts['sizes'])}{ended}", _listed(right["sizes"]))
        if facts.get("value") != right["value"]:
            answer = f"raised {facts['raised']}" if "raised" in facts else f"returned {facts['shown']}"
            raise Failed(f"({name}) it {answer}", f"{right['value']} returned", facts.get("line"))


@largest_batch.check(points=0.25)
def gives_the_cache_back(seen: Seen, wanted: Seen) -> None:
    """Cached memory is given back between two tries."""
    for _, facts, right in _searches(seen, wanted, "halving"):
        if not facts["kept"] <= right["kept"] + (20 << 20):
            raise Failed(
                f"{facts['kept'] >> 20} MiB were still in the cache when the next try began",
                "torch.cuda.empty_cache() first",
            )


@largest_batch.check(points=0.25)
def raises_when_nothing_fits(seen: Seen, wanted: Seen) -> None:
    """Out of memory at 1 raises that error."""
    for name, facts, right in _searches(seen, wanted, "nothing_fits"):
        if "raised" not in facts:
            raise Failed(
                f"({name}) nothing fits, and it returned {facts['shown']}", "the OutOfMemoryError of the last try"
            )
        if facts["raised"] != right["raised"] or facts["message"] != facts["last"]:
            happened = f"({name}) it raised {facts['raised']}: {facts['message'].partition('.')[0]}"
            raise Failed(happened, "the OutOfMemoryError of the last try", facts["line"])
        if facts["sizes"] != right["sizes"]:
            raise Failed(f"({name}) it tried {_listed(facts['sizes'])}", _listed(right["sizes"]))


@largest_batch.check(points=0.5)
def swallows_nothing_else(seen: Seen, wanted: Seen) -> None:
    """Any other error comes out at once, as it was raised."""
    for _, facts, right in _searches(seen, wanted, "another_error"):
        if not facts["met"]:
            happened = f"a batch of {right['sizes'][-1]}, where a {right['raised']} waits, was never tried"
            raise Failed(f"{happened}; tried: {_listed(facts['sizes'])}", _listed(right["sizes"]), facts.get("line"))
        if "raised" not in facts or len(facts["sizes"]) > facts["met"]:
            raise Failed(
                f"{right['raised']} ({right['message']}) was taken for out of memory; tried: {_listed(facts['sizes'])}",
                f"the {right['raised']} itself, after {_listed(right['sizes'])}",
                misconception="swallowed-every-error",
            )
        if (facts["raised"], facts["message"]) != (right["raised"], right["message"]):
            happened = f"a {right['raised']} came out as {facts['raised']}: {facts['message']}"
            raise Failed(happened, f"{right['raised']}: {right['message']}", facts["line"])


def _listed(sizes: list[float]) -> str:
    shown = ", ".join(map(str, sizes[:8]))
    return shown + ", …" if len(sizes) > 8 else shown or "nothing"


WHOLE = ("2 batches by 2", "4 batches by 2", "2 batches by 1")
REMAINDERS = ("1 batch by 2", "5 batches by 3")
DIRTY = ("1 batch by 1",)


def _diagnose(scenario: str, said: str) -> str | None:
    """Where only a model that is there already meets inputs of the CPU, the other one had stayed there with them."""
    key = diagnosis(said)
    return "model-not-moved" if scenario == "model_already_there" and key == "inputs-on-cpu" else key


runs(accumulate, diagnose=_diagnose)


def _accumulations(
    seen: Seen, wanted: Seen, names: tuple[str, ...] = WHOLE + REMAINDERS + DIRTY
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, facts and the reference's facts of every pass over a loader, in the order of the probe."""
    for scenario, passes in wanted["accumulations"].facts.items():
        for name, right in passes.items():
            if name in names:
                yield name.replace(" by ", ", steps="), seen["accumulations"].facts[scenario][name], right


@accumulate.check(points=0.25)
def works_on_the_device(seen: Seen, wanted: Seen) -> None:
    """The model is trained on the device passed in."""
    for _, facts, right in _accumulations(seen, wanted):
        if facts["devices"] != right["devices"]:
            place = right["wanted_device"]
            key = "hard-coded-cuda" if place == "cpu" else "model-not-moved"
            raise Failed(f"told to use {place}, the model is on {', '.join(facts['devices'])}", place, None, key)


@accumulate.check(points=0.5)
def steps_after_every_group(seen: Seen, wanted: Seen) -> None:
    """The optimizer steps after every `steps` batches, with the mean of their gradients."""
    for name, facts, right in _accumulations(seen, wanted, WHOLE):
        if facts["taken"] != right["taken"] or not _close(facts["after"], right["after"]):
            raise _unlike(name, facts, right)


def _unlike(name: str, facts: dict[str, Any], right: dict[str, Any]) -> Failed:
    """Why the weights are not those of the reference."""
    steps, step_line, backward_line = right["steps"], facts["step_line"], facts["backward_line"]
    if facts["taken"] != right["taken"]:
        key = "missing-step" if facts["taken"] == 0 else None
        return Failed(f"({name}) the optimizer {_stepped(facts['taken'])}", _times(right["taken"]), step_line, key)
    if facts["per_step"] != right["per_step"]:
        early = facts["unused"] and facts["batches"] == right["batches"]
        return Failed(
            f"({name}) the steps followed {facts['per_step']} backward passes",
            f"{right['per_step']}: as many as there are batches for each step",
            step_line,
            "step-before-backward" if early else None,
        )
    if steps > 1 and facts["scales"] and all(scale == 1 for scale in facts["scales"]):
        return Failed(
            f"({name}) the losses went into backward() undivided: each step is up to {steps} times too large",
            f"each batch's loss divided by {steps}",
            backward_line,
            "loss-not-divided",
        )
    if facts["scales"] != right["scales"]:
        return Failed(f"({name}) the losses were scaled by {facts['scales']}", f"{right['scales']}", backward_line)
    added = list(zip(facts["clean"], right["clean"], strict=False))
    if (False, True) in added:
        return Failed(
            f"({name}) gradients that an earlier step had used were still there when backward() added to them",
            "gradients zeroed after every step",
            step_line,
            "missing-zero-grad",
        )
    if (True, False) in added:
        return Failed(
            f"({name}) the gradients were zeroed in the middle of a group, so that a step used its last batch only",
            f"the gradients of {steps} batches added up",
            at=("last zero_grad(", "zero_grad("),
        )
    return Failed(f"({name}) the weights differ from the reference's", "each batch's gradient divided by `steps`")


@accumulate.check(points=0.5, needs=("runs", "steps_after_every_group"))
def steps_for_the_remainder(seen: Seen, wanted: Seen) -> None:
    """Batches left over at the end get one more step."""
    # The longer pass first: in one of a single batch, different mistakes look alike.
    for name, facts, right in reversed(list(_accumulations(seen, wanted, REMAINDERS))):
        if facts["taken"] < right["taken"]:
            unused = right["batches"] - sum(facts["per_step"])
            raise Failed(
                f"({name}) no step used the gradients of {unused} of {right['batches']} batches",
                "one more step for them",
                facts["step_line"],
                "remainder-dropped",
            )
        if not _close(facts["after"], right["after"]):
            raise _unlike(name, facts, right)


@accumulate.check(points=0.25, needs=("runs", "steps_after_every_group"))
def starts_from_nothing(seen: Seen, wanted: Seen) -> None:
    """Gradients that were there before the call do not leak into the first step."""
    for _, facts, right in _accumulations(seen, wanted, DIRTY):
        if not _close(facts["after"], right["after"]):
            raise Failed(
                "gradients from before the call went into the first step",
                "gradients zeroed before the loop",
                facts["step_line"],
                "missing-zero-grad",
            )


@accumulate.check(points=0.25)
def leaves_the_mode_alone(seen: Seen, wanted: Seen) -> None:
    """Training or evaluation mode is the caller's choice and stays as it was."""
    for _, facts, right in _accumulations(seen, wanted):
        mode = "training" if right["training"] else "evaluation"
        if any(was is not right["training"] for was in (*facts["modes"], facts["mode_after"])):
            raise Failed(f"a model in {mode} mode was put into the other one", f"{mode} mode throughout")


@accumulate.check(points=0.25)
def returns_the_number_of_steps(seen: Seen, wanted: Seen) -> None:
    """It returns the number of optimizer steps, as an int."""
    for name, facts, _ in _accumulations(seen, wanted):
        if facts["value"] is None:
            raise Failed(f"({name}) it returned {facts['shown']}", f"{facts['taken']}, the number of steps")
        if facts["value"] != facts["taken"]:
            raise Failed(f"({name}) it returned {facts['value']}", f"{facts['taken']}, the steps it took")


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def _stepped(count: int) -> str:
    return f"stepped {_times(count)}" if count else "never stepped"


def _close(found: list[Array], right: list[Array]) -> bool:
    import numpy as np

    if len(found) != len(right):
        return False
    return all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and np.allclose(np.frombuffer(a.data, a.dtype), np.frombuffer(b.data, b.dtype), rtol=1e-3, atol=1e-5)
        for a, b in zip(found, right, strict=True)
    )


runs(checkpointed)


def _passes(seen: Seen, wanted: Seen, *names: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    facts, right = seen["passes"].facts, wanted["passes"].facts
    # Dropout on a real GPU is another than on the virtual one. Where only the reference's evidence was made on that,
    # as in a released repository, the values are those of the plain loop that ran beside the student's.
    plain = facts.get("plain", {}) if "plain" not in right else {}
    for name in names:
        values = {key: plain[name][key] for key in ("out", "gradients")} if plain else {}
        yield name, facts[name], right[name] | values


@checkpointed.check(points=0.25)
def gives_the_same_output(seen: Seen, wanted: Seen) -> None:
    """The output is that of the plain loop."""
    for name, facts, right in _passes(seen, wanted, "a list", "two blocks", "one block"):
        if facts["out"] is None:
            raise Failed(f"({name}) it returned {called(facts['class'])}", "a tensor")
        if facts["device"] != right["device"]:
            raise Failed(f"({name}) the output is on {facts['device']}", right["device"])
        if not _close([facts["out"]], [right["out"]]):
            raise Failed(f"({name}) the output differs from the plain loop's", "the same values")


@checkpointed.check(points=0.25, needs=("runs", "gives_the_same_output"))
def gives_the_same_gradients(seen: Seen, wanted: Seen) -> None:
    """Every parameter and the input get the gradients of the plain loop, dropout included."""
    for name, facts, right in _passes(seen, wanted, "a list"):
        _same_gradients(f"({name}) ", facts, right, None)


def _same_gradients(where: str, facts: dict[str, Any], right: dict[str, Any], misconception: str | None) -> None:
    if facts["error"]:
        raise Failed(f"{where}backward() raised {facts['error']}", "gradients", misconception=misconception)
    if facts["missing"] > right["missing"] or facts["gradients"] is None:
        count = "1 tensor" if facts["missing"] == 1 else f"{facts['missing']} tensors"
        raise Failed(f"{where}{count} got no gradient", "a gradient for each", misconception=misconception)
    if not _close([facts["gradients"]], [right["gradients"]]):
        raise Failed(f"{where}the gradients differ from the plain loop's", "the same values")


@checkpointed.check(points=0.25, needs=("runs", "gives_the_same_output", "gives_the_same_gradients"))
def trains_on_plain_data(seen: Seen, wanted: Seen) -> None:
    """The blocks get their gradients also when `x` is data that requires none."""
    for name, facts, right in _passes(seen, wanted, "two blocks"):
        where = f"({name}, x requires no gradient) "
        if facts.get("switched"):
            happened = f"{where}the `x` that was passed in requires one afterwards"
            raise Failed(happened, "x as it was: `use_reentrant=False` needs no more", None, "input-modified")
        _same_gradients(where, facts, right, "reentrant-on-plain-data")


@checkpointed.check(points=0.25, needs=("runs", "gives_the_same_output", "gives_the_same_gradients"))
def needs_less_memory(seen: Seen, wanted: Seen) -> None:
    """Activations are made again in backward instead of being stored, and the peak of memory is lower."""
    stored, count = seen["passes"].facts["stored"], wanted["passes"].facts["blocks"]
    for name, facts, right in _passes(seen, wanted, "a list"):
        again = facts["recomputed"]
        if again < count / 2:  # some ways of cutting a list into segments leave the last one as it is
            happened = "no block" if again == 0 else f"only {again} of {count} blocks"
            raise Failed(
                f"({name}) {happened} ran again in backward: the activations were stored", "blocks that run twice"
            )
        if right["peak"] is not None and not facts["peak"] <= 0.85 * stored:
            raise Failed(
                f"({name}) forward and backward took {facts['peak'] // KIB} KiB, the plain loop takes {stored // KIB}",
                f"about {right['peak'] // KIB} KiB",
            )


@checkpointed.check(points=0.25)
def copes_with_no_blocks(seen: Seen, wanted: Seen) -> None:
    """Without any block the output is `x`."""
    facts, right = seen["passes"].facts["no blocks"], wanted["passes"].facts["no blocks"]
    if "raised" in facts:
        raise Failed(f"an empty list raised {facts['raised']}", "x itself", facts["line"])
    if facts["out"] is None or not _close([facts["out"]], [right["out"]]):
        shown = "None" if facts["class"] == "NoneType" else f"{called(facts['class'])} that is not x"
        raise Failed(f"an empty list gave {shown}", "x itself")
