"""The lag of a group: in records, and in seconds since the timestamp of its oldest unread record.

Used by `Admin.group_lag` and `raylog group describe`. May touch: the network through `ClusterClient`, the clock.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raylog.base.errors import OffsetOutOfRange, RaylogError, UnknownServerError
from raylog.base.ids import EARLIEST, LATEST, TopicPartition
from raylog.client.cluster.backoff import as_raylog_error
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.tasks import side_by_side
from raylog.protocol.replica import FETCH, READ_UNCOMMITTED, FetchRequest
from raylog.rpc.framing import Buffer
from raylog.storage.batch.header import DELETE_HORIZON_BIT, TIMESTAMP_TYPE_BIT, iter_headers
from raylog.storage.batch.records import open_batch

AT_ONCE: Final = 64
"""How many partitions are queried at the same time: the answer to a query for a timestamp may hold a whole batch."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a group in one partition.

    `end` is the high watermark. `records` = max(0, `end` - max(`committed`, the log's start)): what retention has
    removed cannot be read, so it is no lag. `seconds` is the age of the record at the committed offset, or of the first
    remaining one if retention has removed it: 0 without a lag, never negative. An unknown value is None, and `error`
    has the reason; `records` and `seconds` are also None without a committed offset.
    """

    committed: int | None
    end: int | None = None
    records: int | None = None
    seconds: float | None = None
    error: RaylogError | None = None


async def partition_lags(
    cluster: ClusterClient, committed: Mapping[TopicPartition, int | None], *, now_ms: int, timeout_s: float
) -> dict[TopicPartition, PartitionLag]:
    """The lag in each partition, from its committed offset (None = nothing was committed).

    Queries each leader for its high watermark, and for one batch if there is a lag. For a partition whose leader does
    not answer within `timeout_s`, `PartitionLag.error` is set; nothing is raised.
    """
    gate = asyncio.Semaphore(AT_ONCE)

    async def lag_at(partition: TopicPartition) -> PartitionLag:
        offset = committed[partition]
        try:
            async with asyncio.timeout(timeout_s), gate:
                return await _lag(cluster, partition, offset, now_ms, timeout_s)
        except (RaylogError, TimeoutError) as failure:
            return PartitionLag(offset, error=as_raylog_error(failure))

    partitions = list(committed)
    found = await side_by_side(lag_at, partitions)
    return dict(zip(partitions, found, strict=True))


async def _lag(
    cluster: ClusterClient, partition: TopicPartition, offset: int | None, now_ms: int, timeout_s: float
) -> PartitionLag:
    end = (await cluster.list_offset(partition, LATEST, timeout_s=timeout_s)).offset
    if offset is None:
        return PartitionLag(None, end)
    if offset >= end:
        return PartitionLag(offset, end, 0, 0.0)
    start = (await cluster.list_offset(partition, EARLIEST, timeout_s=timeout_s)).offset
    first = max(offset, start)
    records = max(0, end - first)
    if not records:
        return PartitionLag(offset, end, 0, 0.0)
    try:
        made_ms = await _made_ms(cluster, partition, first, timeout_s)
    except RaylogError as error:
        return PartitionLag(offset, end, records, error=error)
    return PartitionLag(offset, end, records, None if made_ms is None else max(0, now_ms - made_ms) / 1000)


async def _made_ms(cluster: ClusterClient, partition: TopicPartition, offset: int, timeout_s: float) -> int | None:
    """The timestamp (ms) of the first record at or after an offset; None when the batch there has no such record."""
    try:
        batch = await _one_batch(cluster, partition, offset, timeout_s)
    except OffsetOutOfRange as error:
        start = error.details.get("start")
        if not isinstance(start, int) or start <= offset:
            raise
        offset = start  # retention was faster than the group
        batch = await _one_batch(cluster, partition, offset, timeout_s)
    try:
        return timestamp_at(batch, offset)
    except RaylogError as error:
        raise UnknownServerError(f"The batch at offset {offset} of {partition} cannot be read: {error}") from error


async def _one_batch(cluster: ClusterClient, partition: TopicPartition, offset: int, timeout_s: float) -> memoryview:
    """Fetch from an offset without waiting, with a limit of one byte: the leader sends one whole batch all the same."""

    def request(topic_id: str, number: int, epoch: int) -> FetchRequest:
        return FetchRequest(topic_id, number, epoch, offset, 1, 0, 0, READ_UNCOMMITTED)

    _, payload = await cluster.call_leader(*partition, FETCH, request, timeout_s=timeout_s)
    return payload


def timestamp_at(batches: Buffer, offset: int) -> int | None:
    """The timestamp (ms) of the first record at or after an offset; None when there is none in these batches.

    The header often suffices; otherwise the batch is opened. Raises RaylogError for a batch that cannot be read. Pure.
    """
    for place, header in iter_headers(batches):
        if header.is_control or header.next_offset <= offset:
            continue
        if header.attributes & TIMESTAMP_TYPE_BIT:
            return header.max_timestamp
        is_first = offset <= header.base_offset and header.record_count == header.last_offset_delta + 1
        if (is_first or header.record_count == 1) and not header.attributes & DELETE_HORIZON_BIT:
            return header.base_timestamp
        opened = open_batch(batches, place, header)
        at = bisect_left(opened.offsets, offset)
        if at < opened.rows:
            return opened.timestamps()[at]
    return None
