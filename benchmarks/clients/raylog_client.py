"""Raylog's own Python client, as records and as columns."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from benchmarks.clients.base import Polling
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.producer import AsyncProducer, Producer

POLL_RECORDS = 1_000
NUMBER = struct.Struct(">Q")
Result = TypeVar("Result")


async def _all(works: Iterable[Awaitable[Result]]) -> list[Result]:
    return await asyncio.gather(*works)


class Measured(Polling):
    """Producer or Consumer."""

    producer: Producer
    consumer: Consumer

    def _address(self) -> dict[str, Any]:
        return {"bootstrap": self.job.address["bootstrap"], "secret": self.job.address["secret"]}

    def settings(self) -> dict[str, Any]:
        """The producer's configuration for this job."""
        return {
            **self._address(),
            "acks": self.job.acks,
            "linger_ms": self.job.linger_ms,
            "batch_size": self.job.batch_bytes,
            "compression_type": self.job.compression,
            "buffer_memory": 64 << 20,
            **({"transactional_id": f"bench-{self.job.topic}"} if self.job.transaction_ms else {}),
        }

    def connect(self) -> None:
        """Connect, before there is a topic."""
        self.producer = Producer(**self.settings())

    def open_producer(self) -> None:
        """Connect, and fetch the topic's metadata."""
        self.connect()
        self.producer.partitions_for(self.job.topic)
        if self.job.transaction_ms:
            self.producer.init_transactions()

    def begin(self) -> None:
        """Begin a transaction."""
        self.producer.begin_transaction()

    def commit(self) -> None:
        """Commit everything sent since `begin`."""
        self.producer.commit_transaction()

    def send_chunk(self, payloads: Sequence[bytes]) -> None:
        """One call per record, or one call for the chunk."""
        topic = self.job.topic
        if self.job.form == "columns":
            self.producer.send_batch(topic, payloads)
            return
        send = self.producer.send
        if self.job.keys:
            keys = self.job.keys
            for payload in payloads:
                send(topic, payload, key=b"%d" % (NUMBER.unpack_from(payload)[0] % keys))
            return
        if self.job.delay_ms:
            for payload in payloads:
                send(topic, payload, deliver_at=self.due_ms(payload))
            return
        for payload in payloads:
            send(topic, payload)

    def send_chunk_to(self, partition: int, payloads: Sequence[bytes]) -> None:
        """One call per record."""
        for payload in payloads:
            self.producer.send(self.job.topic, payload, partition=partition)

    def flush(self) -> None:
        """Wait for the acknowledgements."""
        self.producer.flush(60)

    def open_consumer(self, *, group: str | None = None, at_end: bool = False) -> None:
        """Read every partition, or the group's assignment."""
        self.consumer = Consumer(
            **self._address(),
            group_id=group,
            auto_offset_reset="earliest",
            isolation_level=self.job.isolation,
            enable_auto_commit=False,
            max_poll_records=POLL_RECORDS,
            partition_assignment_strategy=self.job.assignor or None,
            group_protocol=self.job.group_protocol,
        )
        if group is not None:
            self.consumer.subscribe([self.job.topic])
            return
        self._partitions = [TopicPartition(self.job.topic, partition) for partition in range(self.job.partitions)]
        self.consumer.assign(self._partitions)
        if self.job.newest:
            self.rewind()
        if at_end:
            self.consumer.seek_to_end(*self._partitions)
            for partition in self._partitions:
                self.consumer.position(partition)

    def take(self, timeout_s: float) -> tuple[int, int]:
        """Records with their values touched, or columns of whole batches."""
        return super().take(timeout_s) if self.job.form == "records" else self._take_columns(timeout_s)

    def polled(self, timeout_s: float) -> Any:
        """A poll."""
        return self.consumer.poll(timeout_s * 1000)

    def _take_columns(self, timeout_s: float) -> tuple[int, int]:
        batch = self.consumer.consume_batch(timeout=timeout_s)
        if self.job.form == "arrow":
            import pyarrow.compute as pc  # of the bench extra; the other forms need none

            table = batch.to_arrow()
            return table.num_rows, pc.sum(pc.binary_length(table.column("value"))).as_py() or 0
        values: Any = batch.values  # no record of a benchmark is without a value
        return len(values), sum(map(len, values))

    def rewind(self) -> None:
        """Go back to the first record, or to the first of the newest."""
        if not self.job.newest:
            self.consumer.seek_to_beginning()
            return
        for partition, end in self.consumer.end_offsets(self._partitions).items():
            self.consumer.seek(partition, max(0, end - self.job.newest))

    def take_by_partition(self, timeout_s: float) -> set[int]:
        """Take records; the partitions they came from."""
        return {partition for _, partition in self.consumer.poll(timeout_s * 1000)}

    def held(self) -> frozenset[int]:
        """The partitions that the group has assigned to this consumer."""
        return frozenset(partition for _, partition in self.consumer.assignment())

    def send_to(self, partition: int, payload: bytes) -> None:
        """Send one record to a partition."""
        self.producer.send(self.job.topic, payload, partition=partition)

    def stored(self) -> int:
        """The sum of the high watermarks."""
        partitions = [TopicPartition(self.job.topic, partition) for partition in range(self.job.partitions)]
        deadline_s = time.monotonic() + 10
        with Consumer(**self._address()) as reader:
            while True:
                ends = reader.end_offsets(partitions)
                total = sum(ends.values())
                # The high watermark visible to readers follows an acks=1 acknowledgement after the followers' next
                # fetch.
                if self.job.acks == "all" or time.monotonic() > deadline_s or self._is_still(reader, partitions, total):
                    return total

    @staticmethod
    def _is_still(reader: Consumer, partitions: list[TopicPartition], total: int) -> bool:
        time.sleep(0.2)
        return sum(reader.end_offsets(partitions).values()) == total

    def send_to_each(self, payload: bytes) -> None:
        """One record to each partition."""
        for partition in range(self.job.partitions):
            self.producer.send(self.job.topic, payload, partition=partition)

    def probe(self, payload: bytes, report_ready: Callable[[], None]) -> list[float]:
        """Send at the job's rate; the times of the acknowledgements."""
        self.open_producer()
        moments: list[float] = []

        def answered(future: Any) -> None:
            if future.exception(0) is None:
                moments.append(time.monotonic())

        try:
            self.producer.send(self.job.topic, payload).result(30)
            report_ready()
            began_ns = time.monotonic_ns()
            for number in range(int(self.job.seconds * self.job.rate)):
                self.sleep_until(began_ns + int(number * 1e9 / self.job.rate))
                self.producer.send(self.job.topic, payload, partition=0).add_done_callback(answered)
            self.flush()
            return sorted(moments)
        finally:
            self.close()

    def small(self, payloads: Sequence[bytes]) -> Callable[[float], int]:
        """As many producers as connections, each waiting for its record's acknowledgement before the next."""
        loop = asyncio.new_event_loop()
        settings = {**self.settings(), "linger_ms": 0, "max_in_flight_requests_per_connection": 1}
        producers = [AsyncProducer(**settings) for _ in range(self.job.connections)]
        loop.run_until_complete(_all(producer.start() for producer in producers))

        async def send_until(producer: AsyncProducer, ends_s: float) -> int:
            sent = 0
            while time.monotonic() < ends_s:
                await producer.send_and_wait(self.job.topic, payloads[sent % len(payloads)])
                sent += 1
            return sent

        def run(seconds: float) -> int:
            if not seconds:
                loop.run_until_complete(_all(producer.stop() for producer in producers))
                loop.close()
                return 0
            ends_s = time.monotonic() + seconds
            return sum(loop.run_until_complete(_all(send_until(producer, ends_s) for producer in producers)))

        return run
