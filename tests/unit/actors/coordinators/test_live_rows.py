"""What a coordinator reads of its log: the last row of each key, whatever batches it is in, and no tombstone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.actors.coordinators.live_rows import LiveRows, offsets_of
from raylog.actors.coordinators.state_log import encoded_row
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.groups.coordinator import CoordinatorMachine, GroupSettings
from raylog.storage.batch.cleaned import filler
from raylog.storage.batch.header import MAGIC_COLUMNS, PLAIN, header_before
from raylog.storage.batch.records import encode_batch
from raylog.storage.errors import CorruptBatch
from tests.unit.core.groups.context import Groups

Row = tuple[list[object], list[object] | None]


def batch(*rows: Row, first: int = 0) -> bytes:
    """A batch as a coordinator appends it, at an offset."""
    packed = [encoded_row(*row)[0] for row in rows]
    data = bytearray(encode_batch([key for key, _ in packed], [value for _, value in packed], [0] * len(rows)))
    data[:8] = first.to_bytes(8, "big")
    return bytes(data)


def live(*payloads: bytes, end: int = 100) -> dict[str, Any]:
    rows = LiveRows()
    for payload in payloads:
        rows.gather(payload, end)
    return {str(key[0]): value for key, value in rows}


def test_the_last_row_of_a_key_counts() -> None:
    first = batch((["a"], [1]), (["b"], [2]), (["a"], [3]))
    assert live(first) == {"a": [3], "b": [2]}
    assert live(first, batch((["b"], [4]), first=3)) == {"a": [3], "b": [4]}
    assert live(first + batch((["b"], [4]), first=3)) == {"a": [3], "b": [4]}


def test_a_batch_of_tombstones_alone_removes_its_keys() -> None:
    first = batch((["a"], [1]), (["b"], [2]))
    assert live(first, batch((["a"], None), first=2)) == {"b": [2]}
    assert live(first, batch((["a"], None), (["b"], [5]), first=2), batch((["a"], [6]), first=4)) == {
        "a": [6],
        "b": [5],
    }


def test_what_is_behind_the_end_and_what_has_no_records_is_left_out() -> None:
    rows = LiveRows()
    payload = batch((["a"], [1])) + filler(1, 5, 0) + batch((["a"], [2]), first=5) + batch((["a"], [3]), first=6)
    assert rows.gather(payload[:-1], 6) == 6, "the last batch is cut off"
    assert {str(key): value for key, value in rows} == {"['a']": [2]}
    assert (len(rows), rows.rows_read) == (1, 2)
    assert rows.gather(b"", 6) is None


STEPS = st.lists(st.tuples(st.sampled_from("cdtea"), st.integers(0, 2), st.integers(0, 99)), max_size=30)


@given(STEPS, st.integers(1, 4))
def test_the_live_rows_make_the_same_coordinator_as_all_rows(steps: list[tuple[str, int, int]], each: int) -> None:
    groups = Groups()
    for epoch, (kind, partition, offset) in enumerate(steps):
        if kind == "c":
            groups.commit(offset, partition=partition)
        elif kind == "d":
            groups.delete_offsets(("id1", "flights", partition))
        elif kind == "t":
            groups.txn_commit(offset, partition=partition, epoch=epoch)
        else:
            groups.end_txn(committed=kind == "e", epoch=epoch)
    payload = b"".join(batch(*groups.log[at : at + each], first=at) for at in range(0, len(groups.log), each))
    rows = LiveRows()
    rows.gather(payload, len(groups.log))
    machine = CoordinatorMachine(settings=GroupSettings(), share=EVERY_KEY, new_member_id=str)
    for key, value in rows:
        machine.replay(key, value)
    machine.loaded(0)
    machine.validate()
    assert machine.hard_state() == groups.machine.hard_state()


def test_what_cannot_be_read_is_passed_over_and_named() -> None:
    good = batch((["a"], [1]))
    foreign = bytearray(encode_batch([b"k", b"\xc1", b"\x01"], [b"v", b"\xc1", b"\x02"], [0, 0, 0]))
    foreign[:8] = (1).to_bytes(8, "big")
    body = b"\xc1\xc1"
    closed = bytearray(
        header_before(body, magic=MAGIC_COLUMNS, count=1, first_timestamp=0, max_timestamp=0, compression=0, meta=PLAIN)
        + body
    )
    closed[:8] = (4).to_bytes(8, "big")
    payload = good + bytes(foreign) + bytes(closed) + batch((["b"], [2]), first=5)
    rows = LiveRows()
    assert rows.gather(payload, 100) == 6
    assert {str(key[0]): value for key, value in rows} == {"a": [1], "b": [2]}
    assert set(rows.passed_over) == {b"k", b"\xc1", b"\x01"}
    assert list(rows.damaged) == [4]
    assert offsets_of(payload, rows.passed_over) == ({b"k": 1, b"\xc1": 2, b"\x01": 3}, 6)


def test_bytes_that_changed_on_the_way_are_not_passed_over() -> None:
    payload = bytearray(batch((["a"], [1])))
    payload[-1] ^= 0xFF
    with pytest.raises(CorruptBatch):
        LiveRows().gather(bytes(payload), 100)
