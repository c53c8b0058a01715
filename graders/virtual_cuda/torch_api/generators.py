"""Random number generators of the virtual device."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any, Final

import torch

from virtual_cuda.device.state import CUDA, VirtualGpu, index_of
from virtual_cuda.patching import Opening, Patch, around, if_present, torch_patches
from virtual_cuda.torch_api.streams import capture

_HostGenerator = torch.Generator
# Device and host streams differ on hardware for the same seed; here because one is seeded with
# another number.
_OTHER: Final = 0x5EED
_WORD: Final = 0xFFFFFFFFFFFFFFFF
_SHOWN: Final = 16  # bytes of a state: the seed and the offset
_REMEMBERED: Final = 64  # states by offset
# C++ hands a generator back as another Python object; its address tells whose it is.
_known: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()


def _address_of(generator: Any) -> int:
    """The address of C++'s generator; where this torch does not tell, the Python object's."""
    address: int = getattr(generator, "_cdata", id(generator))
    return address


def is_device_generator(generator: Any) -> bool:
    """True for a generator of the device, also as another Python object of C++."""
    if isinstance(generator, Generator):
        return True
    return _address_of(generator) in _known


def generator_of(generator: Any) -> Generator:
    """The device's generator behind a Python object.

    C++ may have handed it back as another object. Raises KeyError for a generator of the host.
    """
    if isinstance(generator, Generator):
        return generator
    found: Generator = _known[_address_of(generator)]
    return found


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
        # Whose state this generator has, where it is not its own.
        self._shares: Generator | None = None
        self._seed = 0
        self.offset = 0
        self._states: dict[int, torch.Tensor] = {}  # by offset, where that was asked for
        # States that CUDA graphs restore: by the state in the capture, the one in a replay.
        self._replayed_states: dict[bytes, torch.Tensor] = {}
        _HostGenerator.manual_seed(self, _OTHER)
        _known[_address_of(self)] = self

    @property
    def core(self) -> Generator:
        """The generator that holds the state."""
        return self._shares or self

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        if self.index is None:
            return torch.device("cuda")
        return CUDA[self.index]

    def manual_seed(self, seed: int) -> Generator:
        """Start anew with this seed, at offset 0; returns this generator.

        Raises RuntimeError for another seed while a CUDA graph is captured.
        """
        core = self.core
        if capture.graph is not None and int(seed) != core._seed:
            raise RuntimeError(
                "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if "
                "new seed is the same as the original seed."
            )
        core._seed = int(seed)
        core.offset = 0
        core._states.clear()
        _HostGenerator.manual_seed(core, (int(seed) ^ _OTHER) & _WORD)
        return self

    def seed(self) -> int:
        """Start anew with a seed that nobody can foresee, and return it.

        Raises RuntimeError while a CUDA graph is captured.
        """
        seed = _HostGenerator().seed()
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        return self.core._seed

    def get_state(self) -> torch.Tensor:
        """The seed and the offset, as on a GPU.

        Behind them, in the same storage, is the host generator's state: whoever saves or copies the
        tensor saves its storage, too. The state is remembered by its offset, and a graph that is
        captured notes to read it again.
        """
        core = self.core
        signed_seed = core._seed & _WORD
        if signed_seed >> 63:
            signed_seed -= 1 << 64
        shown = torch.tensor([signed_seed, core.offset]).view(torch.uint8)
        # Twice: where the first has been changed, the state behind is not that of the seed.
        whole = torch.cat([shown, shown, core._remember_state()])
        state = whole[:_SHOWN]
        if capture.graph is not None:
            capture.graph.add(functools.partial(self._keep_for_replay, bytes(state)))
        return state

    def set_state(self, new_state: torch.Tensor) -> Generator:
        """Go back to a state of `get_state`, or to the seed and offset of one from a GPU.

        Returns this generator; a graph that is captured notes to go back, too. Raises TypeError and
        RuntimeError, as CUDA does, for what is no state.
        """
        core = self.core
        if new_state.dtype is not torch.uint8 or new_state.device.type != "cpu":
            raise TypeError("RNG state must be a torch.ByteTensor")
        if new_state.numel() != _SHOWN:
            raise RuntimeError("RNG state is wrong size")
        if capture.graph is not None:
            capture.graph.add(functools.partial(self._restore_in_replay, bytes(new_state)))
        seed, offset = new_state.clone().view(torch.int64).tolist()
        seed &= _WORD
        host_state = _host_state_behind(new_state)
        if host_state is None:  # saved on a GPU, or put together
            if seed != core._seed & _WORD:
                self.manual_seed(seed)
            return self.set_offset(offset)
        if seed != core._seed & _WORD:
            core._states.clear()
        core._seed = seed
        core.offset = offset
        _HostGenerator.set_state(core, host_state)
        return self

    def _remember_state(self) -> torch.Tensor:
        """The host generator's state, kept so that its offset leads back to it.

        The oldest of `_REMEMBERED` states is forgotten.
        """
        state = _HostGenerator.get_state(self)
        self._states.pop(self.offset, None)
        while len(self._states) >= _REMEMBERED:
            del self._states[next(iter(self._states))]
        self._states[self.offset] = state
        return state

    def _keep_for_replay(self, captured: bytes) -> None:
        """Remember, in a replay, the state at the place where the capture read it."""
        self.core._replayed_states[captured] = self.get_state()

    def _restore_in_replay(self, captured: bytes) -> None:
        """Go back, in a replay, to the state that the capture restored.

        Does nothing where the capture has not read that state.
        """
        state = self.core._replayed_states.get(captured)
        if state is not None:
            self.set_state(state)

    def get_offset(self) -> int:
        """How far the generator has come; the state of now is remembered for `set_offset`."""
        self.core._remember_state()
        return self.core.offset

    def set_offset(self, offset: int) -> Generator:
        """Go to an offset, and return this generator.

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
        """Another generator, which begins with this one's state."""
        clone = Generator(self.index)
        clone.set_state(self.get_state())
        clone._states = dict(self.core._states)
        return clone

    def graphsafe_get_state(self) -> Generator:
        """Another generator that shares this one's state from now on."""
        sharing = Generator(self.index)
        sharing._shares = self.core
        return sharing

    def graphsafe_set_state(self, _new_state: Any) -> Generator:
        """Share another generator's state from now on; returns this generator.

        Raises KeyError for a generator of the host.
        """
        core = generator_of(_new_state).core
        self._shares = None if core is self else core
        return self


Generator.__module__ = "torch._C"


@functools.cache
def _size_of_host_state() -> int:
    """The number of bytes of a host generator's state."""
    return _HostGenerator().get_state().numel()


def _host_state_behind(state: torch.Tensor) -> torch.Tensor | None:
    """The host generator's state behind what `get_state` shows.

    None if that was changed, or copied without its storage.
    """
    size = 2 * _SHOWN + _size_of_host_state()
    if state.storage_offset() or state.untyped_storage().nbytes() != size:
        return None
    whole = torch.empty(0, dtype=torch.uint8).set_(state.untyped_storage())
    shown_now = whole[:_SHOWN]
    shown_first = whole[_SHOWN : 2 * _SHOWN]
    if not torch.equal(shown_now, shown_first):
        return None
    return whole[2 * _SHOWN :].clone()


class _AnyGenerator(type):
    """The type of what `torch.Generator` is while a virtual device is open."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _HostGenerator)

    def __call__(cls, device: Any = "cpu") -> Any:
        """A generator of the device or of the host.

        Raises RuntimeError for one of the device while a CUDA graph is captured, and for a device
        that torch does not know.
        """
        if isinstance(device, int):
            chosen = torch.device("cuda", device)
        else:
            chosen = torch.device(device)
        if chosen.type == "cuda" and capture.graph is not None:
            raise RuntimeError(
                "Cannot construct a new CUDAGeneratorImpl during CUDA graph capture. If you need "
                "this call to be captured, please file an issue. Current cudaStreamCaptureStatus: "
                "cudaStreamCaptureStatusActive"
            )
        if chosen.type == "cuda":
            return Generator(chosen.index)
        return _HostGenerator(device=chosen)


class DefaultGenerators:
    """The default generators of the open devices.

    Its methods are the functions of torch.cuda that seed, save and restore them.
    """

    def __init__(self, gpu: VirtualGpu) -> None:
        self.use_device(gpu)

    def use_device(self, gpu: VirtualGpu) -> None:
        """Take the generators of a device; a new one gets some, seeded as the host's generator is.

        Raises RuntimeError while a CUDA graph is captured.
        """
        self.gpu = gpu
        if not gpu.generators:
            gpu.generators += [Generator(index) for index in range(len(gpu.devices))]
            for generator in gpu.generators:
                generator.manual_seed(torch.initial_seed())
        self.generators: list[Generator] = gpu.generators

    @property
    def following_host(self) -> bool:
        """Whether they were seeded together with the host's generator."""
        return self.gpu.generators_follow_host

    @following_host.setter
    def following_host(self, following: bool) -> None:
        self.gpu.generators_follow_host = following

    def use_next_device(self, gpu: VirtualGpu) -> None:
        """Take the generators of a device, and show them in `torch.cuda`, which is patched."""
        self.use_device(gpu)
        torch.cuda.default_generators = tuple(self.generators)  # type: ignore[assignment]

    def _generator_on(self, device: Any = None) -> Generator:
        """The default generator of a device, by default of the current one.

        Raises ValueError for what names no device of CUDA, and IndexError for one that is not
        there.
        """
        return self.generators[index_of(self.gpu, device)]

    def seed_one(self, seed: int) -> None:
        """`torch.cuda.manual_seed`: seed the current device's generator.

        Raises RuntimeError for another seed while a CUDA graph is captured.
        """
        self.following_host = False
        self._generator_on().manual_seed(seed)

    def seed_all(self, seed: int) -> None:
        """`torch.cuda.manual_seed_all`: seed the generators of all devices.

        Raises RuntimeError for another seed while a CUDA graph is captured.
        """
        self.following_host = False
        for generator in self.generators:
            generator.manual_seed(seed)

    def seed_host_and_all(self, original: Any, seed: Any) -> Any:
        """`torch.manual_seed`: seed the host's generator, which is returned, and all others.

        Raises RuntimeError for another seed while a CUDA graph is captured, and what `original`
        raises for what is no seed.
        """
        host_generator = original(seed)
        self.seed_all(host_generator.initial_seed())
        self.following_host = True
        return host_generator

    def set_state(self, new_state: Any, device: Any = "cuda") -> None:
        """`torch.cuda.set_rng_state`.

        Raises TypeError and RuntimeError for what is no state, ValueError for what names no device,
        and IndexError for one that is not there.
        """
        generator = self._generator_on(device)
        if self.following_host and torch.equal(new_state, generator.get_state()):
            return  # restored as it is, together with the host's, which dropout follows
        self.following_host = False
        generator.set_state(new_state)

    def get_state(self, device: Any = "cuda") -> torch.Tensor:
        """`torch.cuda.get_rng_state`.

        Raises ValueError for what names no device, and IndexError for one that is not there.
        """
        return self._generator_on(device).get_state()

    def get_states(self) -> list[torch.Tensor]:
        """`torch.cuda.get_rng_state_all`."""
        return [generator.get_state() for generator in self.generators]

    def set_states(self, new_states: Any) -> None:
        """`torch.cuda.set_rng_state_all`."""
        for index, state in enumerate(new_states):
            self.set_state(state, index)

    def patches(self) -> Iterator[Patch]:
        """The patches of `torch.cuda`'s and torch's own functions of generators."""
        functions = {
            "manual_seed": self.seed_one,
            "manual_seed_all": self.seed_all,
            "seed": lambda: self.seed_one(_HostGenerator().seed()),
            "seed_all": lambda: self.seed_all(_HostGenerator().seed()),
            "initial_seed": lambda: self._generator_on().initial_seed(),
            "get_rng_state": self.get_state,
            "get_rng_state_all": self.get_states,
            "set_rng_state": self.set_state,
            "set_rng_state_all": self.set_states,
            "default_generators": tuple(self.generators),
        }
        for name, value in functions.items():
            yield torch.cuda, name, value
            yield if_present(torch.cuda.random, name, value)
        for module in (torch, torch.random):
            yield around(module, "manual_seed", self.seed_host_and_all)
        # For devices that are not there torch would keep each seed, with a formatted stack: most of
        # a call's time.
        for module in (torch.xpu, torch.mtia):
            if not module.is_available():
                yield if_present(module, "manual_seed_all", lambda seed: None)
        yield torch, "Generator", _AnyGenerator("Generator", (), {})


# Those of the devices that are open: one object, or none.
open_generators: Final[list[DefaultGenerators]] = []


@contextlib.contextmanager
def _list_as_open(generators: DefaultGenerators) -> Iterator[None]:
    """Have these in `open_generators` for the length of a `with` block."""
    open_generators.append(generators)
    try:
        yield
    finally:
        open_generators.clear()


@torch_patches()
def _generator_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of generators; the next device makes new default ones.

    `opening` is told to do that, and to list them as open while the patches are in place.
    """
    generators = DefaultGenerators(opening.gpu)
    opening.enter(functools.partial(_list_as_open, generators))
    opening.on_next_device.append(generators.use_next_device)
    return generators.patches()
