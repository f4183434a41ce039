"""What an owner reads of its log: each row in order, or the last one of each key, and no tombstone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.actors.coordinators.stored_rows import EachRow, LiveRows, StoredRows, encode_rows, encoded_row
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.groups.coordinator import GroupCoordinatorMachine, GroupSettings
from raylog.storage.batch.cleaned import filler
from raylog.storage.batch.header import MAGIC_COLUMNS, PLAIN, header_before
from raylog.storage.batch.records import encode_batch
from raylog.storage.errors import CorruptBatch
from tests.unit.core.groups.context import Groups

Row = tuple[list[object], list[object] | None]


def batch(*rows: Row, first: int = 0) -> bytes:
    """A batch as a coordinator appends it, at an offset."""
    data = bytearray(encode_rows([encoded_row(*row)[0] for row in rows], 0))
    data[:8] = first.to_bytes(8, "big")
    return bytes(data)


def live(*payloads: bytes, end: int = 100) -> dict[str, Any]:
    rows = LiveRows()
    for payload in payloads:
        rows.gather(payload, end)
    rows.complete()
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
    rows.complete()
    assert {str(key): value for key, value in rows} == {"['a']": [2]}
    assert rows.rows_read == 2
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
    rows.complete()
    machine = GroupCoordinatorMachine(settings=GroupSettings(), share=EVERY_KEY, new_member_id=str)
    for key, value in rows:
        machine.replay(key, value)
    machine.loaded(0)
    machine.validate()
    assert machine.hard_state() == groups.machine.hard_state()


@pytest.mark.parametrize("kind", [EachRow, LiveRows])
def test_what_cannot_be_read_is_passed_over_and_named(kind: type[StoredRows]) -> None:
    foreign = bytearray(encode_batch([b"k", b"\xc1", b"\x01"], [b"v", b"\xc1", b"\x02"], [0, 0, 0]))
    foreign[:8] = (1).to_bytes(8, "big")
    body = b"\xc1\xc1"
    closed = bytearray(
        header_before(body, magic=MAGIC_COLUMNS, count=1, first_timestamp=0, max_timestamp=0, compression=0, meta=PLAIN)
        + body
    )
    closed[:8] = (4).to_bytes(8, "big")
    payload = batch((["a"], [1])) + bytes(foreign) + bytes(closed) + batch((["b"], [2]), first=5)
    rows = kind()
    assert rows.gather(payload, 100) == 6
    rows.complete()
    found = {}
    for key, value in rows:
        found[str(key[0])] = value
        if key == ["b"]:
            rows.pass_over(ValueError("of a later release"))
    assert found == {"a": [1], "b": [2]}
    while (offset := rows.look_up_from(0)) is not None and offset < 6:
        rows.look_up(payload, 6)
    reasons = [why.partition(":")[0] for _, why in sorted(rows.unreadable.items())]
    columns = "its columns cannot be read (MessagePack data is malformed"
    assert reasons == ["TypeError", "DecodeError", "TypeError", columns, "ValueError"]
    assert sorted(rows.unreadable) == [1, 2, 3, 4, 5]


def test_each_row_is_yielded_once_as_soon_as_it_was_read() -> None:
    rows = EachRow()
    rows.gather(batch((["a"], [1]), (["a"], [2])), 100)
    assert list(rows) == [(["a"], [1]), (["a"], [2])]
    rows.gather(batch((["a"], None), first=2) + batch((["b"], [3]), first=3), 3)
    assert list(rows) == [(["a"], None)], "what begins at the end is left out"
    assert list(rows) == []
    assert rows.rows_read == 3


@pytest.mark.parametrize("kind", [EachRow, LiveRows])
def test_bytes_that_changed_on_the_way_are_not_passed_over(kind: type[StoredRows]) -> None:
    payload = bytearray(batch((["a"], [1])))
    payload[-1] ^= 0xFF
    with pytest.raises(CorruptBatch):
        kind().gather(bytes(payload), 100)
