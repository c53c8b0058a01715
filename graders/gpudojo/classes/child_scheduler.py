"""Runs tasks in children of a fork server, several at once."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from gpudojo.classes.runners import GradingTask
from gpudojo.classes.standstill import SHORTEST_LOOK, StandstillWatch
from gpudojo.classes.submission_run import LONG_STANDSTILL
from gpudojo.model.errors import ForkServerFailed
from gpudojo.sandbox.fork_client import ChildExit, ChildPipes, ForkClient
from gpudojo.sandbox.protocol import TOKEN

TICK: Final = SHORTEST_LOOK  # seconds: the longest sleep, and the time between two calls of `watch`
READ_SIZE: Final = 1 << 20  # bytes that are read at once
# Of the fork server in a row, after which something must be wrong with the machine.
MOST_DEATHS: Final = 5


class _End(NamedTuple):
    """The grader's end of a pipe from a child."""

    task: GradingTask
    pipes: ChildPipes
    stream: str  # "evidence" or "output"


class ChildScheduler:
    """Runs tasks in children of one fork server, `jobs` at a time.

    `watch` is called now and then with the tasks that are under way. Where tasks arrive over time,
    None stands for none at the moment, and `bell`, a socket, becomes readable when there is
    another one.
    """

    def __init__(
        self,
        client: ForkClient,
        jobs: int,
        watch: Callable[[list[GradingTask]], None] = lambda under_way: None,
        bell: socket.socket | None = None,
    ) -> None:
        self.client = client
        self.jobs = jobs
        self.watch = watch
        self.bell = bell
        self.under_way: dict[int, GradingTask] = {}  # by number of the child
        self._selector = selectors.DefaultSelector()
        self._deaths = 0
        self._standstill = StandstillWatch()

    def run(self, tasks: Iterator[GradingTask | None]) -> None:
        """Run tasks until none is left.

        Raises ForkServerFailed where they cannot be run. After any error, what is under way is
        ended.
        """
        self._selector.register(self.client, selectors.EVENT_READ)
        if self.bell is not None:
            self._selector.register(self.bell, selectors.EVENT_READ)
        self._standstill = StandstillWatch()
        last_watch = 0.0
        try:
            more = self._start_what_fits(tasks)
            while more or self.under_way:
                self._handle_events()
                now = time.monotonic()
                self._end_overdue(now)
                if now - last_watch >= TICK:
                    last_watch = now
                    self.watch(list(self.under_way.values()))
                if more:
                    more = self._start_what_fits(tasks)
        finally:
            # Something is under way here only after an error.
            for task in self.under_way.values():
                if task.pipes is not None:
                    self.client.kill(task.pipes.number)
                    task.pipes.close()
            self._selector.close()

    def _start_what_fits(self, tasks: Iterator[GradingTask | None]) -> bool:
        """Start tasks until there is no room or none at the moment.

        Returns False after the last one.
        """
        while len(self.under_way) < self.jobs:
            try:
                task = next(tasks)
            except StopIteration:
                return False
            if task is None:
                return True
            self._start_child(task)
        return True

    def _start_child(self, task: GradingTask) -> None:
        """Start a child for a task, if need be with another fork server.

        Raises ForkServerFailed after too many deaths of fork servers.
        """
        while True:
            try:
                job = task.run.make_job(secrets.token_bytes(TOKEN))
                pipes = self.client.spawn(job)
                break
            except OSError:
                task.run.discount_child()
                self._replace_fork_server()
        task.pipes = pipes
        self.under_way[pipes.number] = task
        for file, stream in ((pipes.evidence, "evidence"), (pipes.output, "output")):
            self._selector.register(file, selectors.EVENT_READ, _End(task, pipes, stream))

    def _handle_events(self) -> None:
        """Take in what children wrote and how they ended. Waits for it, at most for TICK."""
        ready = self._selector.select(TICK)
        self._excuse_standstill()
        for key, _ in ready:
            if key.fileobj is self.bell:
                assert self.bell is not None
                self.bell.recv(READ_SIZE)
            elif key.fileobj is not self.client:
                end = key.data
                if end.task.pipes is end.pipes:  # else it has ended since
                    self._read_pipe(end.task, end.stream, key.fd)
            elif not self._handle_exits():
                return

    def _handle_exits(self) -> bool:
        """Take in what the fork server says of children.

        Returns False where the fork server had ended and was started anew. Raises ForkServerFailed
        where that happened too often.
        """
        events = self.client.read_events()
        if events is None:
            self._replace_fork_server()
            return False
        for event in events:
            if isinstance(event, ChildExit):
                self._finish_child(event)
            elif event.number in self.under_way:
                self.under_way[event.number].run.note_waiting(event.seconds)
        return True

    def _end_overdue(self, now: float) -> None:
        """End children whose time is over. What they wrote before has been read."""
        for task in self.under_way.values():
            if task.pipes is None or task.run.killed_by_us:
                continue
            if task.run.is_overdue(now):
                task.run.killed_by_us = True
                self.client.kill(task.pipes.number)

    def _excuse_standstill(self) -> None:
        """Put off what children have to end by, if this process stood still."""
        seconds = self._standstill.measure_standstill()
        if seconds >= LONG_STANDSTILL:
            for task in self.under_way.values():
                task.run.postpone_deadline(seconds)

    def _read_pipe(self, task: GradingTask, stream: str, file: int) -> int:
        """Take in what is in a pipe. Returns how many bytes that was."""
        try:
            data = os.read(file, READ_SIZE)
        except BlockingIOError:
            return 0
        # It may have stood still since the last look, as while another submission was judged.
        self._excuse_standstill()
        if not data:
            self._unregister(file)
        elif stream == "output":
            task.run.add_output(data)
        elif not task.run.receive_bytes(data) and task.pipes is not None:
            self.client.kill(task.pipes.number)
        return len(data)

    def _finish_child(self, child: ChildExit) -> None:
        """Read the rest of what an ended child wrote.

        Then finishes its task, or starts another child for it.
        """
        task = self.under_way.get(child.number)
        if task is None:
            return
        assert task.pipes is not None
        self._deaths = 0
        for file, stream in ((task.pipes.evidence, "evidence"), (task.pipes.output, "output")):
            if file in self._selector.get_map():
                while self._read_pipe(task, stream, file):
                    pass
        del self.under_way[child.number]
        self._close_pipes(task)
        task.peak_bytes = max(task.peak_bytes, child.peak_bytes)
        task.device_bytes = max(task.device_bytes, child.device_bytes)
        task.cpu_seconds += child.cpu_seconds
        if task.run.note_child_exit(child.code, child.over_memory, child.on_gpu):
            self._start_child(task)
        else:
            record = task.run.finish_record(task.peak_bytes, task.cpu_seconds, task.device_bytes)
            task.done(record)

    def _close_pipes(self, task: GradingTask) -> None:
        """Stop reading from the child of a task, and close its pipes."""
        assert task.pipes is not None
        self._unregister(task.pipes.evidence)
        self._unregister(task.pipes.output)
        task.pipes.close()
        task.pipes = None

    def _unregister(self, file: int | ForkClient) -> None:
        """Stop waiting for a file, if that was not done before."""
        # KeyError: it was unregistered before. ValueError: the fork server has no socket any more.
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(file)

    def _replace_fork_server(self) -> None:
        """Start another fork server, after the last one ended with all its children.

        What was under way is started again. Raises ForkServerFailed after too many deaths.
        """
        self._deaths += 1
        if self._deaths > MOST_DEATHS:
            raise ForkServerFailed(f"it died {self._deaths} times in a row")
        lost = list(self.under_way.values())
        self.under_way.clear()
        for task in lost:
            self._close_pipes(task)
        self._unregister(self.client)
        self.client.restart()
        self._selector.register(self.client, selectors.EVENT_READ)
        for task in lost:
            task.run.discount_child()
            self._start_child(task)
