"""confluent-kafka (librdkafka), on Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.optional import module
from tests.conformance.base import Headers, Options, Place, Read, Stored

WAIT_S = 30.0
NAMES = {
    "UNKNOWN_TOPIC_OR_PART": "UnknownTopicOrPartition",
    "_UNKNOWN_TOPIC": "UnknownTopicOrPartition",
    "_UNKNOWN_PARTITION": "UnknownTopicOrPartition",
    "MSG_SIZE_TOO_LARGE": "RecordTooLarge",
    "_INVALID_ARG": "InvalidConfig",
    "TOPIC_EXCEPTION": "InvalidTopic",
    "_AUTO_OFFSET_RESET": "NoOffsetForPartition",
}
"""Names that differ from those in Kafka's list of errors otherwise than by their letters."""


def _place(place: Place, offset: int = -1001) -> Any:
    return module("confluent_kafka").TopicPartition(*place, offset)


def _error(error: Any) -> Exception:
    found: Exception = module("confluent_kafka").KafkaException(error)
    return found


class Writer:
    def __init__(self, bootstrap: str, options: Options) -> None:
        self._producer = module("confluent_kafka").Producer({"bootstrap.servers": bootstrap, **options})

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
    ) -> Callable[[], Stored]:
        answers: list[tuple[Any, Any]] = []
        more: dict[str, Any] = {} if partition is None else {"partition": partition}
        if timestamp_ms is not None:
            more["timestamp"] = timestamp_ms
        if headers is not None:
            more["headers"] = list(headers)
        self._producer.produce(
            topic, value=value, key=key, on_delivery=lambda error, found: answers.append((error, found)), **more
        )

        def stored() -> Stored:
            deadline_s = time.monotonic() + WAIT_S
            while not answers and time.monotonic() < deadline_s:
                self._producer.poll(0.1)
            error, found = answers[0]
            if error is not None:
                raise _error(error)
            offset = found.offset()
            return Stored(found.partition(), -1 if offset is None or offset < 0 else offset, found.timestamp()[1])

        return stored

    def flush(self) -> None:
        self._producer.flush(WAIT_S)

    def init_transactions(self) -> None:
        self._producer.init_transactions(WAIT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(WAIT_S)

    def send_offsets(self, offsets: Mapping[Place, int], reader: Any) -> None:
        rows = [_place(place, offset) for place, offset in offsets.items()]
        self._producer.send_offsets_to_transaction(rows, reader.consumer.consumer_group_metadata(), WAIT_S)

    def close(self) -> None:
        self._producer.close()


class Reader:
    def __init__(self, bootstrap: str, options: Options) -> None:
        given = {"bootstrap.servers": bootstrap, "group.id": "nothing-committed", **options}
        if "group.id" not in options:
            given["enable.auto.commit"] = False  # this library has no consumer without a group
        self.consumer = module("confluent_kafka").Consumer(given)

    def subscribe(self, topics: Sequence[str]) -> None:
        self.consumer.subscribe(list(topics))

    def subscribe_pattern(self, pattern: str) -> None:
        self.consumer.subscribe([pattern])

    def unsubscribe(self) -> None:
        self.consumer.unsubscribe()

    def assign(self, places: Sequence[Place]) -> None:
        self.consumer.assign([_place(place) for place in places])

    def assignment(self) -> set[Place]:
        return {(where.topic, where.partition) for where in self.consumer.assignment()}

    def poll(self, timeout_s: float, most: int = 500) -> list[Read]:
        first = self.consumer.poll(timeout_s)
        found = [] if first is None else [first, *self.consumer.consume(most - 1, 0.2 if most > 1 else 0)]
        for record in found:
            if record.error() is not None:
                raise _error(record.error())
        return [
            Read(
                record.topic(), record.partition(), record.offset(), record.timestamp()[1],
                record.key(), record.value(), tuple(record.headers() or ()),
            )
            for record in found
        ]  # fmt: skip

    def seek(self, place: Place, offset: int) -> None:
        self.consumer.seek(_place(place, offset))

    def position(self, place: Place) -> int | None:
        (found,) = self.consumer.position([_place(place)])
        return int(found.offset) if found.offset >= 0 else None

    def pause(self, place: Place) -> None:
        self.consumer.pause([_place(place)])

    def resume(self, place: Place) -> None:
        self.consumer.resume([_place(place)])

    def commit(self, offsets: Mapping[Place, int] | None = None) -> None:
        if offsets is None:
            self.consumer.commit(asynchronous=False)
            return
        done = self.consumer.commit(
            offsets=[_place(place, offset) for place, offset in offsets.items()], asynchronous=False
        )
        for record in done:
            if record.error is not None:
                raise _error(record.error)

    def committed(self, place: Place) -> int | None:
        (found,) = self.consumer.committed([_place(place)], WAIT_S)
        return int(found.offset) if found.offset >= 0 else None

    def edges(self, place: Place) -> tuple[int, int]:
        low, high = self.consumer.get_watermark_offsets(_place(place), WAIT_S, cached=False)
        return int(low), int(high)

    def offset_at(self, place: Place, timestamp_ms: int) -> int | None:
        (found,) = self.consumer.offsets_for_times([_place(place, timestamp_ms)], WAIT_S)
        return int(found.offset) if found.offset >= 0 else None

    def close(self) -> None:
        self.consumer.close()


class Operator:
    def __init__(self, bootstrap: str) -> None:
        self._admin = module("confluent_kafka.admin").AdminClient({"bootstrap.servers": bootstrap})

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        topic = module("confluent_kafka.admin").NewTopic(name, partitions, 1, config=dict(config or {}))
        self._admin.create_topics([topic])[name].result(WAIT_S)
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            found = self._admin.list_topics(name, timeout=WAIT_S).topics[name].partitions
            if len(found) == partitions and all(row.leader > 0 for row in found.values()):
                return
            time.sleep(0.05)

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(WAIT_S)

    def grow(self, name: str, partitions: int) -> None:
        self._admin.create_partitions([module("confluent_kafka.admin").NewPartitions(name, partitions)])[name].result(
            WAIT_S
        )

    def config_of(self, topic: str) -> dict[str, str | None]:
        resource = module("confluent_kafka.admin").ConfigResource("topic", topic)
        found = self._admin.describe_configs([resource])[resource].result(WAIT_S)
        return {key: str(entry.value).lower() for key, entry in found.items()}

    def alter(self, topic: str, config: Mapping[str, str]) -> None:
        admin = module("confluent_kafka.admin")
        entries = [
            admin.ConfigEntry(key, value, incremental_operation=admin.AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        resource = admin.ConfigResource("topic", topic, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(WAIT_S)

    def delete_before(self, place: Place, offset: int) -> int:
        where = _place(place, offset)
        return int(self._admin.delete_records([where])[where].result(WAIT_S).low_watermark)

    def groups(self) -> set[str]:
        return {group.group_id for group in self._admin.list_consumer_groups().result(WAIT_S).valid}

    def group_state(self, group: str) -> str:
        state = self._admin.describe_consumer_groups([group])[group].result(WAIT_S).state
        return "".join(word.capitalize() for word in state.name.split("_"))

    def delete_group(self, group: str) -> None:
        self._admin.delete_consumer_groups([group])[group].result(WAIT_S)

    def close(self) -> None:
        """It has no such call."""


class ConfluentKit:
    """See `base.Kit`."""

    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def writer(self, options: Options | None = None) -> Writer:
        return Writer(self._bootstrap, options or {})

    def reader(self, options: Options | None = None) -> Reader:
        return Reader(self._bootstrap, options or {})

    def operator(self) -> Operator:
        return Operator(self._bootstrap)

    def name_of(self, error: BaseException) -> str:
        code: Any = error.args[0] if error.args else None
        if not hasattr(code, "name"):
            return type(error).__name__.removesuffix("Error")
        name = str(code.name())
        return NAMES.get(name, "".join(word.capitalize() for word in name.split("_")))
