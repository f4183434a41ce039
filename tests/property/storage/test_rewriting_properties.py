"""Laws of a leader that changes batches: the same records, in the topic's form, under right checksums."""

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.storage.batch.compression import COMPRESSIONS
from raylog.storage.batch.header import CONTROL_BIT, TRANSACTIONAL_BIT, BatchMeta, check_crc, iter_headers
from raylog.storage.batch.records import Columns, decode_batch, encode_batch, encode_kafka_batch
from raylog.storage.batch.rewriting import Rewriting, rewritten

NOW = 1_700_000_000_000
Rows = list[tuple[bytes | None, bytes | None, int]]
codecs = st.sampled_from(sorted(COMPRESSIONS.values()))
maybe_bytes = st.none() | st.binary(max_size=30)
rows = st.lists(st.tuples(maybe_bytes, maybe_bytes, st.integers(0, 2**42)), min_size=1, max_size=8)
sent = st.tuples(
    rows,
    codecs,
    st.sampled_from([encode_batch, encode_kafka_batch]),
    st.sampled_from([0, CONTROL_BIT, TRANSACTIONAL_BIT]),
)


def opened(data: bytes) -> list[Columns]:
    return [decode_batch(data, position, header) for position, header in iter_headers(data)]


@settings(max_examples=150, deadline=None)
@given(st.lists(sent, min_size=1, max_size=4), st.none() | codecs, st.booleans())
def test_a_changed_payload_has_the_same_records_in_the_topics_form(batches, codec, append_time) -> None:  # type: ignore[no-untyped-def]
    payload = b""
    for number, (columns, own, encode, bits) in enumerate(batches):
        keys, values, moments = (list(column) for column in zip(*columns, strict=True))
        meta = BatchMeta(producer_id=number, producer_epoch=3, base_sequence=number, attributes=bits)
        payload += encode(keys, values, moments, None, meta, compression=own)
    before = list(iter_headers(payload))
    given_bytes = bytes(payload)
    changed, placed = rewritten(payload, before, Rewriting(codec, append_time), NOW, max_bytes=1 << 30)
    made = bytes(changed.payload)
    assert placed == list(iter_headers(made))
    assert payload == given_bytes
    for (_, old), (at, new), was, now in zip(before, placed, opened(payload), opened(made), strict=True):
        check_crc(made, at, new)
        as_it_was = old.is_control
        assert (now.keys, now.values, now.headers) == (was.keys, was.values, was.headers)
        assert now.timestamps == ([NOW] * len(was.timestamps) if append_time and not as_it_was else was.timestamps)
        assert new.compression == (old.compression if codec is None or as_it_was else codec)
        assert new[9:] == old[9:], "producer, sequence and count stay"
        assert new.is_transactional == old.is_transactional
