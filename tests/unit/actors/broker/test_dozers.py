"""What a broker does with the processes of replicas at rest, by a port that has no processes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from raylog.actors.broker.dozers import Dozers
from raylog.actors.dozing.port import Offer, ProcessEvents, StoppableProcess
from raylog.core.vouching import NO_LIFE
from tests.waiting import eventually

NAME = "replica:t-0:broker-1:12345678"


class FakeProcess:
    """A process that notes what is done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.is_readable = False
        self.has_others = False
        self.error: OSError | None = None

    def stop(self) -> None:
        if self.error is not None:
            raise self.error
        self.done.append("stop")

    def resume(self) -> None:
        self.done.append("continue")

    def watch(self) -> None:
        self.done.append("watch")

    def unwatch(self) -> None:
        self.done.append("unwatch")

    def has_input(self) -> bool:
        return self.is_readable

    def has_other_descriptors(self) -> bool:
        return self.has_others

    def notify(self, *, may_doze: bool) -> None:
        self.done.append("over" if may_doze else "off")

    def close(self) -> None:
        self.done.append("close")

    def taken(self) -> list[str]:
        """What was done since the last call."""
        done, self.done = self.done, []
        return done


class FakeProcesses:
    """The port."""

    def __init__(self) -> None:
        self.joined: Callable[[StoppableProcess], ProcessEvents] | None = None
        self.paused: Callable[[], None] = lambda: None
        self.silent_ms = 0

    async def start(self, joined: Callable[[StoppableProcess], ProcessEvents], paused: Callable[[], None]) -> None:
        self.joined, self.paused = joined, paused

    def expect(self, silent_ms: int) -> None:
        self.silent_ms = silent_ms

    async def stop(self) -> None:
        """Nothing to let go of."""


class Case:
    """A broker with one process."""

    def __init__(self) -> None:
        self.now_ms = 100_000
        self.port = FakeProcesses()
        self.dozers = Dozers(self.port, lambda: self.now_ms)
        self.process = FakeProcess()
        self.events: ProcessEvents

    async def begin(self) -> None:
        await self.dozers.start()
        assert self.port.joined is not None
        self.events = self.port.joined(self.process)

    def offer(self, *, name: str = NAME, life: int = NO_LIFE, for_ms: int = 30_000) -> None:
        report = {"status": {"role": "leader"}, "metrics": {}}
        self.events.offered(Offer(name=name, life=life, until_ms=self.now_ms + for_ms, descriptors=9, report=report))


def played(play: Callable[[Case], Awaitable[None]]) -> None:
    async def run() -> None:
        case = Case()
        await case.begin()
        try:
            await play(case)
        finally:
            await case.dozers.stop()

    asyncio.run(run())


def test_an_offered_process_is_watched_and_stopped_and_reported() -> None:
    async def play(case: Case) -> None:
        case.offer()
        assert case.process.taken() == ["watch", "stop"]
        assert case.dozers.dozing()[NAME].status == {"role": "leader"}
        case.events.readable()
        assert case.process.taken() == ["continue", "unwatch", "over"]
        assert not case.dozers.dozing()

    played(play)


def test_a_process_with_something_to_read_is_not_stopped() -> None:
    async def play(case: Case) -> None:
        case.process.is_readable = True
        case.offer()
        assert case.process.taken() == ["watch", "unwatch", "over"]

    played(play)


def test_a_process_that_took_a_connection_meanwhile_goes_on() -> None:
    async def play(case: Case) -> None:
        case.process.has_others = True
        case.offer()
        assert case.process.taken() == ["watch", "stop", "continue", "unwatch", "over"]

    played(play)


def test_a_replica_without_heartbeats_needs_confirmed_ones_of_its_broker() -> None:
    async def play(case: Case) -> None:
        case.offer(life=7)
        assert "stop" not in case.process.taken(), "nothing is confirmed"
        case.dozers.rely_until(case.now_ms + 60_000)
        case.offer(life=7)
        assert case.process.taken() == ["watch", "stop"]
        assert case.dozers.rested(case.now_ms) == {7: case.now_ms}
        case.dozers.rely_until(None)
        assert case.process.taken() == ["continue", "unwatch", "over"]
        case.now_ms += 500
        assert case.dozers.rested(case.now_ms) == {7: case.now_ms - 500}

    played(play)


def test_processes_are_continued_when_no_heartbeat_is_confirmed_any_more() -> None:
    async def play(case: Case) -> None:
        case.dozers.rely_until(case.now_ms + 10)
        case.offer(life=7)
        case.process.taken()
        case.now_ms += 10
        await eventually(lambda: bool(case.process.done), 20)
        assert case.process.taken() == ["continue", "unwatch", "over"]

    played(play)


def test_one_that_sends_heartbeats_in_time_relies_on_nothing() -> None:
    async def play(case: Case) -> None:
        case.offer()
        case.dozers.rely_until(None)
        assert case.process.taken() == ["watch", "stop"]

    played(play)


def test_an_incarnation_that_the_controller_misses_is_continued() -> None:
    async def play(case: Case) -> None:
        case.dozers.rely_until(case.now_ms + 60_000)
        case.offer(life=7)
        case.process.taken()
        case.dozers.wake(8)
        assert not case.process.taken()
        case.dozers.wake(7)
        assert case.process.taken() == ["continue", "unwatch", "over"]

    played(play)


def test_a_call_to_the_process_keeps_it_awake_until_its_end() -> None:
    async def play(case: Case) -> None:
        case.offer()
        case.process.taken()
        with case.dozers.held_awake(NAME):
            assert case.process.taken() == ["continue", "unwatch", "over"]
            case.offer()
            assert case.process.taken() == ["over"]
        case.offer()
        assert case.process.taken() == ["watch", "stop"]

    played(play)


def test_a_process_that_joins_during_a_call_to_its_name_dozes_after_it() -> None:
    async def play(case: Case) -> None:
        with case.dozers.held_awake(NAME):
            case.offer()
            assert case.process.taken() == ["over"]
        case.offer()
        assert case.process.taken() == ["watch", "stop"]

    played(play)


def test_a_process_with_a_new_name_is_not_held_by_calls_to_the_old_one() -> None:
    async def play(case: Case) -> None:
        case.offer(name="spare")
        case.process.taken()
        with case.dozers.held_awake("spare"):
            assert case.process.taken() == ["continue", "unwatch", "over"]
            case.offer()
            assert case.process.taken() == ["watch", "stop"]
            with case.dozers.held_awake(NAME):
                assert case.process.taken() == ["continue", "unwatch", "over"]
        case.offer()
        assert case.process.taken() == ["watch", "stop"]

    played(play)


def test_what_the_keeper_may_have_continued_is_continued() -> None:
    async def play(case: Case) -> None:
        case.offer()
        case.process.taken()
        case.port.paused()
        assert case.process.taken() == ["continue", "unwatch", "over"]

    played(play)


def test_processes_that_may_not_be_stopped_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async def play(case: Case) -> None:
        assert case.port.joined is not None
        second = FakeProcess()
        case.process.error = second.error = PermissionError("not permitted")
        case.offer()
        assert case.process.taken() == ["watch", "unwatch", "over", "off"]
        first_events, case.events = case.events, case.port.joined(second)
        case.offer()
        assert second.taken() == ["watch", "unwatch", "over", "off"]
        case.events = first_events

    with caplog.at_level(logging.WARNING):
        played(play)
    assert len(caplog.records) == 1


def test_a_system_without_such_processes_is_reported_and_harmless(caplog: pytest.LogCaptureFixture) -> None:
    class Impossible(FakeProcesses):
        async def start(self, joined: object, paused: object) -> None:
            raise OSError("this system has no descriptors for processes")

    async def run() -> None:
        dozers = Dozers(Impossible())
        await dozers.start()
        await dozers.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "no descriptors for processes" in caplog.text


def test_a_process_that_ends_is_forgotten() -> None:
    async def play(case: Case) -> None:
        case.offer()
        case.events.ended()
        assert case.process.taken()[-1] == "close"
        assert not case.dozers.dozing()
        case.events.ended()
        assert not case.process.taken()

    played(play)
