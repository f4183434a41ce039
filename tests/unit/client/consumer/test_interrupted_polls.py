"""A poll that is interrupted at any step: what it did not return comes again, and is not committed before."""

import linecache
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import AsyncConsumer, Consumer
from tests.unit.client.consumer_support import fill, numbers, read, with_coordinator
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

HERE = TopicPartition("t", 0)
BATCHES, RECORDS = 4, 5
END = BATCHES * RECORDS


UNINTERRUPTED = {"try:", "turn.holder = None", "turn.free = True", "self._poller = 0", "handing.is_done = True"}
"""Lines without a call: CPython runs no signal handler between the one before and these."""


class Interrupt(BaseException):
    """As KeyboardInterrupt: no handler of ordinary errors sees it."""


class Tracer:
    """Raises at the n-th line that is run in the consumer's modules by this thread."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.has_raised = False
        self.place = ""

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        if "/tests/" in name or ("/client/consumer/" not in name and "/client/reading/" not in name):
            return None
        if linecache.getline(name, frame.f_lineno).strip() in UNINTERRUPTED or frame.f_code.co_name == "interrupted":
            return self._trace
        if event == "line" and not self.has_raised:
            self.left -= 1
            if self.left < 0:
                self.has_raised = True
                self.place = f"{name}:{frame.f_lineno}"
                raise Interrupt
        return self._trace


def records_of(found: Any) -> list[int]:
    if isinstance(found, dict):
        return [record.offset for records in found.values() for record in records]
    if isinstance(found, list):
        return [record.offset for record in found]
    return found.to_arrow()["offset"].to_pylist() if hasattr(found, "to_arrow") else [found.offset]


CALLS: dict[str, Callable[[Consumer], Any]] = {
    "poll": lambda consumer: consumer.poll(5_000, max_records=12),
    "consume": lambda consumer: consumer.consume(12, timeout=5),
    "iteration": next,
    "columns": lambda consumer: consumer.consume_batch(12, timeout=5),
}


@pytest.fixture
def filled(cluster: ToyCluster) -> ToyCluster:
    with_coordinator(cluster)
    cluster.create_topic("t")
    for number in range(BATCHES):
        fill(cluster, "t", 0, numbers(number * RECORDS, (number + 1) * RECORDS))
    return cluster


@pytest.mark.parametrize("name", list(CALLS))
def test_an_exception_at_any_line_of_a_poll_skips_nothing(filled: ToyCluster, name: str) -> None:
    call = CALLS[name]
    with Consumer(**filled.options, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([HERE])
        consumer.poll(5_000, max_records=1)
        state = consumer._engine.assignment.state(HERE)
        at, has_raised = 0, True
        while has_raised:
            consumer.seek(HERE, 1)
            expected = records_of(call(consumer))[-1] + 1  # returned
            wait_for(lambda: state.buffered_bytes, "the rest is buffered")
            tracer = Tracer(at)
            found = None
            with suppress(Interrupt), tracer:
                found = call(consumer)
            if found is not None:
                expected = records_of(found)[-1] + 1
            has_raised = tracer.has_raised
            position = consumer._engine.positions()[HERE].offset
            assert position == expected, tracer.place
            assert consumer.position(HERE) == expected
            if expected < END:
                assert records_of(call(consumer))[0] == expected, tracer.place
            at += 1
        assert at > 10


@pytest.mark.parametrize("closes_by", ["with", "close"])
def test_what_an_interrupted_poll_has_taken_is_not_committed(filled: ToyCluster, closes_by: str) -> None:
    consumer = Consumer("t", **filled.options, group_id="g", auto_offset_reset="earliest")
    assert len(read(consumer, RECORDS)) >= RECORDS
    returned = consumer.position(HERE)
    if returned == END:
        consumer.seek(HERE, returned := RECORDS)
    take = consumer._engine.assignment.take

    def interrupted(*args: Any) -> Any:
        take(*args)
        raise Interrupt

    consumer._engine.assignment.take = interrupted  # type: ignore[method-assign, assignment]
    with suppress(Interrupt):
        if closes_by == "with":
            with consumer:
                consumer.poll(5_000)
        else:
            consumer.poll(5_000)
    consumer.close()
    with Consumer(**filled.options, group_id="g") as after:
        assert after.committed(HERE) == returned


async def test_the_asyncio_twin_skips_nothing_either(filled: ToyCluster) -> None:
    async with AsyncConsumer("t", **filled.options, auto_offset_reset="earliest") as consumer:
        first = await consumer.getone()
        take = consumer._engine.assignment.take
        calls = [0]

        def interrupted(*args: Any) -> Any:
            calls[0] += 1
            taken = take(*args)
            if calls[0] % 2 and taken:
                raise Interrupt
            return taken

        consumer._engine.assignment.take = interrupted  # type: ignore[method-assign, assignment]
        seen = [first.offset]
        while seen[-1] < END - 1:
            with suppress(Interrupt):
                for records in (await consumer.getmany(timeout_ms=1_000, max_records=3)).values():
                    seen += [record.offset for record in records]
        assert seen == list(range(END))


@pytest.mark.parametrize("name", ["poll", "iteration"])
def test_an_exception_that_leaves_the_block_commits_nothing_unhandled(
    filled: ToyCluster, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    with (
        caplog.at_level(logging.WARNING, "raylog.client.consumer.engine"),
        suppress(ValueError),
        Consumer("t", **filled.options, group_id="g", auto_offset_reset="earliest") as consumer,
    ):
        while True:
            seen = records_of(consumer.poll(5_000, max_records=4) if name == "poll" else next(consumer))
            if seen[-1] >= RECORDS + 1:
                raise ValueError("the handler's")
    assert "ValueError ends the consumer" in caplog.text
    with Consumer(**filled.options, group_id="g") as after:
        assert after.committed(HERE) == seen[0]


def test_what_the_user_has_committed_is_not_taken_back(filled: ToyCluster) -> None:
    with (
        suppress(ValueError),
        Consumer("t", **filled.options, group_id="g", auto_offset_reset="earliest") as consumer,
    ):
        consumer.poll(5_000, max_records=4)
        consumer.commit({HERE: 3})
        raise ValueError
    with Consumer(**filled.options, group_id="g") as after:
        assert after.committed(HERE) == 3


async def test_the_asyncio_twin_commits_nothing_unhandled(filled: ToyCluster) -> None:
    options = {**filled.options, "group_id": "g"}
    with suppress(ValueError):
        async with AsyncConsumer("t", **options, auto_offset_reset="earliest") as consumer:
            await consumer.getmany(timeout_ms=5_000, max_records=4)
            assert (await consumer.getone()).offset == 4
            raise ValueError
    async with AsyncConsumer(**options) as after:
        assert await after.committed(HERE) == 4
