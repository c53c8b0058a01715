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
from gpudojo.model.errors import CannotStartChild, ForkServerFailed
from gpudojo.sandbox.fork_client import ChildExit, ChildPipes, ForkClient
from gpudojo.sandbox.protocol import TOKEN

TICK: Final = SHORTEST_LOOK  # seconds: the longest sleep, and the time between two calls of `watch`
READ_SIZE: Final = 1 << 20  # bytes that are read at once
# Of the fork server in a row, after which something must be wrong with the machine.
MOST_DEATHS: Final = 5
# Of the machine in a row, to start a child; then it is told. Seconds between two attempts.
MOST_REFUSALS: Final = 5
PAUSE_AFTER_REFUSAL: Final = 0.5


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
        """Run nothing yet; `jobs` is how many children run at a time.

        The client's fork server is to be ready when `run` is called. `watch` is called now and then
        with the tasks under way; `bell` becomes readable when there is another task.
        """
        self.client = client
        self.jobs = jobs
        self.watch = watch
        self.bell = bell
        self.under_way: dict[int, GradingTask] = {}  # by number of the child
        self._selector = selectors.DefaultSelector()
        self._deaths = 0
        self._refusals = 0  # of the machine, to start a child, in a row
        self._standstill = StandstillWatch()

    def run(self, tasks: Iterator[GradingTask | None]) -> None:
        """Run tasks until none is left; `done` of each is called with its record.

        Raises ForkServerFailed where they cannot be run, and what making a task, `done` or `watch`
        raises. After any error, what is under way is ended.
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

        Returns False after the last one. Raises ForkServerFailed, and what making a task raises.
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

        The task is then under way, and its pipes are watched. With another fork server, all that
        was under way starts again. Where the machine lacks what a child needs, it is tried again.
        Raises ForkServerFailed after too many deaths of fork servers, and CannotStartChild where
        the machine goes on to lack it.
        """
        while True:
            try:
                job = task.run.make_job(secrets.token_bytes(TOKEN))
                pipes = self.client.spawn(job)
                break
            except ConnectionError:
                task.run.discount_child()
                self._replace_fork_server()
            except OSError as error:
                task.run.discount_child()
                self._pause_after_refusal(str(error.strerror or error))
        task.pipes = pipes
        self.under_way[pipes.number] = task
        for file, stream in ((pipes.evidence, "evidence"), (pipes.output, "output")):
            self._selector.register(file, selectors.EVENT_READ, _End(task, pipes, stream))

    def _pause_after_refusal(self, why: str) -> None:
        """Wait a little after the machine did not let a child start: others may end meanwhile.

        Raises CannotStartChild where that happened too often in a row.
        """
        self._refusals += 1
        if self._refusals > MOST_REFUSALS:
            raise CannotStartChild(why)
        time.sleep(PAUSE_AFTER_REFUSAL)

    def _handle_events(self) -> None:
        """Take in what children wrote and how they ended. Waits for it, at most for TICK.

        The task of a child that ended is finished, or gets another child; with another fork server,
        all start again. Raises ForkServerFailed after too many deaths of fork servers, and what
        `done` of a task raises.
        """
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
        """Take in what the fork server says of children: how they ended, and how long they waited.

        The task of a child that ended is finished, or gets another child; waiting puts off when a
        child has to end. Returns False where the fork server had ended and was started anew. Raises
        ForkServerFailed where that happened too often, and what `done` of a task raises.
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
        """Kill children whose time is over, and note that in their runs.

        What they wrote before has been read. `now` is in seconds of `time.monotonic`.
        """
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
        """Take in what is in a pipe, for the run of a task. Returns how many bytes that was.

        At the end of the pipe it is no longer watched. A child whose run accepts no more is killed.
        If this process stood still, all children have more time.
        """
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
        """Read the rest of what an ended child wrote, and close its pipes.

        Then finishes its task, which calls `done`, or starts another child for it, as for one that
        could not be forked. Raises ForkServerFailed, and what `done` raises.
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
        if child.code is None:
            task.run.discount_child()
            self._pause_after_refusal("the process could not be forked")
            self._start_child(task)
            return
        self._refusals = 0
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

        What was under way is started again. Raises ForkServerFailed after too many deaths, and
        CannotStartChild where the machine lacks what it needs.
        """
        self._deaths += 1
        if self._deaths > MOST_DEATHS:
            raise ForkServerFailed(f"it died {self._deaths} times in a row")
        lost = list(self.under_way.values())
        self.under_way.clear()
        for task in lost:
            self._close_pipes(task)
        self._unregister(self.client)
        try:
            self.client.restart()
        except OSError as error:
            raise CannotStartChild(str(error.strerror or error)) from error
        self._selector.register(self.client, selectors.EVENT_READ)
        for task in lost:
            task.run.discount_child()
            self._start_child(task)
