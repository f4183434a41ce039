"""Kafka at rest: one process, broker and controller at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.clients.confluent_client import Measured
from benchmarks.job import Job
from benchmarks.optional import module
from benchmarks.peers.kafka import Kafka, topic_config
from benchmarks.peers.processes import Unavailable
from benchmarks.rest.peer import Deadline, OnServer, Request, expect, first_of, wait_until_led
from benchmarks.rest.table import DESCRIBE, LIST

POLL_S = 0.1
AT_ONCE = 5_000
"""Partitions in one request. Kafka's controller refuses a request that makes more than 10,000 records of metadata."""
QUIET = {"log_level": 0}
"""librdkafka logs each attempt to connect to a server that is being stopped."""


@contextlib.contextmanager
def _kafka_errors() -> Iterator[None]:
    """Raise Kafka's refusals as Unavailable, with Kafka's message."""
    try:
        yield
    except module("confluent_kafka").KafkaException as error:
        raise Unavailable(f"Kafka reported: {error}") from error


class KafkaWriter:
    """A Producer of confluent_kafka."""

    def __init__(self, client: Measured) -> None:
        self._topic = client.job.topic
        with _kafka_errors():
            client.open_producer()
        self._producer = client.producer

    def send(self, partition: int, value: bytes, timeout_s: float) -> None:
        """Poll until the delivery is reported."""
        outcome: list[str] = []
        ends_s = time.monotonic() + timeout_s
        self.send_later(partition, value, outcome.append)
        while not outcome:
            if (left_s := ends_s - time.monotonic()) <= 0:
                raise Unavailable(f"partition {partition} did not acknowledge a record within {timeout_s:.0f} s")
            self._producer.poll(left_s)
        if outcome[0]:
            raise Unavailable(f"partition {partition} refused a record: {outcome[0]}")

    def send_later(self, partition: int, value: bytes, done: Callable[[str], None]) -> None:
        """`done` is called by `wait_until` and `flush`."""

        def delivered(error: Any, _: Any) -> None:
            done("" if error is None else str(error))

        self._producer.produce(self._topic, value, partition=partition, on_delivery=delivered)

    def wait_until(self, moment_s: float) -> None:
        """Poll until then."""
        while (left_s := moment_s - time.monotonic()) > 0:
            self._producer.poll(left_s)

    def flush(self, timeout_s: float) -> None:
        """Wait for all deliveries."""
        if left := self._producer.flush(timeout_s):
            raise Unavailable(f"{left} records were not acknowledged within {timeout_s:.0f} s")

    def close(self) -> None:
        """Drop what was not delivered; the connections are closed with the object."""
        self._producer.purge()
        del self._producer


class KafkaAtRest(OnServer[Kafka]):
    """One Kafka, with the settings of the other benchmarks."""

    name = "kafka"

    def __init__(self, root: Path, cache: Path, timeout_s: float) -> None:
        super().__init__(Kafka(root, cache, 1, start_timeout_s=timeout_s))

    @property
    def notes(self) -> list[str]:
        """What differs from the other benchmarks, and from Raylog."""
        return [
            f"Kafka takes at most 10,000 changes of metadata in a request: a topic of more than {AT_ONCE:,} partitions "
            f"is created with {AT_ONCE:,} and then grows.",
            "Kafka describes the leaders of new partitions before it has made their logs; the row below the first "
            "lasts until `list_offsets` succeeds for every partition.",
        ]

    def not_servers(self) -> set[int]:
        """All processes are the server's."""
        return set()

    def create(self, topic: str, partitions: int, replication: int, deadline: Deadline) -> None:
        """Create it, and poll its metadata."""
        library, admin = module("confluent_kafka.admin"), self._admin()
        first = min(AT_ONCE, partitions)
        config = topic_config(replication, fsync=False)
        new = library.NewTopic(topic, num_partitions=first, replication_factor=replication, config=config)
        with _kafka_errors():
            admin.create_topics([new], request_timeout=deadline.left_s)[topic].result(deadline.left_s)
            for total in range(first, partitions, AT_ONCE):
                more = library.NewPartitions(topic, min(partitions, total + AT_ONCE))
                admin.create_partitions([more], request_timeout=deadline.left_s)[topic].result(deadline.left_s)
            wait_until_led(
                lambda: _is_led(admin.list_topics(topic, timeout=deadline.left_s), topic, partitions),
                topic, deadline, POLL_S,
            )  # fmt: skip

    def serve(self, topic: str, partitions: int, deadline: Deadline) -> bool:
        """Poll the end offsets of all partitions."""
        library, admin = module("confluent_kafka"), self._admin()
        latest = module("confluent_kafka.admin").OffsetSpec.latest()
        wanted = {library.TopicPartition(topic, number): latest for number in range(partitions)}
        while not self._all_answer(admin.list_offsets(wanted, request_timeout=deadline.left_s), deadline):
            deadline.check(f"not every leader of {topic} answered")
            time.sleep(POLL_S)
        return True

    @staticmethod
    def _all_answer(answers: Mapping[Any, Any], deadline: Deadline) -> bool:
        try:
            return all(answer.result(deadline.left_s) is not None for answer in answers.values())
        except module("confluent_kafka").KafkaException:  # a leader that has not made its log yet
            return False

    def requests(self, topic: str, partitions: int) -> Mapping[str, Request]:
        """The metadata of all topics, and their description, which is the same request and some work in the client."""
        library = module("confluent_kafka")

        def list_topics(deadline: Deadline) -> float:
            admin = self._connected(deadline)
            began_s = time.monotonic()
            found = admin.list_topics(timeout=deadline.left_s)
            took_s = time.monotonic() - began_s
            expect(len(found.topics[topic].partitions), partitions, "the list of topics")
            return took_s

        def describe_topics(deadline: Deadline) -> float:
            admin = self._connected(deadline)
            began_s = time.monotonic()
            answers = admin.describe_topics(library.TopicCollection([topic]), request_timeout=deadline.left_s)
            found = answers[topic].result(deadline.left_s)
            took_s = time.monotonic() - began_s
            expect(len(found.partitions), partitions, "the description")
            return took_s

        return {LIST: _kafka_errors()(list_topics), DESCRIBE: _kafka_errors()(describe_topics)}

    def writer(self, topic: str) -> KafkaWriter:
        """A producer with the settings of the other benchmarks."""
        return KafkaWriter(self._client(topic))

    def first_value(self, topic: str, deadline: Deadline) -> bytes:
        """Poll a consumer."""
        return first_of(self._client(topic), topic, deadline)

    def _client(self, topic: str) -> Measured:
        return Measured(Job(load="", client="confluent", topic=topic, address=self._server.address(), linger_ms=0))

    def _connected(self, deadline: Deadline) -> Any:
        admin = self._admin()
        admin.describe_cluster(request_timeout=deadline.left_s).result(deadline.left_s)
        return admin

    def _admin(self) -> Any:
        settings = {"bootstrap.servers": self._server.bootstrap(), **QUIET}
        return module("confluent_kafka.admin").AdminClient(settings)


def _is_led(metadata: Any, topic: str, partitions: int) -> bool:
    found = metadata.topics[topic].partitions
    return len(found) == partitions and all(item.leader > 0 for item in found.values())
