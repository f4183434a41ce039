"""The marker that ends a transaction in a partition: a control batch of one record, in Kafka's own format.

Its record's key is (int16 version 0, int16 0 = abort or 1 = commit), its value (int16 version 0, int32 coordinator
epoch). The header holds the producer id, and the epoch of the producer's next transaction. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.header import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from raylog.storage.batch.records import BatchMeta, encode_kafka_batch, open_batch
from raylog.storage.errors import CorruptBatch

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1
_NO_TIMESTAMP: Final = -1
BY_ADMINISTRATOR: Final = -1
"""The coordinator epoch of a marker that an administrator writes, without a transaction coordinator."""


class TxnMarker(NamedTuple):
    """The end of a producer's transaction. `producer_epoch` is higher than that of the transaction's records."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool

    def encode(self) -> bytes:
        """The batch, before a leader stamps it. It has no time, so that look-ups by time find records only."""
        key = _KEY.pack(0, _COMMIT if self.committed else _ABORT)
        value = _VALUE.pack(0, self.coordinator_epoch)
        meta = BatchMeta(self.producer_id, self.producer_epoch, attributes=CONTROL_BIT | TRANSACTIONAL_BIT)
        return encode_kafka_batch([key], [value], [_NO_TIMESTAMP], None, meta)


def is_marker(header: BatchHeader) -> bool:
    """Whether the batch ends a transaction; a cleaner's control batches have no records."""
    return bool(header.attributes & CONTROL_BIT) and header.record_count > 0 and header.producer_id >= 0


def decode_marker(buffer: Buffer, position: int, header: BatchHeader) -> TxnMarker:
    """Read the marker at `position`; its CRC is not checked. Raises CorruptBatch."""
    columns = open_batch(buffer, position, header).all()
    key, value = (columns.keys or [None])[0], (columns.values or [None])[0]
    if key is None or value is None or len(key) < _KEY.size or len(value) < _VALUE.size:
        raise CorruptBatch("it should end a transaction, and does not say how", position=position)
    kind, coordinator_epoch = _KEY.unpack_from(key)[1], _VALUE.unpack_from(value)[1]
    if kind not in (_ABORT, _COMMIT):
        raise CorruptBatch(f"it ends a transaction in an unknown way ({kind})", position=position)
    return TxnMarker(header.producer_id, header.producer_epoch, coordinator_epoch, kind == _COMMIT)


def markers_in(buffer: Buffer, batches: Iterable[tuple[int, BatchHeader]]) -> dict[int, TxnMarker]:
    """The markers among these batches, by base offset. Raises CorruptBatch."""
    found = {}
    for position, header in batches:
        if header.attributes & CONTROL_BIT and is_marker(header):
            found[header.base_offset] = decode_marker(buffer, position, header)
    return found
