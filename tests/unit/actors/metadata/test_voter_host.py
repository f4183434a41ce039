"""A voter in its thread: ordered replies, errors that end an incarnation, a disk that hangs while the broker stops."""

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from raylog.actors.metadata import voter_host
from raylog.actors.metadata.voter import Voter
from raylog.actors.metadata.voter_files import make_founder
from raylog.actors.metadata.voter_host import VoterHost
from raylog.base.errors import KafkaStorageError, NotController
from raylog.protocol.broker import BROKER
from raylog.rpc import Request
from raylog.storage.errors import StorageIoError


class SentRequest:
    """A request that keeps its answer."""

    def __init__(self, method: str, *args: object) -> None:
        self.method, self.args, self.payload = method, list(args), memoryview(b"")
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def reply(self, args: object, payload: bytes = b"") -> None:
        self.answer.set_result(args)

    def fail(self, error: BaseException) -> None:
        self.answer.set_exception(error)


async def call(host: VoterHost, *arguments: Any) -> Any:
    request = SentRequest(*arguments)
    host.on_request(cast(Request, request), BROKER.read_request(request.method, request.args))
    async with asyncio.timeout(10):
        return await request.answer


async def test_a_promise_outlives_the_host_and_shows_a_founder(tmp_path: Path) -> None:
    make_founder(tmp_path)
    host = VoterHost(tmp_path)
    first = await call(host, "voter_promise", 3, "a")
    assert (first.granted, first.promised, first.founder) == (True, 3, True)
    await host.close()
    again = VoterHost(tmp_path)
    second = await call(again, "voter_promise", 3, "b")
    assert (second.granted, second.promised, second.identity) == (False, 3, first.identity)
    await again.close()
    with pytest.raises(NotController):
        await call(again, "voter_promise", 4, "a")


async def test_a_disk_error_ends_this_voter_and_the_next_request_reopens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = VoterHost(tmp_path)
    identity = (await call(host, "voter_promise", 1, "a")).identity

    def refuse(*_: object) -> None:
        raise StorageIoError("write the promise", OSError(5, "Input/output error"))

    with monkeypatch.context() as broken:
        broken.setattr("raylog.actors.metadata.voter_files.write_atomically", refuse)
        with pytest.raises(KafkaStorageError, match="check the disk"):
            await call(host, "voter_promise", 2, "a")
    later = await call(host, "voter_promise", 3, "a")
    assert (later.granted, later.promised, later.identity) == (True, 3, identity)
    await host.close()


async def test_a_voter_on_a_disk_that_stays_broken_is_opened_ever_more_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_ms, openings, is_broken = 0, 0, True
    carry_out = Voter.open

    def opening(directory: Path) -> Voter:
        nonlocal openings
        openings += 1
        if is_broken:
            raise StorageIoError("open the log", OSError(30, "Read-only file system"))
        return carry_out(directory)

    monkeypatch.setattr(Voter, "open", opening)
    monkeypatch.setattr(voter_host, "monotonic_ms", lambda: now_ms)
    host = VoterHost(tmp_path)
    for _ in range(600):  # two minutes of a candidate's requests
        with pytest.raises(KafkaStorageError, match="Read-only file system"):
            await call(host, "voter_promise", 1, "a")
        now_ms += 200
    assert 20 < openings < 40
    assert len(caplog.records) == 2
    is_broken = False
    now_ms += voter_host.REOPEN_MAX_MS
    assert (await call(host, "voter_promise", 2, "a")).granted
    await host.close()


async def test_a_disk_that_hangs_holds_up_neither_the_loop_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, hangs = threading.Event(), threading.Event()
    perform = Voter.perform

    def hang(voter: Voter, orders: Any) -> Any:
        hangs.set()
        assert release.wait(20)
        return perform(voter, orders)

    monkeypatch.setattr(Voter, "perform", hang)
    monkeypatch.setattr(voter_host, "CLOSE_S", 0.1)
    host = VoterHost(tmp_path)
    request = SentRequest("voter_promise", 1, "a")
    host.on_request(cast(Request, request), BROKER.read_request(request.method, request.args))
    await asyncio.to_thread(hangs.wait, 10)
    await host.close()
    assert not request.answer.done()
    release.set()
