"""Requests whose bodies are opened in a thread first: their order, their refusals, and what else waits."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from raylog.actors.replica.bodies import BodyOpener
from raylog.base.errors import InvalidRecord, NotLeaderOrFollower, UnknownServerError
from raylog.protocol.replica import ProduceRequest
from raylog.rpc import Request
from raylog.storage.batch.compression import GZIP, compress
from raylog.storage.batch.header import parse_header, with_body
from raylog.storage.batch.records import encode_batch
from raylog.storage.log.bodies import open_bodies
from raylog.storage.log.partition_log import PartitionLog
from tests.unit.storage.logs import NOW, batch, open_log

LARGE = encode_batch(None, [bytes(1 << 20)], [NOW], compression=GZIP)
SMALL = batch(b"small")


def broken() -> bytes:
    """A large batch with a right checksum, that opens to no columns."""
    body = compress(GZIP, bytes(1 << 20))
    return with_body(parse_header(LARGE), body) + body


class Sent:
    """A request, as far as it matters here."""

    def __init__(self, connection: str, payload: bytes) -> None:
        self.connection, self.payload = connection, memoryview(bytearray(payload))
        self.opened_for: object = None
        self.is_deserted = False
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        self.error = error


class Desk:
    """An opener, and what it has handed on."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.produced: list[Sent] = []
        self.error: BaseException | None = None
        self.leads = True
        self.opener = BodyOpener(log, "t-0", self._produce, lambda: self.leads)

    def _produce(self, request: Request, args: ProduceRequest) -> None:
        if self.error is not None:
            raise self.error
        self.produced.append(cast(Sent, request))

    def send(self, request: Sent) -> Sent:
        args = ProduceRequest("id", 0, 0, -1, 1000)
        if not self.opener.takes(cast(Any, request), args):
            self.produced.append(request)
        return request

    async def finished(self) -> None:
        async with asyncio.timeout(20):
            while self.opener.is_busy:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    log = open_log(tmp_path / "t-0")
    made = Desk(log)
    yield made
    made.opener.close()
    log.close()


async def test_small_requests_pass_at_once(desk: Desk) -> None:
    request = desk.send(Sent("a", SMALL))
    assert desk.produced == [request]
    assert request.opened_for is None
    assert not desk.opener.is_busy


async def test_requests_of_a_connection_stay_in_order_and_others_do_not_wait(desk: Desk) -> None:
    first = [desk.send(Sent("a", each)) for each in (LARGE, SMALL, LARGE, SMALL, SMALL)]
    other = desk.send(Sent("b", SMALL))
    assert desk.produced == [other]
    assert desk.opener.is_busy
    await desk.finished()
    assert desk.produced == [other, *first]
    assert [each.opened_for is desk.log.config for each in first] == [True, False, True, False, False]
    later = desk.send(Sent("a", SMALL))
    assert desk.produced[-1] is later, "the line has ended"


async def test_a_body_that_does_not_open_is_refused_and_the_next_go_on(desk: Desk) -> None:
    bad, behind = desk.send(Sent("a", broken())), desk.send(Sent("a", SMALL))
    await desk.finished()
    assert isinstance(bad.error, InvalidRecord)
    assert desk.produced == [behind]


async def test_what_the_handler_raises_is_answered(desk: Desk) -> None:
    for error, expected in (
        (NotLeaderOrFollower("elsewhere"), NotLeaderOrFollower),
        (ValueError("a defect"), UnknownServerError),
    ):
        desk.error = error
        request = desk.send(Sent("a", LARGE))
        await desk.finished()
        assert isinstance(request.error, expected)


async def test_a_replica_that_does_not_lead_opens_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.leads = False
    request = desk.send(Sent("a", LARGE))
    assert desk.produced == [request]


async def test_connections_take_turns(desk: Desk) -> None:
    ours = [desk.send(Sent("a", LARGE)) for _ in range(4)]
    theirs = desk.send(Sent("b", LARGE))
    await desk.finished()
    assert desk.produced.index(theirs) <= 1
    assert [each for each in desk.produced if each is not theirs] == ours


async def test_requests_of_a_closed_connection_are_dropped(desk: Desk) -> None:
    first, second = desk.send(Sent("a", LARGE)), desk.send(Sent("a", LARGE))
    first.is_deserted = second.is_deserted = True
    await desk.finished()
    assert desk.produced == []


async def test_a_stop_drops_what_waits(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[str] = []

    class Watched(Sent):
        def __del__(self) -> None:
            dropped.append(self.connection)

    for name in ("a", "a", "b"):
        desk.send(Watched(name, LARGE))
    desk.opener.close()
    assert not desk.opener.is_busy
    await asyncio.sleep(0.05)
    gc.collect()
    assert sorted(dropped) == ["a", "a", "b"], "each is answered where it is dropped"
    assert desk.produced == []


async def test_the_loop_goes_on_while_a_body_is_opened(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    is_open = asyncio.Event()
    loop = asyncio.get_running_loop()

    def held(*arguments: Any) -> Any:
        asyncio.run_coroutine_threadsafe(is_open.wait(), loop).result(20)
        return open_bodies(*arguments)

    monkeypatch.setattr("raylog.actors.replica.bodies.open_bodies", held)
    request = desk.send(Sent("a", LARGE))
    await asyncio.sleep(0)
    assert desk.produced == []
    is_open.set()
    await desk.finished()
    assert desk.produced == [request]
