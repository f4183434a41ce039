"""confluent-kafka: librdkafka, a C library, from Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.clients.base import Client
from benchmarks.optional import module

CONSUME_RECORDS = 10_000


class Measured(Client):
    """Producer or Consumer of confluent_kafka."""

    def _client(self, kind: str, **settings: Any) -> Any:
        library = module("confluent_kafka")
        return getattr(library, kind)({"bootstrap.servers": self.job.address["bootstrap"], **settings})

    def settings(self) -> dict[str, Any]:
        """The producer's configuration for this job."""
        return {
            "acks": self.job.acks,
            "enable.idempotence": self.job.acks == "all",
            "linger.ms": self.job.linger_ms,
            "batch.size": self.job.batch_bytes,
            "batch.num.messages": 100_000,
            "compression.type": self.job.compression,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 65_536,
            **({"transactional.id": f"bench-{self.job.topic}"} if self.job.transaction_ms else {}),
        }

    def connect(self) -> None:
        """Connect, before there is a topic."""
        self.producer = self._client("Producer", **self.settings())
        self.producer.list_topics(timeout=10)

    def open_producer(self) -> None:
        """Connect, and fetch the topic's metadata."""
        self.producer = self._client("Producer", **self.settings())
        self.producer.list_topics(self.job.topic, timeout=10)
        if self.job.transaction_ms:
            self.producer.init_transactions(30)

    def begin(self) -> None:
        """Begin a transaction."""
        self.producer.begin_transaction()

    def commit(self) -> None:
        """Commit everything sent since `begin`."""
        self.producer.commit_transaction(60)

    def send_chunk(self, payloads: Sequence[bytes]) -> None:
        """One call per record; when the queue is full, wait for room as its documentation recommends."""
        produce, topic = self.producer.produce, self.job.topic
        for payload in payloads:
            try:
                produce(topic, payload)
            except BufferError:
                self._when_room(payload)
        self.producer.poll(0)

    def send_chunk_to(self, partition: int, payloads: Sequence[bytes]) -> None:
        """The same to one partition."""
        produce, topic = self.producer.produce, self.job.topic
        for payload in payloads:
            try:
                produce(topic, payload, partition=partition)
            except BufferError:
                self._when_room(payload, partition=partition)
        self.producer.poll(0)

    def _when_room(self, payload: bytes, **place: int) -> None:
        while True:
            self.producer.poll(0.01)
            try:
                self.producer.produce(self.job.topic, payload, **place)
                return
            except BufferError:
                continue

    def flush(self) -> None:
        """Wait for the acknowledgements."""
        if left := self.producer.flush(60):
            raise TimeoutError(f"{left} records were not acknowledged within 60 s")

    def open_consumer(self, *, group: str | None = None, at_end: bool = False) -> None:
        """Read every partition, or the group's assignment."""
        library = module("confluent_kafka")
        self.consumer = self._client(
            "Consumer",
            **{
                "group.id": group or "bench",
                "auto.offset.reset": "earliest",
                "isolation.level": self.job.isolation,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 500,
                # With its defaults it pauses for a second whenever 100,000 messages wait for the application.
                "queued.min.messages": 1_000_000,
                "queued.max.messages.kbytes": 262_144,
                "fetch.queue.backoff.ms": 5,
                **({"partition.assignment.strategy": self.job.assignor} if self.job.assignor else {}),
                **({"group.protocol": "consumer"} if self.job.group_protocol == "consumer" else {}),
            },
        )
        self._has_group = group is not None
        if group is not None:
            self.consumer.subscribe([self.job.topic])
            return
        begin = library.OFFSET_END if at_end else library.OFFSET_BEGINNING
        self._partitions = [
            library.TopicPartition(self.job.topic, partition, begin) for partition in range(self.job.partitions)
        ]
        self.consumer.assign(self._partitions)

    def take(self, timeout_s: float) -> tuple[int, int]:
        """The batch consume, with the values touched."""
        size = count = 0
        for message in self.consumer.consume(CONSUME_RECORDS, timeout_s if self._has_group else min(timeout_s, 0.1)):
            if message.error() is None:
                size += len(message.value())
                count += 1
        return count, size

    def values(self, timeout_s: float) -> list[bytes]:
        """One message at a time: a batch consume would wait until it is full."""
        message = self.consumer.poll(timeout_s)
        return [] if message is None or message.error() is not None else [message.value()]

    def rewind(self) -> None:
        """Go back to the first record."""
        self.consumer.assign(self._partitions)

    def take_by_partition(self, timeout_s: float) -> set[int]:
        """Take messages; the partitions they came from."""
        found = set()
        message = self.consumer.poll(timeout_s)
        while message is not None:
            if message.error() is None:
                found.add(message.partition())
            message = self.consumer.poll(0)
        return found

    def held(self) -> frozenset[int]:
        """The partitions that the group has assigned to this consumer."""
        return frozenset(each.partition for each in self.consumer.assignment())

    def send_to(self, partition: int, payload: bytes) -> None:
        """Send one message to a partition."""
        self.producer.produce(self.job.topic, payload, partition=partition)
        self.producer.poll(0)

    def is_assigned(self) -> bool:
        """Whether the group has assigned partitions."""
        return bool(self.consumer.assignment())

    def stored(self) -> int:
        """The sum of the high watermarks."""
        library = module("confluent_kafka")
        reader = self._client("Consumer", **{"group.id": "bench-stored"})
        try:
            partitions = [library.TopicPartition(self.job.topic, partition) for partition in range(self.job.partitions)]
            return sum(reader.get_watermark_offsets(partition, timeout=10)[1] for partition in partitions)
        finally:
            reader.close()

    def send_to_each(self, payload: bytes) -> None:
        """One record to each partition."""
        for partition in range(self.job.partitions):
            self.producer.produce(self.job.topic, payload, partition=partition)

    def probe(self, payload: bytes, report_ready: Callable[[], None]) -> list[float]:
        """Send at the job's rate; the times of the acknowledgements."""
        self.open_producer()
        moments: list[float] = []

        def answered(error: Any, _: Any) -> None:
            if error is None:
                moments.append(time.monotonic())

        self.producer.produce(self.job.topic, payload)
        self.flush()
        report_ready()
        began_ns = time.monotonic_ns()
        for number in range(int(self.job.seconds * self.job.rate)):
            due_ns = began_ns + int(number * 1e9 / self.job.rate)
            while (left_s := (due_ns - time.monotonic_ns()) / 1e9) > 0:
                self.producer.poll(left_s)
            self.producer.produce(self.job.topic, payload, partition=0, on_delivery=answered)
        self.flush()
        return sorted(moments)

    def small(self, payloads: Sequence[bytes]) -> Callable[[float], int]:
        """As many producers as connections, each with one record in flight at a time."""
        settings = {**self.settings(), "linger.ms": 0, "batch.num.messages": 1, "max.in.flight": 1}
        producers = [self._client("Producer", **settings) for _ in range(self.job.connections)]
        idle: list[int] = []

        def run(seconds: float) -> int:
            sent = 0
            idle[:] = range(len(producers))
            ends_s = time.monotonic() + seconds
            while seconds and time.monotonic() < ends_s:
                for number in idle[:]:
                    idle.remove(number)
                    producers[number].produce(
                        self.job.topic, payloads[sent % len(payloads)], on_delivery=lambda *_, n=number: idle.append(n)
                    )
                    sent += 1
                for producer in producers:
                    producer.poll(0)
            for producer in producers:
                producer.flush(30)
            return sent

        return run

    def close(self) -> None:
        """Close what was opened."""
        if hasattr(self, "consumer"):
            self.consumer.close()
