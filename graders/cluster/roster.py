"""Who is there, and may grade? Whoever comes is asked what it is first, and whoever goes is noticed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from graders.batch.scheduler import Work
from graders.cluster import crew
from graders.cluster.members import Member
from graders.cluster.parcels import Introduction, Versions
from graders.cluster.post import Disconnected, threads_of
from graders.errors import NoCluster

if TYPE_CHECKING:
    from distributed import Client

LOOKED: Final = 0.5  # seconds from one look at who is there to the next


@dataclass(frozen=True)
class Wishes:
    """What a run on a cluster goes by."""

    address: str  # of the scheduler
    day: str
    versions: Versions
    require_isolation: bool
    wait: float  # seconds without any worker
    tell: Callable[[str], None]
    watch: Callable[[list[Work]], None]


class Roster:
    """The workers of one connection: those that may grade, and those that may not."""

    def __init__(self, client: Client, wishes: Wishes) -> None:
        self.client, self.wishes = client, wishes
        self.members: dict[str, Member] = {}
        self.refused: dict[str, str] = {}
        self._meeting: dict[str, asyncio.Task[None]] = {}
        self._alone_since = time.monotonic()

    async def follow(self, tell: Callable[[dict[str, int] | Disconnected], None]) -> None:
        """Tell again and again who is there, until the scheduler cannot be asked any more."""
        while True:
            try:
                tell(await threads_of(self.client))
            except Disconnected as lost:
                tell(lost)
                return
            await asyncio.sleep(LOOKED)

    def there(self, threads: dict[str, int]) -> list[Member]:
        """Those are there now; gives the members that are not among them, and looks at who is new."""
        for address, count in threads.items():
            if address in self.members:
                self.members[address].threads = max(1, count)
            elif address not in self.refused and address not in self._meeting:
                self._meeting[address] = asyncio.create_task(self._meet(address, count))
        return [member for address, member in self.members.items() if address not in threads]

    async def _meet(self, address: str, threads: int) -> None:
        try:
            said: Introduction | str | None = (await crew.meet(self.client, [address], self.wishes.day)).get(address)
        except (OSError, RuntimeError, AttributeError):
            said = None  # whoever follows the scheduler finds out
        del self._meeting[address]
        if said is None:
            return
        why = crew.objection(said, self.wishes.versions, self.wishes.require_isolation)
        if why is None:
            self.members[address] = Member(address, max(1, threads))
        else:
            self.dismiss(address, why)

    def dismiss(self, address: str, why: str) -> None:
        """It gets nothing any more."""
        self.members.pop(address, None)
        self.refused[address] = why
        self.wishes.tell(f"the worker {address} is not used: {why}")

    def deserted(self, now: float) -> None:
        """Raises where nobody has been there for too long."""
        if self.members:
            self._alone_since = now
        elif now - self._alone_since > self.wishes.wait:
            why = next(iter(self.refused.values()), "")
            said = f"; one that is there cannot be used: {why}" if why else ""
            raise NoCluster(self.wishes.address, f"has had no workers for {self.wishes.wait:g} s{said}", kept=True)

    def close(self) -> None:
        for task in self._meeting.values():
            task.cancel()
