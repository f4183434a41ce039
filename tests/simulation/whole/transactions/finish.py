"""What holds of transactions once everything was healed: nothing hangs, all is whole, each input has one copy."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from raylog.base.errors import RaylogError
from raylog.client.consumer.consumer import AsyncConsumer
from tests.simulation.whole.books import At
from tests.simulation.whole.clients import API_S, LAST_API_S, Client
from tests.simulation.whole.transactions.account_finish import AccountFinish, Until
from tests.simulation.whole.transactions.clients import Transactor
from tests.simulation.whole.transactions.logs import check_logs, entries_of
from tests.simulation.whole.transactions.readers import COMMITTED
from tests.simulation.whole.transactions.renewal import Renewal
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

POLL_MS: Final = 300


class TransactionsFinish:
    """The last clients of transactions of a world."""

    def __init__(self, world: World, until: Until, whole: Callable[[], Awaitable[str]]) -> None:
        """Made when the world is quiet. `whole` returns "" once no replica is away."""
        assert world.transactions is not None
        self._world, self._part, self._until, self._whole = world, world.transactions, until, whole
        self._client = Client(world, "finish")
        self._accounts = AccountFinish(world, until)
        self._read: dict[At, dict[int, bytes]] = {}
        self._consumer = AsyncConsumer(auto_offset_reset="earliest", isolation_level=COMMITTED, group_id="last-reader")

    async def run(self) -> None:
        """Wait until nothing is open, read everything, and compare it with the ledger."""
        part = self._part
        await self._until("every teller is done", self._tellers)
        await self._commit_everywhere("the last transaction")
        await self._client.call("start", self._consumer.start(), LAST_API_S)
        await self._until("no transaction of the tellers is open", lambda: self._open(part.inputs))
        await self._read_all(part.inputs)
        await self._until("the copiers have committed everything", self._uncommitted)
        await self._until("no transaction of the copiers is open", lambda: self._open(part.outputs))
        await self._read_all(part.outputs)
        await self._read_accounts()
        inputs = {at: list(self._read[at]) for at in part.inputs}
        if missing := part.ledger.uncopied(inputs, {at: self._read[at] for at in part.outputs}):
            raise Violation("W26", missing)
        await self._until("every reader has read everything", self._readers)
        if part.renews:
            await self._until("a renewed topic is read", Renewal(self._world, "last-renewal").finish)
        self._world.log(
            "transactions",
            f"{part.commits} committed, {part.aborts} aborted, {len(part.ledger.txns)} begun, {part.starts} processes; "
            f"{sum(len(inputs[at]) for at in part.inputs)} records copied",
        )
        self._check_logs()
        if part.accounts:
            await self._age()
        await self._client.call("stop", self._consumer.stop(), 35.0)

    def _check_logs(self) -> None:
        part, leader_log = self._part, self._world.observer.leader_log
        logs = {at: entries_of(leader_log(at)) for at in (*part.inputs, *part.outputs, *part.accounts)}
        check_logs(logs, 1000 * self._world.plan.forgets_producers_s or math.inf)

    async def _read_accounts(self) -> None:
        """Read the compacted topic, once it is cleaned, and compare all topics with the ledger."""
        part, accounts = self._part, self._accounts
        await self._until("no transaction of the accounts is open", lambda: self._open(part.accounts))
        await self._until("the accounts are cleaned", accounts.are_cleaned)
        read = await accounts.read()
        part.ledger.finish({**self._read, **read}, part.account_books.replaced(read))
        accounts.check_sums(read)
        accounts.check_logs()

    async def _age(self) -> None:
        """Restart coordinators and replicas with logs that forget; everything is there as before."""
        await self._accounts.age(self._whole)
        await self._until("no transaction is open after a restart", lambda: self._open(self._part.accounts))
        await self._accounts.read()
        await self._commit_everywhere("the very last transaction")
        everything = [*self._part.inputs, *self._part.accounts]
        await self._until("the very last transaction has ended", lambda: self._open(everything))
        await self._read_all(self._part.inputs)
        await self._until("the copiers have committed everything again", self._uncommitted)
        await self._until("no copy is open after a restart", lambda: self._open(self._part.accounts))
        self._accounts.check_sums(await self._accounts.read())
        self._part.account_books.check_passed()
        self._check_logs()

    async def _tellers(self) -> str:
        return self._part.waits()

    async def _commit_everywhere(self, name: str) -> None:
        """A transaction over all partitions commits, without a fault."""
        last = Transactor(self._world, name.replace(" ", "-"), "last-teller")
        producer = await last.begun()
        assert producer is not None
        txn = self._part.ledger.begin(name)
        try:
            await producer.begin_transaction()
            for at in self._part.inputs:
                await last.send(producer, txn, at)
            for at in self._part.accounts:
                await last.put(producer, txn, at)
            await last.commit(producer, txn)
        except RaylogError as error:
            raise Violation("W16", f"no transaction commits although all is as it should be: {error!r}") from error
        await last.ended(producer)

    async def _open(self, partitions: list[At]) -> str:
        """Return a partition whose last stable offset is not its end."""
        plain = AsyncConsumer()
        await self._client.call("start", plain.start(), LAST_API_S)
        try:
            stable = await self._client.call("end offsets", self._consumer.end_offsets(partitions), API_S)
            ends = await self._client.call("end offsets", plain.end_offsets(partitions), API_S)
        except RaylogError as error:
            return repr(error)
        finally:
            await self._client.call("stop", plain.stop(), 35.0)
        for at in partitions:
            if stable[at] > ends[at]:
                raise Violation("W24", f"{at} is stable up to {stable[at]}, behind its end {ends[at]}")
            if stable[at] < ends[at]:
                return f"{at} is stable up to {stable[at]} of {ends[at]}"
        return ""

    async def _read_all(self, partitions: list[At]) -> None:
        """Read the committed records of partitions from their start to their end."""
        consumer, world = self._consumer, self._world
        ends = await self._client.call("end offsets", consumer.end_offsets(partitions), LAST_API_S)
        consumer.assign(partitions)
        for at in partitions:
            consumer.seek(at, 0)
            self._read[at] = {}
        while left := [at for at in partitions if await consumer.position(at) < ends[at]]:
            world.waits_for = f"the last reader of committed records is below {ends[left[0]]} of {left[0]}"
            work = consumer.getmany(timeout_ms=POLL_MS)
            for at, records in (await self._client.call("getmany", work, 2.0)).items():
                for record in records:
                    world.books.seen("the last reader", at, record.offset, record.value)
                    self._read[at][record.offset] = record.value

    async def _uncommitted(self) -> str:
        """Return a partition whose committed records the group has not all committed."""
        group = AsyncConsumer(group_id=self._part.group, isolation_level=COMMITTED, enable_auto_commit=False)
        await self._client.call("start", group.start(), LAST_API_S)
        try:
            for at in self._part.inputs:
                known = self._part.ledger.known_offset(at)
                found = await self._client.call("committed", group.committed(at), LAST_API_S)
                self._part.ledger.fetched(at, known, found)
                wanted = max(self._read[at], default=-1) + 1
                if (found or 0) < wanted:
                    return f"{found} of {wanted} of {at}"
        except RaylogError as error:
            return repr(error)
        finally:
            await self._client.call("stop", group.stop(), 35.0)
        return ""

    async def _readers(self) -> str:
        """Return a reader that has not got the last record of a partition."""
        for reader in self._part.readers:
            for at, records in self._read.items():
                wanted, position = max(records, default=-1) + 1, reader.positions.get(at, 0)
                if position < wanted:
                    return f"{reader.name} is at {position} of {wanted} of {at}"
        await asyncio.sleep(0)
        return ""
