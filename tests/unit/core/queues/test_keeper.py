"""What the keeper of queues' states stores: rows below every limit, whole or not at all, beside earlier rows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raylog.actors.coordinators.stored_rows import encoded_row
from raylog.base.errors import InvalidGroupId, LimitReached, RaylogError
from raylog.core.coordinators.events import AppendRecords
from raylog.core.decision import Refuse, Reply
from raylog.core.queues.keeper import DeleteState, KeeperMachine, QueueKey, ReadState, SnapshotDue, WriteState
from raylog.core.queues.records import QueueChange
from raylog.core.queues.states import ACKNOWLEDGED, ARCHIVING, WAITING

KEY = QueueKey("workers", "id", 0)
ROW_MAX = 200_000
Row = tuple[list[object], list[object] | None]


def rows_of(outbox: Any) -> list[Row]:
    return [
        row
        for effect in [*outbox.now, *outbox.after_sync]
        if isinstance(effect, AppendRecords)
        for row in effect.records
    ]


def read(keeper: KeeperMachine, key: QueueKey = KEY, *, partitions: int = 1) -> tuple[list[Row], list[Any]]:
    fields: dict[str, Any] = {"cause": "test", "now_ms": 0, "request": 1, "leader_epoch": 1}
    outbox = keeper.step(ReadState(key=key, topic="jobs", partitions=partitions, **fields))
    replies = [effect for effect in outbox.after_sync if isinstance(effect, Reply)]
    result: Any = replies[0].result
    return rows_of(outbox), result


def write(keeper: KeeperMachine, change: QueueChange, version: int, key: QueueKey = KEY) -> list[Row]:
    fields: dict[str, Any] = {"cause": "test", "now_ms": 0, "request": 1, "leader_epoch": 1}
    return rows_of(keeper.step(WriteState(key=key, state_epoch=1, version=version, change=change, **fields)))


def replayed(rows: list[Row]) -> KeeperMachine:
    keeper = KeeperMachine()
    for key, value in rows:
        packed, _ = encoded_row(key, value)
        keeper.replay(
            msgspec.msgpack.decode(packed[0]), None if packed[1] is None else msgspec.msgpack.decode(packed[1])
        )
    return keeper


def state(keeper: KeeperMachine) -> Any:
    return keeper.queues[KEY].snapshot().to_wire()


def hundred_thousand_waiting() -> QueueChange:
    ranges: list[tuple[Any, ...]] = []
    for offset in range(0, 200_000, 2):
        ranges.append((offset, offset + 1, WAITING, 3, 1_700_000_000_000 + offset))
        ranges.append((offset + 1, offset + 2, ACKNOWLEDGED))
    return QueueChange(0, ranges, {}, None)


def many_archiving(count: int) -> QueueChange:
    return QueueChange(
        0, [(at, at + 1, ARCHIVING, 1, 0, "rejected", f"{at} " + "错" * 330, -1) for at in range(count)], {}, None
    )


@pytest.mark.parametrize("change", [hundred_thousand_waiting(), many_archiving(16_000)], ids=["waiting", "archiving"])
def test_no_row_of_a_large_state_is_large(change: QueueChange) -> None:
    keeper = KeeperMachine()
    rows, _ = read(keeper)
    rows += write(keeper, change, 1)
    snapshot = rows_of(keeper.step(SnapshotDue(cause="test", now_ms=0)))
    for row in [*rows, *snapshot]:
        assert encoded_row(*row)[1] < ROW_MAX
    assert state(replayed(rows)) == state(keeper)
    assert state(replayed(snapshot)) == state(keeper)
    assert state(replayed([*rows, *snapshot])) == state(keeper)


def opened(keeper: KeeperMachine, key: QueueKey) -> RaylogError | None:
    fields: dict[str, Any] = {"cause": "test", "now_ms": 0, "request": 1, "leader_epoch": 1}
    outbox = keeper.step(ReadState(key=key, topic="jobs", partitions=1, **fields))
    return next((effect.error for effect in outbox.after_sync if isinstance(effect, Refuse)), None)


def test_a_partition_has_so_many_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylog.core.queues.keeper.GROUPS_MAX", 2)
    monkeypatch.setattr("raylog.core.queues.keeper.QUEUES_MAX", 4)
    keeper = KeeperMachine()
    assert isinstance(opened(keeper, QueueKey("g" * 1025, "id", 0)), InvalidGroupId)
    for group in ("a", "b", "a"):
        assert opened(keeper, QueueKey(group, "id", 0)) is None
    refusal = opened(keeper, QueueKey("c", "id", 0))
    assert isinstance(refusal, LimitReached)
    assert "raylog queue delete" in refusal.message
    for key in (QueueKey("c", "id", 1), QueueKey("c", "another", 0)):
        assert opened(keeper, key) is None
    assert isinstance(opened(keeper, QueueKey("c", "third", 0)), LimitReached), "the keeper has its most"
    keeper.step(DeleteState(cause="test", now_ms=0, request=1, key=QueueKey("a", "id", 0)))
    assert opened(keeper, QueueKey("c", "id", 0)) is None


def test_what_was_cut_off_counts_as_nothing() -> None:
    keeper = KeeperMachine()
    rows, _ = read(keeper)
    before = rows + write(keeper, QueueChange(0, [(0, 5, ACKNOWLEDGED)], {}, None), 1)
    small = state(keeper)
    change = write(keeper, many_archiving(400), 2)
    assert len(change) > 2
    for end in range(1, len(change)):
        cut = replayed([*before, *change[:end]])
        assert state(cut) == small
        assert cut.queues[KEY].version == 1, "the leader repeats the change"
        assert state(replayed([*before, *change[:end], *change])) == state(keeper)
    snapshot = rows_of(keeper.step(SnapshotDue(cause="test", now_ms=0)))
    for end in range(1, len(snapshot)):
        assert state(replayed([*before, *change, *snapshot[:end]])) == state(keeper)
        assert state(replayed([*before, *change, *snapshot[:end], *snapshot])) == state(keeper)


def test_stored_rows_keep_their_form() -> None:
    """Golden bytes: opened, a change, a snapshot."""
    key = list(KEY)
    opened = msgspec.msgpack.decode(bytes.fromhex("9502a46a6f6273030104"))
    assert opened == [2, "jobs", 3, 1, 4]
    change = msgspec.msgpack.decode(bytes.fromhex("970101" + "07" + "919405090004" + "80c0c2"))
    assert change == [1, 1, 7, [[5, 9, 0, 4]], {}, None, False]
    snapshot = msgspec.msgpack.decode(bytes.fromhex("9d00a46a6f62730301" + "0207" + "9193070902" + "80c0c3c00004"))
    assert snapshot == [0, "jobs", 3, 1, 2, 7, [[7, 9, 2]], {}, None, True, None, 0, 4]
    keeper = KeeperMachine()
    keeper.replay(key, opened)
    keeper.replay(key, change)
    assert keeper.queues[KEY].start == 7
    assert keeper.queues[KEY].snapshot().ranges == [(7, 9, 0, 4)]
    keeper.replay(key, snapshot)
    assert keeper.queues[KEY].snapshot().ranges == [(7, 9, 2)]
    assert keeper.queues[KEY].version == 2


def test_small_changes_are_stored_as_before() -> None:
    keeper = KeeperMachine()
    read(keeper)
    rows = write(keeper, QueueChange(7, [(5, 9, 0, 4)], {}, None), 1)
    assert rows == [(list(KEY), [1, 1, 7, [[5, 9, 0, 4]], {}, None, False])]


def test_a_partition_that_was_added_later_is_known_as_such() -> None:
    keeper = KeeperMachine()
    first, second, added = (QueueKey("workers", "id", number) for number in (0, 1, 2))
    _, result = read(keeper, first, partitions=2)
    assert result[2] is False
    write(keeper, QueueChange(100, (), {}, None), 1, first)
    _, result = read(keeper, second, partitions=2)
    assert result[2] is False, "it existed when the group began, and is only opened later"
    _, result = read(keeper, added, partitions=3)
    assert result[2] is True
    _, result = read(keeper, QueueKey("workers", "created again", 2), partitions=3)
    assert result[2] is False
    again = replayed(rows_of(keeper.step(SnapshotDue(cause="test", now_ms=0))))
    _, result = read(again, added, partitions=3)
    assert result[2] is True, "a snapshot keeps how many there were"
