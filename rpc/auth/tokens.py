"""Tokens that let their holder read some partitions for a limited time, made by a process that knows a secret.

A token has two parts. The claims list what may be read and until when; the key is an HMAC of the claims under the
clients' (or the cluster's) secret. In the handshake the holder sends the claims and proves that it knows the key, which
never travels on that connection: a server that knows the secret computes the same key. The secret cannot be derived
from either part. Used by `handshake.py` and by planners of distributed work, such as Spark's. Pure.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

_LABEL = b"raylog read token\x00"
MAX_CLAIMS_BYTES = 640
"""Most bytes of the claims, so that they fit into a handshake message: about a hundred partitions of a topic."""


class TokenError(ValueError):
    """Malformed or too long claims."""


class TopicGrant(msgspec.Struct, frozen=True, array_like=True):
    """Partitions of one topic. Unknown trailing fields are ignored."""

    topic_id: str
    topic: str
    partitions: list[int]


class ReadGrant(msgspec.Struct, frozen=True, array_like=True):
    """The grant of a token: fetching and looking up offsets in these partitions, and metadata of their topics."""

    expires_s: int
    """Seconds since 1970 from which on the token is refused."""
    topics: list[TopicGrant]

    def covers(self, topic_id: object, partition: object) -> bool:
        """Whether this partition may be read."""
        return any(topic.topic_id == topic_id and partition in topic.partitions for topic in self.topics)

    def names(self, topics: Iterable[object]) -> bool:
        """Whether metadata of all these topics may be read."""
        known = {topic.topic for topic in self.topics}
        return all(topic in known for topic in topics)


@dataclass(frozen=True, slots=True)
class ReadToken:
    """A token; may be pickled, as it travels to the tasks. The key is never shown."""

    claims: bytes = field(repr=False)
    key: bytes = field(repr=False)


_decode = msgspec.msgpack.Decoder(ReadGrant).decode


def mint(secret: bytes, grant: ReadGrant) -> ReadToken:
    """Make the token of a grant. Raises TokenError when the grant names more partitions than fit."""
    claims = msgspec.msgpack.encode(grant)
    if len(claims) > MAX_CLAIMS_BYTES:
        raise TokenError(f"A token of {len(claims)} bytes is over the limit of {MAX_CLAIMS_BYTES}: grant less at once.")
    return ReadToken(claims, key_of(secret, claims))


def key_of(secret: bytes, claims: bytes) -> bytes:
    """The key of these claims under one value of a secret."""
    return hmac.digest(secret, _LABEL + claims, "sha256")


def read_claims(claims: bytes) -> ReadGrant:
    """Decode the claims; only after the holder has proved the key. Raises TokenError."""
    try:
        return _decode(claims)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TokenError(f"The claims of a token cannot be read: {error}") from error
