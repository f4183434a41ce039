"""Interceptors: what every record passes, both ways: ``python examples/interceptors.py``.

The producer's interceptor signs each record, and counts what became of it. The consumer's checks the signature: at a
record that was changed on its way the poll stops, with an error that has the record, and the reader steps over it.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import sys
from collections import Counter
from typing import Any

import msgspec

import raylog

TOPIC = "payments"
SECRET = b"a secret of both sides"


def signature(value: bytes) -> bytes:
    """What only a holder of the secret can make."""
    return hmac.digest(SECRET, value, hashlib.sha256)


class Signing(raylog.ProducerInterceptor):
    """Signs records, and counts their outcomes."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()

    def on_send(self, record: raylog.ProducerRecord) -> raylog.ProducerRecord:
        """Add the signature as a header."""
        return msgspec.structs.replace(record, headers=[("signature", signature(record.value))])

    def on_acknowledgement(self, metadata: raylog.RecordMetadata | None, error: Exception | None) -> None:
        """Count."""
        self.outcomes["stored" if error is None else type(error).__name__] += 1


class Checking(raylog.ConsumerInterceptor):
    """Refuses records without the right signature."""

    def on_consume(self, record: raylog.Record) -> raylog.Record:
        """Compare the header."""
        found = dict(record.headers).get("signature") or b""
        if not hmac.compare_digest(found, signature(record.value)):
            raise ValueError("the signature is wrong")
        return record


def main() -> int:
    """Do all of it; returns the process's exit code."""
    arguments = _arguments()
    signing, read, refused = Signing(), 0, 0
    with raylog.start(arguments.data_dir, address=arguments.address):
        with raylog.Admin() as admin:
            if TOPIC in admin.list_topics():
                admin.delete_topic(TOPIC)
            admin.create_topic(TOPIC)
        with raylog.Producer(interceptors=[signing]) as producer:
            for number in range(10):
                producer.send(TOPIC, f"{number} euros".encode())
            producer.flush()
        with raylog.Producer() as forger:
            forger.send(TOPIC, b"a million euros").result(10)

        options: dict[str, Any] = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 1_000}
        with raylog.Consumer(TOPIC, interceptors=[Checking()], **options) as consumer:
            while True:
                try:
                    next(consumer)
                    read += 1
                except raylog.InterceptorFailed as error:
                    refused += 1
                    record = error.details["record"]
                    assert isinstance(record, raylog.Record)
                    print(f"refused {record.value!r} at offset {record.offset}")
                    consumer.seek(raylog.TopicPartition(record.topic, record.partition), record.offset + 1)
                except StopIteration:
                    break
    print(f"{signing.outcomes['stored']} stored, {read} read, {refused} refused")
    return 0 if (read, refused) == (10, 1) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default="raylog-data", help="where the broker keeps its files")
    parser.add_argument("--address", help="Ray cluster to use; default: the one that runs here, else a new one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
