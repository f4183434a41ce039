"""Handlers that end the program: `run` ends, the record is given back, and nothing else is stopped."""

from types import SimpleNamespace
from typing import Any

import pytest

from raylog.client.queues.running import _Run


class Message:
    """A message of a queue, as far as a run needs it."""

    topic, partition = "t", 0
    record = SimpleNamespace(key=None)

    def __init__(self, number: int) -> None:
        self.number = number
        self.verdict = ""

    @property
    def is_settled(self) -> bool:
        return bool(self.verdict)

    def ack(self) -> None:
        self.verdict = "ack"

    def release(self) -> None:
        self.verdict = "release"


class Worker:
    """A consumer with ten messages."""

    config = SimpleNamespace(consumer_timeout_ms=5_000, message_wait_max_ms=1)
    is_ending = keeps_order = False

    def __init__(self) -> None:
        self.messages = [Message(number) for number in range(10)]
        self.given = 0
        self.commits = 0

    async def getone(self, *, timeout_ms: float | None = None) -> Any:
        self.given += 1
        return self.messages[self.given - 1] if self.given <= 10 else None

    async def commit(self) -> None:
        self.commits += 1


@pytest.mark.parametrize("is_coroutine", [True, False])
async def test_a_handler_that_exits_ends_the_run(is_coroutine: bool) -> None:
    worker = Worker()

    def handle(message: Any) -> None:
        if message.number == 3:
            raise SystemExit(1)

    async def handle_too(message: Any) -> None:
        handle(message)

    run: Any = _Run(worker, handle_too if is_coroutine else handle, 1)  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        await run.run()
    assert [message.verdict for message in worker.messages[:4]] == ["ack", "ack", "ack", "release"]
    assert worker.commits == 1
