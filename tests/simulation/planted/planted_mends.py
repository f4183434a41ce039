"""Bugs of the kinds that shipped once and were found from outside, planted again in the worlds of single machines.

Times that an append leaves out, cuts that leave something behind, rows and sessions that a successor lacks, failures
that are not reported, events that hold up others. Those that need several features at once are in ``whole/planted``.
"""

from __future__ import annotations

from typing import Any, Final

from raylog.actors.coordinators.runner import CoordinatorRunner
from raylog.actors.replica.effects import ReplicaEffects
from raylog.core.groups import use
from raylog.core.groups.consumer_groups import ConsumerGroups
from raylog.core.groups.pending import PendingStore
from raylog.outbox.lane import OutboxLane
from raylog.outbox.store import OutboxStore
from raylog.storage.log import partition_log
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.log.producer_state import ProducerState
from tests.simulation.outbox.runs import OUTBOX
from tests.simulation.planted.bugs import Planted, bugs, nothing
from tests.simulation.storage.runs import STORAGE, STORAGE_TRANSACTIONS


def _forget_open(_: Any, producers: ProducerState, *__: Any) -> None:
    """In place of a replay: of the transactions that are open, none is known."""
    producers.transactions.open.clear()


_TIMES: Final = bugs(
    STORAGE,
    ("S5",),
    (
        "a follower appends with the time at which its segment began",
        40,
        PartitionLog,
        "append_as_follower",
        "done = self._write(payload, headers, began, now_ms, markers)",
        "done = self._write(payload, headers, began, self.segments[0].created_ms, markers)",
    ),
    (
        "producers are forgotten that were active just now",
        5,
        ProducerState,
        "expire",
        "now_ms - entry.last_seen_ms >= idle_ms",
        "now_ms - entry.last_seen_ms < idle_ms",
    ),
)
_CUTS: Final = bugs(
    STORAGE,
    ("S1", "S2", "S4", "S5", "S8", "S9", "S10"),
    ("a cut leaves its producers as they were", 10, partition_log, "replay", nothing),
    (
        "a cut leaves the epochs above it",
        10,
        PartitionLog,
        "truncate_to",
        "self._kept_epochs.truncate_end(end)",
        "pass",
    ),
    (
        "a cut leaves the recovery point above it",
        10,
        PartitionLog,
        "truncate_to",
        "if self.recovery_point > end:",
        "if False:",
    ),
    (
        "a log that starts again keeps its producers",
        20,
        PartitionLog,
        "truncate_fully_and_start_at",
        "self.producers = ProducerState()",
        "pass",
    ),
    (
        "a log that starts again keeps its epochs",
        20,
        PartitionLog,
        "truncate_fully_and_start_at",
        "self._kept_epochs.clear()",
        "pass",
    ),
    ("an append that failed leaves its epochs", 80, PartitionLog, "_forget_epochs_behind_end", nothing),
)
_ABORTED: Final = bugs(
    STORAGE_TRANSACTIONS,
    ("S5", "S15"),
    (
        "the transactions that a full segment has aborted are not kept",
        10,
        PartitionLog,
        "roll",
        "self._active.keep_aborted(self.producers.transactions.aborted)",
        "self._active.keep_aborted([])",
    ),
    (
        "a segment begins with the aborted transactions of the one before",
        20,
        PartitionLog,
        "roll",
        "self.producers.transactions.begin_segment(fresh.base_offset)",
        "pass",
    ),
    ("a producer is forgotten whose transaction is open", 20, ProducerState, "expire", "and key not in opened", ""),
    ("a cut forgets which transactions are open", 10, partition_log, "replay", _forget_open),
)
_SUCCESSORS: Final = (
    *bugs(
        "consumer-groups",
        ("CL1", "CL2", "CL6", "I15", "machine"),
        (
            "a successor knows no topic of its groups",
            1_500,
            ConsumerGroups,
            "loaded",
            "self._known.update(group.topics)",
            "pass",
        ),
        ("a successor has no session for its members", 5, ConsumerGroups, "loaded", "group.restore(now_ms)", "pass"),
    ),
    *bugs(
        "rebalance-storm",
        ("I15", "L2", "L1", "L5", "W7"),
        ("offsets count as unused that members read", 10, use.GroupUse, "reads", lambda self, topic: False),
        (
            "answers leave before their rows count as stored",
            5,
            CoordinatorRunner,
            "stored",
            "self._rows.stored()\n    self._runner.release()",
            "self._runner.release()\n    self._rows.stored()",
        ),
    ),
)
_PENDING: Final = bugs(
    "group-transactions",
    ("I12", "I13"),
    ("nothing is ever pending in a group", 5, PendingStore, "is_open", lambda self, group: False),
    (
        "what a producer has pending replaces what others have",
        20,
        PendingStore,
        "apply",
        "self._by_group.setdefault(group, {})[producer_id] = record",
        "self._by_group[group] = {producer_id: record}",
    ),
    (
        "a fence is forgotten with what was pending",
        5,
        PendingStore,
        "apply",
        "self._by_group.setdefault(group, {})[producer_id] = record\n",
        "self._by_group.setdefault(group, {})[producer_id] = record\n"
        "        if not record.offsets:\n            del self._by_group[group][producer_id]\n",
    ),
    (
        "a group has what one producer has pending",
        20,
        PendingStore,
        "open_of",
        "sorted(self._open.get(group, ()))",
        "sorted(self._open.get(group, ()))[:1]",
    ),
    ("what is pending counts as stable", 5, PendingStore, "pending_keys", lambda self, group: set()),
    (
        "what has ended stays pending",
        5,
        PendingStore,
        "apply",
        "self._open[group].discard(producer_id)",
        "pass",
    ),
)
_NOT_REPORTED: Final = bugs(
    "swarm",
    ("L2", "L6", "I4", "I7", "I1", "I9", "machine"),
    (
        "a follower's append that failed is not reported",
        80,
        ReplicaEffects,
        "_append_fetched",
        "return self._append_failed(effect.request, error)",
        "return None",
    ),
    (
        "a follower's append counts as synced",
        60,
        ReplicaEffects,
        "_append_fetched",
        "durable=not self._syncs_first",
        "durable=True",
    ),
    (
        "what a cut has left is not reported",
        20,
        ReplicaEffects,
        "_cut",
        "return LogCut(cause=effect.cause, now_ms=self._monotonic_ms(), log=self.summary(), done=done)",
        "return None",
    ),
    (
        "a producer is not answered whose append failed",
        10,
        ReplicaEffects,
        "_not_appended",
        "self._requests.pop(number).fail(error)",
        "self._requests.pop(number)",
    ),
)
_OUTBOX: Final = bugs(
    OUTBOX,
    ("O0", "O1", "O2", "O3"),
    (
        "an event that is due waits among those that will be",
        5,
        OutboxStore,
        "_candidates",
        "or_(outbox.c.deliver_at.is_(None), outbox.c.deliver_at <= now_ms())",
        "outbox.c.deliver_at.is_(None)",
    ),
    (
        "a lane goes on in the epoch of a table that was restored",
        20,
        OutboxLane,
        "verify",
        "self._renew_above = known.producer_epoch",
        "pass",
    ),
)
MENDED_BUGS: Final[tuple[Planted, ...]] = (
    *_TIMES,
    *_CUTS,
    *_ABORTED,
    *_SUCCESSORS,
    *_PENDING,
    *_NOT_REPORTED,
    *_OUTBOX,
)
