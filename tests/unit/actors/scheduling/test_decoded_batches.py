"""What is sent of a delayed record whose target does not take it, and what of the log stays decoded."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.actors.scheduling import decoded_batches
from raylog.actors.scheduling.decoded_batches import Bodies, Body, encode
from raylog.core.dead_letters import Cause, Reason, cause_of
from raylog.core.lane import SEQUENCES
from raylog.core.queues.origins import Origin
from raylog.core.scheduling.envelope import Envelope, Header
from raylog.core.scheduling.keys import key_of
from raylog.core.scheduling.rows import Batch, Keys
from raylog.storage.batch.header import iter_headers, stamp
from raylog.storage.batch.records import decode_batch, encode_batch

OFFSET = 5


def undeliverable(*headers: Header) -> tuple[Cause | None, list[str]]:
    """Send a record to ``__undeliverable``; returns its cause and the names of its headers."""
    body = Body(OFFSET, None, b"value", headers)
    batch = Batch("__undeliverable", "id", 0, 0, 0, Keys([key_of(1_000, OFFSET)]))
    made = encode([body], batch, (9, 0), adds_sent_time=False, causes={OFFSET: (Reason.UNDELIVERABLE, "refused")})
    ((position, header),) = iter_headers(made)
    found = (decode_batch(made, position, header).headers or [])[0] or []
    return cause_of(found), [name for name, _ in found]


def test_the_dead_letter_of_a_late_retry_names_the_record_itself() -> None:
    envelope = Envelope("retry.workers.jobs", "id", 2, 1).header()
    cause, names = undeliverable(Origin("jobs", 4, 77, 3).header(), envelope)
    assert cause is not None
    assert (cause.topic, cause.partition, cause.offset) == ("jobs", 4, 77)
    assert not any(name.startswith("raylog-retry") for name in names)


def test_another_record_cannot_name_an_origin() -> None:
    cause, _ = undeliverable(Origin("secret", 0, 1, 1).header(), Envelope("mine", "id", 2, 1).header())
    assert cause is not None
    assert (cause.topic, cause.partition) == ("mine", 2)


def test_after_the_highest_sequence_a_target_gets_0() -> None:
    batch = Batch("jobs", "id", 0, 0, SEQUENCES - 1, Keys([key_of(1_000, OFFSET), key_of(1_000, OFFSET + 1)]))
    bodies_of_both = [Body(offset, None, b"value", ()) for offset in (OFFSET, OFFSET + 1)]
    ((_, header),) = iter_headers(encode(bodies_of_both, batch, (9, 0), adds_sent_time=False, causes={}))
    assert (header.base_sequence, header.last_sequence) == (SEQUENCES - 1, 0)
    later = Batch("jobs", "id", 0, 0, SEQUENCES + 1, batch.keys)
    ((_, header),) = iter_headers(encode(bodies_of_both, later, (9, 0), adds_sent_time=False, causes={}))
    assert header.base_sequence == 1


class Log:
    """Batches of a few records each, by their first offsets."""

    def __init__(self, batches: int, records: int) -> None:
        self.log_end_offset = batches * records
        self.reads = 0
        headers: list[list[Header] | None] = [[Envelope("jobs", "id", 0, 1).header()] for _ in range(records)]
        self._records = records
        self._batches = [bytearray(self._batch(first, headers)) for first in range(0, self.log_end_offset, records)]
        for number, batch in enumerate(self._batches):
            stamp(batch, 0, number * records, 0)

    def _batch(self, first: int, headers: list[list[Header] | None]) -> bytes:
        keys: list[bytes | None] = [b"%d" % offset for offset in range(first, first + self._records)]
        return encode_batch(keys, [b"v" * 20] * self._records, [1_000] * self._records, headers)

    def read(self, offset: int, max_bytes: int, upper: int) -> bytearray:
        self.reads += 1
        return self._batches[offset // self._records]


def test_what_stays_decoded_takes_no_more_memory_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_batches, "CACHE_BYTES", 1 << 20)
    log = Log(batches=1_500, records=2)
    source = Bodies(log, lambda _: None)  # type: ignore[arg-type]  # it reads, and nothing else
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for offset in range(log.log_end_offset):
            assert source.read(offset).key == b"%d" % offset
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert decoded_batches.CACHE_BYTES / 2 < taken < decoded_batches.CACHE_BYTES * 1.2, (
        "the limit counts what Python takes"
    )
    assert source.kept_bytes <= decoded_batches.CACHE_BYTES


@given(st.lists(st.integers(0, 199), max_size=60))
def test_each_record_is_found_whatever_was_read_before(offsets: list[int]) -> None:
    log = Log(batches=20, records=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoded_batches, "CACHE_BYTES", 20_000)  # four of the batches
        source = Bodies(log, lambda _: None)  # type: ignore[arg-type]  # it reads, and nothing else
        for offset in offsets:
            assert source.read(offset).key == b"%d" % offset
            assert source.read(offset).key == b"%d" % offset
    assert log.reads <= len(offsets), "what is read again is there"
