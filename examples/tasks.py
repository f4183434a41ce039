"""Producers in Ray tasks, a consumer in a Ray actor: ``python examples/tasks.py``.

Neither gets an address: a client finds the cluster of its Ray session.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict

import ray

import raylog

TOPIC = "measurements"
SENSORS = 4
PER_SENSOR = 250


@ray.remote
def measure(sensor: int, count: int) -> int:
    """Send ``count`` values of one sensor; returns the number of stored records."""
    with raylog.Producer(value_serializer="json") as producer:
        futures = [
            producer.send(TOPIC, key=f"sensor-{sensor}".encode(), value={"sensor": sensor, "value": sensor + step})
            for step in range(count)
        ]
        return len([future.result(timeout=60) for future in futures])


@ray.remote
class Averages:
    """Reads the topic and keeps a mean per sensor."""

    def __init__(self) -> None:
        """Join the group; the consumer lives as long as the actor."""
        self._consumer = raylog.Consumer(
            TOPIC, group_id="averages", auto_offset_reset="earliest", value_deserializer="json"
        )
        self._count: dict[int, int] = defaultdict(int)
        self._sum: dict[int, float] = defaultdict(float)

    def read(self, wanted: int) -> dict[int, float]:
        """Read until ``wanted`` records were read or none came for 30 seconds; returns the mean of each sensor."""
        while sum(self._count.values()) < wanted:
            found = self._consumer.poll(timeout_ms=30_000, max_records=1_000)
            if not found:
                break
            for records in found.values():
                for record in records:
                    self._count[record.value["sensor"]] += 1
                    self._sum[record.value["sensor"]] += record.value["value"]
        self._consumer.commit()
        return {sensor: self._sum[sensor] / count for sensor, count in sorted(self._count.items())}

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


def main() -> int:
    """Start a cluster, run tasks and actor, compare; returns the process's exit code."""
    arguments = _arguments()
    with raylog.start(arguments.data_dir, address=arguments.address):
        with raylog.Admin() as admin:
            if TOPIC in admin.list_topics():
                admin.delete_topic(TOPIC)
            admin.create_topic(TOPIC, partitions=2)
        reader = Averages.remote()  # type: ignore[attr-defined]  # Ray adds it
        means = reader.read.remote(SENSORS * PER_SENSOR)
        stored = sum(ray.get([measure.remote(sensor, PER_SENSOR) for sensor in range(SENSORS)]))
        found = ray.get(means)
        ray.get(reader.close.remote())
    print(f"{stored} records stored; mean per sensor: {found}")
    expected = {sensor: sensor + (PER_SENSOR - 1) / 2 for sensor in range(SENSORS)}
    return 0 if found == expected else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default="raylog-data", help="where the broker keeps its files")
    parser.add_argument("--address", help="Ray cluster to use; default: the one that runs here, else a new one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
