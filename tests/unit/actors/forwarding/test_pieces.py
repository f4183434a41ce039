"""Source batches are always cut at the same records, and parcels have what the records had, with the cause."""

import pytest

from raylog.actors.forwarding.pieces import PIECE_BYTES, PieceRecords, cut, encode
from raylog.core.dead_letters import HOPS, HOPS_MAX, REASON, TTL, Header, cause_of
from raylog.core.forwarding.events import Parcel
from raylog.core.forwarding.progress import UNDELIVERABLE, Route
from raylog.core.forwarding.rules import ExpiryRule, FilingRule, RedriveRule, Rule
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC, Envelope
from raylog.protocol.replica import AbortedTxn
from raylog.storage.batch.columns import Columns
from raylog.storage.batch.header import TRANSACTIONAL_BIT, BatchMeta, iter_headers
from raylog.storage.batch.marker import TxnMarker
from raylog.storage.batch.records import decode_batch, encode_batch

EXPIRY = ExpiryRule("dead")
NOW_MS = 5_000


def batch(
    first: int,
    count: int,
    *,
    size: int = 10,
    headers: list[Header] | None = None,
    producer: int = -1,
    transactional: bool = False,
) -> bytes:
    """Records named by their offsets."""
    meta = BatchMeta(producer, 0, 0 if producer >= 0 else -1, first, 1, TRANSACTIONAL_BIT if transactional else 0)
    values: list[bytes | None] = [b"%d" % (first + number) + b"." * size for number in range(count)]
    return encode_batch(None, values, [1_000 + first] * count, [headers] * count if headers else None, meta)


def stamped(marker: TxnMarker, offset: int) -> bytes:
    return offset.to_bytes(8, "big") + marker.encode()[8:]


def pieces(records: bytes, offset: int = 0, rule: Rule = EXPIRY, rows_max: int = 1 << 30) -> list[PieceRecords]:
    return cut(records, offset, (), 3, rule, lambda timestamp: timestamp + 100, rows_max)[0]


def spans(found: list[PieceRecords]) -> list[tuple[int, int]]:
    return [(held.piece.first, held.piece.end) for held in found]


def sent(held: PieceRecords, rule: Rule, route: Route, *, refused: bool = False, bare: bool = False) -> Columns:
    """The records of a parcel with all of a piece."""
    offsets = tuple(offset for each, found in held.piece.parts for offset in found if each == route)
    parcel = Parcel(
        route=UNDELIVERABLE if refused else route,
        topic_id="id",
        partition=0,
        epoch=2,
        base_sequence=7,
        offsets=offsets,
        refused=frozenset(offsets) if refused else frozenset(),
        bare=frozenset(offsets) if bare else frozenset(),
        piece=held.piece.first,
        first=held.piece.first,
        end=held.piece.end,
        sources=((route, refused, False),),
    )
    made = encode(held, parcel, rule, ("source", 3), 99, NOW_MS)
    ((position, header),) = iter_headers(made)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (99, 2, 7)
    return decode_batch(made, position, header)


def test_a_large_batch_is_cut_into_pieces() -> None:
    size = PIECE_BYTES // 4
    found = pieces(batch(10, 10, size=size))
    assert spans(found) == [(10, 13), (13, 16), (16, 19), (19, 20)]


@pytest.mark.parametrize("offset", range(10, 20))
def test_it_is_cut_at_the_same_records_wherever_reading_begins(offset: int) -> None:
    records = batch(10, 10, size=PIECE_BYTES // 4)
    whole = spans(pieces(records))
    assert spans(pieces(records, offset)) == [span for span in whole if span[1] > offset]


def test_a_record_above_the_size_is_a_piece_of_its_own() -> None:
    assert spans(pieces(batch(0, 2, size=2 * PIECE_BYTES))) == [(0, 1), (1, 2)]


def test_pieces_have_no_more_records_than_wanted() -> None:
    assert spans(pieces(batch(0, 5), rows_max=2)) == [(0, 2), (2, 4), (4, 5)]


def test_a_piece_is_due_with_its_last_record() -> None:
    (held,) = pieces(batch(50, 3))
    assert held.piece.due_ms == 1_150


def test_what_was_aborted_is_left_out() -> None:
    records = b"".join(
        (
            batch(0, 2, producer=5, transactional=True),
            batch(2, 1),
            stamped(TxnMarker(5, 1, 0, committed=False), 3),
            batch(4, 2, producer=5, transactional=True),
            stamped(TxnMarker(5, 2, 0, committed=True), 6),
        )
    )
    found, behind = cut(records, 0, [AbortedTxn(5, 0)], 3, EXPIRY, lambda timestamp: 0, 1 << 30)
    assert spans(found) == [(2, 3), (4, 6)]
    assert behind == 7


def test_an_expired_record_keeps_all_and_gets_its_cause() -> None:
    (held,) = pieces(batch(10, 2, headers=[("a", b"1")]))
    columns = sent(held, EXPIRY, ("dead", 3))
    assert columns.values is not None
    assert columns.values[0] == b"10.........."
    assert columns.timestamps == [NOW_MS, NOW_MS]
    headers = (columns.headers or [])[1]
    assert headers is not None
    cause = cause_of(headers)
    assert cause is not None
    assert (cause.topic, cause.partition, cause.offset, cause.reason) == ("source", 3, 11, "expired")
    assert ("a", b"1") in headers


def test_a_refused_record_says_so() -> None:
    (held,) = pieces(batch(10, 1))
    columns = sent(held, EXPIRY, ("dead", 3), refused=True)
    headers = dict((columns.headers or [])[0] or ())
    assert headers[REASON] == b"undeliverable"
    assert b"dead" in (headers["__dlq.errors.message"] or b"")


def test_a_chosen_key_decides_the_partition() -> None:
    rule = ExpiryRule("dead", 42, "", "chosen")
    (held,) = pieces(batch(0, 1), rule=rule)
    assert sent(held, rule, ("dead", 42)).keys == [b"chosen"]


def test_after_too_many_hops_a_record_is_undeliverable() -> None:
    (held,) = pieces(batch(0, 1, headers=[(HOPS, b"%d" % HOPS_MAX)]))
    assert [route for route, _ in held.piece.parts] == [UNDELIVERABLE]


def test_a_record_with_a_time_of_its_own_is_filed_and_not_waited_for() -> None:
    records = batch(0, 1, headers=[(TTL, b"9000")])
    assert [held.piece.parts for held in pieces(records)] == [()]
    rule = FilingRule("dead", "dead id", -1, 5)
    (held,) = pieces(records, rule=rule)
    columns = sent(held, rule, (SCHEDULED_TOPIC, 5))
    assert columns.timestamps == [10_000]
    assert Envelope.of((columns.headers or [])[0]) == Envelope("dead", "dead id", -1, NOW_MS)
    shorter = FilingRule("dead", "dead id", 6_000, 5)
    assert sent(held, shorter, (SCHEDULED_TOPIC, 5)).timestamps == [7_000]


def test_a_redrive_takes_off_what_a_dead_letter_has() -> None:
    (dead,) = pieces(batch(10, 1, headers=[("a", b"1")]))
    headers = (sent(dead, EXPIRY, ("dead", 3)).headers or [])[0]
    rule = RedriveRule("", {"reason": "expired", "header:a": "1"})
    (held,) = pieces(batch(0, 1, headers=headers), rule=rule)
    assert [route for route, _ in held.piece.parts] == [("source", 3)]
    assert sent(held, rule, ("source", 3)).headers == [[("a", b"1")]]


@pytest.mark.parametrize(
    "where", [{"reason": "rejected"}, {"topic": "other"}, {"key": "k"}, {"header:a": "2"}, {"group": "g"}]
)
def test_a_filter_leaves_records_out(where: dict[str, str]) -> None:
    (dead,) = pieces(batch(10, 1, headers=[("a", b"1")]))
    headers = (sent(dead, EXPIRY, ("dead", 3)).headers or [])[0]
    assert RedriveRule("to", where).route(0, None, headers) is None


@pytest.mark.parametrize("topic", [b"__consumer_offsets", b"x" * 250, b"a topic", b"../up", b""])
def test_a_forged_origin_is_no_target(topic: bytes) -> None:
    assert RedriveRule().route(0, None, forged(topic)) is None


def test_a_forged_partition_is_a_number_that_can_be_kept() -> None:
    route = RedriveRule().route(0, None, forged(b"jobs", partition=b"9" * 400))
    assert route is not None
    assert route[1] < 1 << 31


def forged(topic: bytes, partition: bytes = b"0") -> list[Header]:
    return [
        ("__dlq.errors.topic", topic),
        ("__dlq.errors.partition", partition),
        ("__dlq.errors.offset", b"0"),
        (REASON, b"expired"),
    ]


def test_a_filed_record_leads_where_its_topic_says() -> None:
    header = Envelope("__consumer_offsets", "another id", 0, 1).header()
    rule = FilingRule("dead", "dead id", -1, 5)
    (held,) = pieces(batch(0, 1, headers=[header, (TTL, b"10"), header]), rule=rule)
    headers = (sent(held, rule, (SCHEDULED_TOPIC, 5)).headers or [])[0]
    assert [value for name, value in headers or () if name == header[0]] == [
        Envelope("dead", "dead id", -1, NOW_MS).header()[1]
    ]


def test_a_time_to_live_counts_from_now_where_a_clock_is_ahead() -> None:
    rule = FilingRule("dead", "dead id", -1, 5)
    (held,) = pieces(batch(100_000, 1, headers=[(TTL, b"10")]), rule=rule)
    assert sent(held, rule, (SCHEDULED_TOPIC, 5)).timestamps == [NOW_MS + 10]


def test_a_record_that_no_topic_takes_leaves_its_body_where_it_is() -> None:
    (held,) = pieces(batch(10, 2, headers=[("a", b"1")]))
    columns = sent(held, EXPIRY, ("dead", 3), refused=True, bare=True)
    assert (columns.keys, columns.values) == (None, None)
    cause = cause_of((columns.headers or [])[0])
    assert cause is not None
    assert (cause.topic, cause.offset) == ("source", 10)
    assert "too large" in cause.message
