"""What holds of a compacted topic of transactions at the end: before markers and removals are forgotten, and after.

Forgetting is safe only once no replica is away, so it is allowed at the end alone. Then all replicas of the topic and
all coordinators are restarted, and recover from what cleaners have left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from raylog.base.errors import RaylogError
from raylog.client.admin.admin import AsyncAdmin
from raylog.core.controller.coordinators import INTERNAL_TOPICS
from tests.simulation.whole.books import At
from tests.simulation.whole.clients import LAST_API_S, Client
from tests.simulation.whole.compaction.leftovers import dirty_table, uncleaned_coordinator
from tests.simulation.whole.transactions.account_clients import AccountReader, reader_of_accounts
from tests.simulation.whole.transactions.clients import Transactor, summed_up
from tests.simulation.whole.transactions.logs import check_cleaned, entries_of
from tests.simulation.whole.transactions.part import ACCOUNTS
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.cluster import Actor
    from tests.simulation.whole.world import World

Until = Callable[[str, Callable[[], Awaitable[str]]], Awaitable[None]]
"""Waits until a function returns "", which otherwise names what is missing."""
ROUNDS: Final = 3
"""Cleanings at the end: one stamps markers with the time of their removal, a later one removes them."""
LAST_TXNS: Final = 4
"""Transactions before each, which fill segments."""
FORGETFUL: Final = {
    "delete.retention.ms": "0",
    "segment.bytes": "1024",
    "min.cleanable.dirty.ratio": "0.01",
    "cleanup.policy": "compact",
}


class AccountFinish:
    """The last clients of the compacted topic."""

    def __init__(self, world: World, until: Until) -> None:
        """One for a world, when it is quiet."""
        assert world.transactions is not None
        self._world, self._part, self._until = world, world.transactions, until
        self._client = Client(world, "finish")
        self._reader = AccountReader(world, "the last account reader")

    async def read(self) -> dict[At, dict[int, bytes]]:
        """Read everything, and check what has to be there: names by offset."""
        found: dict[At, dict[int, bytes]] = {}
        for at in self._part.accounts:
            self._world.waits_for = f"the last reader of committed records is at the end of {at}"
            consumer = reader_of_accounts()
            await self._client.call("start", consumer.start(), LAST_API_S)
            found[at] = await self._reader.read_through(consumer, at)
            await self._client.call("stop", consumer.stop(), 35.0)
        self._part.account_books.check_last(found)
        return found

    def check_sums(self, read: dict[At, dict[int, bytes]]) -> None:
        """The copiers' sums are those of the group's committed offsets."""
        part = self._part
        if not part.accounts:
            return
        sums = {(part.account_of(at), summed_up(at)): b"%d" % part.ledger.known_offset(at) for at in part.inputs}
        part.account_books.check_sums(read, sums)

    async def are_cleaned(self) -> str:
        """Return a replica of the topic, or of a coordinator's, that has something to clean."""
        observer = self._world.observer
        return dirty_table(observer, self._part.accounts) or uncleaned_coordinator(observer)

    async def age(self, whole: Callable[[], Awaitable[str]]) -> None:
        """Forget removals and markers, restart everything that has a cleaned log, and read it again."""
        await self._until("no replica is away", whole)
        self._part.account_books.forgets = True
        await self._until("removals are forgotten", self._forget)
        keeper = Transactor(self._world, "last-keeper", "last-keeper")
        producer = await keeper.begun()
        assert producer is not None
        for number in range(ROUNDS * LAST_TXNS):
            txn = self._part.ledger.begin(f"last transaction {number}")
            try:
                await producer.begin_transaction()
                for at in self._part.accounts:
                    await keeper.put(producer, txn, at, filler=300)
                if number % 3 == 2:
                    await keeper.abort(producer, txn)
                else:
                    await keeper.commit(producer, txn)
            except RaylogError as error:
                raise Violation("W16", f"no transaction ends although all is as it should be: {error!r}") from error
            if number % LAST_TXNS == LAST_TXNS - 1:
                await self._until("cleaners have forgotten", self.are_cleaned)
        await keeper.ended(producer)
        self._restart()
        await self._until("what was killed serves again", self._is_back)
        await self._until("every partition is whole after a restart", whole)
        self.check_logs()

    async def _forget(self) -> str:
        admin = AsyncAdmin()
        try:
            await self._client.call("start", admin.start(), LAST_API_S)
            await self._client.call("configure", admin.alter_topic_config(ACCOUNTS, FORGETFUL), LAST_API_S)
        except RaylogError as error:
            return repr(error)
        finally:
            await admin.stop()
        return ""

    def _actors(self) -> list[Actor]:
        """Return all replicas of the topic and of coordinators' topics, and all coordinators."""
        coordinated = [f"replica:{topic}-" for topic in sorted(INTERNAL_TOPICS.values())]
        names = (f"replica:{ACCOUNTS}-", *coordinated, "coordinator-")
        return [actor for name in names for actor in self._world.cluster.named(name)]

    def _restart(self) -> None:
        for actor in self._actors():
            if actor.process is not None:
                actor.process.kill("restarted at the end")

    async def _is_back(self) -> str:
        return next((f"{actor.name} does not serve" for actor in self._actors() if not actor.serves), "")

    def check_logs(self) -> None:
        """No cleaned part of a log has records of aborted transactions."""
        for at in self._part.accounts:
            runner = self._world.observer.leader_log(at)
            check_cleaned(at, list(entries_of(runner)), runner.log.cleaned_to)
