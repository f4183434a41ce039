"""Raylog's `QueueConsumer`: each message is acknowledged by itself, and the calls travel together."""

from __future__ import annotations

from benchmarks.queues.base import AHEAD, Worker
from raylog.client.queues.consumer import QueueConsumer
from raylog.client.queues.message import QueueMessage


class Measured(Worker):
    """A member of the group; with `form="ordered"` in the order of each key."""

    consumer: QueueConsumer

    def open(self) -> None:
        """Connect and join."""
        self.consumer = QueueConsumer(
            self.job.topic,
            bootstrap=self.job.address["bootstrap"],
            secret=self.job.address["secret"],
            group_id=self.job.group,
            order="key" if self.job.form == "ordered" else "none",
            auto_offset_reset="earliest" if self.job.load == "work" else "latest",
            max_poll_records=AHEAD,
        )
        self._taken: list[QueueMessage] = []

    def take(self, timeout_s: float) -> list[bytes]:
        """What has come."""
        self._taken = self.consumer.poll(timeout_s * 1000)
        return [message.value for message in self._taken]

    def ack(self) -> None:
        """One call a message."""
        for message in self._taken:
            if not message.is_settled:
                message.ack()

    def flush(self) -> None:
        """Wait until all are stored."""
        self.consumer.commit()

    def close(self) -> None:
        """Leave."""
        self.consumer.close()
