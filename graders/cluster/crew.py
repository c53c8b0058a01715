"""Which workers may grade? Those that have what the grader has, and the isolation that is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from graders.cluster.parcels import Introduction, Versions, unpack_introduction
from graders.errors import BadParcel
from graders.sandbox.layers import Layers, missing

if TYPE_CHECKING:
    from distributed import Client

ANSWER: Final = 60.0  # seconds for a worker to say what it is: it tries its fences out first


async def meet(client: Client, workers: Sequence[str], day: str) -> dict[str, Introduction | str]:
    """What each worker says of itself, or why it could not; nothing of those that are gone before they answer."""
    asking = client.run(_introducing(), day, workers=list(workers), on_error="return")
    try:
        answers = await asyncio.wait_for(asking, ANSWER)
    except TimeoutError:
        return dict.fromkeys(workers, f"it did not say within {ANSWER:g} s what it is") if len(workers) == 1 else {}
    found: dict[str, Introduction | str] = {}
    for worker, answer in answers.items():
        if isinstance(answer, OSError):
            continue
        if isinstance(answer, str):
            found[worker] = answer
            continue
        try:
            found[worker] = unpack_introduction(answer)
        except BadParcel as error:
            found[worker] = f"what it says of itself is damaged: {error}"
    return found


def _introducing() -> Callable[[str], Coroutine[Any, Any, bytes | str]]:
    """What a worker is asked to call, sent by value: one that has no gpudojo can say so."""

    async def introduced(day: str) -> bytes | str:
        try:
            from graders.cluster import worker

            return await worker.introduced(day)
        except ImportError as error:
            return f"gpudojo with its extra `cluster` is not installed there, or not this one ({error})"
        except Exception as error:
            return f"it could not say what it is ({type(error).__name__}: {error})"

    return introduced


def objection(said: Introduction | str, ours: Versions, require_isolation: bool) -> str | None:
    """Why a worker may not grade, if so."""
    if isinstance(said, str):
        return said
    differing = ours.difference(said.versions)
    if differing is not None:
        return differing
    lacking = missing(said.layers)
    if require_isolation and lacking:
        return f"--require-isolation: {'; '.join(lacking)}"
    return None


def held_by_all(crew: Mapping[str, Layers]) -> Layers:
    """The layers of a cluster: one holds if it does on every worker, and else it is said where not."""
    found: Layers = {}
    for worker, layers in crew.items():
        for name, why in layers.items():
            if why:
                found[name] = found.get(name) or f"{why} (on {worker})"
            else:
                found.setdefault(name, "")
    return found
