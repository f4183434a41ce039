"""What the keeper of forwarders does with rows of its log that it has not written."""

from __future__ import annotations

import msgspec
import pytest

from raylog.actors.forwarding.keeper import _take_batch
from raylog.actors.forwarding.kept import Kept
from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.records import encode_batch

GOOD = msgspec.msgpack.encode([3, b"note"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"expiry", b"\xc1 no msgpack"),
        (b"expiry", msgspec.msgpack.encode([1])),
        (b"expiry", msgspec.msgpack.encode({"owner_epoch": 1})),
        (b"\xff\xfe", GOOD),
        (b"redrive:7", GOOD),
        (b"redrive:7", msgspec.msgpack.encode([0, msgspec.msgpack.encode([1, 2, 3])])),
    ],
)
def test_a_foreign_row_is_passed_over_counted_and_named(key: bytes, value: bytes) -> None:
    batch = encode_batch([b"before", key, b"behind"], [GOOD, value, GOOD], [0, 0, 0])
    kept: dict[str, Kept] = {}
    named: list[int] = []
    ((position, header),) = iter_headers(batch)
    count = _take_batch(kept, batch, position, header, lambda offset, _: named.append(offset))
    assert (count, named) == (1, [header.base_offset + 1])
    assert kept == {name: Kept(3, b"note") for name in ("before", "behind")}
