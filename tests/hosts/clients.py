"""User programs for a host: producers, consumers and Spark. Copied to the hosts; needs only Raylog's wheel.

`python clients.py WHAT ...` prints one JSON value.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import time
from collections.abc import Callable
from typing import Any, Final

import raylog

PARTITIONS: Final = 3
REPLICAS: Final = 3
DEADLINE_S: Final = 60.0
SLOW_S: Final = 150.0


def create(topic: str) -> dict[str, int]:
    """Create the topic; returns the number of replicas by broker."""
    found: dict[str, int] = {}
    with raylog.Admin() as admin:
        admin.create_topic(topic, partitions=PARTITIONS, replication_factor=REPLICAS)
        for partition in admin.describe_topic(topic).partitions:
            for broker in partition.replicas:
                found[str(broker)] = found.get(str(broker), 0) + 1
    return found


def produce(topic: str, first: str, count: str) -> int:
    """Send numbered records with acks=all to every partition; returns how many were acknowledged."""
    with raylog.Producer(acks="all") as producer:
        futures = [
            producer.send(topic, value=str(number).encode(), key=f"key-{number % 17}".encode(), partition=number % 3)
            for number in range(int(first), int(first) + int(count))
        ]
        producer.flush(timeout=DEADLINE_S)
        return sum(future.result(timeout=DEADLINE_S).offset >= 0 for future in futures)


def group(topic: str, group_id: str, count: str) -> dict[str, Any]:
    """Read so many records as a member of a group, commit; returns the sum of their numbers and the commits."""
    read = total = 0
    deadline = time.monotonic() + DEADLINE_S
    with raylog.Consumer(topic, group_id=group_id, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        while read < int(count) and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=500).values():
                read += len(records)
                total += sum(int(record.value or b"") for record in records)
        consumer.commit()
    return {"read": read, "sum": total}


def state(topic: str, *groups: str) -> dict[str, Any]:
    """Everything that must outlive the hosts' processes: records with their offsets, groups, committed offsets."""
    digest = hashlib.sha256()
    read = 0
    with raylog.Consumer(enable_auto_commit=False) as consumer:
        places = [raylog.TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        ends = consumer.end_offsets(places)
        for place in places:
            read += _read_one(consumer, place, ends[place], digest.update)
    committed = {}
    for group_id in groups:
        with raylog.Consumer(group_id=group_id, enable_auto_commit=False) as consumer:
            committed[group_id] = [consumer.committed(place) for place in places]
    with raylog.Admin() as admin:
        known = sorted(found.group_id for found in admin.list_groups())
    return {
        "records": read,
        "digest": digest.hexdigest(),
        "ends": [ends[place] for place in places],
        "groups": known,
        "committed": committed,
    }


def _read_one(consumer: Any, place: raylog.TopicPartition, end: int, note: Callable[[bytes], None]) -> int:
    deadline = time.monotonic() + DEADLINE_S
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    read = 0
    while consumer.position(place) < end:
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{place}: read up to {consumer.position(place)} of {end} in {DEADLINE_S:.0f} s")
        for record in consumer.poll(timeout_ms=500).get(place, ()):
            note(f"{place.partition} {record.offset} {record.timestamp} {record.key!r} {record.value!r}\n".encode())
            read += 1
    return read


def spark(topic: str) -> dict[str, Any]:
    """Count and sum the records with Spark SQL on Ray."""
    quiet = {"spark.log.level": "ERROR", "spark.ui.enabled": "false"}
    session = raylog.spark.session("hosts", num_executors=1, executor_memory="512m", config=quiet)
    try:
        session.read.format("raylog").option("subscribe", topic).load().createOrReplaceTempView("records")
        query = "SELECT count(*), sum(CAST(CAST(value AS STRING) AS BIGINT)), count(DISTINCT partition) FROM records"
        count, total, partitions = session.sql(query).collect()[0]
    finally:
        raylog.spark.stop()
    return {"read": count, "sum": total, "partitions": partitions}


def main() -> None:
    """Run one of the functions above."""
    known: dict[str, Callable[..., Any]] = {
        "create": create,
        "produce": produce,
        "group": group,
        "state": state,
        "spark": spark,
    }
    faulthandler.dump_traceback_later(SLOW_S)  # where it hangs, if it hangs
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=sorted(known))
    parser.add_argument("arguments", nargs="*")
    given = parser.parse_args()
    print(json.dumps(known[given.what](*given.arguments)))


if __name__ == "__main__":
    main()
