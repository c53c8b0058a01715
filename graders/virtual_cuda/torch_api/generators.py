"""Random number generators of the virtual device."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from virtual_cuda.device.hidden import hidden_attribute
from virtual_cuda.device.state import CUDA, VirtualDevice, VirtualGpu, index_of, now
from virtual_cuda.device.tensor import PLANS
from virtual_cuda.ops.dispatch import run_any
from virtual_cuda.ops.plans import make_plan, plan_by_hand
from virtual_cuda.ops.registry import call_of, facts_of, operator
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.recorder import tensors_in
from virtual_cuda.torch_api.streams import capture

aten: Final = torch.ops.aten
_HostGenerator = torch.Generator
# Device and host streams differ on hardware for the same seed; here because one is seeded with
# another number.
_OTHER: Final = 0x5EED
_WORD: Final = 0xFFFFFFFFFFFFFFFF
_STATE: Final = _HostGenerator().get_state().numel()
_SHOWN: Final = 16  # bytes of a state: the seed and the offset
_REMEMBERED: Final = 64  # states by offset
# Random numbers that an H200 draws while its offset grows by 4.
_DRAWN_AT_ONCE: Final = 132 * 2048 * 4
# C++ hands a generator back as another Python object; its address tells whose it is.
_known: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()


def is_device_generator(generator: Any) -> bool:
    return isinstance(generator, Generator) or generator._cdata in _known


def generator_of(generator: Any) -> Generator:
    """The device's generator behind a Python object.

    C++ may have handed it back as another object.
    """
    return generator if isinstance(generator, Generator) else _known[generator._cdata]


class Generator(_HostGenerator):
    """`torch.Generator(device="cuda")`: a host generator that says that it is on the device.

    It counts how far it has come: its offset.
    """

    index: int | None = None

    def __new__(cls, index: int | None = None) -> Any:
        return super().__new__(cls)

    def __init__(self, index: int | None = None) -> None:
        """Make a generator for the device with this number, or for the current one."""
        self.index = index
        self._shares: Generator | None = (
            None  # whose state this generator has, where it is not its own
        )
        self._seed = self.offset = 0
        self._states: dict[int, torch.Tensor] = {}  # by offset, where that was asked for
        # States that CUDA graphs restore: in the capture -> in a replay.
        self._marks: dict[bytes, torch.Tensor] = {}
        _HostGenerator.manual_seed(self, _OTHER)
        _known[self._cdata] = self  # type: ignore[attr-defined]

    @property
    def core(self) -> Generator:
        """The generator that holds the state."""
        return self._shares or self

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda") if self.index is None else CUDA[self.index]

    def manual_seed(self, seed: int) -> Generator:
        """Start anew with this seed, at offset 0.

        Raises RuntimeError for another seed while a CUDA graph is captured.
        """
        core = self.core
        if capture.graph is not None and int(seed) != core._seed:
            raise RuntimeError(
                "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same "
                "as the original seed."
            )
        core._seed = int(seed)
        core.offset = 0
        core._states.clear()
        _HostGenerator.manual_seed(core, (int(seed) ^ _OTHER) & _WORD)
        return self

    def seed(self) -> int:
        fresh = _HostGenerator().seed()
        self.manual_seed(fresh)
        return fresh

    def initial_seed(self) -> int:
        return self.core._seed

    def get_state(self) -> torch.Tensor:
        """The seed and the offset, as on a GPU.

        Behind them, in the same storage, is the host generator's state: whoever saves or copies the
        tensor saves its storage, too.
        """
        core = self.core
        seed = core._seed & _WORD
        shown = torch.tensor([seed - (1 << 64) if seed >> 63 else seed, core.offset]).view(
            torch.uint8
        )
        state = torch.cat([shown, shown, core._remember()])[:_SHOWN]
        if capture.graph is not None:
            capture.graph.add(functools.partial(self._mark, bytes(state)))
        return state

    def set_state(self, new_state: torch.Tensor) -> Generator:
        """Go back to a state of `get_state`, or to the seed and offset of one from a GPU.

        Raises TypeError and RuntimeError, as CUDA does, for what is no state.
        """
        core = self.core
        if new_state.dtype is not torch.uint8 or new_state.device.type != "cpu":
            raise TypeError("RNG state must be a torch.ByteTensor")
        if new_state.numel() != _SHOWN:
            raise RuntimeError("RNG state is wrong size")
        if capture.graph is not None:
            capture.graph.add(functools.partial(self._return, bytes(new_state)))
        seed, offset = new_state.clone().view(torch.int64).tolist()
        seed &= _WORD
        host = _behind(new_state)
        if host is None:  # saved on a GPU, or put together
            if seed != core._seed & _WORD:
                self.manual_seed(seed)
            return self.set_offset(offset)
        if seed != core._seed & _WORD:
            core._states.clear()
        core._seed = seed
        core.offset = offset
        _HostGenerator.set_state(core, host)
        return self

    def _remember(self) -> torch.Tensor:
        """The host generator's state, kept so that its offset leads back to it."""
        state = _HostGenerator.get_state(self)
        self._states.pop(self.offset, None)
        while len(self._states) >= _REMEMBERED:
            del self._states[next(iter(self._states))]
        self._states[self.offset] = state
        return state

    def _mark(self, known: bytes) -> None:
        """Remember, in a replay, the state at the place where the capture read it."""
        self.core._marks[known] = self.get_state()

    def _return(self, known: bytes) -> None:
        """Go back, in a replay, to the state that the capture restored.

        Does nothing where the capture has not read that state.
        """
        if known in self.core._marks:
            self.set_state(self.core._marks[known])

    def get_offset(self) -> int:
        self.core._remember()
        return self.core.offset

    def set_offset(self, offset: int) -> Generator:
        """Go to an offset.

        If `get_offset` or `get_state` was asked there, it is the state of then; else one that only
        the seed and the offset decide. Raises RuntimeError if it is not a multiple of 4.
        """
        if offset % 4:
            raise RuntimeError("offset must be a multiple of 4")
        core = self.core
        if offset in core._states:
            _HostGenerator.set_state(core, core._states[offset])
        else:
            _HostGenerator.manual_seed(core, hash((core._seed, offset)) & _WORD)
        core.offset = offset
        return self

    def clone_state(self) -> Generator:
        twin = Generator(self.index)
        twin.set_state(self.get_state())
        twin._states = dict(self.core._states)
        return twin

    def graphsafe_get_state(self) -> Generator:
        """Another generator that shares this one's state from now on."""
        twin = Generator(self.index)
        twin._shares = self.core
        return twin

    def graphsafe_set_state(self, _new_state: Any) -> Generator:
        core = generator_of(_new_state).core
        self._shares = None if core is self else core
        return self


Generator.__module__ = "torch._C"


def _behind(state: torch.Tensor) -> torch.Tensor | None:
    """The host generator's state behind what `get_state` shows.

    None if that was changed, or copied without its storage.
    """
    if state.storage_offset() or state.untyped_storage().nbytes() != 2 * _SHOWN + _STATE:
        return None
    whole = torch.empty(0, dtype=torch.uint8).set_(state.untyped_storage())
    return (
        whole[2 * _SHOWN :].clone()
        if torch.equal(whole[:_SHOWN], whole[_SHOWN : 2 * _SHOWN])
        else None
    )


class _AnyGenerator(type):
    """The type of what `torch.Generator` is while a virtual device is open."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _HostGenerator)

    def __call__(cls, device: Any = "cpu") -> Any:
        """A generator of the device or of the host.

        Raises RuntimeError for one of the device while a CUDA graph is captured.
        """
        chosen = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if chosen.type == "cuda" and capture.graph is not None:
            raise RuntimeError(
                "Cannot construct a new CUDAGeneratorImpl during CUDA graph capture. If you need this call to be "
                "captured, please file an issue. Current cudaStreamCaptureStatus: cudaStreamCaptureStatusActive"
            )
        return Generator(chosen.index) if chosen.type == "cuda" else _HostGenerator(device=chosen)


class DefaultGenerators:
    """The default generators of the open devices.

    Its methods are the functions of torch.cuda that seed, save and restore them.
    """

    def __init__(self, gpu: VirtualGpu) -> None:
        self.use(gpu)

    def use(self, gpu: VirtualGpu) -> None:
        """Make the generators of a device."""
        self.gpu = gpu
        self.generators = [Generator(i) for i in range(len(gpu.devices))]
        for generator in self.generators:
            generator.manual_seed(torch.initial_seed())
        self.following_host = True

    def use_and_show(self, gpu: VirtualGpu) -> None:
        """Make the generators of a device, and show them in `torch.cuda`, which is patched."""
        self.use(gpu)
        torch.cuda.default_generators = tuple(self.generators)  # type: ignore[assignment]

    def _at(self, device: Any = None) -> Generator:
        return self.generators[index_of(self.gpu, device)]

    def seed_one(self, seed: int) -> None:
        self.following_host = False
        self._at().manual_seed(seed)

    def seed_all(self, seed: int) -> None:
        self.following_host = False
        for generator in self.generators:
            generator.manual_seed(seed)

    def seed_both(self, original: Any, seed: Any) -> Any:
        given = original(seed)
        self.seed_all(given.initial_seed())
        self.following_host = True
        return given

    def set_state(self, new_state: Any, device: Any = "cuda") -> None:
        generator = self._at(device)
        if self.following_host and torch.equal(new_state, generator.get_state()):
            return  # restored as it is, together with the host's, which dropout follows
        self.following_host = False
        generator.set_state(new_state)

    def set_states(self, new_states: Any) -> None:
        for index, state in enumerate(new_states):
            self.set_state(state, index)

    def patches(self) -> Iterator[Patch]:
        """The patches of `torch.cuda`'s and torch's own functions of generators."""
        cuda = {
            "manual_seed": self.seed_one,
            "manual_seed_all": self.seed_all,
            "seed": lambda: self.seed_one(_HostGenerator().seed()),
            "seed_all": lambda: self.seed_all(_HostGenerator().seed()),
            "initial_seed": lambda: self._at().initial_seed(),
            "get_rng_state": lambda device="cuda": self._at(device).get_state(),
            "get_rng_state_all": lambda: [g.get_state() for g in self.generators],
            "set_rng_state": self.set_state,
            "set_rng_state_all": self.set_states,
            "default_generators": tuple(self.generators),
        }
        yield from ((torch.cuda, name, value) for name, value in cuda.items())
        again = torch.cuda.random
        yield from ((again, name, value) for name, value in cuda.items() if hasattr(again, name))
        yield from (around(home, "manual_seed", self.seed_both) for home in (torch, torch.random))
        # For devices that are not there torch would keep each seed, with a formatted stack: most of
        # a call's time.
        absent = [home for home in (torch.xpu, torch.mtia) if not home.is_available()]
        yield from ((home, "manual_seed_all", lambda seed: None) for home in absent)
        yield torch, "Generator", _AnyGenerator("Generator", (), {})


_open: Final[list[DefaultGenerators]] = []  # of the devices that are open: one, or none


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    generators = DefaultGenerators(opening.gpu)
    opening.enter(functools.partial(_opened, generators))
    opening.on_next_device.append(generators.use_and_show)
    return generators.patches()


@contextlib.contextmanager
def _opened(generators: DefaultGenerators) -> Iterator[None]:
    _open.append(generators)
    try:
        yield
    finally:
        _open.clear()


def is_random(func: Any) -> bool:
    """True if an operator draws random numbers.

    Dropout does so without a generator among its arguments.
    """
    return (
        any(a.name == "generator" for a in func._schema.arguments)
        or facts_of(func).plan in _BORROWING
    )


def _chosen(given: Any, device: VirtualDevice | None) -> Generator:
    """The generator to draw from: the one given, or the device's default.

    Raises RuntimeError, as CUDA does, for one of the host or one that a captured graph does not
    know.
    """
    assert now.gpu is not None
    if given is None:
        return _open[0].generators[now.gpu.current if device is None else device.index].core
    if not is_device_generator(given):
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    core = generator_of(given).core
    graph = capture.graph
    if graph is not None and not any(
        core is g.core for g in (*_open[0].generators, *graph.generators)
    ):
        raise RuntimeError(
            "RNG op during graph capture but generator is not registered with the capturing graph. Call "
            "graph.register_generator_state() before capture_begin()."
        )
    return core


def _drawn(core: Generator, out: Any) -> Any:
    """The result `out`, as it is; the generator's offset grows as on a GPU."""
    numel = next((t.numel() for t in tensors_in(out)), 0)
    core.offset += 4 * -(-numel // _DRAWN_AT_ONCE)
    return out


def _with_generator(
    func: Any, args: Any, kwargs: Any, device: VirtualDevice | None
) -> tuple[Any, Any, Generator | None]:
    """The arguments of a random operator with the generator to draw from in them, and that.

    None instead of a generator where no device is open.
    """
    position = [a.name for a in func._schema.arguments].index("generator")
    given = args[position] if position < len(args) else kwargs.get("generator")
    if not _open or now.gpu is None:
        return args, kwargs, None
    core = _chosen(given, device)
    if position < len(args):
        return (*args[:position], core, *args[position + 1 :]), kwargs, core
    return args, {**kwargs, "generator": core}, core


def draw(func: Any, args: Any, kwargs: Any) -> Any:
    """Run a random operator with the device's generator, or the one that was passed.

    Raises RuntimeError for a generator of the host.
    """
    device = next(
        (block.device for a in args if (block := hidden_attribute(a, "_block")) is not None), None
    )
    args, kwargs, core = _with_generator(func, args, kwargs or {}, device)
    out = run_any(func, args, kwargs)
    return out if core is None else _drawn(core, out)


def dropout(func: Any, args: Any, kwargs: Any) -> Any:
    """Run dropout, which has no generator argument.

    The host's generator borrows the device's state where the two differ.
    """
    return _borrowed(args[0]._block.device, lambda: run_any(func, args, kwargs), follows=True)


def alike(func: Any, args: Any, kwargs: Any) -> Any:
    """Run `rand_like` or its kin, which have no generator argument either.

    They draw what `rand` would.
    """
    return _borrowed(args[0]._block.device, lambda: run_any(func, args, kwargs))


def _borrowed(device: VirtualDevice, call: Callable[[], Any], follows: bool = False) -> Any:
    """The result of `call`, during which the host's generator has the device's state.

    Afterwards each has its own state again, and the device's has moved on. With `follows`, nothing
    is borrowed as long as the device was seeded together with the host and no graph is captured.
    """
    if not _open or (follows and _open[0].following_host and capture.graph is None):
        return call()
    core = _open[0].generators[device.index].core
    host = torch.default_generator
    before = host.get_state()
    host.set_state(_HostGenerator.get_state(core))
    try:
        return _drawn(core, call())
    finally:
        _HostGenerator.set_state(core, host.get_state())
        host.set_state(before)


def replayed(func: Any, inner: Any, kwargs: Any, device: VirtualDevice) -> Callable[[], Any]:
    """The call of a random operator that a CUDA graph repeats.

    It works on inner tensors and draws from the generator that is chosen now.
    """
    call = functools.partial(call_of(func), *inner, **kwargs)
    if (plan := facts_of(func).plan) in _BORROWING:
        return lambda: _borrowed(device, call, follows=plan is dropout)
    inner, kwargs, core = _with_generator(func, tuple(inner), kwargs, device)
    call = functools.partial(call_of(func), *inner, **kwargs)
    return call if core is None else lambda: _drawn(core, call())


def make_random_plan(func: Any) -> Any:
    """The plan of an operator; random ones are recognised by their schema."""
    random = any(a.name == "generator" for a in func._schema.arguments)
    return plan_by_hand(draw, func) if random and facts_of(func).plan is None else make_plan(func)


_BORROWING: Final = (dropout, alike)
operator("native_dropout", "_fused_dropout", plan=dropout)
operator("rand_like", "randn_like", "randint_like", "randint_like.low_dtype", plan=alike)
PLANS.maker = make_random_plan
