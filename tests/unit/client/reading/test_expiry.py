"""Consumers with `skip_expired` leave out what has expired by its own time to live or its topic's, the shorter one."""

import pytest

from raylog.client.reading.expiry import Expiry
from raylog.core.dead_letters import TTL
from raylog.storage.batch.records import Columns

NOW_MS = 10_000


def left(ttl_ms: int, *own: int | None, timestamps: list[int] | None = None) -> list[int]:
    """The offsets that are left of records with these times to live."""
    headers: list[list[tuple[str, bytes | None]] | None] | None
    headers = None if not any(own) else [None if each is None else [(TTL, b"%d" % each)] for each in own]
    stamps = timestamps or [9_000] * len(own)
    columns = Columns(range(len(own)), stamps, None, [b"v"] * len(own), headers)
    return list(Expiry(lambda: ttl_ms, lambda: NOW_MS).unexpired(columns).offsets)


@pytest.mark.parametrize(
    ("ttl_ms", "own", "offsets"),
    [
        (-1, (None, None), [0, 1]),
        (-1, (1_000, 1_001, None), [1, 2]),
        (1_000, (None, None), []),
        (1_001, (None, 500, 5_000), [0, 2]),
        (500, (None, 5_000), []),
    ],
)
def test_the_shorter_time_counts(ttl_ms: int, own: tuple[int | None, ...], offsets: list[int]) -> None:
    assert left(ttl_ms, *own) == offsets


def test_each_record_has_its_own_age() -> None:
    assert left(1_000, None, None, None, timestamps=[8_000, 9_500, 9_001]) == [1, 2]


def test_all_columns_are_cut_alike() -> None:
    columns = Columns(range(3), [9_000, 1, 9_000], [b"a", b"b", b"c"], None, [None, [("h", b"1")], [("h", b"2")]])
    expiry = Expiry(lambda: 5_000, lambda: NOW_MS)
    assert expiry.unexpired(columns) == Columns([0, 2], [9_000, 9_000], [b"a", b"c"], None, [None, [("h", b"2")]])
    assert expiry.skipped == 1
