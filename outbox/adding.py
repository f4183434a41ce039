"""`add`: write an event in the transaction that makes it true. May touch: the user's database."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any, Union
from weakref import WeakSet

import msgspec
from sqlalchemy import Connection, Engine, insert

from raylog.client.arguments import Headers, as_bytes, checked_headers, checked_timestamp, checked_topic, now_ms
from raylog.client.producer.partitioner import hash_of_key
from raylog.client.types import Header
from raylog.outbox.tables import PAYLOAD_BYTES_MAX, TXID_LENGTH, UNFINISHED, checked_settings, outbox

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as OrmSession

Database = Union[Connection, "OrmSession"]
KEY_BYTES_MAX = 65_535
OWN_PREFIX = "raylog-"
"""Prefix of the headers that only Raylog writes."""
_checked: WeakSet[Engine] = WeakSet()
"""Engines whose outbox was found to have the right version."""


def add(
    db: Database,
    topic: str,
    value: bytes | None = None,
    *,
    key: bytes | None = None,
    headers: Headers | None = None,
    txid: str | None = None,
    deliver_at: datetime | int | None = None,
) -> str:
    """Write an event into the outbox, in the transaction of `db`; returns its txid.

    When the transaction commits, a relay stores the event in the topic once; when it rolls back, it never does. `db` is
    a connection of SQLAlchemy, or a session of its ORM. `txid` names the event for good: a second event with the same
    txid raises the database's IntegrityError, and consumers find it in the header `raylog-txid`; by default a new one
    is made. `deliver_at`: the event is not delivered before this time, a datetime with a zone or milliseconds since
    1970. `headers` whose names begin with `raylog-` are left out, so the headers of the record that caused the event
    may be passed on.

    Raises TypeError or ValueError for what cannot be stored, OutboxNotInitialized, OutboxVersionMismatch.
    """
    connection = db if isinstance(db, Connection) else db.connection()
    if connection.engine not in _checked:
        checked_settings(connection)
        _checked.add(connection.engine)
    connection.execute(insert(outbox), row := _row(topic, value, key, headers, txid, deliver_at))
    return str(row["txid"])


def _row(
    topic: str,
    value: bytes | None,
    key: bytes | None,
    headers: Headers | None,
    txid: str | None,
    deliver_at: datetime | int | None,
) -> dict[str, Any]:
    txid = uuid.uuid4().hex if txid is None else checked_txid(txid)
    key = None if key is None else as_bytes("key", key)
    value = None if value is None else as_bytes("value", value)
    if key is not None and len(key) > KEY_BYTES_MAX:
        raise ValueError(f"A key of {len(key)} bytes is too long for an outbox; it may have {KEY_BYTES_MAX}.")
    if value is not None and len(value) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"A value of {len(value)} bytes is too long for an outbox; it may have {PAYLOAD_BYTES_MAX}.")
    return {
        "txid": txid,
        "topic": checked_topic(topic),
        "msg_key": key,
        "payload": value,
        "headers": None if headers is None else msgspec.msgpack.encode(_own_left_out(headers)),
        "deliver_at": None if deliver_at is None else moment_ms(deliver_at),
        "state": UNFINISHED,
        "route": hash_of_key(txid.encode() if key is None else key),
        "created_at": now_ms(),
        "attempts": 0,
    }


def checked_txid(txid: str) -> str:
    """The txid, if it can be one. Raises TypeError, ValueError."""
    if not isinstance(txid, str):
        raise TypeError(f"A txid is text, not {type(txid).__name__}.")
    if not 0 < len(txid) <= TXID_LENGTH:
        raise ValueError(f"A txid has 1 to {TXID_LENGTH} characters, not {len(txid)}.")
    if txid.endswith(" "):
        raise ValueError(f"The txid {txid!r} ends in a blank, which MySQL does not compare; leave it out.")
    if "\0" in txid:
        raise ValueError(f"The txid {txid!r} has a NUL in it, which PostgreSQL does not store; leave it out.")
    return txid


def _own_left_out(headers: Headers) -> list[Header]:
    """The headers without Raylog's own: passed on from the record that caused the event, these would name that one."""
    return [pair for pair in checked_headers(headers) or () if not pair[0].startswith(OWN_PREFIX)]


def moment_ms(moment: datetime | int) -> int:
    """A time as milliseconds since 1970. Raises ValueError for a datetime without a zone."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError(f"The time {moment} has no zone; say which, as in datetime.now(timezone.utc).")
        return int(moment.timestamp() * 1000)
    found = checked_timestamp(moment)
    assert found is not None  # only None becomes None
    return found
