"""kafka-python, on Kafka."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.optional import module
from tests.conformance.base import Headers, Options, Place, Read, Stored

WAIT_S = 30.0
SAME = {
    "MessageSizeTooLarge": "RecordTooLarge",
    "TopicAlreadyExists": "TopicAlreadyExists",
    "InvalidProducerEpoch": "InvalidProducerEpoch",
    "KafkaConfiguration": "InvalidConfig",
    "InvalidConfiguration": "InvalidConfig",
    "NonEmptyGroup": "NonEmptyGroup",
}
"""Names that differ from those in Kafka's list of errors."""


def _named(options: Options) -> dict[str, Any]:
    return {key.replace(".", "_"): value for key, value in options.items()}


def _place(place: Place) -> Any:
    return module("kafka").TopicPartition(*place)


class Writer:
    def __init__(self, bootstrap: str, options: Options) -> None:
        self._producer = module("kafka").KafkaProducer(bootstrap_servers=bootstrap, **_named(options))

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
        sent = self._producer.send(
            topic, value, key=key, partition=partition, headers=list(headers or []), timestamp_ms=timestamp_ms
        )

        def stored() -> Stored:
            found = sent.get(timeout=WAIT_S)
            return Stored(found.partition, found.offset, found.timestamp)

        return stored

    def flush(self) -> None:
        self._producer.flush(WAIT_S)

    def init_transactions(self) -> None:
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def send_offsets(self, offsets: Mapping[Place, int], reader: Any) -> None:
        kept = module("kafka.structs").OffsetAndMetadata
        rows = {_place(place): kept(offset, "", -1) for place, offset in offsets.items()}
        self._producer.send_offsets_to_transaction(rows, reader.consumer.group_metadata())

    def close(self) -> None:
        self._producer.close(timeout=WAIT_S)


class Reader:
    def __init__(self, bootstrap: str, options: Options) -> None:
        self.consumer = module("kafka").KafkaConsumer(bootstrap_servers=bootstrap, **_named(options))

    def subscribe(self, topics: Sequence[str]) -> None:
        self.consumer.subscribe(topics=list(topics))

    def subscribe_pattern(self, pattern: str) -> None:
        self.consumer.subscribe(pattern=pattern)

    def unsubscribe(self) -> None:
        self.consumer.unsubscribe()

    def assign(self, places: Sequence[Place]) -> None:
        self.consumer.assign([_place(place) for place in places])

    def assignment(self) -> set[Place]:
        return {(where.topic, where.partition) for where in self.consumer.assignment()}

    def poll(self, timeout_s: float, most: int = 500) -> list[Read]:
        found = self.consumer.poll(timeout_ms=int(timeout_s * 1000), max_records=most)
        return [
            Read(
                record.topic,
                record.partition,
                record.offset,
                record.timestamp,
                record.key,
                record.value,
                tuple(record.headers),
            )
            for records in found.values()
            for record in records
        ]

    def seek(self, place: Place, offset: int) -> None:
        self.consumer.seek(_place(place), offset)

    def position(self, place: Place) -> int | None:
        found: int | None = self.consumer.position(_place(place))
        return found

    def pause(self, place: Place) -> None:
        self.consumer.pause(_place(place))

    def resume(self, place: Place) -> None:
        self.consumer.resume(_place(place))

    def commit(self, offsets: Mapping[Place, int] | None = None) -> None:
        kept = module("kafka.structs").OffsetAndMetadata
        self.consumer.commit(
            None if offsets is None else {_place(place): kept(offset, "", -1) for place, offset in offsets.items()}
        )

    def committed(self, place: Place) -> int | None:
        found: int | None = self.consumer.committed(_place(place))
        return found

    def edges(self, place: Place) -> tuple[int, int]:
        where = _place(place)
        return self.consumer.beginning_offsets([where])[where], self.consumer.end_offsets([where])[where]

    def offset_at(self, place: Place, timestamp_ms: int) -> int | None:
        where = _place(place)
        found = self.consumer.offsets_for_times({where: timestamp_ms})[where]
        return None if found is None or found.offset < 0 else int(found.offset)

    def close(self) -> None:
        self.consumer.close()


class Operator:
    def __init__(self, bootstrap: str) -> None:
        self._admin = module("kafka").KafkaAdminClient(bootstrap_servers=bootstrap)

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        row = {"num_partitions": partitions, "replication_factor": 1, "configs": dict(config or {})}
        self._admin.create_topics({name: row}, wait_for_metadata=True)

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topics([name])

    def grow(self, name: str, partitions: int) -> None:
        self._admin.create_partitions({name: partitions})

    def config_of(self, topic: str) -> dict[str, str | None]:
        admin = module("kafka.admin")
        resource = admin.ConfigResource(admin.ConfigResourceType.TOPIC, topic)
        found = self._admin.describe_configs([resource], config_filter="all")
        rows = found["topic"][topic]
        return {key: str(row["value"]).lower() for key, row in rows.items()}

    def alter(self, topic: str, config: Mapping[str, str]) -> None:
        admin = module("kafka.admin")
        self._admin.alter_configs([admin.ConfigResource(admin.ConfigResourceType.TOPIC, topic, configs=dict(config))])

    def delete_before(self, place: Place, offset: int) -> int:
        where = _place(place)
        found = self._admin.delete_records({where: offset})
        return int(found[where]["low_watermark"])

    def groups(self) -> set[str]:
        return {row["group_id"] for row in self._admin.list_groups()}

    def group_state(self, group: str) -> str:
        found = self._admin.describe_groups([group])
        return str(found[group]["group_state"])

    def delete_group(self, group: str) -> None:
        self._admin.delete_groups([group])

    def close(self) -> None:
        self._admin.close()


class KafkaPythonKit:
    """See `base.Kit`."""

    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def writer(self, options: Options | None = None) -> Writer:
        return Writer(self._bootstrap, options or {})

    def reader(self, options: Options | None = None) -> Reader:
        return Reader(self._bootstrap, options or {})

    def operator(self) -> Operator:
        return Operator(self._bootstrap)

    def name_of(self, error: BaseException) -> str:
        name = re.sub("Error$", "", type(error).__name__)
        return SAME.get(name, name)
