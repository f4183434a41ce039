"""What is stored of queues' states: rows below every limit, whole or not at all, beside earlier rows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raylog.actors.coordinators.stored_rows import encoded_row
from raylog.base.errors import InvalidGroupId, LimitReached, RaylogError
from raylog.core.coordinators.events import AppendRecords
from raylog.core.decision import Refuse, Reply
from raylog.core.queues.records import QueueChange
from raylog.core.queues.share_states import QueueKey, ShareStateMachine, ShareStateRequest, SnapshotDue
from raylog.core.queues.states import ACKNOWLEDGED, ARCHIVING, WAITING
from raylog.core.received import Received
from raylog.protocol.queues import DeleteShareStateRequest, ReadShareStateRequest, WriteShareStateRequest

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


def step(states: ShareStateMachine, message: ShareStateRequest) -> Any:
    return states.step(Received(message=message, cause="test", request=1, now_ms=0))


def reading(key: QueueKey, partitions: int = 1) -> ShareStateRequest:
    """The request of a leader, of epoch 1."""
    return ReadShareStateRequest("s", 0, 0, key.group, "jobs", key.topic_id, key.partition, 1, partitions)


def read(states: ShareStateMachine, key: QueueKey = KEY, *, partitions: int = 1) -> tuple[list[Row], list[Any]]:
    outbox = step(states, reading(key, partitions))
    replies = [effect for effect in outbox.after_sync if isinstance(effect, Reply)]
    result: Any = replies[0].result
    return rows_of(outbox), result


def write(states: ShareStateMachine, change: QueueChange, version: int, key: QueueKey = KEY) -> list[Row]:
    request = WriteShareStateRequest("s", 0, 0, *key, 1, 1, version, change.to_wire())
    return rows_of(step(states, request))


def replayed(rows: list[Row]) -> ShareStateMachine:
    states = ShareStateMachine()
    for key, value in rows:
        packed, _ = encoded_row(key, value)
        states.replay(
            msgspec.msgpack.decode(packed[0]), None if packed[1] is None else msgspec.msgpack.decode(packed[1])
        )
    return states


def state(states: ShareStateMachine) -> Any:
    return states.queues[KEY].snapshot().to_wire()


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
    states = ShareStateMachine()
    rows, _ = read(states)
    rows += write(states, change, 1)
    snapshot = rows_of(states.step(SnapshotDue(cause="test", now_ms=0)))
    for row in [*rows, *snapshot]:
        assert encoded_row(*row)[1] < ROW_MAX
    assert state(replayed(rows)) == state(states)
    assert state(replayed(snapshot)) == state(states)
    assert state(replayed([*rows, *snapshot])) == state(states)


def opened(states: ShareStateMachine, key: QueueKey) -> RaylogError | None:
    outbox = step(states, reading(key))
    return next((effect.error for effect in outbox.after_sync if isinstance(effect, Refuse)), None)


def test_a_partition_has_so_many_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylog.core.queues.share_states.GROUPS_MAX", 2)
    monkeypatch.setattr("raylog.core.queues.share_states.QUEUES_MAX", 4)
    states = ShareStateMachine()
    assert isinstance(opened(states, QueueKey("g" * 1025, "id", 0)), InvalidGroupId)
    for group in ("a", "b", "a"):
        assert opened(states, QueueKey(group, "id", 0)) is None
    refusal = opened(states, QueueKey("c", "id", 0))
    assert isinstance(refusal, LimitReached)
    assert "raylog queue delete" in refusal.message
    for key in (QueueKey("c", "id", 1), QueueKey("c", "another", 0)):
        assert opened(states, key) is None
    assert isinstance(opened(states, QueueKey("c", "third", 0)), LimitReached), "the states has its most"
    step(states, DeleteShareStateRequest("s", 0, 0, "a", "id", 0))
    assert opened(states, QueueKey("c", "id", 0)) is None


def test_what_was_cut_off_counts_as_nothing() -> None:
    states = ShareStateMachine()
    rows, _ = read(states)
    before = rows + write(states, QueueChange(0, [(0, 5, ACKNOWLEDGED)], {}, None), 1)
    small = state(states)
    change = write(states, many_archiving(400), 2)
    assert len(change) > 2
    for end in range(1, len(change)):
        cut = replayed([*before, *change[:end]])
        assert state(cut) == small
        assert cut.queues[KEY].version == 1, "the leader repeats the change"
        assert state(replayed([*before, *change[:end], *change])) == state(states)
    snapshot = rows_of(states.step(SnapshotDue(cause="test", now_ms=0)))
    for end in range(1, len(snapshot)):
        assert state(replayed([*before, *change, *snapshot[:end]])) == state(states)
        assert state(replayed([*before, *change, *snapshot[:end], *snapshot])) == state(states)


def test_stored_rows_keep_their_form() -> None:
    """Golden bytes: opened, a change, a snapshot."""
    key = list(KEY)
    opened = msgspec.msgpack.decode(bytes.fromhex("9502a46a6f6273030104"))
    assert opened == [2, "jobs", 3, 1, 4]
    change = msgspec.msgpack.decode(bytes.fromhex("970101" + "07" + "919405090004" + "80c0c2"))
    assert change == [1, 1, 7, [[5, 9, 0, 4]], {}, None, False]
    snapshot = msgspec.msgpack.decode(bytes.fromhex("9d00a46a6f62730301" + "0207" + "9193070902" + "80c0c3c00004"))
    assert snapshot == [0, "jobs", 3, 1, 2, 7, [[7, 9, 2]], {}, None, True, None, 0, 4]
    states = ShareStateMachine()
    states.replay(key, opened)
    states.replay(key, change)
    assert states.queues[KEY].start == 7
    assert states.queues[KEY].snapshot().ranges == [(7, 9, 0, 4)]
    states.replay(key, snapshot)
    assert states.queues[KEY].snapshot().ranges == [(7, 9, 2)]
    assert states.queues[KEY].version == 2


def test_small_changes_are_stored_as_before() -> None:
    states = ShareStateMachine()
    read(states)
    rows = write(states, QueueChange(7, [(5, 9, 0, 4)], {}, None), 1)
    assert rows == [(list(KEY), [1, 1, 7, [(5, 9, 0, 4)], {}, None, False])]


def test_a_partition_that_was_added_later_is_known_as_such() -> None:
    states = ShareStateMachine()
    first, second, added = (QueueKey("workers", "id", number) for number in (0, 1, 2))
    _, result = read(states, first, partitions=2)
    assert result[2] is False
    write(states, QueueChange(100, (), {}, None), 1, first)
    _, result = read(states, second, partitions=2)
    assert result[2] is False, "it existed when the group began, and is only opened later"
    _, result = read(states, added, partitions=3)
    assert result[2] is True
    _, result = read(states, QueueKey("workers", "created again", 2), partitions=3)
    assert result[2] is False
    again = replayed(rows_of(states.step(SnapshotDue(cause="test", now_ms=0))))
    _, result = read(again, added, partitions=3)
    assert result[2] is True, "a snapshot keeps how many there were"
