"""Retries with back-off, a dead letter, and its way back: ``python examples/redrive.py``.

The mail server refuses one address. Its mail is tried again after longer and longer pauses, which the broker keeps,
and then becomes a dead letter; all others go out meanwhile. When the address is mended, a redrive sends the dead letter
back to the topic that it came from.
"""

from __future__ import annotations

import argparse
import sys
import time

import raylog

MAILS = ("anna@example.org", "bob@example,org", "carl@example.org")
BAD = "bob@example,org"
PAUSES = "100ms 200ms 400ms"


class Office:
    """Sends mails, and notes what it tried."""

    def __init__(self) -> None:
        self.tried: list[tuple[str, int, float]] = []
        self.sent: list[str] = []
        self.accepts_commas = False

    def send(self, message: raylog.QueueMessage) -> None:
        """A handler of the queue: an exception has the message tried again."""
        address = message.value.decode()
        self.tried.append((address, message.delivery_count, time.monotonic()))
        if "," in address and not self.accepts_commas:
            raise ValueError(f"{address} is no address")
        self.sent.append(address)

    def work(self) -> None:
        """Work the queue off, until nothing comes for a while."""
        with raylog.QueueConsumer(
            "mails", group_id="office", retry=PAUSES, dead_letter_topic="dlq.mails", consumer_timeout_ms=3_000
        ) as queue:
            queue.run(self.send, concurrency=2)


def letters() -> list[tuple[str, str, str]]:
    """Value, reason and hand-outs of each dead letter."""
    found = []
    with raylog.Consumer("dlq.mails", auto_offset_reset="earliest", consumer_timeout_ms=3_000) as consumer:
        for letter in consumer:
            headers = {name: (value or b"").decode() for name, value in letter.headers}
            count = headers["__dlq.errors.delivery.count"]
            found.append((letter.value.decode(), headers["raylog-dead-reason"], count))
    return found


def main() -> int:
    """Send three mails, one of which is refused at first."""
    arguments = _arguments()
    office = Office()
    with raylog.start(arguments.data_dir, address=arguments.address), raylog.Admin() as admin:
        admin.create_topic("mails", partitions=1)
        with raylog.Producer() as producer:
            for mail in MAILS:
                producer.send("mails", mail.encode())
        office.work()
        print(f"sent: {', '.join(sorted(office.sent))}")
        moments = [moment for address, _, moment in office.tried if address == BAD]
        print(f"tried {len(moments)} times, in {moments[-1] - moments[0]:.1f} s")
        for address, reason, count in letters():
            print(f"dead letter: {address}, {reason} after {count} hand-outs")
        office.accepts_commas = True
        admin.redrive("dlq.mails")
        office.work()
        print(f"sent: {', '.join(sorted(office.sent))}")
    return 0 if sorted(office.sent) == sorted(MAILS) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default="raylog-data", help="where the broker keeps its files")
    parser.add_argument("--address", help="Ray cluster to use; default: the one that runs here, else a new one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
