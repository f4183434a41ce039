"""Records as JSON lines: what `raylog consume --json` writes, `raylog produce --json` reads. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from raylog.cli.output import json_bytes, json_line

if TYPE_CHECKING:
    from raylog.client.types import Record

FIELDS = ("topic", "partition", "offset", "timestamp_ms", "key", "key_base64", "value", "value_base64", "headers")


@dataclass(frozen=True, slots=True)
class Line:
    """A record to send; None = null for value and key, and otherwise left to the producer."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    topic: str | None = None
    number: int = field(default=0, compare=False)
    """Number of the line in its file, from 1."""


def write_line(record: Record) -> bytes:
    """One record as a line."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **json_bytes("key", record.key),
        **json_bytes("value", record.value),
        "headers": [{"name": name, **json_bytes("value", value)} for name, value in record.headers],
    }
    return json_line(fields).encode() + b"\n"


def read_line(text: bytes) -> Line:
    """The record of a line; its offset is ignored. Raises ValueError with what is wrong."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is no JSON ({error})") from None
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no field of a record; they are {', '.join(FIELDS)}")
    if "value" not in fields and "value_base64" not in fields:
        raise ValueError('it has neither "value" nor "value_base64"; null is a tombstone')
    topic = fields.get("topic")
    if topic is not None and not isinstance(topic, str):
        raise ValueError(f'"topic" must be text, not {topic!r:.50}')
    return Line(
        _bytes(fields, "value"),
        _bytes(fields, "key"),
        _headers(fields.get("headers")),
        _number(fields, "partition"),
        _number(fields, "timestamp_ms"),
        topic,
    )


def _bytes(fields: dict[str, Any], name: str) -> bytes | None:
    """The bytes of a field: its text as UTF-8, or its base64 decoded. Raises ValueError."""
    encoded = f"{name}_base64"
    if fields.get(encoded) is not None:
        if fields.get(name) is not None:
            raise ValueError(f'"{name}" and "{encoded}" are both given; leave one out')
        try:
            return base64.b64decode(fields[encoded], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ValueError(f'"{encoded}" is no base64') from None
    found = fields.get(name)
    if found is None:
        return None
    if not isinstance(found, str):
        raise ValueError(f'"{name}" must be text or null, not {found!r:.50}; JSON inside it has to be quoted')
    try:
        return found.encode()
    except UnicodeEncodeError:
        raise ValueError(f'"{name}" has half a pair of surrogates, which has no UTF-8 form') from None


def _headers(given: Any) -> tuple[tuple[str, bytes | None], ...] | None:
    if given is None:
        return None
    if not isinstance(given, list):
        raise ValueError('"headers" must be a list of objects with "name" and "value"')
    found = []
    for each in given:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise ValueError('a header must be an object with "name" and "value"')
        found.append((each["name"], _bytes(each, "value")))
    return tuple(found) or None


def _number(fields: dict[str, Any], name: str) -> int | None:
    found = fields.get(name)
    if found is None or (isinstance(found, int) and not isinstance(found, bool)):
        # A log may hold values that no producer sends, such as -1 for a record without a timestamp.
        return None if found is not None and found < 0 else found
    raise ValueError(f'"{name}" must be a whole number, not {found!r:.50}')
