"""09: memory. Peaks that are measured, batches that fit, gradients that add up, and activations made twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from graders.checks.common import runs
from graders.curriculum import Exercise, Failed
from graders.curriculum.exercise import Seen
from graders.evidence import Array
from graders.probes.calling import Call, StudentRaised, array
from graders.probes.late import nn, torch
from graders.probes.sprites import classifier, loader

exercise = Exercise(
    "09_managing_memory",
    "Managing the GPU's memory",
    points=6,
    reading=("notes/cuda.html", "checkpoint.html", "notes/amp_examples.html"),
)
KIB = 1024

# peak_memory

peak_memory = exercise.function(
    "peak_memory",
    "`torch.cuda.max_memory_allocated(device)` is the highest since `torch.cuda.reset_peak_memory_stats(device)`.",
    "Reset before `fn()`, read after it. `memory_allocated` is what is left when `fn()` is over, not the peak.",
    "On the CPU there are no such figures: call `fn()` and return 0.",
)


def _measured(call: Call, device: Any, told: Any) -> dict[str, Any]:
    """A peak of 768 KiB in the middle of `fn`, 64 KiB there before, and an earlier peak of 4 MiB that is over.

    All blocks are small ones, which the allocator counts to the byte whatever it has cached.
    """
    on_gpu = torch.device(device).type == "cuda"

    def block(kib: int) -> Any:
        return torch.empty(kib * KIB, dtype=torch.uint8, device=device)

    calls: list[int] = []
    kept: list[Any] = []

    def fn() -> str:
        calls.append(1)
        first, second = block(256), block(512)
        del first, second
        kept.append(block(128))
        return "what fn returns is nobody's business"

    base = torch.cuda.memory_allocated(device) if on_gpu else 0
    before = block(64)
    earlier = [block(1024) for _ in range(4)]
    earlier.clear()
    value = call(fn, told)
    del before
    whole = isinstance(value, int) and not isinstance(value, bool)
    return {
        "class": type(value).__name__,
        "value": value - base if whole and on_gpu else value if whole else None,
        "shown": repr(value)[:60],
        "calls": len(calls),
    }


@peak_memory.probe
def on_this_device(call: Call) -> dict[str, Any]:
    """Every way of naming the device; where it is no CUDA device, the CPU only."""
    if call.device.type != "cuda":
        return {"'cpu'": _measured(call, "cpu", "cpu")}
    spelled: dict[str, Any] = {"'cuda'": "cuda", "'cuda:0'": "cuda:0", "device('cuda')": torch.device("cuda")}
    return {name: _measured(call, call.device, told) for name, told in spelled.items()}


@peak_memory.probe
def on_the_cpu(call: Call) -> dict[str, Any]:
    """On a machine that has a GPU as well, with something on it."""
    other = torch.empty(300 * KIB, dtype=torch.uint8, device=call.device)
    found = {"'cpu'": _measured(call, "cpu", "cpu"), "device('cpu')": _measured(call, "cpu", torch.device("cpu"))}
    del other
    return found


def on_the_second_gpu(call: Call) -> dict[str, Any]:
    """The first one, which is the current one, has a peak of its own."""
    other = torch.empty(300 * KIB, dtype=torch.uint8, device="cuda:0")
    found = {"'cuda:1'": _measured(call, "cuda:1", "cuda:1")}
    del other
    return found


def without_a_gpu(call: Call) -> dict[str, Any]:
    return {"'cpu'": _measured(call, "cpu", "cpu")}


peak_memory.probe(machine="two gpus")(on_the_second_gpu)
peak_memory.probe(machine="laptop")(without_a_gpu)
runs(peak_memory)
PEAK, BEFORE, EARLIER, LEFT = 832 * KIB, 64 * KIB, 4160 * KIB, 192 * KIB


def _peaks(seen: Seen, wanted: Seen, *scenarios: str) -> Any:
    """Name, answer and right answer of every measurement; one that is no int is refused on the way."""
    for scenario in scenarios:
        for name, right in wanted[scenario].facts.items():
            facts = seen[scenario].facts[name]
            if facts["value"] is None:
                raise Failed(f"device={name} gave {facts['shown']}, a {facts['class']}", "a number of bytes, as an int")
            yield name, facts, right


@peak_memory.check(points=0.25)
def forgets_earlier_peaks(seen: Seen, wanted: Seen) -> None:
    """A peak from before the call does not count."""
    for name, facts, right in _peaks(seen, wanted, "on_this_device"):
        if facts["value"] == EARLIER != right["value"]:
            raise Failed(
                f"device={name} gave {_kib(facts)}, a peak that was over before `fn` was called",
                f"{_kib(right)}, the highest while `fn` ran",
            )


@peak_memory.check(points=0.5)
def finds_the_highest_moment(seen: Seen, wanted: Seen) -> None:
    """It is the highest number of bytes allocated while `fn` runs, what was there before included."""
    for name, facts, right in _peaks(seen, wanted, "on_this_device"):
        if facts["calls"] != 1:
            raise Failed(f"device={name}: `fn` was called {facts['calls']} times", "once")
        value = facts["value"]
        if value in (right["value"], EARLIER):  # the second is another check's business
            continue
        told = {
            LEFT: "what is left after `fn`",
            PEAK - BEFORE: "what `fn` added",
            LEFT - BEFORE: "what `fn` left behind",
        }.get(value)
        raise Failed(f"device={name} gave {_kib(facts)}" + (f": {told}" if told else ""), f"{_kib(right)}, the peak")


@peak_memory.check(points=0.25)
def measures_the_right_device(seen: Seen, wanted: Seen) -> None:
    """It is the memory of the device passed in, also where another one is current."""
    for name, facts, right in _peaks(seen, wanted, "on_the_second_gpu"):
        if facts["value"] not in (right["value"], EARLIER, LEFT, PEAK - BEFORE, LEFT - BEFORE):
            raise Failed(f"with two GPUs, device={name} gave {_kib(facts)}", f"{_kib(right)}: the memory of that one")


@peak_memory.check(points=0.25)
def is_nothing_on_the_cpu(seen: Seen, wanted: Seen) -> None:
    """On the CPU `fn` is called too, once, and the answer is 0."""
    for name, facts, _ in _peaks(seen, wanted, "on_the_cpu", "without_a_gpu"):
        if facts["calls"] != 1:
            raise Failed(f"device={name}: `fn` was called {facts['calls']} times", "once")
        if facts["value"] != 0:
            raise Failed(f"device={name} gave {facts['value']}", "0")


def _kib(facts: dict[str, Any]) -> str:
    return f"{facts['value'] / KIB:g} KiB"


# largest_batch

largest_batch = exercise.function(
    "largest_batch",
    "`try:` calls try_batch, `except torch.OutOfMemoryError:` catches that one error and no other.",
    "At 1 there is nothing left to halve: a bare `raise` inside the except block raises the error again.",
    "`torch.cuda.empty_cache()` between two tries gives back what the failed one left in the cache.",
)
ENOUGH = 40  # tries after which a loop that never ends is let go


class _Trial:
    """A `try_batch` that fits up to some size, fails as it is told, and leaves something in the cache each time."""

    def __init__(self, call: Call, fits: int, instead: Exception | None = None, at: int = 0) -> None:
        self.call, self.fits, self.instead, self.at = call, fits, instead, at
        self.sizes: list[float] = []
        self.cached: list[int] = []
        self.last = ""

    def __call__(self, size: Any) -> None:
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

    def _run(self, size: Any, gpu: bool) -> None:
        if len(self.sizes) > ENOUGH or 1 <= size <= self.fits:
            return
        if self.instead is not None and size == self.at:
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
    return {**found, "sizes": trial.sizes[: ENOUGH + 1], "kept": max(kept, default=0), "last": trial.last}


@largest_batch.probe
def halving(call: Call) -> dict[str, Any]:
    """(start, what fits): several halvings, odd numbers on the way, the first fits, only 1 fits, 1 is asked for."""
    cases = ((100, 13), (64, 64), (7, 1), (96, 24), (1, 1))
    return {f"start {start}, {fits} fits": _search(call, start, fits) for start, fits in cases}


@largest_batch.probe
def nothing_fits(call: Call) -> dict[str, Any]:
    return {f"start {start}": _search(call, start, 0) for start in (7, 1)}


@largest_batch.probe
def another_error(call: Call) -> dict[str, Any]:
    """A bug in try_batch: at once, after some halvings, and one whose message speaks of memory."""
    access = "CUDA error: an illegal memory access was encountered"
    return {
        "ValueError": _search(call, 32, 4, ValueError("an odd number of sprites"), at=32),
        "RuntimeError": _search(call, 32, 4, RuntimeError("mat1 and mat2 shapes cannot be multiplied"), at=16),
        "RuntimeError about memory": _search(call, 32, 4, RuntimeError(access), at=8),
    }


runs(largest_batch)


@largest_batch.check(points=0.5)
def halves_until_it_fits(seen: Seen, wanted: Seen) -> None:
    """It tries start, start // 2, ... and returns the first that does not run out of memory."""
    for name, right in wanted["halving"].facts.items():
        facts = seen["halving"].facts[name]
        if facts["sizes"] != right["sizes"]:
            raise Failed(f"({name}) it tried {_listed(facts['sizes'])}", _listed(right["sizes"]))
        if facts.get("value") != right["value"]:
            answer = f"raised {facts['raised']}" if "raised" in facts else f"returned {facts['shown']}"
            raise Failed(f"({name}) it {answer}", f"{right['value']} returned")


@largest_batch.check(points=0.25)
def gives_the_cache_back(seen: Seen, wanted: Seen) -> None:
    """Cached memory is given back between two tries."""
    kept = max(facts["kept"] for facts in seen["halving"].facts.values())
    if kept > max(facts["kept"] for facts in wanted["halving"].facts.values()) + (20 << 20):
        raise Failed(
            f"{kept >> 20} MiB were still in the cache when the next try began", "torch.cuda.empty_cache() first"
        )


@largest_batch.check(points=0.25)
def raises_when_nothing_fits(seen: Seen, wanted: Seen) -> None:
    """Out of memory at 1 raises that error."""
    for name, right in wanted["nothing_fits"].facts.items():
        facts = seen["nothing_fits"].facts[name]
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
    for name, right in wanted["another_error"].facts.items():
        facts = seen["another_error"].facts[name]
        if "raised" not in facts or facts["sizes"] != right["sizes"]:
            raise Failed(
                f"{right['raised']} ({right['message']}) was taken for out of memory; tried: {_listed(facts['sizes'])}",
                f"the {right['raised']} itself, after {_listed(right['sizes'])}",
                misconception="swallowed-every-error",
            )
        if (facts["raised"], facts["message"]) != (right["raised"], right["message"]):
            raise Failed(f"a {right['raised']} came out as {facts['raised']}: {facts['message']}", right["message"])


def _listed(sizes: list[float]) -> str:
    shown = ", ".join(map(str, sizes[:8]))
    return shown + ", …" if len(sizes) > 8 else shown or "nothing"


# accumulate_gradients

accumulate = exercise.function(
    "accumulate_gradients",
    "`backward()` adds up: zero the gradients before the loop and after each step, not for every batch.",
    "`(loss_fn(outputs, targets) / steps).backward()`, and a step when `steps` batches have been added up.",
    "After the loop: if batches are left that no step has used, step once more.",
)


class _Watched:
    """A loader without surprises: it has a length, a dataset and a batch size."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.dataset, self.batch_size = inner, inner.dataset, inner.batch_size
        self.batches = 0

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Any:
        for batch in self.inner:
            self.batches += 1
            yield batch


def _accumulated(
    call: Call, device: Any, samples: int, steps: int, dirty: bool = False, training: bool = True, moved: bool = False
) -> dict[str, Any]:
    model = classifier(call.seed)
    if moved:
        model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if dirty:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
    model.train(training)
    modes: list[bool] = []
    model[1].register_forward_pre_hook(lambda module, inputs: modes.append(module.training))
    scales: list[Any] = []
    clean: list[bool] = []
    plain_loss = nn.CrossEntropyLoss()

    def backward_begins(gradient: Any) -> None:
        scales.append(gradient.detach())  # 1 / steps where the loss was divided
        clean.append(all(p.grad is None or not p.grad.any() for p in model.parameters()))

    def loss_fn(outputs: Any, targets: Any) -> Any:
        loss = plain_loss(outputs, targets)
        if loss.requires_grad:
            loss.register_hook(backward_begins)
        return loss

    batches = _Watched(loader(samples, call.seed + 1))
    value = call(model, batches, loss_fn, optimizer, device, steps)
    ledger = call.ledger
    return {
        "class": type(value).__name__,
        "value": int(value) if isinstance(value, int) and not isinstance(value, bool) else None,
        "shown": f"{value!r:.60}",
        "devices": sorted({str(p.device) for p in model.parameters()}),
        "wanted_device": str(torch.empty(0, device=device).device),
        "after": [array(p) for p in model.parameters()],
        "taken": len(ledger.optimizer_steps()),
        "per_step": list(ledger.backwards_per_step()),
        "unused": len(ledger.backwards_after_last_step()),
        "scales": [round(float(scale), 4) for scale in scales],
        "clean": clean,
        "batches": batches.batches,
        "steps": steps,
        "training": training,
        "modes": modes,
        "mode_after": model.training,
    }


@accumulate.probe
def whole_groups(call: Call) -> dict[str, Any]:
    """Six batches by twos, by threes, and each for itself; the model still on the CPU."""
    return {f"6 batches by {n}": _accumulated(call, call.device, 24, n) for n in (2, 3, 1)}


@accumulate.probe
def remainders(call: Call) -> dict[str, Any]:
    """Five batches by twos, five by threes, and three where four would make a group; the last batch is smaller."""
    return {
        "5 batches by 2": _accumulated(call, str(call.device), 18, 2, moved=True),
        "5 batches by 3": _accumulated(call, call.device, 18, 3),
        "3 batches by 4": _accumulated(call, call.device, 10, 4),
    }


@accumulate.probe
def dirty_gradients(call: Call) -> dict[str, Any]:
    return {"4 batches by 2": _accumulated(call, call.device, 16, 2, dirty=True)}


@accumulate.probe
def evaluation_mode(call: Call) -> dict[str, Any]:
    """A model whose batch norm is kept as it is, say, because the batches are too small for it."""
    return {"4 batches by 2": _accumulated(call, call.device, 16, 2, training=False)}


@accumulate.probe
def told_to_use_the_cpu(call: Call) -> dict[str, Any]:
    return {"4 batches by 2": _accumulated(call, "cpu", 16, 2)}


runs(accumulate)


@accumulate.check(points=0.25)
def works_on_the_device(seen: Seen, wanted: Seen) -> None:
    """The model is trained on the device passed in."""
    for observation in seen.values():
        for facts in observation.facts.values():
            place = facts["wanted_device"]
            if facts["devices"] != [place]:
                key = "hard-coded-cuda" if place == "cpu" else "model-not-moved"
                raise Failed(f"told to use {place}, the model is on {', '.join(facts['devices'])}", place, None, key)


@accumulate.check(points=0.5)
def steps_after_every_group(seen: Seen, wanted: Seen) -> None:
    """The optimizer steps after every `steps` batches, with the mean of their gradients."""
    for name, right in wanted["whole_groups"].facts.items():
        facts = seen["whole_groups"].facts[name]
        if facts["taken"] != right["taken"] or not _close(facts["after"], right["after"]):
            raise _unlike(name, facts, right)


def _unlike(name: str, facts: dict[str, Any], right: dict[str, Any]) -> Failed:
    """Why the weights are not those of the reference."""
    batches, steps = facts["batches"], facts["steps"]
    if facts["taken"] != right["taken"]:
        key = "missing-step" if facts["taken"] == 0 else None
        return Failed(f"({name}) the optimizer stepped {facts['taken']} times", str(right["taken"]), None, key)
    if facts["per_step"] != right["per_step"]:
        return Failed(
            f"({name}) the steps followed {facts['per_step']} backward passes",
            f"{right['per_step']}: {steps} for each, and the rest of {batches}",
        )
    if steps > 1 and facts["scales"] and all(scale == 1 for scale in facts["scales"]):
        return Failed(
            f"({name}) the losses went into backward() undivided: each step is up to {steps} times too large",
            f"each batch's loss divided by {steps}",
            None,
            "loss-not-divided",
        )
    if facts["scales"] != right["scales"]:
        return Failed(f"({name}) the losses were scaled by {facts['scales']}", f"{right['scales']}")
    added = list(zip(facts["clean"], right["clean"], strict=False))
    if (False, True) in added:
        return Failed(
            f"({name}) gradients that an earlier step had used were still there when backward() added to them",
            "gradients zeroed after every step",
            None,
            "missing-zero-grad",
        )
    if (True, False) in added:
        return Failed(
            f"({name}) the gradients were zeroed in the middle of a group, so that a step used its last batch only",
            f"the gradients of {steps} batches added up",
        )
    return Failed(f"({name}) the weights differ from the reference's", "each batch's gradient divided by `steps`")


@accumulate.check(points=0.5, needs=("runs", "steps_after_every_group"))
def steps_for_the_remainder(seen: Seen, wanted: Seen) -> None:
    """Batches left over at the end get one more step."""
    for name, right in wanted["remainders"].facts.items():
        facts = seen["remainders"].facts[name]
        if facts["unused"] and facts["taken"] < right["taken"]:
            raise Failed(
                f"({name}) the gradients of {facts['unused']} of {facts['batches']} batches were never used",
                "one more step for them",
                None,
                "remainder-dropped",
            )
        if not _close(facts["after"], right["after"]):
            raise _unlike(name, facts, right)


@accumulate.check(points=0.25, needs=("runs", "steps_after_every_group"))
def starts_from_nothing(seen: Seen, wanted: Seen) -> None:
    """Gradients that were there before the call do not leak into the first step."""
    for name, right in wanted["dirty_gradients"].facts.items():
        if not _close(seen["dirty_gradients"].facts[name]["after"], right["after"]):
            raise Failed(
                "gradients from before the call went into the first step",
                "gradients zeroed before the loop",
                misconception="missing-zero-grad",
            )


@accumulate.check(points=0.25)
def leaves_the_mode_alone(seen: Seen, wanted: Seen) -> None:
    """Training or evaluation mode is the caller's choice and stays as it was."""
    for observation in seen.values():
        for facts in observation.facts.values():
            mode = "training" if facts["training"] else "evaluation"
            if any(was is not facts["training"] for was in (*facts["modes"], facts["mode_after"])):
                raise Failed(f"a model in {mode} mode was put into the other one", f"{mode} mode throughout")


@accumulate.check(points=0.25)
def returns_the_number_of_steps(seen: Seen, wanted: Seen) -> None:
    """It returns the number of optimizer steps, as an int."""
    for observation in seen.values():
        for name, facts in observation.facts.items():
            if facts["value"] is None:
                raise Failed(f"({name}) it returned {facts['shown']}", f"{facts['taken']}, the number of steps")
            if facts["value"] != facts["taken"]:
                raise Failed(f"({name}) it returned {facts['value']}", f"{facts['taken']}, the steps it took")


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


# checkpointed

checkpointed = exercise.function(
    "checkpointed",
    "`torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)` is `block(x)` without its activations kept.",
    "One checkpoint for each block: one around all of them recomputes everything at once and saves nothing.",
    "With `use_reentrant=True`, a block whose input requires no gradient gets no gradients either.",
)
ROWS, WIDTH = 512, 32


def _blocks(seed: int, count: int, device: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = [
            nn.Sequential(
                *(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH), nn.Tanh()),
                *(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
            )
            for _ in range(count)
        ]
        data = torch.rand(ROWS, WIDTH)
    return [block.to(device) for block in made], data.to(device)


def _through(call: Call, function: Any, count: int, gradient: bool, as_list: bool = True) -> dict[str, Any]:
    """Forward and backward through some blocks; what came out, and how much memory it took."""
    device = call.device
    blocks, x = _blocks(call.seed, count, device)
    x.requires_grad_(gradient)
    again: list[int] = [0] * count
    for i, block in enumerate(blocks):
        block.register_forward_pre_hook(lambda module, inputs, i=i: again.__setitem__(i, again[i] + 1))
    gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device.index or 0] if gpu else []):
        torch.manual_seed(call.seed)
        base = 0
        if gpu:
            torch.cuda.reset_peak_memory_stats(device)
            base = torch.cuda.memory_allocated(device)
        out = function(blocks if as_list else nn.ModuleList(blocks), x)
        found: dict[str, Any] = {"class": type(out).__name__, "out": None, "gradients": [], "error": ""}
        found["same"] = out is x
        found["first"] = sum(again)
        if isinstance(out, torch.Tensor):
            found["out"] = array(out)
            try:
                (out**2).mean().backward()
            except Exception as error:  # what a student's own code does in backward is the student's
                found["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        found["peak"] = torch.cuda.max_memory_allocated(device) - base if gpu else None
    wanted = [p for block in blocks for p in block.parameters()] + [x] * gradient
    found["missing"] = sum(p.grad is None for p in wanted)
    found["gradients"] = [array(p.grad) for p in wanted if p.grad is not None]
    found["recomputed"] = sum(n > 1 for n in again)
    return found


def _plainly(blocks: Any, x: Any) -> Any:
    for block in blocks:
        x = block(x)
    return x


@checkpointed.probe
def six_blocks(call: Call) -> dict[str, Any]:
    """As a list and as a ModuleList, with an input that requires a gradient, beside the plain loop."""
    return {
        "plain": _through(call, _plainly, 6, gradient=True),
        "a list": _through(call, call, 6, gradient=True),
        "a ModuleList": _through(call, call, 6, gradient=True, as_list=False),
    }


@checkpointed.probe
def one_block(call: Call) -> dict[str, Any]:
    return {"one block": _through(call, call, 1, gradient=True)}


@checkpointed.probe
def plain_data(call: Call) -> dict[str, Any]:
    """A batch of data, which requires no gradient."""
    return {"6 blocks": _through(call, call, 6, gradient=False), "1 block": _through(call, call, 1, gradient=False)}


@checkpointed.probe
def no_blocks(call: Call) -> dict[str, Any]:
    try:
        return {"none": _through(call, call, 0, gradient=True)}
    except StudentRaised as error:
        return {"raised": f"{error.evidence.type}: {error.evidence.message}", "line": error.evidence.line}


runs(checkpointed)


def _with_gradient(seen: Seen, wanted: Seen) -> Any:
    for scenario in ("six_blocks", "one_block"):
        for name, right in wanted[scenario].facts.items():
            if name != "plain":
                yield name, seen[scenario].facts[name], right


@checkpointed.check(points=0.25)
def gives_the_same_output(seen: Seen, wanted: Seen) -> None:
    """The output is that of the plain loop."""
    for name, facts, right in _with_gradient(seen, wanted):
        if facts["out"] is None:
            raise Failed(f"({name}) it returned a {facts['class']}", "a tensor")
        if not _close([facts["out"]], [right["out"]]):
            raise Failed(f"({name}) the output differs from the plain loop's", "the same values")


@checkpointed.check(points=0.25, needs=("runs", "gives_the_same_output"))
def gives_the_same_gradients(seen: Seen, wanted: Seen) -> None:
    """Every parameter and the input get the gradients of the plain loop, dropout included."""
    for name, facts, right in _with_gradient(seen, wanted):
        _same_gradients(f"({name}) ", facts, right, None)


def _same_gradients(where: str, facts: dict[str, Any], right: dict[str, Any], misconception: str | None) -> None:
    if facts["error"]:
        raise Failed(f"{where}backward() raised {facts['error']}", "gradients", misconception=misconception)
    if facts["missing"] > right["missing"]:
        happened = f"{where}{facts['missing']} tensors got no gradient"
        raise Failed(happened, "a gradient for each", misconception=misconception)
    if not _close(facts["gradients"], right["gradients"]):
        raise Failed(f"{where}the gradients differ from the plain loop's", "the same values")


@checkpointed.check(points=0.25, needs=("runs", "gives_the_same_output", "gives_the_same_gradients"))
def trains_on_plain_data(seen: Seen, wanted: Seen) -> None:
    """The blocks get their gradients also when `x` is data that requires none."""
    for name, right in wanted["plain_data"].facts.items():
        facts = seen["plain_data"].facts[name]
        _same_gradients(f"({name}, x requires no gradient) ", facts, right, "reentrant-on-plain-data")


@checkpointed.check(points=0.25, needs=("runs", "gives_the_same_output", "gives_the_same_gradients"))
def needs_less_memory(seen: Seen, wanted: Seen) -> None:
    """Activations are made again in backward instead of being stored, and the peak of memory is lower."""
    plain = seen["six_blocks"].facts["plain"]["peak"]
    for name in ("a list", "a ModuleList"):
        facts = seen["six_blocks"].facts[name]
        if facts["recomputed"] == 0:
            raise Failed(
                f"({name}) no block ran again in backward: its activations were stored", "blocks that run twice"
            )
        if plain is not None and facts["peak"] > 0.8 * plain:
            raise Failed(
                f"({name}) forward and backward took {facts['peak'] // KIB} KiB, the plain loop {plain // KIB}",
                f"about {wanted['six_blocks'].facts[name]['peak'] // KIB} KiB",
            )


@checkpointed.check(points=0.25)
def copes_with_no_blocks(seen: Seen, wanted: Seen) -> None:
    """Without any block the output is `x`."""
    facts = seen["no_blocks"].facts
    if "raised" in facts:
        raise Failed(f"an empty list raised {facts['raised']}", "x itself", facts["line"])
    found, right = facts["none"], wanted["no_blocks"].facts["none"]
    if found["out"] is None or not _close([found["out"]], [right["out"]]):
        raise Failed(f"an empty list gave a {found['class']} that is not x", "x itself")
