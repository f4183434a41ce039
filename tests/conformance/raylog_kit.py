"""Raylog's own client."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import raylog
from tests.conformance.base import Headers, Options, Place, Read, Stored

WAIT_S = 30.0


class Writer:
    def __init__(self, options: Options) -> None:
        self._producer = raylog.Producer(config=dict(options))

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
        sent = self._producer.send(topic, value, key, headers, partition, timestamp_ms)

        def stored() -> Stored:
            found = sent.result(WAIT_S)
            return Stored(found.partition, found.offset, found.timestamp_ms)

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
        rows = {raylog.TopicPartition(*place): offset for place, offset in offsets.items()}
        self._producer.send_offsets_to_transaction(rows, reader.consumer.group_metadata())

    def close(self) -> None:
        self._producer.close(WAIT_S)


class Reader:
    def __init__(self, options: Options) -> None:
        self.consumer = raylog.Consumer(config=dict(options))

    def subscribe(self, topics: Sequence[str]) -> None:
        self.consumer.subscribe(list(topics))

    def subscribe_pattern(self, pattern: str) -> None:
        self.consumer.subscribe(pattern=pattern)

    def unsubscribe(self) -> None:
        self.consumer.unsubscribe()

    def assign(self, places: Sequence[Place]) -> None:
        self.consumer.assign([raylog.TopicPartition(*place) for place in places])

    def assignment(self) -> set[Place]:
        return {(where.topic, where.partition) for where in self.consumer.assignment()}

    def poll(self, timeout_s: float, most: int = 500) -> list[Read]:
        found = self.consumer.poll(timeout_ms=timeout_s * 1000, max_records=most)
        return [
            Read(
                record.topic,
                record.partition,
                record.offset,
                record.timestamp_ms,
                record.key,
                record.value,
                tuple(record.headers),
            )
            for records in found.values()
            for record in records
        ]

    def seek(self, place: Place, offset: int) -> None:
        self.consumer.seek(raylog.TopicPartition(*place), offset)

    def position(self, place: Place) -> int | None:
        return self.consumer.position(raylog.TopicPartition(*place))

    def pause(self, place: Place) -> None:
        self.consumer.pause(raylog.TopicPartition(*place))

    def resume(self, place: Place) -> None:
        self.consumer.resume(raylog.TopicPartition(*place))

    def commit(self, offsets: Mapping[Place, int] | None = None) -> None:
        rows = None if offsets is None else {raylog.TopicPartition(*place): at for place, at in offsets.items()}
        self.consumer.commit(rows)

    def committed(self, place: Place) -> int | None:
        return self.consumer.committed(raylog.TopicPartition(*place))

    def edges(self, place: Place) -> tuple[int, int]:
        where = raylog.TopicPartition(*place)
        return self.consumer.beginning_offsets([where])[where], self.consumer.end_offsets([where])[where]

    def offset_at(self, place: Place, timestamp_ms: int) -> int | None:
        where = raylog.TopicPartition(*place)
        found = self.consumer.offsets_for_times({where: timestamp_ms})[where]
        return None if found is None else found.offset

    def close(self) -> None:
        self.consumer.close()


class Operator:
    def __init__(self) -> None:
        self._admin = raylog.Admin()

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        self._admin.create_topic(name, partitions=partitions, replication_factor=1, config=dict(config or {}))

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topic(name)

    def grow(self, name: str, partitions: int) -> None:
        self._admin.create_partitions(name, partitions)

    def config_of(self, topic: str) -> dict[str, str | None]:
        return {key: str(entry.value).lower() for key, entry in self._admin.describe_configs(topic).items()}

    def alter(self, topic: str, config: Mapping[str, str]) -> None:
        self._admin.alter_topic_config(topic, dict(config))

    def delete_before(self, place: Place, offset: int) -> int:
        where = raylog.TopicPartition(*place)
        return self._admin.delete_records({where: offset})[where]

    def groups(self) -> set[str]:
        return {group.group_id for group in self._admin.list_groups()}

    def group_state(self, group: str) -> str:
        return self._admin.describe_group(group).state

    def delete_group(self, group: str) -> None:
        self._admin.delete_group(group)

    def close(self) -> None:
        self._admin.close()


class RaylogKit:
    """See `base.Kit`. The cluster is the record that this process has started."""

    name = "raylog"

    def writer(self, options: Options | None = None) -> Writer:
        return Writer(options or {})

    def reader(self, options: Options | None = None) -> Reader:
        return Reader(options or {})

    def operator(self) -> Operator:
        return Operator()

    def name_of(self, error: BaseException) -> str:
        return re.sub("Error$", "", type(error).__name__)
