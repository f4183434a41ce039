"""Validation of user arguments at the call, so that the caller that passed a wrong argument gets the error.

A batch is encoded later, on the client's loop, together with other callers' records: a value that cannot be encoded
must not get that far. Used by producers and consumers. Pure, except for the current time.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from time import time
from typing import Any, Final, TypeAlias

from raylog.base.ids import TopicPartition
from raylog.client.types import Header, OffsetAndMetadata

TIMESTAMP_MAX_MS: Final = 2**63 - 1
"""The header of a batch holds a timestamp as a signed integer of eight bytes."""

Headers: TypeAlias = Mapping[str, bytes | None] | Sequence[Header]
"""What `send` takes for headers: a mapping, or pairs where a name may occur more than once."""


def as_bytes(what: str, value: object) -> bytes:
    """The bytes of a bytes-like value. For anything else raises a TypeError that names the serializer to pass."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    choice = {"str": "string", "int": "int"}.get(type(value).__name__, "json")
    raise TypeError(
        f"The {what} must be bytes or None, not {type(value).__name__}: "
        f'give the producer {what}_serializer="{choice}" or a function of your own.'
    )


def checked_headers(headers: Headers | None) -> list[Header] | None:
    """The headers as stored, in order. Raises TypeError, or ValueError for a name that cannot be encoded as UTF-8."""
    if headers is None:
        return None
    try:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        found = [(name, content) for name, content in pairs]
    except (TypeError, ValueError):
        raise TypeError(
            f"Headers must be a mapping of str to bytes or a sequence of (str, bytes) pairs, not {headers!r:.100}."
        ) from None
    return [_checked_header(name, content) for name, content in found]


def _checked_header(name: object, content: object) -> Header:
    if type(name) is not str:
        raise TypeError(f"The name of a header must be str, not {type(name).__name__}: {name!r:.100}.")
    if not name.isascii():
        name.encode()  # raises for a lone surrogate
    if content is None or type(content) is bytes:
        return name, content
    if isinstance(content, bytes | bytearray | memoryview):
        return name, bytes(content)
    raise TypeError(f"The value of the header {name!r} must be bytes or None, not {type(content).__name__}.")


def checked_timestamp(timestamp_ms: int | None) -> int | None:
    """The timestamp as a plain integer. Raises TypeError for a fraction, ValueError for one that cannot be stored."""
    if timestamp_ms is None:
        return None
    checked = timestamp_ms
    if type(checked) is not int:
        try:
            if isinstance(checked, bool):
                raise TypeError
            checked = operator.index(checked)  # such as an integer of numpy
        except TypeError:
            raise TypeError(
                f"timestamp_ms must be a whole number of milliseconds since 1970, not {type(timestamp_ms).__name__} "
                f"{timestamp_ms!r:.100}; for the time of now leave it out, or use int(time.time() * 1000)."
            ) from None
    if not 0 <= checked <= TIMESTAMP_MAX_MS:
        raise ValueError(
            f"timestamp_ms must be a time in milliseconds since 1970, from 0 to 2**63 - 1, not {checked}; leave it out "
            "for the time of now."
        )
    return checked


def checked_topic(topic: object) -> str:
    """The topic's name. Raises TypeError unless it is text, ValueError for an empty one."""
    if not isinstance(topic, str):
        raise TypeError(f"The topic must be its name as str, not {type(topic).__name__}: {topic!r:.100}.")
    if not topic:
        raise ValueError("The topic must be its name, not an empty text.")
    return topic


def check_topics(topics: Iterable[object]) -> None:
    """Raise TypeError for arguments of a consumer's constructor that are not topic names."""
    for topic in topics:
        if isinstance(topic, Mapping):
            raise TypeError(
                "A consumer's first arguments are topics; give the configuration by its name: "
                'Consumer("orders", config={"group.id": "board"}), or Consumer("orders", group_id="board").'
            )
        if isinstance(topic, (list, tuple, set)):
            raise TypeError(
                'Give a consumer its topics one by one: Consumer("orders", "events"), or Consumer(*topics).'
            )
        checked_topic(topic)


def check_place(topic: object, partition: object) -> None:
    """Raise for a topic that is not a name, and TypeError for a partition that is neither None nor an int."""
    checked_topic(topic)
    if partition is not None and (isinstance(partition, bool) or not hasattr(partition, "__index__")):
        raise TypeError(
            f"The partition must be its number as int, not {type(partition).__name__}: {partition!r:.100}; leave it "
            "out for one that the key decides."
        )


def checked_partition(partition: object) -> TopicPartition:
    """A partition as a TopicPartition. Raises TypeError for other types, ValueError for a negative number."""
    given: Any = partition
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise TypeError(f"A partition must be a TopicPartition or a pair of topic and number, not {given!r:.100}.")
    topic, number = checked_topic(given[0]), given[1]
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise TypeError(f"The number of a partition of {topic!r} must be an int, not {number!r:.100}.")
    if operator.index(number) < 0:
        raise ValueError(f"The number of a partition of {topic!r} must be 0 or more, not {number}.")
    return TopicPartition(topic, operator.index(number))


def checked_offset(partition: tuple[str, int], given: int | OffsetAndMetadata) -> OffsetAndMetadata:
    """The offset and metadata to commit for a partition. Raises TypeError or ValueError for an invalid offset."""
    found = OffsetAndMetadata(given) if isinstance(given, int) else given
    if not isinstance(found, OffsetAndMetadata) or type(found.offset) is not int or not isinstance(found.metadata, str):
        raise TypeError(
            f"The offset of {partition[0]}-{partition[1]} must be an int, or an OffsetAndMetadata of an int and a str, "
            f"not {given!r:.100}."
        )
    if not 0 <= found.offset < 2**63:
        raise ValueError(
            f"The offset of {partition[0]}-{partition[1]} must be that of the next record to read, 0 or more, not "
            f"{found.offset}."
        )
    return found


def now_ms() -> int:
    """The current time as records carry it, in milliseconds since 1970."""
    return int(time() * 1000)
