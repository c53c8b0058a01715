"""11: several GPUs."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final

import msgspec

from gpudojo.grading.call import Call, StudentRaised, nn, torch, try_scenarios
from gpudojo.grading.checks import runs, scenario_pairs
from gpudojo.grading.load import describe_exception, load_submission
from gpudojo.model.evidence import Case, Cases, Raised
from gpudojo.model.exercise import Exercise, Failed, Probe, Seen, returned_other_type, with_article

RANK_COUNT: Final = 2
ATTEMPTS: Final = 3  # of a run in which something else kills a process
KILLED: Final = -9  # the exit code of a process that was killed
FORKS: Final = (
    sys.platform == "linux"
)  # a Mac can fork too, but its system libraries do not survive it
# No result depends on this: processes that wait forever report that they stand still.
PATIENCE: Final = timedelta(minutes=10)
ALONE: Final = "one process waited here forever for the other: both have to make the same calls"
GONE: Final = "a process ended during the call"
STUCK: Final = "the processes did not finish"
BROKEN: Final = (
    "Timed out",
    "closed by peer",
    "reset by peer",
    "Broken pipe",
)  # what is said when the other is gone
PAUSE: Final = 0.01
LOOKS: Final = 50  # samples at the same place, without work done there
ENDLESS: Final = 30.0  # seconds of processor time, which a busy machine does not increase

_sleep, _processor_time = time.sleep, time.process_time  # a student's file may replace them


class RankProcess:
    """One of the processes, seen from the parent: `answer` is its last message."""

    def __init__(self, process: Any, end: Any) -> None:
        self.process = process
        self.end = end
        self.answer: dict[str, Any] | None = None
        self.ended = False  # by us
        self.still = (
            0  # how often it has reported, since something last happened, that it stands still
        )

    def killed(self) -> bool:
        """Whether something else has killed it: its end of the pipe is closed before its exit code is there."""
        if self.answer is not None and self.answer.get("text") == GONE:
            self.process.join(1.0)
        return not self.ended and self.process.exitcode == KILLED

    def listen(self) -> None:
        said: dict[str, Any] = {"raised": "SystemExit", "text": GONE, "line": None}
        with contextlib.suppress(EOFError, OSError, ValueError):
            said = json.loads(self.end.recv_bytes(1 << 20))
        if "still" in said:
            self.still += 1
        elif "endless" in said:
            raise StudentRaised(Raised("TimeoutError", STUCK, None))
        else:
            self.answer = said


def two_ranks(
    student: Callable[..., Any], path: Path, function: str, seed: int = 0
) -> list[dict[str, Any]]:
    """The results of each rank, in a group of two and then alone. Raises what the student's function raised.

    Where something else has killed a rank, as when memory is short, both are run again.
    """
    for left in reversed(range(ATTEMPTS)):
        with _started(student, path, function, seed) as ranks:
            try:
                together = _answers(ranks)
                for rank in (
                    ranks
                ):  # neither continues, and breaks the connection, while the other is still working
                    rank.end.send_bytes(b"go on")
                    rank.answer = None
                alone = _answers(ranks)
                break
            except (StudentRaised, OSError):
                if not left or not any(rank.killed() for rank in ranks):
                    raise
    return [{**some, **one} for some, one in zip(together, alone, strict=True)]


@contextlib.contextmanager
def _started(
    student: Callable[..., Any], path: Path, function: str, seed: int
) -> Iterator[list[RankProcess]]:
    context: Any = multiprocessing.get_context("fork" if FORKS else "spawn")
    ranks: list[RankProcess] = []
    letters = context.Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # forking with threads: the children keep to one
        try:
            for number in range(RANK_COUNT):
                here, there = context.Pipe()
                given = (
                    there,
                    number,
                    student if FORKS else None,
                    str(path),
                    function,
                    letters,
                    seed,
                )
                process = context.Process(target=_rank, args=given, daemon=True)
                process.start()
                there.close()
                ranks.append(RankProcess(process, here))
            for end in letters:
                end.close()
            yield ranks
        finally:
            for rank in ranks:
                rank.process.kill()  # not joined, which would take 10 ms
                rank.end.close()


def _answers(ranks: list[RankProcess]) -> list[dict[str, Any]]:
    """One answer from each. If both stand still, one is killed, so that the call raises in the other."""
    told: list[dict[str, Any]] = []
    _begin(ranks)
    while waiting := [rank for rank in ranks if rank.answer is None]:
        ready = multiprocessing.connection.wait([rank.end for rank in waiting])
        for rank in waiting:
            if rank.end in ready:
                rank.listen()
        told = [rank.answer for rank in ranks if rank.answer and "raised" in rank.answer]
        if any(answer["text"] not in (ALONE, GONE) for answer in told):
            break  # the other one waits for this one
        if any(rank.answer is not None for rank in waiting):
            _begin(ranks)
        elif all(
            rank.still > 1 for rank in waiting
        ):  # once may have been before the other's answer
            alive = [rank for rank in ranks if rank.process.is_alive()]
            if len(alive) < RANK_COUNT:
                raise StudentRaised(Raised("TimeoutError", STUCK, None))
            # Its connections break, and the one that waits for it raises at that line.
            chosen = next((rank for rank in alive if rank.answer is not None), alive[-1])
            chosen.ended = True
            chosen.process.kill()
            _begin(ranks)
    # An error in one process says more than that the other one is gone.
    for answer in sorted(
        told, key=lambda answer: (answer["text"] == GONE, answer["text"] == ALONE)
    ):
        raise StudentRaised(Raised(answer["raised"], answer["text"], answer["line"]))
    return [rank.answer or {} for rank in ranks]


def _begin(ranks: list[RankProcess]) -> None:
    for rank in ranks:
        rank.still = 0


def _rank(
    end: Any, rank: int, student: Any, path: str, function: str, letters: tuple[Any, Any], seed: int
) -> None:
    """One of the processes."""
    torch.set_num_threads(
        1
    )  # threads do not survive a fork, and waiting for them would take forever
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    student = load_submission(Path(path)).names[function] if student is None else student
    distributed: Any = torch.distributed
    lock = threading.Lock()

    def tell(facts: dict[str, Any]) -> None:
        with lock:
            end.send_bytes(json.dumps(facts).encode())

    try:
        _report_waiting(tell)
        letters[1 - rank].close()  # so that one notices when the other is gone
        store = _letters(letters[rank])
        # Its functions keep the group at the time of import, which must not be one of the two made here.
        importlib.import_module("torch.distributed.nn.functional")
        distributed.init_process_group(
            "gloo", store=store, rank=rank, world_size=RANK_COUNT, timeout=PATIENCE
        )
        tell({"some": _averaged(student, _rank_model(rank, seed), path)})
        end.recv_bytes()
        try:
            distributed.GroupMember.WORLD = (
                None  # `destroy_process_group` takes 20 ms to end its threads
            )
            distributed.init_process_group(
                "gloo", store=distributed.HashStore(), rank=0, world_size=1
            )
        except (AttributeError, ValueError):
            distributed.destroy_process_group()
            distributed.init_process_group(
                "gloo", store=distributed.HashStore(), rank=0, world_size=1
            )
        tell({"alone": _averaged(student, _rank_model(rank, seed), path)})
    except StudentRaised as error:
        told = error.evidence
        said = ALONE if any(words in told.message for words in BROKEN) else told.message
        tell({"raised": told.type, "text": said, "line": told.line})
    os._exit(0)  # no clean-up: what was inherited belongs to the parent


def _letters(other: Any) -> Any:
    """A store through which two ranks exchange their addresses: what one sets is sent to the other.

    torch's own stores wait for a file to change, or look up host names, which may take seconds.
    """

    distributed: Any = torch.distributed

    class RankLetters(distributed.Store):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.known: dict[str, bytes] = {}
            self.reading = threading.RLock()

        def set(self, key: str, value: Any) -> None:
            self.known[key] = value if isinstance(value, bytes) else str(value).encode()
            other.send_bytes(b"\0".join((key.encode(), self.known[key])))

        def get(self, key: str) -> bytes:
            with self.reading:
                while key not in self.known:
                    name, _, value = other.recv_bytes().partition(b"\0")
                    self.known[name.decode()] = value
            return self.known[key]

        def wait(self, keys: list[str], timeout: Any = None) -> None:
            for key in keys:
                self.get(key)

    return RankLetters()


def _averaged(student: Any, model: Any, path: str) -> dict[str, Any]:
    weights = [p.detach().clone() for p in model.parameters()]
    try:
        student(model)
    except (Exception, SystemExit) as error:
        told = describe_exception(error, Path(path))
        if isinstance(error, (TypeError, AttributeError)) and _without_gradient(error, path):
            first, newline, rest = told.message.partition("\n")
            told = msgspec.structs.replace(
                told, message=f"{first} {WITHOUT_GRADIENT}{newline}{rest}"
            )
        raise StudentRaised(told) from None
    pairs = zip(model.parameters(), weights, strict=True)
    return {
        "gradients": [
            None if p.grad is None else p.grad.flatten().tolist() for p in model.parameters()
        ],
        "weights_kept": all(bool(torch.equal(p.detach(), before)) for p, before in pairs),
        "group_kept": torch.distributed.is_initialized(),
    }


WITHOUT_GRADIENT: Final = "(at a parameter whose `grad` is None)"


def _without_gradient(error: Exception, path: str) -> bool:
    """Whether the student's innermost function had such a parameter, or None for its gradient, in a variable."""
    found: dict[str, Any] = {}
    for frame, _ in walk_tb(error.__traceback__):
        found = frame.f_locals if frame.f_code.co_filename == path else found
    nothing = "NoneType" in str(error)
    without = (
        each.grad is None if isinstance(each, nn.Parameter) else nothing and each is None
        for each in [*found.values()]
    )
    return any(without)


def _rank_model(rank: int, seed: int) -> Any:
    """Two layers with gradients that differ between ranks and between seeds; one bias has none."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    scale = random.Random(seed).uniform(0.5, 2.0)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.fill_(
                0.25 * (number + 1) + rank
            )  # different weights would show if they were averaged
            if number != 1:
                values = torch.arange(parameter.numel(), dtype=torch.float32).reshape(
                    parameter.shape
                )
                parameter.grad = (values * (1 + 4 * rank) + number + 1 + 2 * rank) * scale
    return model


def _own_time(thread: int) -> tuple[Callable[[], float], float]:
    """The processor time of one thread, or else of all, and how much of it is more than waiting takes."""
    if sys.platform != "win32" and hasattr(time, "pthread_getcpuclockid"):
        clock = time.pthread_getcpuclockid(thread)
        read = time.clock_gettime
        return lambda: read(clock), 0.001
    return _processor_time, 0.2  # others look around now and then: gloo's threads, and ours


def _report_waiting(tell: Callable[[dict[str, Any]], None]) -> None:
    """From now on, calls `tell` with {"still": True} each time this thread has waited for a while.

    After too much work in total, calls it with {"endless": True}, once.
    """
    me = threading.get_ident()
    began = _processor_time()
    worked, much = _own_time(me)

    def look() -> None:
        place = None
        looks = 0
        used = 0.0
        while True:
            _sleep(PAUSE)
            frame = sys._current_frames().get(me)
            here = (id(frame), frame.f_lasti if frame else 0)
            if here != place or worked() - used > much:
                place = here
                looks = 0
                used = worked()
            looks += 1
            if looks % LOOKS == 0:
                tell({"still": True})
            if _processor_time() - began > ENDLESS:
                tell({"endless": True})
                return

    threading.Thread(target=look, daemon=True).start()


exercise = Exercise(
    "11_multiple_gpus",
    "One model on several GPUs",
    points=3,
    reading=("generated/torch.nn.DataParallel.html", "distributed.html", "notes/ddp.html"),
)
parallel = exercise.function("parallelize")
inside = exercise.function("unwrap")
average = exercise.function("average_gradients")
UNUSED = (
    "unused mean(",
    "unused div(",
    "unused sum(",
    "unused stack(",
    "unused /",
)  # results thrown away
DIVIDING = ("//", "/", "div_(", "*", "mul_(")


# ---- parallelize -----------------------------------------------------------------------------------------------------


class Spread(Case, frozen=True):
    """The result for one device."""

    kind: str
    is_module: bool
    wraps: int  # how many DataParallel are around the model
    same: bool  # whether the model inside is the one passed in
    same_parameters: bool
    gpus: list[int]
    devices: list[str]


def _model() -> Any:
    """Small, with parameters and buffers; their values do not matter."""
    return nn.BatchNorm1d(2).eval()


def _spreads(wrapper: Any) -> bool:
    """Whether a DataParallel, or one of a student's own class, runs the model as torch's does."""
    own = type(wrapper)
    torchs = nn.DataParallel
    steps = ("__call__", "forward", "replicate", "scatter", "parallel_apply", "gather")
    return all(
        getattr(own, name) is getattr(torchs, name) and name not in vars(wrapper) for name in steps
    )


def _one(call: Call, device: Any) -> Spread:
    model = _model()
    parameters = list(model.parameters())
    result = call(model, device)
    wraps = 0
    core = result
    while isinstance(core, nn.DataParallel) and _spreads(core):
        wraps = wraps + 1
        core = core.module
    there = isinstance(core, nn.Module)
    return Spread(
        kind=type(result).__name__,
        is_module=isinstance(result, nn.Module),
        wraps=wraps,
        same=core is model,
        same_parameters=there and [id(p) for p in core.parameters()] == [id(p) for p in parameters],
        gpus=[int(index) for index in result.device_ids] if wraps else [],
        devices=sorted({str(t.device) for t in (*core.parameters(), *core.buffers())})
        if there
        else [],
    )


def _spread(call: Call, words: str, *devices: Any) -> Cases[Spread]:
    """One call for each device, a string or a torch.device."""
    return try_scenarios(
        {f"with {words} and device={device!r}": partial(_one, call, device) for device in devices}
    )


@parallel.probe(machine="two gpus")
def two_gpus(call: Call) -> Cases[Spread]:
    return _spread(
        call, "two GPUs", "cuda", "cuda:0", torch.device("cuda"), torch.device("cuda:0"), "cpu"
    )


@parallel.probe(machine="one gpu")
def one_gpu(call: Call) -> Cases[Spread]:
    return _spread(call, "one GPU", "cuda", torch.device("cuda:0"), "cpu")


@parallel.probe(machine="three gpus", edge=True)
def three_gpus(call: Call) -> Cases[Spread]:
    return _spread(call, "three GPUs", "cuda")


@parallel.probe(machine="laptop", edge=True)
def no_gpu(call: Call) -> Cases[Spread]:
    return _spread(call, "no GPU", "cpu")


def _about_cuda(raised: Raised, seen: Seen) -> str | None:
    """An error about CUDA on a machine without a GPU, where none was asked for."""
    about = "cuda" in raised.message.lower() or "nvidia" in raised.message.lower()
    return "cuda-for-every-device" if "no GPU" in raised.scenario and about else None


runs(parallel, diagnose=_about_cuda)


def _calls(
    seen: Seen, wanted: Seen, *more: Probe[Cases[Spread]]
) -> Iterator[tuple[str, Spread, Spread]]:
    probes = (two_gpus, one_gpu, three_gpus, *more)
    return scenario_pairs(seen.cases(*probes), wanted.cases(*probes))


@parallel.check(points=0.25)
def moves_the_model(seen: Seen, wanted: Seen) -> None:
    """It returns a model whose parameters and buffers are on the device."""
    for name, found, right in _calls(seen, wanted, no_gpu):
        if not found.is_module:
            raise returned_other_type(found.kind, "a model", f"{name} ")
        if found.devices != right.devices and found.wraps == right.wraps:  # a wrapper moves it too
            key = "model-not-moved" if found.devices == ["cpu"] else "hard-coded-cuda"
            happened = f"{name} its parameters are on {', '.join(found.devices)}"
            raise Failed(happened, ", ".join(right.devices), misconception=key)


@parallel.check(points=0.5)
def wraps_for_several_gpus(seen: Seen, wanted: Seen) -> None:
    """It is wrapped in `nn.DataParallel` over all GPUs exactly if the device is CUDA and there are several."""
    for name, found, right in _calls(seen, wanted):
        if found.wraps != right.wraps:
            wrapped = {0: f"{with_article(found.kind)}, not wrapped", 1: "a DataParallel"}
            shown = wrapped.get(found.wraps, "a DataParallel in a DataParallel")
            at = ("unused DataParallel(",) if found.wraps < right.wraps else ()
            at = (*at, "device_count(", '== "cuda"') if found.wraps < 2 else ()
            raise Failed(
                f"{name} it returned {shown}",
                "nn.DataParallel" if right.wraps else "the model itself",
                at=at,
            )
        if found.gpus != right.gpus:
            raise Failed(f"{name} it uses the GPUs {found.gpus}", f"all of them: {right.gpus}")


@parallel.check(points=0.25, needs=("runs", "moves_the_model"))
def keeps_the_model_itself(seen: Seen, wanted: Seen) -> None:
    """The model that was passed in is moved and wrapped, not a copy of it."""
    for name, found, _ in _calls(seen, wanted):
        expected = "the same object, with the same parameters"
        if not found.same_parameters:
            happened = f"{name} the model in the result is not the one passed in"
            raise Failed(happened, expected, misconception="copied-before-wrapping")
        if not found.same:
            raise Failed(f"{name} the result has the model inside another module", expected)


# ---- unwrap ----------------------------------------------------------------------------------------------------------


class Inside(Case, frozen=True):
    """The result for one model."""

    kind: str
    inside: str  # the type of the model inside
    same: bool
    training: bool
    parameters: list[str]  # the dtypes and devices of the model's, and whether they need gradients


def _own_module() -> Any:
    """A model that is not wrapped, with a part called `module`."""
    model = nn.Module()
    model.module = nn.Linear(2, 2)
    return model


def _inside(call: Call, wrap: Any, plain: Any) -> Inside:
    plain.to(call.device).train()
    found = call(wrap(plain))
    kept = {
        f"{p.dtype} on {p.device}{', frozen' * (not p.requires_grad)}" for p in plain.parameters()
    }
    return Inside(
        type(found).__name__, type(plain).__name__, found is plain, plain.training, sorted(kept)
    )


def _judge_state(found: Inside, right: Inside, which: str) -> None:
    """Raises Failed where the call changed the mode of the model or where, or of which dtype, its parameters are."""
    if not found.training:
        raise Failed(f"{which} was switched to evaluation mode", "its mode unchanged")
    if found.parameters != right.parameters:
        happened = f"after the call the parameters of {which} are {', '.join(found.parameters)}"
        at = ("cpu(", "to(", "cuda(", "half(", "requires_grad_(", "return")
        raise Failed(happened, f"{', '.join(right.parameters)}, as before", at=at)


def _distributed(model: Any) -> Any:
    """A DistributedDataParallel around a model, without the process group that its constructor needs."""
    wrapper = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper.module = model
    return wrapper


@inside.probe(machine="one gpu")
def wrappers(call: Call) -> Cases[Inside]:
    return try_scenarios(
        {
            "DataParallel": lambda: _inside(call, nn.DataParallel, _model()),
            "DistributedDataParallel": lambda: _inside(call, _distributed, _model()),
            "DataParallel around a model with a `module`": lambda: _inside(
                call, nn.DataParallel, _own_module()
            ),
        }
    )


@inside.probe(machine="one gpu", edge=True)
def plain_models(call: Call) -> Cases[Inside]:
    branches = type("ParallelBranches", (nn.Sequential,), {})(
        _model()
    )  # a name says nothing about a class
    models = {"a Sequential called `ParallelBranches`": branches, "a Linear": nn.Linear(2, 2)}
    models["a model with a part called `module`"] = _own_module()
    return try_scenarios(
        {name: partial(_inside, call, lambda model: model, model) for name, model in models.items()}
    )


runs(inside)


@inside.check(points=0.25)
def finds_the_model_inside(seen: Seen, wanted: Seen) -> None:
    """It returns the model inside `DataParallel` and `DistributedDataParallel`."""
    for name, found, right in scenario_pairs(seen[wrappers], wanted[wrappers]):
        if not found.same:
            shown = (
                f"another {found.kind}" if found.kind == found.inside else with_article(found.kind)
            )
            key = "wrapper-guessed-by-attribute" if "`module`" in name else None
            kept = found.kind in ("DataParallel", "DistributedDataParallel")
            at = () if kept else ("deepcopy(", "return")
            raise Failed(
                f"for {name} it returned {shown}", "the same model that was wrapped", None, key, at
            )
        _judge_state(found, right, f"the model inside {name}")


@inside.check(points=0.25)
def leaves_other_models_whole(seen: Seen, wanted: Seen) -> None:
    """A model that is not wrapped is returned unchanged; of one that is, the model inside."""
    if not any(found.same for found in seen[wrappers].values()):
        raise Failed(
            "no wrapper was taken off, so it is not known which models have one",
            "the model inside a wrapper",
        )
    for name, error in seen[plain_models].errors.items():
        seen.about(plain_models.name, name)
        at = () if "`module`" in name else ("== .__name__", ".__name__")
        raise Failed(f"for {name} it raised {error.short}", "the model itself", error.line, at=at)
    for name, found, right in scenario_pairs(seen[plain_models], wanted[plain_models]):
        if not found.same:
            key = "wrapper-guessed-by-attribute" if "`module`" in name else None
            raise returned_other_type(found.kind, "the model itself", f"for {name} ", key)
        _judge_state(found, right, name)


# ---- average_gradients -----------------------------------------------------------------------------------------------

Gradients = list[list[float] | None]  # one for each parameter


class Averaged(Case, frozen=True):
    """One call in one process."""

    gradients: Gradients
    weights_kept: bool
    group_kept: bool


class Rank(Case, frozen=True):
    """One process: in a group of two, and in a group of its own."""

    some: Averaged
    alone: Averaged


@average.probe(machine="laptop")
def two_processes(call: Call) -> dict[str, Rank]:
    """Both processes call it with their own gradients, and then each in a group of its own."""
    ranks = two_ranks(call.function, call.path, "average_gradients", call.seed)
    return {f"rank {number}": msgspec.convert(found, Rank) for number, found in enumerate(ranks)}


runs(
    average,
    diagnose=lambda raised, seen: (
        "gradient-is-none" if WITHOUT_GRADIENT in raised.message else None
    ),
)
RANKS = ("rank 0", "rank 1")
PARAMETERS: Final = ("0.weight", "0.bias", "1.weight", "1.bias")  # of `_rank_model`


@average.check(points=0.75)
def makes_them_the_mean(seen: Seen, wanted: Seen) -> None:
    """In every process every gradient becomes the mean over the processes."""
    answers = [seen[two_processes][rank].some.gradients for rank in RANKS]
    wished = wanted[two_processes]["rank 0"].some.gradients
    good = [_equal(answer, wished) for answer in answers]
    if all(good):
        return
    doubled = _times(2, wished)
    number = next(
        n
        for n in range(len(wished))
        if not all(_equal(a[: n + 1], wished[: n + 1]) for a in answers)
    )
    found = " and ".join(
        f"{_values(answer, number)} in {rank}" for rank, answer in zip(RANKS, answers, strict=True)
    )
    misconception = None
    happened = f"the gradient of `{PARAMETERS[number]}` is {found}"
    at: tuple[str, ...] = ()
    own = [wanted[two_processes][rank].alone.gradients for rank in RANKS]
    halved = [_times(0.5, each) for each in own]
    if any(good) and not any(
        _equal(answer, doubled) for answer in answers
    ):  # one has the mean, one still its own
        misconception = "reduced-to-one-rank"
    elif all(_equal(answer, doubled) for answer in answers):
        misconception = "gradients-summed-not-averaged"
    elif all(map(_equal, answers, own)):
        happened, at = f"{happened}: no gradient has changed", (".data", "clone(", *UNUSED)
    elif all(_equal([a[number]], [b[number]]) for a, b in zip(answers, own, strict=True)):
        happened, at = f"{happened}, as before the call", ("leaves loop", "for")
    elif all(map(_equal, answers, halved)):
        happened, at = f"{happened}: half of its own, with nothing added", ("async_op=",)
    elif all(_equal(answer, _times(0.5, wished)) for answer in answers):
        happened = f"{happened}: half of the mean"
    elif not _equal(*answers):  # after a sum that has arrived, both have the same
        at = ("async_op=True",)
    raise Failed(happened, f"{_values(wished, number)} in both", None, misconception, at)


def _times(factor: float, gradients: Gradients) -> Gradients:
    return [None if each is None else [factor * value for value in each] for each in gradients]


def _values(gradients: Gradients, number: int = 0) -> str:
    found = gradients[number]
    return "None" if found is None else str([round(value, 3) for value in found[:3]])


def _equal(found: Gradients, right: Gradients) -> bool:
    """Whether gradients are equal. Missing ones are another check's."""
    return len(found) == len(right) and all(
        b is None or _close(a, b) for a, b in zip(found, right, strict=True)
    )


def _close(found: list[float] | None, right: list[float]) -> bool:
    if found is None or len(found) != len(right):
        return False
    return all(
        abs(a - b) <= 1e-4 for a, b in zip(found, right, strict=True)
    )  # `<=`, which is false for NaN


@average.check(points=0.25)
def leaves_the_rest_alone(seen: Seen, wanted: Seen) -> None:
    """Only gradients change: parameters without one have none, weights are as before, and the group still exists."""
    before = [wanted[two_processes][rank].alone.gradients for rank in RANKS]
    if all(
        _equal(seen[two_processes][rank].some.gradients, own)
        for rank, own in zip(RANKS, before, strict=True)
    ):
        raise Failed("no gradient has changed", "the gradients of all processes put together")
    for rank, found, right in scenario_pairs(seen[two_processes], wanted[two_processes], *RANKS):
        if not found.some.weights_kept:
            expected = "only gradients changed; the optimizer changes weights"
            raise Failed(f"the weights changed in {rank}", expected, at=(".data", "all_reduce("))
        if not found.some.group_kept:
            at = ("destroy_process_group(",)
            raise Failed(
                f"in {rank} the process group was destroyed", "the group, for the next step", at=at
            )
        gradients = zip(found.some.gradients, right.some.gradients, strict=True)
        if any(a is not None and b is None for a, b in gradients):
            happened = f"in {rank} a parameter without a gradient has one now"
            raise Failed(happened, "None, as before", at=(".grad =", "all_reduce("))


@average.check(points=0.5, needs=("runs", "makes_them_the_mean"))
def asks_how_many_there_are(seen: Seen, wanted: Seen) -> None:
    """It works for any number of processes: one alone keeps its gradients."""
    for _, found, right in scenario_pairs(seen[two_processes], wanted[two_processes], *RANKS):
        if not _equal(found.alone.gradients, right.alone.gradients):
            raise Failed(
                f"in a group of one the first gradient became {_values(found.alone.gradients)}",
                f"{_values(right.alone.gradients)}: divided by dist.get_world_size(), which is 1",
            )
