"""Sends many Arrow tables, and waits until all are stored. Used by the write tasks of Spark and Ray Data."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from raylog.client.producer.columns import SentBatch
from raylog.client.producer.producer import Producer


def send_all(producer: Producer, parts: Iterable[tuple[str, Any, Any]]) -> int:
    """Send parts, each the (topic, columns, partitions) of a `send_arrow`; return how many records were stored.

    Waits until all are stored. Raises the first error of a record as soon as it is known.
    """
    records = 0
    under_way: deque[SentBatch] = deque()
    for topic, columns, partitions in parts:
        sent = producer.send_arrow(topic, columns, partitions)
        records += len(sent)
        under_way.append(sent)
        while under_way and under_way[0].done():
            under_way.popleft().result(0)
    for sent in under_way:  # no timeout here: each fails after delivery_timeout_ms at the latest
        sent.result()
    return records
