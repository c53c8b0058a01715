"""When each stream of the devices is done with the work that it was given."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from virtual_cuda.ledger.stream_waits import StreamKey


class Engine(NamedTuple):
    """A part of a device that all its streams share.

    Copies of one direction take turns, and so do kernels that fill the device.
    """

    device: str
    work: str  # "kernels", or a direction of copies


class StreamQueues:
    """The streams of all devices, and when each is done with what it was given.

    All moments are in seconds, on the time line of the host.
    """

    def __init__(self) -> None:
        """Begin with streams that were never used, at the moment 0."""
        # The stream that was given something to do last.
        self.last_used = StreamKey("cuda:0", 0)
        self._current_numbers: dict[str, int] = {}  # by device
        # By stream and by engine: 0 if it was never used.
        self._free_at: defaultdict[StreamKey, float] = defaultdict(float)
        self._engine_free_at: defaultdict[Engine, float] = defaultdict(float)
        # Streams other than the default ones, numbered in the order of their first use.
        self._shown_numbers: dict[StreamKey, int] = {}

    def make_current(self, stream: StreamKey) -> None:
        """Let work of its device go into this stream from now on."""
        self._current_numbers[stream.device] = stream.number

    def current_stream(self, device: str) -> StreamKey:
        """The stream that work of this device goes into."""
        number = self._current_numbers.get(device, 0)
        return StreamKey(device, number)

    def free_at(self, stream: StreamKey) -> float:
        """The moment at which a stream is done with what it was given."""
        return self._free_at[stream]

    def device_free_at(self, device: str) -> float:
        """The moment at which all streams of a device are done, or of all devices for ""."""
        done = 0.0
        for stream, moment in self._free_at.items():
            if device in ("", stream.device):
                done = max(done, moment)
        return done

    def hold(self, stream: StreamKey, moment: float) -> None:
        """Let a stream begin nothing new before this moment."""
        self._free_at[stream] = max(self._free_at[stream], moment)

    def hold_for_engine(self, stream: StreamKey, engine: Engine) -> None:
        """Let a stream begin nothing new before the engine is free."""
        self.hold(stream, self._engine_free_at[engine])

    def occupy_engine(self, stream: StreamKey, engine: Engine) -> None:
        """Let an engine be busy until the stream is done."""
        self._engine_free_at[engine] = self._free_at[stream]

    def set_free_at(self, stream: StreamKey, moment: float) -> None:
        """Let a stream be busy until this moment. It becomes the one that was used last."""
        self._free_at[stream] = moment
        self.last_used = stream

    def lane_of(self, stream: StreamKey) -> str:
        """The name of a stream among the lanes: "cuda:0 stream 0" is a default stream.

        The others have the numbers 1, 2, … in the order in which they were first asked for here;
        that is remembered.
        """
        if stream.number == 0:
            return f"{stream.device} stream 0"
        next_number = len(self._shown_numbers) + 1
        shown_number = self._shown_numbers.setdefault(stream, next_number)
        return f"{stream.device} stream {shown_number}"
