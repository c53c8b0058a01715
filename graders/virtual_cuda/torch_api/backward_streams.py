"""A backward pass runs on the streams of its forward pass.

On a GPU each node of the graph runs on the stream that was current when the node was made. Nodes of
a thread have ascending numbers, and `streams.py` keeps at which number the current streams changed;
so the number of a node tells its streams.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

from virtual_cuda.device.tensor import Plan, operator_hooks
from virtual_cuda.internals import find_internal
from virtual_cuda.torch_api.streams import (
    Stream,
    capture,
    current_stream_of,
    default_stream_of,
    thread_streams,
)

# Where this torch lacks it, the backward pass stays on the current stream.
_current_node: Final = find_internal("torch._C._current_autograd_node", otherwise=lambda: None)
# The node of a leaf has the greatest number there is, far above those of other nodes.
_FAR_ABOVE: Final = 1 << 40


class _BackwardPass:
    """One backward pass of a thread that has used several streams."""

    def __init__(self) -> None:
        self._streams_before = dict(thread_streams.streams)
        self._used: set[Stream] = set()

    def _streams_at(self, number: int) -> dict[int, Stream]:
        """The streams that were current when the node with this number was made, by device.

        A device on its default stream is left out.
        """
        changes = thread_streams.changes
        if number > changes[-1].node_number + _FAR_ABOVE:
            return self._streams_before
        changes_before = bisect.bisect_right(changes, number, key=lambda each: each.node_number)
        if changes_before == 0:
            return {}
        return changes[changes_before - 1].streams

    def follow(self, node: Any) -> None:
        """Use the streams that were current when a node was made.

        Each waits for the one that was current before it, and is noted as used by the pass. Does
        nothing if this torch does not number its nodes. The ledger notes the change and the wait.
        Raises CUDA's error after an assertion on the device has failed.
        """
        if not hasattr(node, "_sequence_nr"):
            return
        wanted = self._streams_at(node._sequence_nr())
        for index in {*wanted, *thread_streams.streams}:
            before = thread_streams.streams.get(index) or default_stream_of(index)
            stream = wanted.get(index) or default_stream_of(index)
            if stream != before:
                thread_streams.use(stream)
                stream.wait_stream(before)
                self._used.add(stream)

    def run_operator(self, func: Any, plan: Plan, args: Any, kwargs: Any) -> Any:
        """Run an operator; if it is of this pass, on the streams of its node.

        The ledger notes where these differ from those of before. Gives and raises what the plan,
        which runs it, does.
        """
        node = None
        if _thread.running is self:
            node = _current_node()
        if node is not None:
            self.follow(node)
        return plan(args, kwargs)

    def end(self) -> None:
        """Use the streams of before the pass again; they wait for those that it has used.

        The ledger notes that. Raises CUDA's error after an assertion on the device has failed.
        """
        for index in dict(thread_streams.streams):
            thread_streams.use(self._streams_before.get(index) or default_stream_of(index))
        for stream in self._used:
            current_stream_of(stream.device_index).wait_stream(stream)


class _PassOfThread(threading.local):
    """The backward pass that the thread runs now."""

    running: _BackwardPass | None = None


_thread: Final = _PassOfThread()


@contextlib.contextmanager
def on_streams_of_forward() -> Iterator[None]:
    """Run a backward pass on its forward pass's streams, for the length of a `with` block.

    Afterwards the streams of before are current, and wait for those. The ledger notes every change
    and every wait. Does nothing if the thread has never changed its stream, while a graph is
    captured, or inside another backward pass. Raises CUDA's error after an assertion on the device
    has failed.
    """
    thread_streams.forget_closed_device()
    never_changed = not thread_streams.changes
    if never_changed or capture.graph is not None or _thread.running is not None:
        yield
        return
    backward_pass = _BackwardPass()
    _thread.running = backward_pass
    operator_hooks.append(backward_pass.run_operator)
    try:
        yield
    finally:
        _thread.running = None
        operator_hooks.remove(backward_pass.run_operator)
        backward_pass.end()


def use_streams_of_node(node: Any) -> None:
    """Use the streams that a node's forward used, if a backward pass follows those.

    The ledger notes it. Called before a student's own `autograd.Function.backward`.
    """
    if _thread.running is not None:
        _thread.running.follow(node)
