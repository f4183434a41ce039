"""Records of a batch that were handed out in pieces: the others become no objects."""

import pytest

from raylog.base.ids import TopicPartition
from raylog.client.reading.decode import BatchOpener, FetchedBatch
from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.records import BatchMeta, encode_batch

HERE = TopicPartition("t", 0)


def a_batch(base: int = 10, count: int = 10) -> FetchedBatch:
    values: list[bytes | None] = [b"%d" % number for number in range(base, base + count)]
    raw = encode_batch(values, values, [5] * count, None, BatchMeta(base_offset=base))
    ((place, header),) = iter_headers(raw)
    return FetchedBatch(raw, place, header)


@pytest.mark.parametrize(
    ("ranges", "offsets"),
    [
        ([(10, 20)], range(10, 20)),
        ([(0, 12)], [10, 11]),
        ([(18, 99)], [18, 19]),
        ([(11, 12), (13, 15), (19, 30)], [11, 13, 14, 19]),
        ([(0, 1), (12, 13), (20, 21)], [12]),
        ([(12, 12), (30, 40)], []),
    ],
)
def test_only_the_records_in_the_ranges_are_made(ranges: list[tuple[int, int]], offsets: list[int]) -> None:
    opened = BatchOpener(HERE).pick(a_batch(), ranges)
    assert opened.failure is None
    assert [record.offset for record in opened.records] == list(offsets)
    assert [record.value for record in opened.records] == [b"%d" % offset for offset in offsets]
    assert [record.key for record in opened.records] == [b"%d" % offset for offset in offsets]


def test_a_record_outside_the_ranges_is_not_deserialized() -> None:
    def refuse_15(value: bytes) -> int:
        if value == b"15":
            raise ValueError("not this one")
        return int(value)

    opener = BatchOpener(HERE, None, refuse_15)
    assert [record.value for record in opener.pick(a_batch(), [(14, 15), (16, 17)]).records] == [14, 16]
    opened = opener.pick(a_batch(), [(14, 16), (17, 18)])
    assert [record.value for record in opened.records] == [14]
    assert opened.failure is not None
    assert opened.failure.details["offset"] == 15
