"""Streams and events of the virtual device.

All work is done at once, except what `torch.cuda._sleep` does. The ledger notes how streams wait
for each other, and the modelled clock reads that.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from time import perf_counter, sleep
from typing import Any, Final

import torch
import torch.nn.parallel

from virtual_cuda.clock.lanes import CYCLES_PER_SECOND
from virtual_cuda.device.cuda_errors import cuda_error, device_assert_error, invalid_ordinal_error
from virtual_cuda.device.state import CUDA, VirtualGpu, index_of, now
from virtual_cuda.device.tensor import Plan, operator_hooks
from virtual_cuda.internals import find_internal
from virtual_cuda.ledger.rows import StreamEvent, StreamRow
from virtual_cuda.ops import placement
from virtual_cuda.patching import Opening, Patch, torch_patches
from virtual_cuda.recorder import site

_POOL: Final = 32  # streams of one priority on a device; the next one is the first again
_PRIORITIES: Final = (0, -3)  # the least and the greatest that torch has streams for
_HANDLE: Final = 64  # bytes of a handle that other processes make an event of
_REMEMBERED: Final = 4096  # changes of the current stream that a backward pass looks back on


class _Handle:
    """Base of what stands for something of the driver: it cannot be copied or pickled."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        name = "torch.Event" if type(self) is AnyEvent else type(self).__name__
        raise TypeError(f"cannot pickle '{name}' object")


def _check_stream(stream: Any) -> None:
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
        self._at: float | None = None
        self._row = -1  # where the ledger says that it was recorded
        self._index: int | None = None  # the device it was recorded on

    def record(self, stream: Any = None) -> None:
        """Note that a stream has reached this event.

        Raises RuntimeError for a stream of another device than before.
        """
        _check_stream(stream)
        self._at = perf_counter()
        if now.gpu is None:
            return
        stream = stream or _current()
        if self._index not in (None, stream.device_index):
            raise RuntimeError(
                f"Event device {self._index} does not match recording stream's device {stream.device_index}."
            )
        self._index = stream.device_index
        self._at = max(self._at, stream._busy_until)
        self._row = _note("record", stream)

    def wait(self, stream: Any = None) -> None:
        _check_stream(stream)
        if now.gpu is not None and self._at is not None:
            stream = stream or _current()
            stream._busy_until = self._at
            _note("wait", stream, self._row)

    def query(self) -> bool:
        """True if the device has reached the event.

        Asking takes modelled time, so that a loop that asks comes to an end.
        """
        if self._is_reached():
            return True
        if now.gpu is not None:
            now.gpu.spend_on_asking()
        return False

    def _is_reached(self) -> bool:
        clock = None if now.gpu is None else now.gpu.clock()
        if clock is not None:
            return clock.is_reached(self._row)
        return self._at is None or self._at <= perf_counter()

    def synchronize(self) -> None:
        _note("synchronize_event", None, self._row)
        _wait_until(self._at or 0.0)
        placement.note("event.synchronize", explicit=True)

    def elapsed_time(self, end_event: Any) -> float:
        """The milliseconds from this event to another one; modelled where a GPU was chosen.

        Raises ValueError and RuntimeError, as CUDA does, for events that were not recorded, not
        reached or not made for timing.
        """
        if not isinstance(end_event, AnyEvent) or isinstance(self, Event) is not isinstance(
            end_event, Event
        ):
            kind = "torch.cuda.Event" if isinstance(self, Event) else "torch.Event"
            raise RuntimeError(f"expected other to be a {kind} object")
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if self._index != end_event._index:
            raise cuda_error("invalid resource handle", "InvalidResourceHandle")
        if not (self._is_reached() and end_event._is_reached()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        clock = None if now.gpu is None else now.gpu.clock()
        if clock is not None and self._row in clock.events and end_event._row in clock.events:
            return (clock.events[end_event._row] - clock.events[self._row]) * 1e3
        return float(end_event._at - self._at) * 1e3

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
        if self._at is None or now.gpu is None:
            return None
        return CUDA[now.gpu.current if self._index is None else self._index]

    @property
    def event_id(self) -> int:
        return id(self) if self._at is not None else 0

    @property
    def cuda_event(self) -> int:
        return self.event_id

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_event)

    def __repr__(self) -> str:
        index = -1 if self._index is None else self._index
        flag = 0 if self.enable_timing else 2
        return f"torch.Event device_type=cuda, device_index={index}, event_flag={flag}, event_id={self.event_id}"


class Event(AnyEvent):
    """`torch.cuda.Event`, which needs no device to be named."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        super().__init__(enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)

    def ipc_handle(self) -> bytes:
        """Bytes of which another process makes the event.

        Raises CUDA's error for an event that was not made for that.
        """
        if self.interprocess and self.enable_timing:
            raise cuda_error("invalid argument", "InvalidValue")
        if not self.interprocess:
            raise cuda_error("invalid resource handle", "InvalidResourceHandle")
        if self._index is None and now.gpu is not None:
            self._index = now.gpu.current
        return (
            os.getpid().to_bytes(8, "little") + id(self).to_bytes(8, "little") + bytes(_HANDLE - 16)
        )

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Any:
        """An event of another process.

        What that recorded is done: nothing runs later than the call that starts it. Raises
        RuntimeError for bytes that are no handle, or one of this process.
        """
        if len(handle) != _HANDLE:
            raise RuntimeError(
                f"cudaIpcEventHandle_t expects byte-like object of size {_HANDLE}, but got {len(handle)}"
            )
        if int.from_bytes(handle[:8], "little") == os.getpid():
            raise cuda_error("invalid device context", "DeviceUninitialized")
        made = cls(interprocess=True)
        made._index = None if now.gpu is None else index_of(now.gpu, device)
        made._at = 0.0
        return made

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {'uninitialized' if self._at is None else hex(self.cuda_event)}>"


class Stream(_Handle):
    """`torch.cuda.Stream`, whose work is in order by nature.

    Two objects with one device and one id are the same stream.
    """

    device_type = 1

    def __init__(
        self, device: Any = None, priority: int = 0, *, stream_id: int | None = None, device_index: int | None = None,
        device_type: int = 1, stream_ptr: int | None = None,
    ) -> None:  # fmt: skip
        """Take the next stream of the device's pool, or the one that is named by its id.

        Raises CUDA's error for a device that is not there.
        """
        assert now.gpu is not None
        index = index_of(now.gpu, device) if device_index is None else device_index
        if device_index is None and index >= len(now.gpu.devices):
            raise invalid_ordinal_error()
        self.device_index = now.gpu.current if index < 0 and device_index is None else index
        # The next one of the pool; its id tells its number there and its priority.
        if stream_id is None:
            self.priority = min(max(priority, _PRIORITIES[1]), _PRIORITIES[0])
            stream_id = stream_ptr
            if stream_id is None:
                number = next(_numbers[self.device_index, self.priority]) % _POOL
                stream_id = number << 5 | 3 - 2 * self.priority
        else:  # as C++ makes it: the priority is in the id of a stream of a pool
            self.priority = 0 if stream_id > _POOL << 5 else min((3 - (stream_id & 31)) // 2, 0)
        self.stream_id: int = stream_id

    @property
    def device(self) -> torch.device:
        return CUDA[self.device_index]

    @property
    def cuda_stream(self) -> int:
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
        return _busy.get((self.device_index, self.stream_id), 0.0)

    @_busy_until.setter
    def _busy_until(self, at: float) -> None:
        if at > self._busy_until:
            _busy[self.device_index, self.stream_id] = at

    def synchronize(self) -> None:
        _note("synchronize", self)
        _wait_until(self._busy_until)
        placement.note("stream.synchronize", explicit=True, warned=True)

    def wait_stream(self, stream: Any) -> None:
        self._busy_until = stream._busy_until
        _note("wait_stream", self, stream.stream_id)

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def query(self) -> bool:
        """True if the stream has done its work; asking takes modelled time."""
        gpu = now.gpu
        clock = None if gpu is None else gpu.clock()
        if gpu is None or clock is None:
            return self._busy_until <= perf_counter()
        if clock.is_idle(gpu.devices[self.device_index].label, self.stream_id):
            return True
        gpu.spend_on_asking()
        return False

    def is_capturing(self) -> bool:
        return capture.graph is not None

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Stream)
            and self.stream_id == other.stream_id
            and self.device == other.device
        )

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={hex(self.cuda_stream)}>"

    def __enter__(self) -> Stream:
        _thread.outer.append(torch.cuda.StreamContext(self))  # type: ignore[arg-type]
        _thread.outer[-1].__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        _thread.outer.pop().__exit__(*error)


class ExternalStream(Stream):
    """A stream of another library, known by its address."""

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
        super().__init__(device, stream_ptr=stream_ptr)


for _cls in (Event, Stream, ExternalStream):
    _cls.__module__ = "torch.cuda.streams"

_numbers: Final[defaultdict[tuple[int, int], Iterator[int]]] = defaultdict(itertools.count)
_busy: Final[dict[tuple[int, int], float]] = {}  # device and stream -> when `_sleep` there ends


class _Capture:
    """The capture of a CUDA graph that is under way in this process: CUDA allows one."""

    graph: Any = None


capture: Final = _Capture()


class _Thread(threading.local):
    """The streams in use; as in CUDA, each thread has its own."""

    def __init__(self) -> None:
        self.gpu: Any = None
        self.streams: dict[int, Stream] = {}
        self.outer: list[Any] = []
        # When these changed, in autograd's numbers of the thread's nodes, and what they were from
        # then on.
        self.changes: list[tuple[int, dict[int, Stream]]] = []

    def current(self, index: int) -> Stream | None:
        if self.gpu is not now.gpu:  # those of a device that is closed
            self.gpu = now.gpu
            self.streams = {}
            self.changes = []
        return self.streams.get(index)

    def use(self, stream: Stream) -> None:
        self.current(0)
        self.streams = {**self.streams, stream.device_index: stream}
        self.gpu.streams[stream.device_index] = stream.stream_id
        _note("use", stream)


_thread: Final = _Thread()


def _note(what: StreamEvent, stream: Any = None, other: int = 0) -> int:
    """Write about a stream into the ledger of the open device; returns the row's number.

    Without a stream it is the current one. Returns -1 where no device is open. Raises CUDA's error
    after an assertion on the device has failed.
    """
    gpu = now.gpu
    if gpu is None:
        return -1
    if gpu.lost:
        raise device_assert_error()
    index = gpu.current if stream is None else stream.device_index
    used = stream or _thread.current(index)
    rows = gpu.ledger.rows
    label = gpu.devices[index].label
    number = 0 if used is None else used.stream_id
    code, offset = site()
    rows.append(StreamRow(perf_counter(), code, offset, label, number, what, other))
    return len(rows) - 1


def _wait_until(at: float) -> None:
    """Let the host wait until a stream has slept."""
    while (left := at - perf_counter()) > 0 and _busy:
        sleep(left)


def _before_wait(kind: str) -> None:
    """Let the host sleep as long as the wait that is about to be recorded takes.

    "synchronize" waits for all streams of the device, and most others for the current one. Those of
    a stream or an event have waited already.
    """
    gpu = now.gpu
    assert gpu is not None
    if kind == "synchronize":
        _wait_until(
            max((at for (device, _), at in _busy.items() if device == gpu.current), default=0.0)
        )
    elif kind not in ("stream.synchronize", "event.synchronize"):
        _wait_until(_current()._busy_until)


def _sleep(cycles: int) -> None:
    """`torch.cuda._sleep`: the current stream is busy for this many cycles."""
    gpu = now.gpu
    assert gpu is not None
    stream = _current()
    _note("sleep", stream, cycles)
    if gpu.model is None:
        stream._busy_until = max(stream._busy_until, perf_counter()) + cycles / CYCLES_PER_SECOND
        if _before_wait not in gpu.on_wait:
            gpu.on_wait.append(_before_wait)


# ---- what torch.cuda asks C++ for ----------------------------------------------------------------


def _packed(stream: Stream | None, index: int) -> tuple[int, int, int]:
    return (0 if stream is None else stream.stream_id), index, Stream.device_type


def _set_stream(stream_id: int, device_index: int, device_type: int = 1) -> None:
    assert now.gpu is not None
    torch.cuda.set_device(device_index)
    _thread.use(Stream(stream_id=stream_id, device_index=device_index))
    _thread.changes.append((_next_node_number(), _thread.streams))
    del _thread.changes[: -_REMEMBERED if len(_thread.changes) > 2 * _REMEMBERED else 0]


def _default_of(device: Any = None) -> Stream:
    return Stream(device, stream_id=0)


def _current(device: Any = None) -> Stream:
    assert now.gpu is not None
    return _thread.current(_in_range(index_of(now.gpu, device))) or _default_of(device)


def _in_range(index: int) -> int:
    count = 0 if now.gpu is None else len(now.gpu.devices)
    if not 0 <= index < count:
        raise RuntimeError(f"Device index value {index} is out of index range [0, {count})")
    return index


def _record_stream(self: Any, s: Any) -> None:
    if not self.is_cuda:
        raise RuntimeError("unsupported operation: record_stream on a CPU tensor")
    if not isinstance(s, Stream):
        raise RuntimeError("unknown parameter type")
    if self._block.size:
        self._block.device.memory.make_layout().record_stream(self._block, s)


# ---- a backward pass runs on the streams of the forward pass -------------------------------------


class _Backward:
    """One backward pass of a thread that has used several streams."""

    def __init__(self) -> None:
        self.began = dict(_thread.streams)
        self.used: set[Stream] = set()

    def follow(self, number: int) -> None:
        """Use the streams that were in use when the node with this number was made.

        Each waits for the one that was in use before it.
        """
        place = bisect.bisect_right(_thread.changes, number, key=lambda change: change[0])
        wanted = _thread.changes[place - 1][1] if 0 < place <= len(_thread.changes) else {}
        # A leaf's node has the greatest number there is.
        if number > _thread.changes[-1][0] + (1 << 40):
            wanted = self.began
        for index in {*wanted, *_thread.streams}:
            before = _thread.streams.get(index)
            stream = wanted.get(index) or _default_of(index)
            if stream != (before or _default_of(index)):
                _thread.use(stream)
                stream.wait_stream(before or _default_of(index))
                self.used.add(stream)

    def run_operator(self, func: Any, plan: Plan, args: Any, kwargs: Any) -> Any:
        """Run an operator, on the streams of its node if it is of this pass."""
        node = _current_node() if _running.backward is self else None
        if node is not None:
            self.follow(node._sequence_nr())
        return plan(args, kwargs)

    def end(self) -> None:
        for index in dict(_thread.streams):
            _thread.use(self.began.get(index) or _default_of(index))
        for stream in self.used:
            _current(stream.device_index).wait_stream(stream)


class _RunningStream(threading.local):
    backward: _Backward | None = None


_running: Final = _RunningStream()


@contextlib.contextmanager
def on_streams_of_forward() -> Iterator[None]:
    """Run a backward pass on its forward pass's streams, for the length of a `with` block.

    Afterwards the streams of before are in use, and wait for those. Does nothing if the thread has
    never changed its stream, while a graph is captured, or inside another backward pass.
    """
    _thread.current(0)
    if not _thread.changes or capture.graph is not None or _running.backward is not None:
        yield
        return
    _running.backward = backward = _Backward()
    operator_hooks.append(backward.run_operator)
    try:
        yield
    finally:
        _running.backward = None
        operator_hooks.remove(backward.run_operator)
        backward.end()


def use_streams_of_node(node: Any) -> None:
    """Use the streams that a node's forward used, if a backward pass follows those.

    Called before a student's own `autograd.Function.backward`.
    """
    if _running.backward is not None:
        _running.backward.follow(node._sequence_nr())


_next_node_number: Final = find_internal("torch._C._autograd._get_sequence_nr", "torch.cuda.stream")
_current_node: Final = find_internal("torch._C._current_autograd_node", otherwise=lambda: None)


def tf32_allowed() -> bool:
    """True if products of float32 may use tensor cores.

    torch's old name for this may raise once the new one was used.
    """
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def _noting_tf32(setter: Any) -> Any:
    """A function that calls `setter`; the ledger says from where on products may use TF32."""

    def noted(*args: Any) -> Any:
        before = tf32_allowed()
        result = setter(*args)
        if tf32_allowed() is not before:
            _note("tf32", other=int(not before))
        return result

    return noted


_PRECISION: Final = (
    "_set_cublas_allow_tf32",
    "_set_float32_matmul_precision",
    "_set_fp32_precision_setter",
)


def _begun(gpu: VirtualGpu) -> tuple[Patch, ...]:
    """Note what was allowed before the device was opened; replaces nothing."""
    if tf32_allowed():
        at = perf_counter()
        gpu.ledger.rows.append(StreamRow(at, None, None, "cuda:0", 0, "tf32", 1))
    return ()


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    """The patches of streams, events and the settings of TF32."""
    opening.closing.append(_busy.clear)
    opening.again.append(_begun)
    opening.closing.append(lambda: _thread.current(0))  # forgets the device
    _begun(opening.gpu)
    for name in filter(partial(hasattr, torch._C), _PRECISION):
        yield torch._C, name, _noting_tf32(getattr(torch._C, name))
    # Classes, and the functions in C++ that torch.cuda calls.
    for home in (torch.cuda, torch.cuda.streams, torch):
        yield home, "Event", AnyEvent if home is torch else Event
        yield home, "Stream", Stream
    yield torch.cuda, "ExternalStream", ExternalStream
    yield torch.cuda.streams, "ExternalStream", ExternalStream
    internals = {
        "_cuda_getCurrentStream": lambda index: _packed(_thread.current(_in_range(index)), index),
        "_cuda_getDefaultStream": lambda index: _packed(None, _in_range(index)),
        "_cuda_getCurrentRawStream": lambda index: _packed(_thread.current(index), index)[0],
        "_cuda_getStreamFromExternal": lambda pointer, index: (pointer, index, Stream.device_type),
        "_cuda_setStream": _set_stream,
        "_cuda_sleep": _sleep,
        "_accelerator_getStream": _current,
        "_accelerator_setStream": lambda s: _set_stream(s.stream_id, s.device_index),
    }
    yield from ((torch._C, name, value) for name, value in internals.items())
    yield find_internal("torch.nn.parallel._functions"), "_streams", None
    yield torch.Tensor, "record_stream", _record_stream
