"""The lives of an owner of a log: what it reads and stores, when requests wait, and what a failure leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest

from raylog.actors.coordinators import runtime as module
from raylog.actors.coordinators.runner import CoordinatorRunner
from raylog.actors.coordinators.runtime import StateRuntime
from raylog.actors.coordinators.stored_rows import EachRow, EncodedRow, LiveRows, StoredRows, encode_rows, encoded_row
from raylog.base.errors import CoordinatorLoadInProgress, NotCoordinator, RequestTimedOut
from raylog.core.coordinators.decision import CoordinatorDecision
from raylog.core.coordinators.events import AppendRecords
from raylog.core.outbox import Outbox
from raylog.rpc import Request
from tests.waiting import eventually

Runner = CoordinatorRunner[Request, EncodedRow]


class Decision(CoordinatorDecision[Any]):
    __slots__ = ()

    def _store(self) -> AppendRecords:
        return AppendRecords(cause=self.cause, records=tuple(self.records))


class Sums:
    """A machine that adds up what is sent under each name."""

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}

    def replay(self, key: Sequence[Any], value: Sequence[Any] | None) -> None:
        if value is None:
            raise ValueError("no sum is deleted")
        self.sums[key[0]] = int(value[0])

    def loaded(self, now_ms: int, *, wall_ms: int | None = None) -> Outbox[Any]:
        return Outbox()

    def next_due_ms(self) -> int | None:
        return None

    def set_clock(self, now_ms: int, wall_ms: int) -> None:
        """Nothing."""

    def step(self, event: Any) -> Outbox[Any]:
        number, name, more = event
        decision = Decision("add", 0, apply=lambda row: self.replay(*row))
        decision.write(([name], [self.sums.get(name, 0) + more]))
        decision.reply(number, [self.sums[name]])
        return decision.finish()


class SentRequest:
    """A request that keeps its answers."""

    def __init__(self, name: str, more: int) -> None:
        self.method, self.args = "add", (name, more)
        self.answers: list[Any] = []
        self.is_deserted = False

    def reply(self, args: object = None, payload: object = b"") -> None:
        self.answers.append(args)

    def fail(self, error: BaseException) -> None:
        self.answers.append(error)


class MemoryLog:
    """A log whose appends and reads can be held up, and whose next append can fail."""

    rows_bytes_max = 1_000

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.end = 0
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.fails = False
        self.begun = 0

    async def begin(self) -> int:
        self.begun += 1
        await self.is_open.wait()
        return self.end

    async def start_offset(self) -> int:
        return 0

    async def fetch(self, offset: int) -> bytes:
        return b"".join(batch for first, batch in self.batches if first >= offset)[:100_000]

    async def append(self, rows: Sequence[EncodedRow]) -> int:
        await self.is_open.wait()
        batch = bytearray(encode_rows(rows, 0))
        batch[:8] = self.end.to_bytes(8, "big")
        self.batches.append((self.end, bytes(batch)))
        self.end += len(rows)
        if self.fails:
            self.fails = False
            raise RequestTimedOut("the outcome is not known")
        return self.end - len(rows)


class Owner:
    """An owner that sums up, and notes what its runtime calls."""

    name = "sums"

    def __init__(self, log: MemoryLog, rows: type[StoredRows] = LiveRows) -> None:
        self.machine = Sums()
        self.runtime: StateRuntime[Runner] = StateRuntime(log, self)
        self.calls: list[Any] = []
        self._rows = rows

    def new_runner(self) -> Runner:
        self.machine = Sums()
        return CoordinatorRunner(self.machine, cast(Any, self), lambda request, number, _: (number, *request.args), {})

    def new_rows(self) -> StoredRows:
        return self._rows()

    def serves(self, runner: Runner) -> None:
        self.calls.append("serves")

    def stored(self, runner: Runner, base_offset: int, size: int) -> None:
        self.calls.append(("stored", base_offset))

    def ended(self, runner: Runner) -> None:
        self.calls.append("ended")

    def send(self, name: str, more: int) -> SentRequest:
        request = SentRequest(name, more)
        self.runtime.receive(cast(Request, request))
        return request

    # the runner's ports

    def now_ms(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 0

    def row(self, key: list[object], value: list[object] | None) -> tuple[EncodedRow, int]:
        return encoded_row(key, value)

    def row_bytes_max(self) -> int:
        return 1_000

    def tick_at(self, due_ms: int) -> None:
        """Nothing: the test ticks."""

    def wake_writer(self) -> None:
        self.runtime.wake_writer()

    def fatal(self, reason: str) -> None:
        self.runtime.fail(NotCoordinator(reason))


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@asynccontextmanager
async def living(owner: Owner) -> AsyncIterator[asyncio.Task[None]]:
    life = asyncio.ensure_future(owner.runtime.live())
    await turns()
    try:
        yield life
    finally:
        life.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await life


async def test_rows_are_stored_before_their_answer_and_read_by_the_next_life() -> None:
    log = MemoryLog()
    owner = Owner(log)
    async with living(owner):
        log.is_open.clear()
        request = owner.send("a", 3)
        await turns()
        assert (request.answers, owner.runtime.is_busy) == ([], True)
        log.is_open.set()
        await turns()
        assert (request.answers, owner.runtime.is_busy) == ([[3]], False)
        assert owner.calls == ["serves", ("stored", 0)]
    assert owner.calls[-1] == "ended"
    async with living(owner):
        assert owner.machine.sums == {"a": 3}


async def test_requests_of_one_turn_share_a_batch() -> None:
    log = MemoryLog()
    owner = Owner(log)
    async with living(owner):
        requests = [owner.send("a", 1), owner.send("b", 2), owner.send("a", 3)]
        await turns()
        assert [request.answers for request in requests] == [[[1]], [[2]], [[4]]]
        assert len(log.batches) == 1


async def test_an_append_without_an_outcome_ends_the_life_and_the_log_decides() -> None:
    log = MemoryLog()
    owner = Owner(log)
    async with living(owner) as life:
        log.fails = True
        request = owner.send("a", 3)
        await turns()
        assert isinstance(life.exception(), RequestTimedOut)
        assert [type(answer) for answer in request.answers] == [NotCoordinator]
    async with living(owner):
        assert owner.machine.sums == {"a": 3}, "it was stored"


async def test_a_life_that_has_to_end_stores_nothing_more() -> None:
    log = MemoryLog()
    owner = Owner(log)
    async with living(owner) as life:
        request = owner.send("a", 3)
        owner.runtime.fail(NotCoordinator("it ends"))
        await turns()
        assert isinstance(life.exception(), NotCoordinator)
        assert log.batches == []
        assert [type(answer) for answer in request.answers] == [NotCoordinator]


async def test_requests_wait_for_the_end_of_a_load_in_their_order() -> None:
    log = MemoryLog()
    owner = Owner(log)
    log.is_open.clear()
    async with living(owner):
        requests = [owner.send("a", 1), owner.send("a", 2), owner.send("a", 4)]
        requests[1].is_deserted = True
        await turns()
        log.is_open.set()
        await turns()
        assert [request.answers for request in requests] == [[[1]], [], [[5]]]


async def test_a_request_that_waits_for_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_MS", 1)
    log = MemoryLog()
    owner = Owner(log)
    log.is_open.clear()
    async with living(owner):
        request = owner.send("a", 1)
        await eventually(lambda: bool(request.answers), what="the request is refused")
        assert [type(answer) for answer in request.answers] == [CoordinatorLoadInProgress]


async def test_more_early_requests_than_the_most_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 1)
    log = MemoryLog()
    owner = Owner(log)
    log.is_open.clear()
    async with living(owner):
        first, second = owner.send("a", 1), owner.send("a", 1)
        assert first.answers == []
        assert [type(answer) for answer in second.answers] == [CoordinatorLoadInProgress]
        owner.runtime.refuse_early(lambda: NotCoordinator("it is led elsewhere"))
        assert [type(answer) for answer in first.answers] == [NotCoordinator]


@pytest.mark.parametrize("kind", [EachRow, LiveRows])
async def test_a_row_that_cannot_be_replayed_is_named_with_its_offset(
    kind: type[StoredRows], caplog: pytest.LogCaptureFixture
) -> None:
    log = MemoryLog()
    owner = Owner(log, kind)
    await log.append([encoded_row(["a"], [1])[0], encoded_row(["b"], ["x"])[0], encoded_row(["c"], [2])[0]])
    async with living(owner):
        assert owner.machine.sums == {"a": 1, "c": 2}
        assert owner.runtime.rows_unreadable == 1
        assert "the row at offset 1 cannot be read" in caplog.text
