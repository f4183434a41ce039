"""Cuts batches of the source into pieces, and encodes their records into batches for targets. Pure.

Owned by a forwarder. A batch is always cut at the same records, wherever reading begins, so that everything that was
decided can be read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raylog.base.errors import RaylogError
from raylog.core.dead_letters import Cause, Header, Reason, cause_of, dead_headers, without_cause
from raylog.core.forwarding.events import Parcel, Piece
from raylog.core.forwarding.progress import UNDELIVERABLE, Route
from raylog.core.forwarding.rules import ExpiryRule, FilingRule, RedriveRule, Rule
from raylog.core.scheduling.envelope import BY_KEY, SCHEDULED_TOPIC, Envelope
from raylog.core.scheduling.envelope import without as without_envelope
from raylog.storage.batch.columns import Columns
from raylog.storage.batch.header import BatchHeader, check_crc, iter_headers
from raylog.storage.batch.key_hash import hash_of_key
from raylog.storage.batch.records import BatchMeta, decode_batch, encode_batch

PIECE_BYTES: Final = 256 * 1024
"""Largest piece, including the headers of dead letters; a larger record is a piece of its own."""
ADDED_BYTES: Final = 256
"""Estimate of the bytes that the headers of a dead letter add to a record."""

Aborted = Sequence[Any]


@dataclass(slots=True)
class PieceRecords:
    """The records of a piece, in memory."""

    piece: Piece
    columns: Columns
    compression: int
    at: dict[int, int]
    """Row in ``columns`` by offset."""
    damage: str = ""
    """Why the batch of the records cannot be decoded; then one dead letter stands for all of them. Empty = it can."""


def cut(
    records: bytes,
    offset: int,
    aborted: Aborted,
    partition: int,
    rule: Rule,
    due_ms: Callable[[int], int],
    rows_max: int,
) -> tuple[list[PieceRecords], int]:
    """Return the pieces of batches from an offset on, and the offset behind the last complete batch.

    ``aborted``: transactions whose records are not forwarded. ``due_ms``: returns when a record with a timestamp may be
    forwarded. ``rows_max``: most records of a piece. Raises CorruptBatch.
    """
    found: list[PieceRecords] = []
    next_offset = offset
    for position, header in committed_batches(records, aborted):
        next_offset = max(next_offset, header.next_offset)
        if position < 0 or header.next_offset <= offset or not header.record_count:
            continue
        check_crc(records, position, header)
        try:
            columns = decode_batch(records, position, header, verify=False)
        except RaylogError as damage:  # its CRC is right, so reading it again will not help
            found.append(_unreadable(header, rule, due_ms, damage))
            continue
        found += [
            held for held in _pieces(columns, header, partition, rule, due_ms, rows_max) if held.piece.end > offset
        ]
    return found, next_offset


def _unreadable(header: BatchHeader, rule: Rule, due_ms: Callable[[int], int], damage: RaylogError) -> PieceRecords:
    """Return the piece of a batch that cannot be decoded; if its records expire, one dead letter names the batch."""
    first, stamp_ms = header.base_offset, header.max_timestamp
    parts = ((UNDELIVERABLE, (first,)),) if isinstance(rule, ExpiryRule) else ()
    piece = Piece(first, header.next_offset, due_ms(stamp_ms), parts)
    columns = Columns([first], [stamp_ms], None, None, None)
    text = f"The batch with the offsets {first} to {header.next_offset - 1} cannot be opened: {damage}"
    return PieceRecords(piece, columns, 0, {first: 0}, text)


def committed_batches(records: bytes, aborted: Aborted) -> Iterator[tuple[int, BatchHeader]]:
    """Return position and header of each batch; position -1: a control batch, or a batch that was aborted."""
    coming = sorted(aborted, key=lambda txn: txn.first_offset)
    open_ids: set[int] = set()
    for position, header in iter_headers(records):
        while coming and coming[0].first_offset <= header.last_offset:
            open_ids.add(coming.pop(0).producer_id)
        if header.is_control:
            open_ids.discard(header.producer_id)
            yield -1, header
        elif header.is_transactional and header.producer_id in open_ids:
            yield -1, header
        else:
            yield position, header


def _pieces(
    columns: Columns,
    header: BatchHeader,
    partition: int,
    rule: Rule,
    due_ms: Callable[[int], int],
    rows_max: int,
) -> Iterator[PieceRecords]:
    first_row, size = 0, 0
    offsets, rows = columns.offsets, len(columns.timestamps)
    begin = header.base_offset
    for row in range(rows):
        here = _size(columns, row)
        if row > first_row and (size + here > PIECE_BYTES or row - first_row >= rows_max):
            yield _held(columns, header, range(first_row, row), (begin, offsets[row]), partition, rule, due_ms)
            first_row, size, begin = row, 0, offsets[row]
        size += here
    yield _held(columns, header, range(first_row, rows), (begin, header.next_offset), partition, rule, due_ms)


def _held(
    columns: Columns,
    header: BatchHeader,
    rows: range,
    span: tuple[int, int],
    partition: int,
    rule: Rule,
    due_ms: Callable[[int], int],
) -> PieceRecords:
    parts: dict[Route, list[int]] = {}
    latest_ms, skipped = 0, -1
    for row in rows:
        key = _at(columns.keys, row)
        # The key decides the partition, as for a producer. Records without a key stay together, piece by piece.
        spread = span[0] if key is None else hash_of_key(key)
        own = _at(columns.headers, row)
        route = rule.route(partition, key, own, spread, columns.offsets[row])
        if route is None and skipped < 0 and isinstance(rule, RedriveRule) and rule.leaves(own):
            skipped = columns.offsets[row]
        if route is not None:
            parts.setdefault(route, []).append(columns.offsets[row])
            latest_ms = max(latest_ms, due_ms(columns.timestamps[row]))
    piece = Piece(*span, latest_ms, tuple((route, tuple(offsets)) for route, offsets in parts.items()), skipped)
    return PieceRecords(
        piece, columns, header.compression, {columns.offsets[row]: row for row in rows} if parts else {}
    )


def _size(columns: Columns, row: int) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in _at(columns.headers, row) or ())
    return len(_at(columns.keys, row) or b"") + len(_at(columns.values, row) or b"") + headers + ADDED_BYTES


def _at(column: Sequence[Any] | None, row: int) -> Any:
    return None if column is None else column[row]


def encode(
    held: PieceRecords, parcel: Parcel, rule: Rule, source: tuple[str, int], producer_id: int, now_ms: int
) -> bytes:
    """Return the encoded batch of a parcel. ``source``: topic and partition that the records come from."""
    columns = held.columns
    rows = [held.at[offset] for offset in parcel.offsets]
    key = rule.key.encode() if not isinstance(rule, RedriveRule) and rule.key else None
    headers: list[list[Header] | None] = [
        _headers(held, row, rule, (*source, offset), parcel) for row, offset in zip(rows, parcel.offsets, strict=True)
    ]
    is_bare = [offset in parcel.bare for offset in parcel.offsets]
    times = [now_ms] * len(rows)
    if isinstance(rule, FilingRule) and parcel.route[0] == SCHEDULED_TOPIC:
        own = [_at(columns.headers, row) for row in rows]
        envelopes = [Envelope(rule.topic, rule.target_id(each), BY_KEY, now_ms).header() for each in own]
        headers = [[*without_envelope(found), envelope] for found, envelope in zip(headers, envelopes, strict=True)]
        times = [
            max(now_ms, rule.expires_ms(min(now_ms, columns.timestamps[row]), each))
            for row, each in zip(rows, own, strict=True)
        ]
    return encode_batch(
        [None if bare else key or _at(columns.keys, row) for row, bare in zip(rows, is_bare, strict=True)],
        [None if bare else _at(columns.values, row) for row, bare in zip(rows, is_bare, strict=True)],
        times,
        headers if any(headers) else None,
        BatchMeta(producer_id, parcel.epoch, parcel.base_sequence),
        compression=held.compression,
    )


def _headers(held: PieceRecords, row: int, rule: Rule, place: tuple[str, int, int], parcel: Parcel) -> list[Header]:
    """Return the headers of a record in a parcel. ``place``: topic, partition and offset in the source."""
    topic, partition, offset = place
    columns, is_refused = held.columns, offset in parcel.refused
    own: Sequence[Header] = _at(columns.headers, row) or ()
    if isinstance(rule, RedriveRule) and not is_refused:
        return without_cause(own)
    reason, message = Reason.EXPIRED, ""
    if held.damage:
        reason, message = Reason.UNDELIVERABLE, held.damage
    elif isinstance(rule, RedriveRule):
        before = cause_of(own)
        target = rule.to or ("" if before is None else before.topic)
        reason = Reason.UNDELIVERABLE
        message = f"It could not be sent on: {target or 'its origin'} does not exist, or did not take it."
    elif is_refused:
        reason = Reason.UNDELIVERABLE
        message = f"It expired, and its dead-letter topic {rule.topic} does not exist, or did not take it."
    if offset in parcel.bare:  # the record is too large for the topic, so it goes without its content
        own, message = (), f"{message} Its key, value and headers are too large to be kept here."
    cause = Cause(
        reason=reason,
        topic=topic,
        partition=partition,
        offset=offset,
        message=message,
        group=rule.group if isinstance(rule, ExpiryRule) and not is_refused else "",
        timestamp_ms=columns.timestamps[row],
    )
    return dead_headers(own, cause)
