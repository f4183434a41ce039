"""Planned ranges without a cluster."""

from raylog.client.reading.range_fetcher import PartitionRange


def piece(partition: int, start: int = 0, end: int = 10, node: str = "") -> PartitionRange:
    """A range that nothing can be read from."""
    return PartitionRange(
        topic="t",
        topic_id="id",
        partition=partition,
        leader_epoch=0,
        leader=None,
        start=start,
        end=end,
        brokers=(),
        secret=b"",
        node_id=node,
    )
