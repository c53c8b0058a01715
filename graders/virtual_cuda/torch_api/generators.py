"""Random number generators of the virtual device."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from virtual_cuda.device.state import CUDA, VirtualGpu, index_of, now
from virtual_cuda.device.tensor import PLANS
from virtual_cuda.ops.dispatch import general
from virtual_cuda.ops.fast_paths import make_plan, plan_by
from virtual_cuda.ops.registry import facts_of, operator
from virtual_cuda.patching import Opening, Patch, around, torch_patches

aten: Final = torch.ops.aten
_HostGenerator = torch.Generator
# Device and host streams differ on hardware for the same seed; here because one is seeded with another number.
_OTHER: Final = 0x5EED
# C++ hands a generator back as another Python object; its address tells whose it is.
_known: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()


def is_device_generator(generator: Any) -> bool:
    return isinstance(generator, Generator) or generator._cdata in _known


class Generator(_HostGenerator):
    """`torch.Generator(device="cuda")`: a host generator that says where it is."""

    index: int | None = None

    def __new__(cls, index: int | None = None) -> Any:
        return super().__new__(cls)

    def __init__(self, index: int | None = None) -> None:
        self.index = index
        self._seed = 0
        _HostGenerator.manual_seed(self, _OTHER)
        _known[self._cdata] = self  # type: ignore[attr-defined]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda") if self.index is None else CUDA[self.index]

    def manual_seed(self, seed: int) -> Generator:
        self._seed = int(seed)
        _HostGenerator.manual_seed(self, (int(seed) ^ _OTHER) & 0xFFFFFFFFFFFFFFFF)
        return self

    def seed(self) -> int:
        fresh = _HostGenerator().seed()
        self.manual_seed(fresh)
        return fresh

    def initial_seed(self) -> int:
        return self._seed


Generator.__module__ = "torch._C"


class _AnyGenerator(type):
    """The type of what `torch.Generator` is while a virtual device is open."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _HostGenerator)

    def __call__(cls, device: Any = "cpu") -> Any:
        chosen = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        return Generator(chosen.index) if chosen.type == "cuda" else _HostGenerator(device=chosen)


class DefaultGenerators:
    """The default generators of the open devices, and the functions of torch.cuda that address them."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self.use(gpu)

    def use(self, gpu: VirtualGpu) -> Iterable[Patch]:
        """Make the generators of a device; returns the patch that shows them."""
        self.gpu = gpu
        self.generators = [Generator(i) for i in range(len(gpu.places))]
        for generator in self.generators:
            generator.manual_seed(torch.initial_seed())
        self.following_host = True
        return [(torch.cuda, "default_generators", tuple(self.generators))]

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

    def set_state(self, state: Any, device: Any = "cuda") -> None:
        generator = self._at(device)
        if self.following_host and torch.equal(state, generator.get_state()):
            return  # restored as it is, together with the host's, which dropout follows
        self.following_host = False
        generator.set_state(state)

    def set_states(self, states: Any) -> None:
        for index, state in enumerate(states):
            self.set_state(state, index)

    def patches(self) -> Iterator[Patch]:
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
        yield torch, "Generator", _AnyGenerator("Generator", (), {})


_open: Final[list[DefaultGenerators]] = []  # of the devices that are open: one, or none


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    _open.append(DefaultGenerators(opening.gpu))
    opening.undo.callback(_open.clear)
    opening.again.append(_open[0].use)
    return _open[0].patches()


def draw(func: Any, args: Any, kwargs: Any) -> Any:
    """A random operator: the device's generator, unless one was passed, which must be the device's."""
    position = [a.name for a in func._schema.arguments].index("generator")
    by_position = position < len(args)
    given = args[position] if by_position else kwargs.get("generator")
    if given is None and _open and now.gpu is not None:
        place = next((a._block.place for a in args if hasattr(a, "_block")), None)
        chosen = _open[0].generators[place.index if place is not None else now.gpu.current]
        if by_position:
            args = (*args[:position], chosen, *args[position + 1 :])
        else:
            kwargs = {**kwargs, "generator": chosen}
    elif given is not None and not is_device_generator(given):
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    return general(func, args, kwargs)


def dropout(func: Any, args: Any, kwargs: Any) -> Any:
    """Dropout has no generator argument: the host's generator borrows the device's state where the two differ."""
    if not _open or _open[0].following_host:
        return general(func, args, kwargs)
    chosen = _open[0].generators[args[0]._block.place.index]
    host = torch.default_generator
    before = host.get_state()
    host.set_state(chosen.get_state())
    try:
        return general(func, args, kwargs)
    finally:
        chosen.set_state(host.get_state())
        host.set_state(before)


def make_random_plan(func: Any) -> Any:
    """The plan of an operator; random ones are recognised by their schema."""
    random = any(a.name == "generator" for a in func._schema.arguments)
    return plan_by(draw, func) if random and facts_of(func).plan is None else make_plan(func)


operator("native_dropout", "_fused_dropout", plan=dropout)
PLANS.maker = make_random_plan
