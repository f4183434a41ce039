"""Planted bugs in offsets of transactions, all caught by the profile ``group-transactions``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raylog.core.groups import pending
from raylog.core.groups.coordinator import GroupCoordinatorMachine
from raylog.core.groups.decision import GroupDecision
from raylog.core.groups.events import Effect
from raylog.core.groups.pending import PendingStore
from raylog.core.groups.records import TxnOffsets
from raylog.core.outbox import Outbox
from tests.simulation.planted.bugs import Edit, Planted

PROFILE = "group-transactions"
SEEDS = 30


def _bug(name: str, rules: str, target: Any, attribute: str, substitute: Any, seeds: int = SEEDS) -> Planted:
    return Planted(name, PROFILE, seeds, tuple(rules.split()), target, attribute, substitute)


def _empty_the_row_first(original: Callable[..., Outbox[Effect]]) -> Callable[..., Outbox[Effect]]:
    """A coordinator that dies between two batches of an end finds nothing pending any more."""

    def finish(self: GroupDecision) -> Outbox[Effect]:
        self.records.sort(key=lambda record: not isinstance(record, TxnOffsets))
        return original(self)

    return finish


def _lose(rows: str) -> Callable[..., None]:
    """Rows of transactions are not replayed: "all" of them, or those of "ended" ones."""
    original = GroupCoordinatorMachine.replay

    def replay(self: GroupCoordinatorMachine, key: Sequence[object], value: Sequence[object] | None) -> None:
        is_lost = key[0] == TxnOffsets.KIND and value is not None and (rows == "all" or not value[3])
        if not is_lost:
            original(self, key, value)

    return replay


PENDING_BUGS = (
    _bug(
        "a repeated end ends the next transaction",
        "I13",
        pending,
        "end",
        Edit("known is None or message.producer_epoch > known", "known is None or message.producer_epoch >= known"),
    ),
    _bug(
        "offsets are accepted after the end of their transaction",
        "I12 I13",
        pending,
        "_commit_error",
        Edit("if known.producer_epoch > message.producer_epoch:", "if False:"),
    ),
    _bug(
        "offsets of a transaction take effect before its end",
        "I13",
        pending,
        "txn_commit",
        Edit(
            "taken.append(item)",
            "taken.append(item)\n            decision.write(offset)",
        ),
    ),
    _bug(
        "offsets of an aborted transaction take effect",
        "I13",
        pending,
        "end",
        Edit("known is not None and message.committed", "known is not None"),
    ),
    _bug(
        "offsets of a committed transaction are forgotten",
        "I13",
        pending,
        "end",
        Edit("known is not None and message.committed", "False"),
    ),
    _bug("stable offsets do not wait", "I13", pending, "is_unstable", lambda *_: False),
    _bug(
        "offsets stay unstable after the end",
        "I13",
        pending,
        "end",
        Edit("offsets=(),", "offsets=known.offsets if known else (),"),
    ),
    _bug(
        "the second request of a transaction replaces the first",
        "I13",
        pending,
        "txn_commit",
        Edit("if known is not None:\n        pending", "if False:\n        pending"),
    ),
    _bug(
        "a row is emptied before its offsets are stored",
        "I13",
        GroupDecision,
        "finish",
        _empty_the_row_first(GroupDecision.finish),
    ),
    _bug("pending offsets are lost in a failover", "I13", GroupCoordinatorMachine, "replay", _lose("all")),
    _bug(
        "the epochs of ended transactions are lost in a failover",
        "I12 I13",
        GroupCoordinatorMachine,
        "replay",
        _lose("ended"),
        seeds=400,
    ),
    _bug(
        "the epoch of a producer is forgotten at the next look",
        "I12 I13",
        pending,
        "expired",
        Edit(
            "if not row.offsets and 0 <= row.changed_ms <= wall_ms - settings.txn_fence_retention_ms",
            "if not row.offsets",
        ),
    ),
    _bug(
        "a group with pending offsets is deleted",
        "I13",
        GroupCoordinatorMachine,
        "_delete",
        Edit("if self._pending.is_open(group.name):", "if False:"),
    ),
    _bug(
        "only the first offset of a transaction takes effect",
        "I13",
        pending,
        "end",
        Edit("for item in known.offsets:", "for item in known.offsets[:1]:"),
    ),
    _bug(
        "the transactions of two producers are one",
        "I13 I12",
        PendingStore,
        "get",
        Edit(".get(key.producer_id)", ".get(min(self._by_group.get(key.group, (0,))))"),
    ),
)
