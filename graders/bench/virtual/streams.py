"""What are events and streams on a device that computes at once? Clocks and names."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
import torch.nn.parallel._functions

from graders.bench.virtual import syncs
from graders.bench.virtual.device_api import index_of
from graders.bench.virtual.places import CUDA, VirtualGpu, now


class AnyEvent:
    """`torch.Event`: remembers when it was recorded."""

    def __init__(
        self, device: Any = None, *, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self.enable_timing = enable_timing
        self.blocking = blocking
        self.interprocess = interprocess
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        syncs.note("event.synchronize", explicit=True)

    def elapsed_time(self, end_event: Any) -> float:
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return float(end_event._at - self._at) * 1e3

    @property
    def device(self) -> torch.device | None:
        return None if self._at is None or now.gpu is None else CUDA[now.gpu.current]

    @property
    def cuda_event(self) -> int:
        return id(self) if self._at is not None else 0

    def __repr__(self) -> str:
        return (
            f"<torch.cuda.Event {hex(self.cuda_event)}>" if self._at is not None else "<torch.cuda.Event uninitialized>"
        )


class Event(AnyEvent):
    """`torch.cuda.Event`, which needs no device to be named."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        super().__init__(enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


class Stream:
    """`torch.cuda.Stream`: in order by nature."""

    device_type = 1

    def __init__(self, device: Any = None, priority: int = 0, stream_id: int | None = None, **kwargs: Any) -> None:
        assert now.gpu is not None
        self.device_index = index_of(now.gpu, device)
        self.device = CUDA[self.device_index]
        self.priority = priority
        self.stream_id = id(self) if stream_id is None else stream_id

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    def synchronize(self) -> None:
        syncs.note("stream.synchronize", explicit=True, warned=True)

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.stream_id, self.device_index) == (
            other.stream_id,
            other.device_index,
        )

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={hex(self.cuda_stream)}>"

    def __enter__(self) -> Stream:
        _stack(self.device_index).append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _stack(self.device_index).pop()


for _cls in (Event, Stream):
    _cls.__module__ = "torch.cuda.streams"

_stacks: dict[int, list[Stream]] = {}


def _stack(index: int) -> list[Stream]:
    return _stacks.setdefault(index, [])


class Streams:
    """The functions of `torch.cuda` that hand out streams."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self.gpu = gpu
        _stacks.clear()

    def default(self, device: Any = None) -> Stream:
        return Stream(index_of(self.gpu, device), stream_id=0)

    def current(self, device: Any = None) -> Stream:
        stack = _stack(index_of(self.gpu, device))
        return stack[-1] if stack else self.default(device)

    def using(self, stream: Any) -> Any:
        return contextlib.nullcontext() if stream is None else _Using(stream)

    def set_stream(self, stream: Any) -> None:
        if stream is not None:
            stack = _stack(stream.device_index)
            stack[-1:] = [stream]

    def patches(self) -> list[tuple[Any, str, Any]]:
        made: list[tuple[Any, str, Any]] = [
            (torch.cuda, name, value)
            for name, value in {
                "Event": Event,
                "Stream": Stream,
                "current_stream": self.current,
                "default_stream": self.default,
                "stream": self.using,
                "set_stream": self.set_stream,
            }.items()
        ]
        made += [
            (torch.cuda.streams, "Event", Event),
            (torch.cuda.streams, "Stream", Stream),
            (torch, "Event", AnyEvent),
            (torch, "Stream", Stream),
            (torch.nn.parallel._functions, "_streams", None),
            (torch.accelerator, "current_stream", self.current),
            (torch.accelerator, "set_stream", self.set_stream),
            (torch.Tensor, "record_stream", _record_stream),
        ]
        return made


class _Using:
    """`with torch.cuda.stream(s)`."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        assert self.stream.device is not None
        self.stream.__enter__()

    def __exit__(self, *error: object) -> None:
        self.stream.__exit__(*error)


def _record_stream(self: Any, stream: Any) -> None:
    if not self.is_cuda:
        raise RuntimeError("unsupported operation: record_stream on a CPU tensor")
