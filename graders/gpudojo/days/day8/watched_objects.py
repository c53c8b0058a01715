"""Objects for student code to hold, which record what is done with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gpudojo.grading.call import Call, StudentRaised, lines_of_copies
from gpudojo.grading.watching import keep_state, state_for_hook, state_of


class Sealed:
    """A function for student code to call, which does not lead to what it calls, or to what that records."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.key = keep_state(function)

    def __call__(self, *args: Any) -> Any:
        return state_of(self.key)(*args)


class Hook(Sealed):
    """A hook of torch's, which student code gets to hold but does not call."""

    def __call__(self, *args: Any) -> Any:
        return state_for_hook(self.key)(*args)


@dataclass
class Fetched:
    """The batches that have been fetched from a loader."""

    call: Call
    inner: Any
    count: int = 0
    latest: tuple[Any, Any] | None = None
    start: int = 0  # ledger mark at the latest batch
    target_sizes: set[int] = field(default_factory=set)

    def add(self, batch: Any) -> None:
        self.count += 1
        self.latest, self.start = tuple(batch), self.call.bench.ledger.mark()
        self.target_sizes.add(batch[1].nbytes)


class WatchedBatches:
    """A loader with a length, a dataset and a batch size, which records when each batch is fetched.

    Copies are recognised by their size: the dataset is built so that inputs, targets and parameters differ.
    """

    def __init__(self, call: Call, inner: Any) -> None:
        self.dataset, self.batch_size = inner.dataset, inner.batch_size
        self.key = keep_state(Fetched(call, inner))

    def __len__(self) -> int:
        return len(state_of(self.key).inner)

    def __iter__(self) -> Iterator[Any]:
        for batch in state_of(self.key).inner:
            state_of(self.key).add(batch)
            yield batch

    @property
    def handed_out(self) -> int:
        return int(state_of(self.key).count)

    @property
    def target_sizes(self) -> frozenset[int]:
        return frozenset(state_of(self.key).target_sizes)

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Around a call: adds to an error which tensors of the last batch had been copied, and by which lines."""
        try:
            yield
        except StudentRaised as error:
            fetched: Fetched = state_of(self.key)
            if fetched.latest is None:
                raise
            lines = lines_of_copies(
                fetched.call,
                fetched.start,
                **dict(zip(("inputs", "targets"), fetched.latest, strict=True)),
            )
            raise error.with_facts(copied=lines) from None
