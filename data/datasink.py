"""A write as Ray Data's `Datasink`: what each write task does with its blocks. Used by writes.py.

A task returns when all in-sync replicas have stored every record. Its producer is idempotent with acks=all, so repeated
requests store a record once. May touch: the network, the clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ray.data import Datasink
from ray.data.block import BlockAccessor

from raylog.client.producer.bulk import send_all
from raylog.client.producer.producer import Producer
from raylog.data.serializing import Fields, check_schema, records_of

ROWS_MAX = 65_536
"""Most rows that are given to the producer at once."""
CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class WriteTask:
    """All that a write task needs; pickled to it."""

    topic: str
    fields: Fields
    bootstrap: str
    token: Any = field(repr=False)
    """Allows writes to this topic."""
    producer: Mapping[str, Any]
    """Keyword arguments of the task's producer, without address and credentials."""

    def __call__(self, blocks: Iterable[Any]) -> int:
        """Write all blocks; returns the number of records. Raises the first error of a record."""
        producer = Producer(**self.producer, bootstrap=self.bootstrap, token=self.token)
        try:
            return send_all(producer, self._parts(blocks))
        finally:
            producer.close(CLOSE_TIMEOUT_S)

    def _parts(self, blocks: Iterable[Any]) -> Iterator[tuple[str, Any, Any]]:
        for block in blocks:
            table = BlockAccessor.for_block(block).to_arrow()
            for first in range(0, table.num_rows, ROWS_MAX):
                found = records_of(table.slice(first, ROWS_MAX), self.fields, int(time.time() * 1000))
                yield self.topic, found.columns, found.partitions


class RaylogDatasink(Datasink[int]):
    """Writes blocks to a topic; made by `raylog.data.write`."""

    def __init__(self, task: WriteTask) -> None:
        self._task = task

    def get_name(self) -> str:
        """The name in plans and progress bars: `Raylog`."""
        return "Raylog"

    def on_write_start(self, schema: Any = None) -> None:
        """Check the columns before the first task. Raises InvalidConfig and InvalidRecord."""
        if schema is not None and getattr(schema, "names", None):
            check_schema(self._task.fields, schema)

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """Write the blocks of one task; runs in a worker."""
        return self._task(blocks)
