"""Calls, notifications and payloads over real sockets, in both directions."""

import asyncio
import contextlib
import gc
import hashlib
import itertools
import logging
import random
import socket
import warnings

import pytest

from raylog.base.errors import (
    ConnectionFailed,
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    RaylogError,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from raylog.rpc import Connection, FrameTooLarge, Limits, Request, TooManyPendingCalls, connect
from raylog.rpc import connection as connections
from raylog.rpc.framing import decode_args
from raylog.rpc.occasional import OccasionalDefects
from tests.unit.rpc.support import SECRET, HandlerBug, leave, limits, serving, until


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


async def test_a_call_brings_back_arguments_and_payload() -> None:
    async with serving() as place:
        connection = await place.connect()
        reply = await connection.call("echo", [1, "two", b"3", None, {"four": 5.0}], b"payload", timeout_s=5)
        assert reply.args == [1, "two", b"3", None, {"four": 5.0}]
        assert bytes(reply.payload) == b"payload"
        reply = await connection.call("echo", timeout_s=5)
        assert (reply.args, len(reply.payload)) == ([], 0)
        await leave(connection)


async def test_thousands_of_pipelined_calls_are_handled_in_order() -> None:
    async with serving() as place:
        connection = await place.connect()
        calls = [connection.call_nowait("echo", [n], b"%d" % n, timeout_s=20) for n in range(10_000)]
        for number, call in enumerate(calls):
            reply = await call
            assert (reply.args, bytes(reply.payload)) == ([number], b"%d" % number)
        assert [args[0] for _, args in place.echo.seen] == list(range(10_000))
        assert connection.statistics()["pending_calls"] == 0
        await leave(connection)


@pytest.mark.parametrize("size", [100, 8191, 8192, 65_536, 1_048_576, 20_000_000])
async def test_payloads_are_the_same_bytes_in_both_directions(size: int) -> None:
    async with serving() as place:
        connection = await place.connect()
        sent = [noise(size, seed) for seed in range(3)]
        calls = [connection.call_nowait("echo", [], payload, timeout_s=20) for payload in sent]
        for payload, call in zip(sent, calls, strict=True):
            assert hashlib.sha256((await call).payload).digest() == hashlib.sha256(payload).digest()
        await leave(connection)


async def test_a_payload_in_parts_of_all_sizes_arrives_joined() -> None:
    async with serving() as place:
        connection = await place.connect()
        whole = noise(3_000_000)
        cuts = [0, 1, 5, 9_000, 9_001, 80_000, 1_200_000, 1_200_001, 3_000_000]
        parts = [memoryview(whole)[start:end] for start, end in itertools.pairwise(cuts)]
        assert bytes((await connection.call("echo", [], parts, timeout_s=10)).payload) == whole
        many = [whole[i : i + 9000] for i in range(0, 9000 * 300, 9000)] * 4
        assert bytes((await connection.call("echo", [], many, timeout_s=10)).payload) == b"".join(many)
        await leave(connection)


async def test_both_ends_call_each_other_with_large_payloads_at_once() -> None:
    accepted: list[Connection] = []
    async with serving(on_connect=accepted.append) as place:

        def answer(request: Request) -> None:
            request.reply([*decode_args(request.args), "from the client"], request.payload)

        connection = await place.connect(handler=answer)
        await until(lambda: bool(accepted), "the server takes note of the connection")
        payload = noise(2_000_000)
        calls = []
        for number in range(20):
            calls.append(connection.call_nowait("echo", [number], payload, timeout_s=20))
            calls.append(accepted[0].call_nowait("anything", [number], payload, timeout_s=20))
        for position, reply in enumerate(await asyncio.gather(*calls)):
            expected = [position // 2] if position % 2 == 0 else [position // 2, "from the client"]
            assert reply.args == expected
            assert reply.payload == payload
        await leave(connection)


async def test_notifications_arrive_in_order_with_calls_and_get_no_answer() -> None:
    async with serving() as place:
        connection = await place.connect()
        connection.notify("note", [1], b"x")
        connection.notify("raise", [2])
        await connection.call("echo", [3], timeout_s=5)
        assert place.echo.seen == [("note", [1]), ("raise", [2]), ("echo", [3])]
        await leave(connection)


async def test_an_error_travels_with_code_message_and_details() -> None:
    fenced = FencedLeaderEpoch("a newer leader exists", epoch=5, leader="b")

    def handler(request: Request) -> None:
        request.fail(fenced if request.method == "known" else KeyError("x"))

    async with serving(handler) as place:
        connection = await place.connect()
        with pytest.raises(FencedLeaderEpoch) as known:
            await connection.call("known", timeout_s=5)
        error = known.value
        assert (error.message, error.details, error.is_remote) == (fenced.message, fenced.details, True)
        with pytest.raises(UnknownServerError, match="KeyError: 'x'"):
            await connection.call("unknown", timeout_s=5)
        await leave(connection)


async def test_details_that_cannot_be_sent_are_left_out() -> None:
    def handler(request: Request) -> None:
        request.fail(UnknownTopicOrPartition("message", socket=object()))

    async with serving(handler) as place:
        connection = await place.connect()
        with pytest.raises(UnknownTopicOrPartition) as caught:
            await connection.call("m", timeout_s=5)
        assert (caught.value.message, caught.value.details) == ("message", {})
        await leave(connection)


async def test_an_exception_of_the_handler_spoils_one_call_and_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_defects", OccasionalDefects(connections.logger))  # an earlier test logged one
    async with serving() as place:
        connection = await place.connect()
        with caplog.at_level(logging.ERROR), pytest.raises(RaylogError, match="HandlerBug: the handler broke"):
            await connection.call("raise", timeout_s=5)
        assert any(entry.exc_info and entry.exc_info[0] is HandlerBug for entry in caplog.records)
        assert (await connection.call("echo", ["on"], timeout_s=5)).args == ["on"]
        await leave(connection)


async def test_a_refusal_that_a_handler_raises_is_answered_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def handler(request: Request) -> None:
        raise NotLeaderOrFollower("The replica is starting.")

    async with serving(handler) as place:
        connection = await place.connect()
        with pytest.raises(NotLeaderOrFollower, match="starting"):
            await connection.call("fetch", timeout_s=5)
        assert not caplog.records
        await leave(connection)


async def test_an_answer_that_cannot_be_encoded_reaches_the_caller_as_an_error() -> None:
    def handler(request: Request) -> None:
        request.reply(object() if request.method == "object" else None, bytes(2000))

    async with serving(handler, limits=limits(max_frame_bytes=1000)) as place:
        connection = await place.connect()
        with pytest.raises(RaylogError, match="TypeError"):
            await connection.call("object", timeout_s=5)
        with pytest.raises(RaylogError, match="over the limit") as caught:
            await connection.call("large", timeout_s=5)
        assert caught.value.code == FrameTooLarge.code
        await leave(connection)


async def test_a_request_that_is_dropped_is_answered_with_an_error() -> None:
    async with serving() as place:
        connection = await place.connect()
        with pytest.raises(RaylogError, match="dropped drop without an answer"):
            await connection.call("drop", timeout_s=5)
        await leave(connection)


async def test_only_the_first_answer_counts_and_a_late_one_is_dropped() -> None:
    async with serving() as place:
        connection = await place.connect()
        with pytest.raises(RequestTimedOut, match="did not answer keep"):
            await connection.call("keep", timeout_s=0.05)
        request = place.echo.kept.pop()
        request.reply("late")
        request.reply("second")
        request.fail(ValueError("third"))
        assert (await connection.call("echo", [1], timeout_s=5)).args == [1]
        assert connection.statistics()["late_replies"] == 1
        await leave(connection)


async def test_a_cancelled_call_does_not_disturb_the_others() -> None:
    async with serving() as place:
        connection = await place.connect()
        task = asyncio.create_task(connection.call("keep", timeout_s=10))
        await until(lambda: bool(place.echo.kept), "the request arrives")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        place.echo.kept.pop().reply("no caller waits")
        assert (await connection.call("echo", [1], timeout_s=5)).args == [1]
        await leave(connection)


async def test_an_oversized_frame_is_refused_at_the_sender_only() -> None:
    async with serving(limits=limits(max_frame_bytes=10_000)) as place:
        connection = await place.connect(limits=limits(max_frame_bytes=10_000))
        with pytest.raises(FrameTooLarge):
            await connection.call("echo", [], bytes(10_001), timeout_s=5)
        with pytest.raises(FrameTooLarge):
            connection.notify("note", [], bytes(10_001))
        with pytest.raises(TypeError):
            _ = connection.call_nowait("echo", object(), timeout_s=5)
        assert (await connection.call("size", [], bytes(9_000), timeout_s=5)).args == 9_000
        assert connection.statistics()["pending_calls"] == 0
        await leave(connection)


async def test_calls_over_the_limit_of_waiting_ones_are_refused() -> None:
    async with serving() as place:
        connection = await place.connect(limits=limits(max_pending_calls=3))
        waiting = [connection.call_nowait("keep", timeout_s=10) for _ in range(3)]
        with pytest.raises(TooManyPendingCalls):
            await connection.call("echo", timeout_s=5)
        await until(lambda: len(place.echo.kept) == 3, "the requests arrive")
        for request in place.echo.kept:
            request.reply("now")
        assert [reply.args for reply in await asyncio.gather(*waiting)] == ["now"] * 3
        await connection.call("echo", timeout_s=5)
        await leave(connection)


async def test_closing_sends_what_is_queued_and_fails_what_waits() -> None:
    async with serving() as place:
        connection = await place.connect()
        closed: list[Connection] = []
        connection.on_close(closed.append)
        waiting = connection.call_nowait("keep", timeout_s=10)
        connection.notify("note", ["last words"], bytes(5_000_000))
        connection.close("enough")
        connection.close("twice")
        assert connection.is_closed
        with pytest.raises(ConnectionFailed, match="enough"):
            await waiting
        with pytest.raises(ConnectionFailed, match="enough"):
            await connection.call("echo", timeout_s=5)
        connection.notify("note", ["never sent"])
        await connection.wait_closed()
        await until(lambda: ("note", ["last words"]) in place.echo.seen, "the last notification arrives")
        assert closed == [connection]
        connection.on_close(closed.append)
        await until(lambda: closed == [connection] * 2, "a late callback is called as well")
        place.echo.kept.pop().reply("without a caller")


async def test_when_the_server_goes_waiting_calls_fail_and_callbacks_run() -> None:
    async with serving() as place:
        connection = await place.connect()
        closed = asyncio.Event()
        connection.on_close(lambda _: closed.set())
        waiting = connection.call_nowait("keep", timeout_s=30)
        await until(lambda: bool(place.echo.kept), "the request arrives")
        await place.server.close()
        with pytest.raises(ConnectionFailed):
            await waiting
        await closed.wait()
        assert connection.is_closed
        assert connection.close_reason
        await connection.drain()
        assert not place.server.connections


async def test_a_server_that_closes_while_it_accepts_closes_the_connection() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for steps in range(4):  # of the loop, between the connection's arrival and the close
            async with serving() as place:
                with socket.create_connection((place.host, place.port), timeout=5) as peer:
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    await place.server.close()
                    await asyncio.to_thread(received, peer)
            gc.collect()  # an open socket warns when it is collected


def received(peer: socket.socket) -> bytes:
    """All bytes until the other end closes; a reset is an end as well."""
    try:
        return b"".join(iter(lambda: peer.recv(4096), b""))
    except ConnectionResetError:
        return b""


async def test_an_end_without_handler_refuses_requests() -> None:
    accepted: list[Connection] = []
    async with serving(on_connect=accepted.append) as place:
        connection = await place.connect()
        await until(lambda: bool(accepted), "the server takes note of the connection")
        with pytest.raises(RaylogError, match="takes no requests"):
            await accepted[0].call("hello", timeout_s=5)
        await leave(connection)


async def test_a_host_that_does_not_answer_is_no_stranger(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a host that has lost its power: the greeting's time is over before there is a connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as waiting:
        for _ in range(3):  # more than the system keeps for it
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        with pytest.raises(ConnectionFailed, match=r"within 0\.5 seconds: check that the broker runs"):
            await connect(*full.getsockname(), secret=SECRET, timeout_s=0.5, limits=Limits(auth_timeout_s=0.1))
    assert "did not authenticate" not in caplog.text
