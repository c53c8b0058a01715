"""A child's end of the pipe that evidence is sent through."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from gpudojo.model.evidence import Observation
from gpudojo.sandbox import protocol
from gpudojo.sandbox.tampering.findings import WatchFinding


class ProbeObservation(NamedTuple):
    """What one probe saw. It is encoded at once, and sent with the evidence of its function."""

    probe: str
    seen: Observation


Sent = protocol.Frame | ProbeObservation


def make_sender(
    end: int, key: bytes, end_function: Callable[[], list[WatchFinding]]
) -> Callable[[Sent], None]:
    """Make a function that signs frames and writes them to a pipe.

    The key is kept only within a hash object. Before the evidence of a function it sends what
    student code has replaced meanwhile, as `end_function` tells it. What a probe saw is encoded
    when the function gets it, before more student code runs.
    """
    keyed_hash = hashlib.blake2b(key=key, digest_size=protocol.TOKEN)
    # By local names: student code may replace those of modules. A closure, since it could replace
    # a method.
    encode = msgspec.msgpack.Encoder().encode
    next_number = itertools.count().__next__
    pack_head = protocol.HEAD.pack
    pack_number = protocol.NUMBER.pack
    write = os.write
    exit_process = os._exit
    process_number = os.getpid
    own_process_number = os.getpid()
    signals: Any = signal  # Windows, where no child runs, lacks these names
    set_mask = signals.pthread_sigmask
    block = signals.SIG_BLOCK
    replace_mask = signals.SIG_SETMASK
    alarm = (signals.SIGALRM,)
    size_of = len
    view_of = memoryview
    type_of = type
    Saw = protocol.Saw
    Found = protocol.Found
    Began = protocol.Began
    Fact = protocol.Fact
    Probed = ProbeObservation
    Raw = msgspec.Raw
    replace = msgspec.structs.replace
    student_code_ran = False  # since names were compared
    observations: dict[str, msgspec.Raw] = {}  # of the function that is being observed, encoded
    # What student code does is told by the thread that does it.
    one_at_a_time = threading.RLock()

    def send(frame: Sent) -> None:
        """Sign and write a frame. What a probe saw waits, encoded, for its function's evidence.

        In a forked copy of the process it ends that process. Raises OSError if the pipe is closed.
        """
        if process_number() != own_process_number:  # a copy that student code has forked
            exit_process(0)
        # A time limit that ends in the middle of a frame would leave half of it in the pipe.
        mask_before = set_mask(block, alarm)
        try:
            with one_at_a_time:
                if type_of(frame) is Probed:
                    observations[frame.probe] = Raw(encode(frame.seen))  # type: ignore[union-attr]
                else:
                    send_frame(frame)  # type: ignore[arg-type]
        finally:
            set_mask(replace_mask, mask_before)

    def send_frame(frame: protocol.Frame) -> None:
        """Write a frame, before evidence also what student code was found to have replaced.

        What the probes of the function saw is put into its evidence.
        """
        nonlocal student_code_ran
        if type_of(frame) is Saw:
            # A function that is missing begins nothing, and from a step that did not begin nothing
            # else is accepted.
            if student_code_ran and not frame.interrupted:  # type: ignore[union-attr]
                for finding in end_function():
                    write_frame(Found(*finding))
            student_code_ran = False
            evidence = replace(frame.evidence, observations={**observations})  # type: ignore[union-attr]
            frame = replace(frame, evidence=evidence)
        if type_of(frame) is Began:
            student_code_ran = True
        if type_of(frame) is not Found and type_of(frame) is not Fact:
            observations.clear()
        write_frame(frame)

    def write_frame(frame: protocol.Frame) -> None:
        """Write a frame with its length and signature. Raises OSError if the pipe is closed."""
        body = encode(frame)
        signature = keyed_hash.copy()
        signature.update(pack_number(next_number()))
        signature.update(body)
        data = view_of(pack_head(size_of(body)) + signature.digest() + body)
        while data:
            data = data[write(end, data) :]

    return send
