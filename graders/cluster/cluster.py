"""How are the works of a class run on a cluster? Over a connection to its scheduler, renewed when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from distributed import Client
from distributed.versions import VersionMismatchWarning

from graders.batch.attempt import Terms
from graders.batch.running import Watcher
from graders.batch.scheduler import Work
from graders.cluster import crew, parcels, post
from graders.cluster.errands import Errands
from graders.cluster.foreman import Foreman
from graders.cluster.parcels import Introduction
from graders.cluster.post import Disconnected
from graders.cluster.roster import Wishes
from graders.errors import BadWorker, NoCluster
from graders.sandbox.layers import Layers

FIRST: Final = 10.0  # seconds to reach a scheduler that has not been reached before
ONCE: Final = 5.0  # seconds for one try of several
SETBACKS: Final = 5  # connections lost, one right after another, without anything done between them
AGAIN: Final = 0.5  # seconds between two tries
OBJECT: Final = re.compile(r"^in <[^>]*>: ")  # where in distributed it happened, which tells nobody anything


T = TypeVar("T")


class Cluster:
    """A runner of works: the workers of a Dask scheduler, whoever has started them."""

    def __init__(self, address: str, wait: float = 60.0, require_isolation: bool = False) -> None:
        self.address = address_of(address)
        self.wait, self.require_isolation = wait, require_isolation

    def start(self, terms: Terms, watcher: Watcher) -> Layers:
        self.watcher, self.terms = watcher, terms
        self.versions = parcels.versions(terms.day)
        watcher.prepares(f"looking for workers at {self.address}")
        return asyncio.run(self._start())

    def run(self, works: Iterator[Work]) -> None:
        asyncio.run(self._run(Errands(works)))

    def close(self) -> None:
        """There is nothing to end: connections last as long as a run, and the workers are not ours."""

    async def _start(self) -> Layers:
        # An address that is wrong is told soon; a scheduler that was there once is worth waiting for.
        return await self._persistent(self._introduced, min(FIRST, self.wait), lambda: 0, kept=False)

    async def _introduced(self, client: Client) -> Layers:
        """Nothing is sent before every worker that is there has said that it can be used."""
        said = await self._first_workers(client)
        for worker, what in said.items():
            why = crew.objection(what, self.versions, self.require_isolation)
            if why is not None:
                raise BadWorker(worker, why)
        threads = await post.threads_of(client)
        count = f"{len(said)} worker{'s' * (len(said) != 1)}"
        self.watcher.prepares(f"{count}, {sum(threads.get(worker, 0) for worker in said)} submissions at once")
        return crew.held_by_all({worker: i.layers for worker, i in said.items() if isinstance(i, Introduction)})

    async def _first_workers(self, client: Client) -> dict[str, Introduction | str]:
        until = time.monotonic() + self.wait
        told = False
        while True:
            workers = list(await post.threads_of(client))
            try:
                said = await crew.meet(client, workers, self.terms.day) if workers else {}
            except post.LOST as error:
                raise Disconnected(str(error)) from None
            if said:
                return said
            if time.monotonic() > until:
                raise NoCluster(self.address, f"has no workers, and had none for {self.wait:g} s: start some first")
            if not told:
                self.watcher.prepares(f"waiting for workers at {self.address}")
                told = True
            await asyncio.sleep(AGAIN)

    async def _run(self, errands: Errands) -> None:
        wishes = Wishes(
            self.address,
            self.terms.day,
            self.versions,
            self.require_isolation,
            self.wait,
            self.watcher.prepares,
            self.watcher.under_way,
        )
        await self._persistent(
            lambda client: Foreman(client, wishes, errands).run(), self.wait, lambda: errands.done, kept=True
        )

    async def _persistent(
        self, deed: Callable[[Client], Awaitable[T]], seconds: float, done: Callable[[], int], kept: bool
    ) -> T:
        """What comes of a deed, which is begun again over another connection where one is lost.

        The scheduler is looked for so many seconds; once it has been there, as long as the grader is willing to wait.
        """
        asyncio.get_running_loop().set_exception_handler(_unheard)
        setbacks = 0
        while True:
            before = done()
            try:
                async with self._connected(seconds, kept) as client:
                    return await deed(client)
            except Disconnected as lost:
                setbacks = 1 if done() > before else setbacks + 1
                if setbacks > SETBACKS:
                    why = f"was lost {setbacks} times one after another ({lost})"
                    raise NoCluster(self.address, why, kept) from None
                seconds = self.wait
                self.watcher.prepares(f"the scheduler at {self.address} is lost; trying to reach it again")
                await asyncio.sleep(AGAIN)

    @contextlib.asynccontextmanager
    async def _connected(self, seconds: float, kept: bool) -> AsyncIterator[Client]:
        """A connection, tried for so long."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VersionMismatchWarning)  # workers are asked, and a sentence is made of it
            warnings.filterwarnings("ignore", "Sending large graph")  # a submission is as large as it is
            client = await self._reached(time.monotonic() + seconds, seconds, kept)
            _quiet()
            try:
                yield client
            finally:
                await _closed(client)

    async def _reached(self, until: float, seconds: float, kept: bool) -> Client:
        while True:
            try:
                return await _client(self.address, max(0.1, min(ONCE, until - time.monotonic())))
            except (OSError, TimeoutError) as error:
                if time.monotonic() > until:
                    cause = error.__cause__ or error
                    said = OBJECT.sub("", str(cause)).strip() or "it does not answer"
                    why = f"cannot be reached, tried for {seconds:g} s ({said})"
                    raise NoCluster(self.address, why, kept) from None
            except (ValueError, TypeError, RuntimeError, ImportError) as error:
                raise NoCluster(self.address, f"cannot be spoken to: {error}", kept) from None
            await asyncio.sleep(AGAIN)


async def _client(address: str, seconds: float) -> Client:
    client = Client(address, asynchronous=True, timeout=seconds, set_as_default=False)  # type: ignore[no-untyped-call]
    try:
        await client
    except BaseException:
        await _closed(client)
        raise
    return client


async def _closed(client: Client) -> None:
    with contextlib.suppress(OSError, TimeoutError, RuntimeError):
        await client.close(timeout=ONCE)  # type: ignore[no-untyped-call]


def address_of(given: str) -> str:
    """The address itself, or the one in the file that a scheduler writes when it is asked to."""
    path = Path(given)
    if not path.is_file():
        return given
    try:
        return str(json.loads(path.read_bytes())["address"])
    except (OSError, ValueError, KeyError, TypeError):
        raise NoCluster(given, "is not named there: it is no scheduler file") from None


def _unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Dask leaves tasks behind whose errors nobody hears, when data is lost with a worker; ours are all heard."""
    if not type(context.get("exception")).__module__.startswith("distributed"):
        loop.default_exception_handler(context)


def _quiet() -> None:
    """What Dask would write to the terminal is said by the display, or does not matter."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
