"""Shorthands for serializers."""

from datetime import UTC, datetime

import pytest

from raylog.base.errors import InvalidConfig
from raylog.client.serializers import deserializer, serializer


@pytest.mark.parametrize(
    ("name", "value", "data"),
    [
        ("json", {"a": [1, None]}, b'{"a":[1,null]}'),
        ("string", "ü", b"\xc3\xbc"),
        ("int", -2, b"\xff" * 7 + b"\xfe"),
        ("msgpack", {"a": [1, None, b"\x00"], 2: "ü"}, b"\x82\xa1a\x93\x01\xc0\xc4\x01\x00\x02\xa2\xc3\xbc"),
        ("msgpack", datetime(2026, 1, 1, tzinfo=UTC), b"\xd6\xff\x69\x55\xb9\x00"),
    ],
)
def test_a_shorthand_writes_and_reads(name: str, value: object, data: bytes) -> None:
    write, read = serializer(name), deserializer(name)
    assert write is not None
    assert read is not None
    assert write(value) == data
    assert read(data) == value


def test_bytes_and_nothing_need_no_function() -> None:
    assert serializer(None) is None
    assert serializer("bytes") is None
    assert deserializer("bytes") is None


def test_a_function_is_taken_as_it_is() -> None:
    assert serializer(repr) is repr  # type: ignore[comparison-overlap, arg-type]


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(InvalidConfig, match="did you mean 'json'"):
        serializer("jsn")
