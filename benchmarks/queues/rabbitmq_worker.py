"""RabbitMQ by pika: basic.consume with a prefetch, and one basic.ack for all messages up to the last one."""

from __future__ import annotations

from typing import Any

from benchmarks.clients.rabbitmq_client import connect
from benchmarks.queues.base import AHEAD, Worker


class Measured(Worker):
    """A consumer with a connection of its own."""

    def open(self) -> None:
        """Connect and subscribe."""
        self.connection = connect(self.job)
        self.channel: Any = self.connection.channel()
        self.channel.basic_qos(prefetch_count=AHEAD)
        self._tag = 0
        self._values: list[bytes] = []
        self.channel.basic_consume(self.job.topic, self._came)

    def _came(self, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self._tag = method.delivery_tag
        self._values.append(body)

    def take(self, timeout_s: float) -> list[bytes]:
        """What was pushed."""
        self._values = []
        self.connection.process_data_events(time_limit=timeout_s)
        return self._values

    def ack(self) -> None:
        """Acknowledge everything so far."""
        if self._values:
            self.channel.basic_ack(self._tag, multiple=True)

    def flush(self) -> None:
        """A call that is answered behind the acknowledgements."""
        self.channel.queue_declare(self.job.topic, passive=True)

    def close(self) -> None:
        """Disconnect."""
        self.connection.close()
