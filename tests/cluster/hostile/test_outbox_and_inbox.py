"""The outbox, its relay and the inbox: an exception, an exit or a cancellation at any step, forks, a second thread.

Afterwards each event that was committed is in its topic once, each record is handled once, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select

from raylog import outbox
from raylog.base.errors import ConcurrentUse
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.resumed import ResumedProducer
from raylog.client.types import Record
from raylog.outbox.inbox import POSITION, TABLE
from raylog.outbox.tables import FINISHED
from raylog.outbox.tables import outbox as events
from tests.cluster.hostile.striking import (
    POINTS,
    TEST,
    Interrupt,
    Measured,
    Stepped,
    Strike,
    cancel,
    cancel_others,
    spread,
)
from tests.cluster.hostile.test_interrupted_producers import stored
from tests.cluster.hostile.world import NEXT_S, World
from tests.cluster.outbox import bank
from tests.waiting import eventually, wait_for

pytestmark = pytest.mark.filterwarnings("ignore")  # of what an interrupted call has left, and the next one closes
LEASE_MS = 300
RELAYED_S = 6 * NEXT_S


class Exit(SystemExit):
    """As a handler of SIGTERM raises it: the loop does not go on behind it."""


def leave() -> None:
    """End the program, from wherever it is."""
    raise Exit


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = bank.sqlite(tmp_path)
    yield made
    made.dispose()


def record(offset: int) -> Record:
    return Record("transfers", 0, offset, 0, None, b"", ((outbox.TXID_HEADER, b"t-%d" % offset),))


def threads_of_outboxes() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("raylog-outbox")]


class Place:
    """A consumer, as far as an inbox knows it."""

    def __init__(self) -> None:
        self.at = -1

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("transfers", 0)]

    def seek(self, partition: Any, offset: int) -> None:
        self.at = offset

    def topic_id(self, topic: str) -> str:
        return "an id"


@pytest.mark.parametrize("mode", [TABLE, POSITION])
def test_a_handler_is_interrupted_anywhere_and_works_once(engine: Engine, mode: str) -> None:
    inbox, place = outbox.Inbox(engine, "fund", mode), Place()

    def handle(number: int) -> bool:
        is_new = bank.credit(engine, inbox, record(number))
        inbox.positions()
        if mode == POSITION:
            inbox.seek(place)
        inbox.forget(1_000_000)
        return is_new

    assert handle(0)
    with Measured() as measured:
        handle(1)
    handled = 2
    for at in spread(measured.steps):
        with suppress(Interrupt), Strike(at):
            handle(handled)
        began_s = time.monotonic()
        handle(handled)
        handled += 1
        assert bank.balance(engine, "fund") == handled, "each record's work is there once, whatever cut it off"
        assert time.monotonic() - began_s < NEXT_S, "no lock of the database is left"
    assert not any(bank.credit(engine, inbox, record(number)) for number in range(handled) if mode == TABLE)


def test_an_event_is_added_with_its_transaction_or_not_at_all(engine: Engine) -> None:
    def count() -> tuple[int, int]:
        with engine.connect() as db:
            added = db.execute(select(func.count()).select_from(events)).scalar_one()
        return 1_000_000 - bank.balance(engine, "payer"), added

    bank.pay(engine, 0)
    with Measured() as measured:
        bank.pay(engine, 1)
    for number, at in enumerate(spread(measured.steps), start=2):
        with suppress(Interrupt), Strike(at):
            bank.pay(engine, 10 * number)
        bank.pay(engine, 10 * number + 1)
        paid, added = count()
        assert paid == added


class Relayed:
    """An outbox and its topic, and what has to hold of them at the end."""

    def __init__(self, world: World, engine: Engine) -> None:
        self.topic = world.topic(2)
        self.paid = 0
        self._world, self._engine = world, engine

    def pay(self, count: int = 3) -> None:
        """Commit some events."""
        for _ in range(count):
            bank.pay(self._engine, self.paid, self.topic)
            self.paid += 1

    def relay(self) -> outbox.OutboxRelay:
        """A new relay, as the program makes one that is started again."""
        return outbox.OutboxRelay(
            self._engine, "bank", lease_ms=LEASE_MS, poll_ms=10, poll_max_ms=50, **self._world.options
        )

    @property
    def is_done(self) -> bool:
        """Whether each event is marked as relayed."""
        return bank.states(self._engine) == {FINISHED: self.paid}

    def run(self, relay: outbox.OutboxRelay, limit_s: float = RELAYED_S) -> None:
        """Run a relay in this thread until each event is relayed, or it raises."""
        over = threading.Event()

        def watch() -> None:
            deadline_s = time.monotonic() + limit_s
            while not self.is_done and not over.is_set() and time.monotonic() < deadline_s:
                time.sleep(0.01)
            relay.stop()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            relay.run()
        finally:
            over.set()
            watcher.join()

    def check(self, place: object) -> None:
        """Each event is in the topic once."""
        assert self.is_done, place
        values = sorted(int(value) for value in stored(self._world, self.topic))
        assert values == list(range(self.paid)), place


def test_a_relay_ends_anywhere_and_the_next_one_sends_the_rest_once(world: World, engine: Engine) -> None:
    both = Relayed(world, engine)
    both.pay()
    both.run(both.relay())
    both.pay()
    with Measured() as measured:
        both.run(both.relay())
    for at in spread(measured.steps):
        both.pay()
        strike = Strike(at, leave)
        with suppress(Exit), strike:
            both.run(both.relay())
        both.run(both.relay())
        assert both.is_done, strike.place
        wait_for(lambda: not threads_of_outboxes(), f"the threads have ended, after {strike.place}", NEXT_S)
    gc.collect()  # sockets that were being opened when the program was to end, of which others would be warned
    both.check("at the end")


@pytest.mark.parametrize("act", [cancel, cancel_others])
async def test_a_relay_is_struck_at_any_await(
    world: World, engine: Engine, act: Callable[[asyncio.Task[Any]], object]
) -> None:
    both = await asyncio.to_thread(Relayed, world, engine)

    async def relayed(relay: outbox.OutboxRelay) -> None:
        async def end() -> None:
            await asyncio.to_thread(wait_for, lambda: both.is_done, "each event is relayed", RELAYED_S)
            relay.stop()

        watch = asyncio.create_task(end(), name=TEST)
        try:
            await relay.run_async()
        finally:
            watch.cancel()

    async def struck(at: int = -1) -> int:
        this = asyncio.current_task()
        assert this is not None
        this.set_name(TEST)
        stepped = Stepped(at, act)
        work = asyncio.create_task(stepped.run(relayed(both.relay())))
        with suppress(asyncio.CancelledError):
            async with asyncio.timeout(RELAYED_S):
                await work
        return stepped.steps

    await asyncio.to_thread(both.pay)
    steps = await struck()
    for at in spread(range(steps)):
        await asyncio.to_thread(both.pay)
        await struck(at)
        if act is cancel_others:
            assert await asyncio.to_thread(lambda: both.is_done), f"it went on, step {at}"
        else:
            await struck()
    await asyncio.to_thread(both.check, act)


async def test_the_threads_of_a_relay_that_is_cancelled_twice_end(
    world: World, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = await asyncio.to_thread(Relayed, world, engine)
    await asyncio.to_thread(both.pay)
    sends: list[int] = []

    async def slow(*_: object) -> int:
        sends.append(0)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)
        return 0

    monkeypatch.setattr(ResumedProducer, "send", slow)
    relay = both.relay()
    running = asyncio.create_task(relay.run_async())
    await eventually(lambda: bool(sends), NEXT_S, "it sends")
    (holder,) = relay.holders.values()
    assert threads_of_outboxes()
    running.cancel()
    await eventually(lambda: holder._is_ending, NEXT_S, "its shard ends")
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()  # as the end of asyncio.run does
    await asyncio.wait([running], timeout=NEXT_S)
    await eventually(lambda: not threads_of_outboxes(), NEXT_S, "the threads have ended")
    assert holder._is_ending, "it is not the garbage collector that has ended them"


async def test_all_tasks_of_a_relay_are_cancelled_again_and_again(world: World, engine: Engine) -> None:
    """A framework that owns the loop may do so at any moment: no event waits for good, and none comes twice."""
    both = await asyncio.to_thread(Relayed, world, engine)
    relay = both.relay()
    this = asyncio.current_task()
    assert this is not None
    this.set_name(TEST)
    running = asyncio.create_task(relay.run_async(), name=TEST)
    for number in range(20 if POINTS == "all" else int(POINTS)):
        await asyncio.to_thread(both.pay, 5)
        await asyncio.sleep(0.007 * (number % 7))
        cancel_others(this)
    await asyncio.to_thread(wait_for, lambda: both.is_done or running.done(), "each event is relayed", RELAYED_S)
    assert not running.done(), "it has not ended without a word"
    relay.stop()
    await asyncio.wait_for(running, NEXT_S)
    await asyncio.to_thread(both.check, "cancelled")


def test_a_second_call_of_a_relay_is_refused(world: World, engine: Engine) -> None:
    both = Relayed(world, engine)
    relay = both.relay()
    thread = threading.Thread(target=relay.run)
    thread.start()
    wait_for(lambda: not hasattr(relay._turn, "free"), "the relay runs", NEXT_S)
    with pytest.raises(ConcurrentUse, match="one call of run"):
        relay.run()
    relay.stop()
    thread.join(2 * NEXT_S)
    assert not thread.is_alive()


def test_two_threads_handle_a_record_once(engine: Engine) -> None:
    inbox = outbox.Inbox(engine, "fund")
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda: found.extend(bank.credit(engine, inbox, record(n)) for n in range(20)))
        for _ in range(3)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (found.count(True), bank.balance(engine, "fund")) == (20, 20)


def test_neither_is_pickled(world: World, engine: Engine) -> None:
    for each in (outbox.Inbox(engine, "fund"), Relayed(world, engine).relay()):
        with pytest.raises(TypeError, match="Make it where it is used"):
            pickle.dumps(each)


def _credit_in_child(engine: Engine, inbox: outbox.Inbox, answers: Any) -> None:
    engine.dispose(close=False)  # as SQLAlchemy wants it of every engine behind a fork
    answers.put(bank.credit(engine, inbox, record(1)))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_an_inbox_works_in_a_forked_child(engine: Engine) -> None:
    inbox = outbox.Inbox(engine, "fund")
    assert bank.credit(engine, inbox, record(0))
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_credit_in_child, args=(engine, inbox, answers))
    child.start()
    child.join(4 * NEXT_S)
    try:
        assert child.exitcode == 0
    finally:
        child.kill()
    assert answers.get()
    assert not bank.credit(engine, inbox, record(1)), "it sees what the child has noted"


def test_what_a_consumer_hands_to_an_inbox_comes_again_after_an_interrupt(world: World, engine: Engine) -> None:
    """The whole way: outbox, relay, topic, consumer, inbox, with the handler cut off at each step."""
    both = Relayed(world, engine)
    both.pay(12)
    both.run(both.relay())
    inbox, group = outbox.Inbox(engine, "fund"), world.name()
    options: dict[str, Any] = {**world.options, "group_id": group, "auto_offset_reset": "earliest"}
    count, at = 0, 0
    while count < both.paid:
        with suppress(Interrupt), Consumer(both.topic, **options, consumer_timeout_ms=int(NEXT_S * 1000)) as consumer:
            for each in consumer:
                with Strike(at):
                    bank.credit(engine, inbox, each)
                at += 7
        at += 3
        count = bank.balance(engine, "fund")
        assert at < 10_000
    assert bank.balance(engine, "fund") == both.paid
