"""Administration of half messages: list the undecided ones, and commit or roll them back by hand.

A part of `AsyncAdmin`. May touch: the network through `ClusterClient`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import Deadline
from raylog.client.halves.checking import HalfVerdict, check_stands, decide
from raylog.client.scheduling import shard_of_half
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.protocol.halves import LIST_HALVES, HeldHalf, ListHalvesReply, ListHalvesRequest

PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class HeldHalfMessage:
    """An undecided half message. Times in milliseconds since 1970.

    `checks`: how many checks ended without a decision. `is_unresolved`: it was checked as often as allowed, and is not
    checked again. `topics`: where its records go, if it is committed.
    """

    group: str
    txid: str
    prepared_ms: int
    next_check_ms: int
    checks: int
    is_unresolved: bool
    topics: tuple[str, ...]
    records: int


class AsyncHalves:
    """Methods of `AsyncAdmin` for half messages."""

    cluster: ClusterClient

    async def list_half_messages(
        self, group: str | None = None, *, limit: int = 100, timeout_s: float = 30.0
    ) -> list[HeldHalfMessage]:
        """At most `limit` undecided half messages of one group or of all (None), the oldest first."""
        deadline = Deadline(timeout_s)
        found: list[HeldHalf] = []
        for shard in range(await self._half_shards(deadline)):
            found += await self._halves_of(shard, group or "", deadline)
        found.sort(key=lambda row: (row.prepared_ms, row.group, row.txid))
        return [
            HeldHalfMessage(
                row.group,
                row.txid,
                row.prepared_ms,
                row.next_check_ms,
                row.checks,
                row.is_unresolved,
                tuple(row.topics),
                row.records,
            )
            for row in found[:limit]
        ]

    async def commit_half_message(self, group: str, txid: str, *, timeout_s: float = 30.0) -> None:
        """Commit a half message by hand: its records become visible. Repeating it does nothing.

        Raises HalfMessageDecided when it was rolled back before, UnknownHalfMessage.
        """
        await self._decide_half(group, txid, HalfVerdict.COMMIT, timeout_s)

    async def rollback_half_message(self, group: str, txid: str, *, timeout_s: float = 30.0) -> None:
        """Roll a half message back by hand: its records are dropped. Raises as `commit_half_message` does."""
        await self._decide_half(group, txid, HalfVerdict.ROLLBACK, timeout_s)

    async def _half_shards(self, deadline: Deadline) -> int:
        await self.cluster.refresh((SCHEDULED_TOPIC,), timeout_s=deadline.left_s)
        known = self.cluster.metadata.topic(SCHEDULED_TOPIC)
        return 0 if known is None else len(known.partitions)

    async def _halves_of(self, shard: int, group: str, deadline: Deadline) -> Sequence[HeldHalf]:
        found: list[HeldHalf] = []
        while True:
            behind = (found[-1].group, found[-1].txid) if found else ("", "")
            page = await self._page_of_halves(shard, group, behind, deadline)
            found += page.halves
            if len(page.halves) < PAGE:
                return found

    async def _page_of_halves(
        self, shard: int, group: str, behind: tuple[str, str], deadline: Deadline
    ) -> ListHalvesReply:
        reply, _ = await self.cluster.call_leader(
            SCHEDULED_TOPIC,
            shard,
            LIST_HALVES,
            lambda topic_id, number, epoch: ListHalvesRequest(topic_id, number, epoch, group, *behind, PAGE),
            timeout_s=deadline.left_s,
        )
        return reply

    async def _decide_half(self, group: str, txid: str, verdict: HalfVerdict, timeout_s: float) -> None:
        deadline = Deadline(timeout_s)
        shards = await self._half_shards(deadline)
        likely = shard_of_half((group, txid), shards) if shards else 0
        standing, records = "NOT_FOUND", 0
        # Usually it is in its likely shard; in another one only if `__scheduled` has grown since it was prepared.
        for shard in sorted(range(shards), key=lambda number: number != likely):
            reply = await decide(self.cluster, shard, group, [(txid, verdict, -1)], deadline.left_s)
            standing, records = reply.standings[0], reply.records[0]
            if standing != "NOT_FOUND":
                break
        check_stands((group, txid), verdict, standing, records, None)
