"""What was in the memory of a device at every moment of a run, by what it was for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from virtual_cuda.device.memory import Allocator, OutOfMemory, Piece
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.ledger.rows import BackwardRow, EndRow, ForwardRow, Row, StepRow
from virtual_cuda.trees import leaves_of

PARAMETERS: Final = "parameters"
GRADIENTS: Final = "gradients"
STATES: Final = "optimizer states"
ACTIVATIONS: Final = "activations"
BACKWARD: Final = "temporary in backward"
STEP: Final = "temporary in the step"
WORKSPACES: Final = "workspaces"
OTHER: Final = "inputs and other"
PARTS: Final = (PARAMETERS, GRADIENTS, STATES, ACTIVATIONS, BACKWARD, STEP, WORKSPACES, OTHER)


class MemoryEvent(NamedTuple):
    """A block was taken, or given back."""

    row: int  # of the ledger, that comes next
    block: int  # its number
    is_taken: bool


class Moment(NamedTuple):
    """How many bytes there were of each part at one moment."""

    row: int
    parts: dict[str, int]

    @property
    def total(self) -> int:
        """The bytes of all parts."""
        return sum(self.parts.values())


class MemoryRecord:
    """Observes all blocks of a device.

    A block is known by its number. What it is for is told by `name_tensors`, or else by what the
    program was doing when it was taken.
    """

    def __init__(self, memory: Allocator, rows: Sequence[Row]) -> None:
        """Begin empty; `rows` are those of the ledger."""
        self.memory = memory
        self.rows = rows
        self.events: list[MemoryEvent] = []
        self.sizes: list[int] = []  # by the number of a block: what it takes
        self.wanted: list[int] = []  # likewise: what was asked for
        self.names: dict[int, str] = {}  # likewise: the part that it is known to belong to
        self._numbers: dict[int, int] = {}  # of living blocks, by identity

    def took(self, block: Any, wanted: int) -> None:
        """Note that a block was taken."""
        number = len(self.sizes)
        self._numbers[id(block)] = number
        self.sizes.append(block.size)
        self.wanted.append(wanted)
        self.events.append(MemoryEvent(len(self.rows), number, True))
        if self.memory.for_library:
            self.names[number] = WORKSPACES

    def gave(self, block: Any) -> None:
        """Note that a block is given back."""
        number = self._numbers.pop(id(block), None)
        if number is not None:
            self.events.append(MemoryEvent(len(self.rows), number, False))

    def name_tensors(self, tensors: Iterable[Any], part: str) -> None:
        """Note which part the memory of these device tensors belongs to, if nobody knows better."""
        for tensor in tensors:
            if type(tensor) not in VIRTUAL:
                continue
            number = self._numbers.get(id(tensor._virtual_block))
            if number is not None:
                self.names.setdefault(number, part)

    def moments(self) -> list[Moment]:
        """The parts after each event, in their order."""
        part_of = self._parts_of_blocks()
        live: defaultdict[str, int] = defaultdict(int)
        found = []
        for event in self.events:
            size = self.sizes[event.block]
            live[part_of[event.block]] += size if event.is_taken else -size
            found.append(Moment(event.row, dict(live)))
        return found

    def _parts_of_blocks(self) -> list[str]:
        """The part of each block, by its number."""
        phases = phases_of(self.rows)
        parts = [OTHER] * len(self.sizes)
        for event in self.events:
            if event.is_taken:
                phase = phases[min(event.row, len(phases) - 1)]
                parts[event.block] = self.names.get(event.block, phase)
        return parts

    def replay(self, total: int) -> Replay:
        """What the allocator of a GPU with `total` bytes would do with the same requests."""
        allocator = Allocator(total)
        taken: dict[int, tuple[int, Piece | None]] = {}
        for event in self.events:
            if not event.is_taken:
                allocator.give(*taken.pop(event.block))
                continue
            try:
                taken[event.block] = allocator.take(self.wanted[event.block])
            except OutOfMemory:
                return Replay(False, allocator.retries > 0, allocator.peak, allocator.peak_reserved)
        return Replay(True, allocator.retries > 0, allocator.peak, allocator.peak_reserved)


class Replay(NamedTuple):
    """How a run went in a memory of some size."""

    fits: bool
    was_emptied: bool  # the cache had to be emptied for it, which costs time
    peak: int
    reserved: int


def phases_of(rows: Sequence[Row]) -> list[str]:
    """For each row, the part that memory belongs to which is taken there; one more for the end.

    From the first forward pass to the backward pass that is activations, and after that the rest.
    """
    phases = []
    opened: dict[int, str] = {}  # backward passes and steps under way, by row
    between = OTHER  # outside of them
    for number, row in enumerate(rows):
        if isinstance(row, ForwardRow):
            between = ACTIVATIONS
        elif isinstance(row, BackwardRow):
            opened[number] = BACKWARD
        elif isinstance(row, StepRow):
            opened[number] = STEP
        elif isinstance(row, EndRow) and opened.pop(row.opened, None) is not None:
            between = OTHER
        phases.append(next(reversed(opened.values()), between))
    phases.append(between)
    return phases


def tensors_of_optimizer(optimizer: Any) -> list[Any]:
    """All tensors among the states of an optimizer."""
    return [leaf for state in optimizer.state.values() for leaf in leaves_of(state)]


def parameters_of_optimizer(optimizer: Any) -> list[Any]:
    """All parameters that an optimizer changes."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
