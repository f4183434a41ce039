"""kafka-python: Kafka's protocol in pure Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.clients.base import Polling
from benchmarks.optional import module


class Measured(Polling):
    """KafkaProducer or KafkaConsumer."""

    def open_producer(self) -> None:
        """Connect."""
        self.producer = module("kafka").KafkaProducer(
            bootstrap_servers=self.job.address["bootstrap"],
            acks="all" if self.job.acks == "all" else int(self.job.acks),
            enable_idempotence=self.job.acks == "all",
            linger_ms=self.job.linger_ms,
            batch_size=self.job.batch_bytes,
            compression_type=None if self.job.compression == "none" else self.job.compression,
            max_block_ms=60_000,
        )
        self.producer.partitions_for(self.job.topic)

    def send_chunk(self, payloads: Sequence[bytes]) -> None:
        """One call per record."""
        send, topic = self.producer.send, self.job.topic
        for payload in payloads:
            send(topic, payload)

    def flush(self) -> None:
        """Wait for the acknowledgements."""
        self.producer.flush(120)

    def open_consumer(self, *, group: str | None = None, at_end: bool = False) -> None:
        """Read every partition, or the group's assignment."""
        library = module("kafka")
        self.consumer = library.KafkaConsumer(
            bootstrap_servers=self.job.address["bootstrap"],
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=10_000,
        )
        if group is not None:
            self.consumer.subscribe([self.job.topic])
            return
        partitions = [library.TopicPartition(self.job.topic, partition) for partition in range(self.job.partitions)]
        self.consumer.assign(partitions)
        if at_end:
            self.consumer.seek_to_end(*partitions)
        else:
            self.consumer.seek_to_beginning(*partitions)

    def polled(self, timeout_s: float) -> Any:
        """A poll."""
        return self.consumer.poll(timeout_ms=int(timeout_s * 1000))

    def rewind(self) -> None:
        """Go back to the first record."""
        self.consumer.seek_to_beginning()

    def stored(self) -> int:
        """The sum of the high watermarks."""
        library = module("kafka")
        reader = library.KafkaConsumer(bootstrap_servers=self.job.address["bootstrap"])
        try:
            partitions = [library.TopicPartition(self.job.topic, partition) for partition in range(self.job.partitions)]
            return int(sum(reader.end_offsets(partitions).values()))
        finally:
            reader.close()
