"""Streams and events of the virtual device.

All work is done at once, except what `torch.cuda._sleep` does. The ledger notes how streams wait
for each other, and the modelled clock reads that.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from time import perf_counter, sleep
from typing import Any, Final, NamedTuple

import torch
import torch.nn.parallel

from virtual_cuda.clock.lanes import CYCLES_PER_SECOND
from virtual_cuda.device.cuda_errors import cuda_error, device_assert_error, invalid_ordinal_error
from virtual_cuda.device.state import CUDA, index_of, now
from virtual_cuda.internals import find_internal
from virtual_cuda.ledger.rows import StreamEvent, StreamRow
from virtual_cuda.ops import placement
from virtual_cuda.patching import Opening, Patch, torch_patches
from virtual_cuda.recorder import site

_POOL: Final = 32  # streams of one priority on a device; the next one is the first again
_PRIORITIES: Final = (0, -3)  # the least and the greatest that torch has streams for
_HANDLE: Final = 64  # bytes of a handle that other processes make an event of
_CHANGES_KEPT: Final = 4096  # changes of the current stream that a backward pass looks back on


class _Handle:
    """Base of what stands for something of the driver: it cannot be copied or pickled."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raise TypeError, as torch does: events and streams cannot be pickled."""
        if type(self) is AnyEvent:
            name = "torch.Event"
        else:
            name = type(self).__name__
        raise TypeError(f"cannot pickle '{name}' object")


def _require_stream(stream: Any) -> None:
    """Raise RuntimeError for anything but a stream or None."""
    if stream is not None and not isinstance(stream, Stream):
        raise RuntimeError("expected stream to be a torch.Stream or torch.cuda.Stream object")


class AnyEvent(_Handle):
    """`torch.Event`: remembers when it was recorded, and on which device."""

    def __init__(
        self,
        device: Any = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        """Make an event that has not been recorded; the device is not used."""
        self.enable_timing = enable_timing
        self.blocking = blocking
        self.interprocess = interprocess
        self._recorded_at: float | None = None
        self._row = -1  # where the ledger says that it was recorded
        self._index: int | None = None  # the device it was recorded on

    def record(self, stream: Any = None) -> None:
        """Note that a stream, or without one the current stream, has reached this event.

        The ledger notes it. Raises RuntimeError for a stream of another device than before and for
        what is no stream, and CUDA's error after an assertion on the device has failed.
        """
        _require_stream(stream)
        self._recorded_at = perf_counter()
        if now.gpu is None:
            return
        if stream is None:
            stream = current_stream_of()
        if self._index not in (None, stream.device_index):
            raise RuntimeError(
                f"Event device {self._index} does not match recording stream's device "
                f"{stream.device_index}."
            )
        self._index = stream.device_index
        self._recorded_at = max(self._recorded_at, stream._busy_until)
        self._row = note_in_ledger("record", stream)

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait for the event; does nothing if the event was not recorded.

        The ledger notes it. Raises RuntimeError for what is no stream, and CUDA's error after an
        assertion on the device has failed.
        """
        _require_stream(stream)
        if now.gpu is None or self._recorded_at is None:
            return
        if stream is None:
            stream = current_stream_of()
        stream._stay_busy_until(self._recorded_at)
        note_in_ledger("wait", stream, self._row)

    def query(self) -> bool:
        """True if the device has reached the event.

        Asking takes modelled time, so that a loop that asks comes to an end.
        """
        if self._is_complete():
            return True
        if now.gpu is not None:
            now.gpu.spend_on_asking()
        return False

    def _is_complete(self) -> bool:
        """True if the device has reached the event, by the modelled clock if there is one."""
        if now.gpu is None:
            clock = None
        else:
            clock = now.gpu.clock()
        if clock is not None:
            return clock.has_passed_event(self._row)
        if self._recorded_at is None:
            return True
        return self._recorded_at <= perf_counter()

    def synchronize(self) -> None:
        """Let the host wait for the event; notes an explicit wait in the ledger.

        Raises RuntimeError at a wait that is refused or tells of a failed kernel.
        """
        note_in_ledger("synchronize_event", None, self._row)
        _sleep_until(self._recorded_at or 0.0)
        placement.record_waits("event.synchronize", explicit=True)

    def elapsed_time(self, end_event: Any) -> float:
        """The milliseconds from this event to another one; modelled where a GPU was chosen.

        Raises ValueError for events that were not recorded or not made for timing, and RuntimeError
        for events that were not reached, are on two devices or of two classes.
        """
        other_kind = isinstance(self, Event) is not isinstance(end_event, Event)
        if not isinstance(end_event, AnyEvent) or other_kind:
            kind = "torch.Event"
            if isinstance(self, Event):
                kind = "torch.cuda.Event"
            raise RuntimeError(f"expected other to be a {kind} object")
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded_at is None or end_event._recorded_at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if self._index != end_event._index:
            raise cuda_error("invalid resource handle", "InvalidResourceHandle")
        if not (self._is_complete() and end_event._is_complete()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        seconds = _modelled_seconds_between(self._row, end_event._row)
        if seconds is None:
            seconds = end_event._recorded_at - self._recorded_at
        return float(seconds) * 1e3

    def ipc_handle(self) -> bytes:
        """Raise NotImplementedError, as torch does: only `torch.cuda.Event` has a handle."""
        raise NotImplementedError(
            "torch.Event ipc is not supported yet, please open an issue if you need this!"
        )

    @classmethod
    def from_ipc_handle(cls, device: Any, ipc_handle: bytes) -> Any:
        raise NotImplementedError(
            "torch.Event ipc is not supported yet, please open an issue if you need this!"
        )

    @property
    def device(self) -> torch.device | None:
        """The device that it was recorded on; None before that, or where no device is open."""
        if self._recorded_at is None or now.gpu is None:
            return None
        if self._index is None:
            index = now.gpu.current
        else:
            index = self._index
        return CUDA[index]

    @property
    def event_id(self) -> int:
        if self._recorded_at is not None:
            return id(self)
        return 0

    @property
    def cuda_event(self) -> int:
        return self.event_id

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_event)

    def __repr__(self) -> str:
        """The event as torch prints it."""
        if self._index is None:
            index = -1
        else:
            index = self._index
        flag = 2
        if self.enable_timing:
            flag = 0
        return (
            f"torch.Event device_type=cuda, device_index={index}, event_flag={flag}, "
            f"event_id={self.event_id}"
        )


class Event(AnyEvent):
    """`torch.cuda.Event`, which needs no device to be named."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        """Make an event that has not been recorded; `external` has no effect."""
        super().__init__(enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)

    def ipc_handle(self) -> bytes:
        """Bytes of which another process makes the event.

        The event is of the current device from now on, if it had none. Raises CUDA's error for an
        event that was not made for that.
        """
        if self.interprocess and self.enable_timing:
            raise cuda_error("invalid argument", "InvalidValue")
        if not self.interprocess:
            raise cuda_error("invalid resource handle", "InvalidResourceHandle")
        if self._index is None and now.gpu is not None:
            self._index = now.gpu.current
        process = os.getpid().to_bytes(8, "little")
        event = id(self).to_bytes(8, "little")
        return process + event + bytes(_HANDLE - 16)

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Any:
        """An event of another process.

        What that recorded is done: nothing runs later than the call that starts it. Raises
        RuntimeError for bytes that are no handle or one of this process, and ValueError for what
        names no device.
        """
        if len(handle) != _HANDLE:
            raise RuntimeError(
                f"cudaIpcEventHandle_t expects byte-like object of size {_HANDLE}, "
                f"but got {len(handle)}"
            )
        if int.from_bytes(handle[:8], "little") == os.getpid():
            raise cuda_error("invalid device context", "DeviceUninitialized")
        event = cls(interprocess=True)
        event._index = None if now.gpu is None else index_of(now.gpu, device)
        event._recorded_at = 0.0
        return event

    def __repr__(self) -> str:
        """The event as torch prints it, with its address once it was recorded."""
        if self._recorded_at is None:
            address = "uninitialized"
        else:
            address = hex(self.cuda_event)
        return f"<torch.cuda.Event {address}>"


class Stream(_Handle):
    """`torch.cuda.Stream`, whose work is in order by nature.

    Two objects with one device and one id are the same stream.
    """

    device_type = 1

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int = 1,
        stream_ptr: int | None = None,
    ) -> None:
        """Take the next stream of the device's pool, or the one that is named by its id.

        `device_index` goes before `device`; `stream_ptr` is the address of a stream of another
        library. Raises CUDA's error for a device that is not there, and ValueError for what names
        none.
        """
        if device_index is None:
            device_index = _index_for_stream(device)
        self.device_index = device_index
        if stream_id is not None:
            self.priority = _priority_in_id(stream_id)
            self.stream_id: int = stream_id
            return
        least, greatest = _PRIORITIES
        self.priority = min(max(priority, greatest), least)
        if stream_ptr is not None:
            self.stream_id = stream_ptr
        else:
            self.stream_id = _next_id_of_pool(device_index, self.priority)

    @property
    def device(self) -> torch.device:
        return CUDA[self.device_index]

    @property
    def cuda_stream(self) -> int:
        """The stream's id; raises RuntimeError for a device that is not there."""
        if now.gpu is not None and not 0 <= self.device_index < len(now.gpu.devices):
            raise RuntimeError(f"Device index value {self.device_index} is out of index range")
        return self.stream_id

    @property
    def native_handle(self) -> int:
        return self.stream_id

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.stream_id)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.stream_id

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority of a stream."""
        return _PRIORITIES

    @property
    def _busy_until(self) -> float:
        """When the work of `torch.cuda._sleep` on the stream ends.

        All other work is done at once.
        """
        return _sleep_ends.get((self.device_index, self.stream_id), 0.0)

    def _stay_busy_until(self, at: float) -> None:
        """Let the stream sleep until this moment, unless it sleeps longer already."""
        if at > self._busy_until:
            _sleep_ends[self.device_index, self.stream_id] = at

    def synchronize(self) -> None:
        """Let the host wait for the stream; notes an explicit wait in the ledger.

        Raises RuntimeError at a wait that is refused or tells of a failed kernel: in sync debug
        mode it is refused, too.
        """
        note_in_ledger("synchronize", self)
        _sleep_until(self._busy_until)
        placement.record_waits("stream.synchronize", explicit=True, warned=True)

    def wait_stream(self, stream: Any) -> None:
        """Let this stream wait for all work of another one; the ledger notes it.

        Raises CUDA's error after an assertion on the device has failed.
        """
        self._stay_busy_until(stream._busy_until)
        note_in_ledger("wait_stream", self, stream.stream_id)

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def query(self) -> bool:
        """True if the stream has done its work; asking takes modelled time."""
        gpu = now.gpu
        if gpu is None:
            clock = None
        else:
            clock = gpu.clock()
        if gpu is None or clock is None:
            return self._busy_until <= perf_counter()
        if clock.is_idle(gpu.devices[self.device_index].label, self.stream_id):
            return True
        gpu.spend_on_asking()
        return False

    def is_capturing(self) -> bool:
        return capture.graph is not None

    def record_event(self, event: Any = None) -> Any:
        """Record this event, or a new one, in the stream, and return it.

        Raises RuntimeError for an event of another device.
        """
        event = event or Event()
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        """True for a stream with the same id on the same device."""
        if not isinstance(other, Stream):
            return False
        if self.stream_id != other.stream_id:
            return False
        return self.device == other.device

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={hex(self.cuda_stream)}>"

    def __enter__(self) -> Stream:
        thread_streams.contexts.append(torch.cuda.StreamContext(self))  # type: ignore[arg-type]
        thread_streams.contexts[-1].__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        thread_streams.contexts.pop().__exit__(*error)


def _index_for_stream(device: Any) -> int:
    """The number of the device that a new stream is for; a negative one is the current device.

    Raises CUDA's error for a device that is not there, and ValueError for what names none.
    """
    assert now.gpu is not None
    index = index_of(now.gpu, device)
    if index >= len(now.gpu.devices):
        raise invalid_ordinal_error()
    if index < 0:
        return now.gpu.current
    return index


def _next_id_of_pool(device_index: int, priority: int) -> int:
    """The id of the next stream of a device's pool, which moves on.

    As in C++, it tells the stream's number in the pool and its priority.
    """
    number = next(_stream_numbers[device_index, priority]) % _POOL
    return number << 5 | 3 - 2 * priority


def _priority_in_id(stream_id: int) -> int:
    """The priority of a stream; 0 for one that is not of a pool."""
    if stream_id > _POOL << 5:
        return 0
    return min((3 - (stream_id & 31)) // 2, 0)


class ExternalStream(Stream):
    """A stream of another library, known by its address."""

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
        super().__init__(device, stream_ptr=stream_ptr)


for _cls in (Event, Stream, ExternalStream):
    _cls.__module__ = "torch.cuda.streams"

_stream_numbers: Final[defaultdict[tuple[int, int], Iterator[int]]] = defaultdict(itertools.count)
_sleep_ends: Final[
    dict[tuple[int, int], float]
] = {}  # device and stream -> when `_sleep` there ends


class _Capture:
    """The capture of a CUDA graph that is under way in this process: CUDA allows one."""

    graph: Any = None


capture: Final = _Capture()


class StreamChange(NamedTuple):
    """The current streams of a thread, from a node of autograd's on."""

    node_number: int  # autograd numbers the nodes of each thread
    streams: dict[int, Stream]


class _ThreadStreams(threading.local):
    """The current streams by device; as in CUDA, each thread has its own.

    A device that is not there is on its default stream.
    """

    def __init__(self) -> None:
        """Begin with every device on its default stream."""
        self.gpu: Any = None
        self.streams: dict[int, Stream] = {}
        self.contexts: list[Any] = []  # those of `with stream:`, the inner one last
        self.changes: list[StreamChange] = []

    def forget_closed_device(self) -> None:
        """Forget the streams of a device that is closed, or was closed and opened again."""
        if self.gpu is not now.gpu:
            self.gpu = now.gpu
            self.streams = {}
            self.changes = []

    def stream_on(self, index: int) -> Stream | None:
        """The current stream of a device, or None if that is the default stream."""
        self.forget_closed_device()
        return self.streams.get(index)

    def use(self, stream: Stream) -> None:
        """Make a stream the current one of its device; the ledger notes it.

        A device must be open. Raises CUDA's error after an assertion on the device has failed.
        """
        self.forget_closed_device()
        self.streams = {**self.streams, stream.device_index: stream}
        self.gpu.streams[stream.device_index] = stream.stream_id
        note_in_ledger("use", stream)

    def remember_change(self) -> None:
        """Keep from which node on the streams of now are current, for a backward pass.

        The oldest changes are forgotten. Raises TorchLacks where this torch does not number nodes.
        """
        self.changes.append(StreamChange(_next_node_number(), self.streams))
        if len(self.changes) > 2 * _CHANGES_KEPT:
            del self.changes[:-_CHANGES_KEPT]


thread_streams: Final = _ThreadStreams()


def note_in_ledger(what: StreamEvent, stream: Any = None, argument: int = 0) -> int:
    """Write about a stream into the ledger of the open device; returns the row's number.

    Without a stream it is the current one. `argument` is what the event is about: a row, another
    stream, cycles. Returns -1 where no device is open. Raises CUDA's error after an assertion on
    the device has failed.
    """
    gpu = now.gpu
    if gpu is None:
        return -1
    if gpu.lost:
        raise device_assert_error()
    if stream is None:
        index = gpu.current
    else:
        index = stream.device_index
    if stream is None:
        stream = thread_streams.stream_on(index)
    if stream is None:
        stream_id = 0
    else:
        stream_id = stream.stream_id
    label = gpu.devices[index].label
    code, offset = site()
    row = StreamRow(
        at=perf_counter(),
        code=code,
        offset=offset,
        device=label,
        stream=stream_id,
        what=what,
        other=argument,
    )
    gpu.ledger.rows.append(row)
    return len(gpu.ledger.rows) - 1


def _modelled_seconds_between(first: int, second: int) -> float | None:
    """The modelled time between two events, by the rows in which they were recorded.

    None where times are measured, or where the clock does not know one of them.
    """
    if now.gpu is None:
        clock = None
    else:
        clock = now.gpu.clock()
    if clock is None:
        return None
    if first not in clock.events or second not in clock.events:
        return None
    return clock.events[second] - clock.events[first]


def _sleep_until(end: float) -> None:
    """Let the host really wait until a stream has slept; not if the device closes meanwhile.

    `end` is a moment of `time.perf_counter`.
    """
    while _sleep_ends:
        seconds = end - perf_counter()
        if seconds <= 0:
            return
        sleep(seconds)


def _wait_for_sleeping_streams(kind: str) -> None:
    """Let the host sleep as long as the wait that is about to be recorded takes.

    "synchronize" waits for all streams of the device, and most others for the current one. Those of
    a stream or an event have waited already.
    """
    gpu = now.gpu
    assert gpu is not None
    if kind == "synchronize":
        for (device_index, _), end in list(_sleep_ends.items()):
            if device_index == gpu.current:
                _sleep_until(end)
    elif kind not in ("stream.synchronize", "event.synchronize"):
        _sleep_until(current_stream_of()._busy_until)


def _keep_stream_busy(cycles: int) -> None:
    """`torch.cuda._sleep`: the current stream is busy for this many cycles.

    The ledger notes it. Without a chosen GPU the host will really wait for it; else the modelled
    clock counts it. Raises CUDA's error after an assertion on the device has failed.
    """
    gpu = now.gpu
    assert gpu is not None
    stream = current_stream_of()
    note_in_ledger("sleep", stream, cycles)
    if gpu.model is None:
        start = max(stream._busy_until, perf_counter())
        stream._stay_busy_until(start + cycles / CYCLES_PER_SECOND)
        if _wait_for_sleeping_streams not in gpu.on_wait:
            gpu.on_wait.append(_wait_for_sleeping_streams)


# ---- what torch.cuda asks C++ for ----------------------------------------------------------------


def _stream_in_cpp(stream_id: int, index: int) -> tuple[int, int, int]:
    """A stream as C++ hands it out: its id, the number and the type of its device."""
    return stream_id, index, Stream.device_type


def _current_id(index: int) -> int:
    """`torch._C._cuda_getCurrentRawStream`: the id of a device's current stream."""
    stream = thread_streams.stream_on(index)
    if stream is None:
        return 0
    return stream.stream_id


def _current_stream_in_cpp(index: int) -> tuple[int, int, int]:
    """`torch._C._cuda_getCurrentStream`; raises RuntimeError if there is no such device."""
    _require_device_index(index)
    return _stream_in_cpp(_current_id(index), index)


def _default_stream_in_cpp(index: int) -> tuple[int, int, int]:
    """`torch._C._cuda_getDefaultStream`; raises RuntimeError if there is no such device."""
    _require_device_index(index)
    return _stream_in_cpp(0, index)


def _set_stream(stream_id: int, device_index: int, device_type: int = 1) -> None:
    """`torch._C._cuda_setStream`: make a stream and its device the current ones.

    The ledger notes it, and a backward pass will know. Raises CUDA's error for a device that is not
    there, and after an assertion on the device has failed.
    """
    assert now.gpu is not None
    torch.cuda.set_device(device_index)
    thread_streams.use(Stream(stream_id=stream_id, device_index=device_index))
    thread_streams.remember_change()


def default_stream_of(device: Any = None) -> Stream:
    """The default stream of a device; of the current one if none is named.

    Raises CUDA's error for a device that is not there, and ValueError for what names none.
    """
    return Stream(device, stream_id=0)


def current_stream_of(device: Any = None) -> Stream:
    """The thread's current stream of a device; of the current device for None.

    Raises RuntimeError if there is no such device, and ValueError for what names none.
    """
    assert now.gpu is not None
    index = index_of(now.gpu, device)
    _require_device_index(index)
    return thread_streams.stream_on(index) or default_stream_of(device)


def _require_device_index(index: int) -> None:
    """Raise RuntimeError, as C++ does, if there is no device with this number."""
    if now.gpu is None:
        count = 0
    else:
        count = len(now.gpu.devices)
    if not 0 <= index < count:
        raise RuntimeError(f"Device index value {index} is out of index range [0, {count})")


def _record_stream(tensor: Any, s: Any) -> None:
    """`Tensor.record_stream`: a stream uses the tensor's memory, which is not freed before that.

    Raises RuntimeError for a host tensor, and for what is no stream.
    """
    if not tensor.is_cuda:
        raise RuntimeError("unsupported operation: record_stream on a CPU tensor")
    if not isinstance(s, Stream):
        raise RuntimeError("unknown parameter type")
    if tensor._virtual_block.size:
        layout = tensor._virtual_block.memory.make_layout()
        layout.record_stream(tensor._virtual_block, s)


_next_node_number: Final = find_internal("torch._C._autograd._get_sequence_nr", "torch.cuda.stream")


@torch_patches()
def _stream_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of streams and events: their classes, and what `torch.cuda` calls in C++.

    `opening` is told to forget the streams when a device closes.
    """
    opening.on_close.append(_sleep_ends.clear)
    opening.on_close.append(thread_streams.forget_closed_device)
    for module in (torch.cuda, torch.cuda.streams):
        yield module, "Event", Event
        yield module, "Stream", Stream
        yield module, "ExternalStream", ExternalStream
    yield torch, "Event", AnyEvent
    yield torch, "Stream", Stream
    in_cpp = {
        "_cuda_getCurrentStream": _current_stream_in_cpp,
        "_cuda_getDefaultStream": _default_stream_in_cpp,
        "_cuda_getCurrentRawStream": _current_id,
        "_cuda_getStreamFromExternal": _stream_in_cpp,
        "_cuda_setStream": _set_stream,
        "_cuda_sleep": _keep_stream_busy,
        "_accelerator_getStream": current_stream_of,
        "_accelerator_setStream": lambda s: _set_stream(s.stream_id, s.device_index),
    }
    for name, function in in_cpp.items():
        yield torch._C, name, function
    # Streams that DataParallel has made: those of a device that is closed are of no use.
    yield find_internal("torch.nn.parallel._functions"), "_streams", None
    yield torch.Tensor, "record_stream", _record_stream
