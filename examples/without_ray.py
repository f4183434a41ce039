"""Produce and consume in a process that has no Ray: ``python examples/without_ray.py``.

It needs a running cluster, its address and its secret. ``raylog start`` prints both as shell lines:

    export RAYLOG_BOOTSTRAP=127.0.0.1:...
    export RAYLOG_SECRET="$(head -n 1 raylog-data/client-secret)"

Instead of the variables, ``bootstrap=`` and ``secret=`` can be given to each client, as here.
"""

from __future__ import annotations

import argparse
import os
import sys
import uuid

import raylog

TOPIC = "orders"


def main() -> int:
    """Send three orders and read them back; returns the process's exit code."""
    arguments = _arguments()
    place = {"bootstrap": arguments.bootstrap, "secret": os.environ.get("RAYLOG_SECRET")}

    with raylog.Admin(**place) as admin:
        if TOPIC not in admin.list_topics():
            admin.create_topic(TOPIC, partitions=1)

    run = uuid.uuid4().hex
    with raylog.Producer(value_serializer="json", **place) as producer:
        sent = [producer.send(TOPIC, value={"run": run, "order": number}) for number in range(3)]
        first = sent[0].result(timeout=30)
        producer.flush(timeout=30)

    with raylog.Consumer(value_deserializer="json", consumer_timeout_ms=30_000, **place) as consumer:
        partition = raylog.TopicPartition(TOPIC, first.partition)
        consumer.assign([partition])  # no group: partitions are assigned manually
        consumer.seek(partition, first.offset)
        found = 0
        for record in consumer:
            if record.value["run"] == run:
                found += 1
                print(f"order {record.value['order']} at offset {record.offset}")
            if found == len(sent):
                break

    print("Ray was imported" if "ray" in sys.modules else "Ray was not imported")
    return 0 if found == len(sent) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default=os.environ.get("RAYLOG_BOOTSTRAP"), help="host:port[,host:port...]")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
