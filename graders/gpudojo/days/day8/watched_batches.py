"""A loader that notes when each batch is handed out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gpudojo.grading.call import Call, StudentRaised


class WatchedBatches:
    """A loader with a length, a dataset and a batch size, like any other.

    Copies are known by their size: whoever builds the dataset sees to it that inputs, targets and parameters differ.
    """

    def __init__(self, call: Call, inner: Any) -> None:
        self.call, self.inner = call, inner
        self.dataset, self.batch_size = inner.dataset, inner.batch_size
        self.handed_out = 0
        self.inputs: Any = None
        self.targets: Any = None
        self.target_sizes: set[int] = set()
        self.start = 0

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.inner:
            self.handed_out += 1
            self.inputs, self.targets = batch
            self.target_sizes.add(self.targets.nbytes)
            self.start = self.call.bench.ledger.mark()
            yield batch

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Around a call: an error that ends it also tells what of the last batch had been copied by then."""
        try:
            yield
        except StudentRaised as error:
            if self.handed_out:
                error.facts["copied"] = self._copied()
            raise

    def _copied(self) -> dict[str, int | None]:
        """The line that copied each tensor of the last batch to the device; none where it was not copied."""
        copies = self.call.bench.ledger.since(self.start).transfers_to_device()
        sizes = {"inputs": self.inputs.nbytes, "targets": self.targets.nbytes}
        lines = {name: [self.call.line_of(t) for t in copies if t.bytes == size] for name, size in sizes.items()}
        return {name: found[0] for name, found in lines.items() if found}
