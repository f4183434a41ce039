"""Tokens that let their holder read and write some topics for a limited time, made by a process that knows a secret.

A token has two parts. The claims list what is granted and until when; the key is an HMAC of the claims under the
clients' (or the cluster's) secret. In the handshake the holder sends the claims and proves that it knows the key, which
never travels on that connection: a server that knows the secret computes the same key. The secret cannot be derived
from either part. Used by `handshake.py`, by planners of distributed work, such as Spark's, and by `Admin`. Pure.

Claims have two forms, and a handshake says which one it sends. The first lists partitions to read, one by one; every
release reads it. The second has ranges, whole topics, writing, transactions and a group; a server that knows only the
first refuses it in the handshake. Readers of both ignore fields after those that they know.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

import msgspec

MAX_CLAIMS_BYTES = 640
"""Most bytes of the claims, so that they fit into a handshake message: about fifteen whole topics."""
ALL_PARTITIONS = (range(2**31),)
"""Every partition of a topic, with those that are added later."""
_ID_BYTES = 16
_READS_ALL, _WRITES, _ID_IS_TEXT = 1, 2, 4  # bits of a topic in the second form


class TokenError(ValueError):
    """Malformed or too long claims, or a text that is no token."""


class Form(IntEnum):
    """The form of a token's claims; also the kind of proof in a handshake."""

    PARTITIONS = 2
    """Partitions to read, one by one."""
    TOPICS = 3
    """Everything that a `Grant` can hold."""


_LABELS = {Form.PARTITIONS: b"raylog read token\x00", Form.TOPICS: b"raylog token of topics\x00"}


@dataclass(frozen=True, slots=True)
class TopicGrant:
    """What may be done with one topic. It is bound to the id: a topic that is created again is another one."""

    topic_id: str
    topic: str
    reads: tuple[range, ...] = ()
    """Partitions that may be read."""
    writes: bool = False
    """Whether every partition may be written, with those that are added later."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The grant of a token. Metadata of its topics is included, and producer ids where it writes."""

    expires_s: int
    """Seconds since 1970 from which on the token is refused."""
    topics: tuple[TopicGrant, ...] = ()
    transactional_id_prefix: str | None = None
    """Transactional ids that begin with it may be used; None: no transactions. The group of that name is included."""
    group: str | None = None
    """The consumer group to take part in, and to commit offsets of; None: none."""

    def writes_to(self, topic_id: object, topic: object) -> bool:
        """Whether the topic with this id and this name may be written; both have to be those of one granted topic."""
        return any(entry.writes and entry.topic_id == topic_id and entry.topic == topic for entry in self.topics)

    def has_transactional_id(self, transactional_id: str) -> bool:
        """Whether transactions with this id are granted."""
        return bool(self.transactional_id_prefix) and transactional_id.startswith(self.transactional_id_prefix or "")

    def has_group(self, group: str) -> bool:
        """Whether this group is granted: the one that is named, and the one named as the prefix of transactions."""
        return bool(group) and group in (self.group, self.transactional_id_prefix)


@dataclass(frozen=True, slots=True)
class Token:
    """A token; may be pickled, as it travels to tasks. The key is never shown."""

    claims: bytes = field(repr=False)
    key: bytes = field(repr=False)
    form: Form = Form.PARTITIONS

    @property
    def grant(self) -> Grant:
        """What it claims to grant; only a server knows whether the key is right. Raises TokenError."""
        return read_claims(self.claims, self.form)


def ranges_of(partitions: Iterable[int]) -> tuple[range, ...]:
    """These partitions as ranges, in order."""
    found: list[range] = []
    for partition in sorted(set(partitions)):
        if found and found[-1].stop == partition:
            found[-1] = range(found[-1].start, partition + 1)
        else:
            found.append(range(partition, partition + 1))
    return tuple(found)


def mint(secret: bytes, grant: Grant) -> Token:
    """Make the token of a grant. Raises TokenError when the grant has more than fits."""
    form = Form.PARTITIONS
    claims = msgspec.msgpack.encode(_partitions_claims(grant)) if _has_only_partitions(grant) else b""
    if not 0 < len(claims) <= MAX_CLAIMS_BYTES:
        form = Form.TOPICS
        claims = msgspec.msgpack.encode(_topics_claims(grant))
    if len(claims) > MAX_CLAIMS_BYTES:
        raise TokenError(
            f"A token of {len(claims)} bytes is over the limit of {MAX_CLAIMS_BYTES}: grant fewer topics at once."
        )
    return Token(claims, key_of(secret, claims, form), form)


def key_of(secret: bytes, claims: bytes, form: Form) -> bytes:
    """The key of these claims under one value of a secret."""
    return hmac.digest(secret, _LABELS[form] + claims, "sha256")


def read_claims(claims: bytes, form: Form) -> Grant:
    """Decode the claims; a server only after the holder has proved the key. Raises TokenError."""
    try:
        return _read_partitions(claims) if form == Form.PARTITIONS else _read_topics(claims)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise TokenError(f"The claims of a token cannot be read: {error}") from error


# The first form


class _PartitionsRow(msgspec.Struct, frozen=True, array_like=True):
    topic_id: str
    topic: str
    partitions: list[int]


class _PartitionsClaims(msgspec.Struct, frozen=True, array_like=True):
    expires_s: int
    topics: list[_PartitionsRow]


_decode_partitions = msgspec.msgpack.Decoder(_PartitionsClaims).decode


def _has_only_partitions(grant: Grant) -> bool:
    """Whether the first form can hold the grant. It is preferred: earlier releases accept such a token, too."""
    if grant.transactional_id_prefix is not None or grant.group is not None:
        return False
    return all(not entry.writes and sum(map(len, entry.reads)) < MAX_CLAIMS_BYTES for entry in grant.topics)


def _partitions_claims(grant: Grant) -> _PartitionsClaims:
    rows = [
        _PartitionsRow(entry.topic_id, entry.topic, [number for each in entry.reads for number in each])
        for entry in grant.topics
    ]
    return _PartitionsClaims(grant.expires_s, rows)


def _read_partitions(claims: bytes) -> Grant:
    found = _decode_partitions(claims)
    rows = (TopicGrant(row.topic_id, row.topic, ranges_of(row.partitions)) for row in found.topics)
    return Grant(found.expires_s, tuple(rows))


# The second form


class _TopicsRow(msgspec.Struct, frozen=True, array_like=True):
    topic_id: bytes
    """The 16 bytes of an id of 32 hexadecimal digits, as brokers make them; the text of any other id."""
    topic: str
    flags: int
    ranges: list[int] = []
    """Starts and ends of ranges to read, by turns."""


class _TopicsClaims(msgspec.Struct, frozen=True, array_like=True):
    expires_s: int
    topics: list[_TopicsRow]
    transactional_id_prefix: str | None = None
    group: str | None = None


_decode_topics = msgspec.msgpack.Decoder(_TopicsClaims).decode


def _topics_claims(grant: Grant) -> _TopicsClaims:
    return _TopicsClaims(
        grant.expires_s, [_row(entry) for entry in grant.topics], grant.transactional_id_prefix, grant.group
    )


def _row(entry: TopicGrant) -> _TopicsRow:
    reads_all = entry.reads == ALL_PARTITIONS
    short = _short_id(entry.topic_id)
    flags = _READS_ALL * reads_all + _WRITES * entry.writes + _ID_IS_TEXT * (not short)
    ranges = [] if reads_all else [edge for each in entry.reads for edge in (each.start, each.stop)]
    return _TopicsRow(short or entry.topic_id.encode(), entry.topic, flags, ranges)


def _short_id(topic_id: str) -> bytes:
    """The id in bytes; empty for one that is no number."""
    try:
        short = bytes.fromhex(topic_id)
    except ValueError:
        return b""
    return short if len(short) == _ID_BYTES and short.hex() == topic_id else b""


def _read_topics(claims: bytes) -> Grant:
    found = _decode_topics(claims)
    return Grant(
        found.expires_s,
        tuple(_topic_grant(row) for row in found.topics),
        found.transactional_id_prefix,
        found.group,
    )


def _topic_grant(row: _TopicsRow) -> TopicGrant:
    starts, ends = row.ranges[::2], row.ranges[1::2]
    reads = tuple(range(start, end) for start, end in zip(starts, ends, strict=True))
    return TopicGrant(
        row.topic_id.decode() if row.flags & _ID_IS_TEXT else row.topic_id.hex(),
        row.topic,
        ALL_PARTITIONS if row.flags & _READS_ALL else reads,
        bool(row.flags & _WRITES),
    )
