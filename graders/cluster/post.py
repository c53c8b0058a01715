"""How does a parcel get to a worker, and its reply back? By functions sent by value: the scheduler needs no gpudojo."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from distributed.client import FutureCancelledError, FuturesCancelledError

if TYPE_CHECKING:
    from distributed import Client, Future

ANSWER: Final = 30.0  # seconds for the scheduler to say who is there
STOPPING: Final = 3.0  # seconds for the workers to hear that nobody waits any more
# What a client raises where its scheduler is gone; AttributeError: it has closed itself.
LOST: Final = (OSError, TimeoutError, RuntimeError, AttributeError)


class Disconnected(Exception):
    """The scheduler is gone, or has forgotten what it was asked."""


def errand_function() -> Callable[[bytes], bytes | str]:
    """What a worker is asked to call."""

    def attempted(parcel: bytes) -> bytes | str:
        try:
            from graders.cluster import worker

            return worker.attempted(parcel)
        except Exception as error:  # Dask would pickle it, and a client that cannot unpickle it would wait for ever
            return f"{type(error).__name__}: {error}"

    return attempted


async def fetched(future: Future[Any]) -> Any:
    """The reply, or the error that there is in its place."""
    try:
        return await future.result()
    except (FutureCancelledError, FuturesCancelledError) as error:
        return Disconnected(str(error))
    except Exception as error:
        return error


async def threads_of(client: Client) -> dict[str, int]:
    """Who is there, with how many threads; raises `Disconnected` where the scheduler does not say so in time."""
    try:
        found: dict[str, int] = await asyncio.wait_for(client.nthreads(), ANSWER)  # type: ignore[no-untyped-call]
    except LOST as error:
        raise Disconnected(str(error) or "it does not answer") from None
    return found


async def stop(client: Client, run: str, workers: Collection[str]) -> None:
    """Tell workers that nobody waits for that run any more; who does not hear it ends what it has, and it is lost."""

    def stopped(run: str) -> None:
        from graders.cluster import worker

        worker.stopped(run)

    with contextlib.suppress(*LOST):
        await asyncio.wait_for(client.run(stopped, run, workers=list(workers), on_error="ignore"), STOPPING)
