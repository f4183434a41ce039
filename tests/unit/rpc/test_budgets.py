"""What peers can take from a server: unsent answers, unfinished frames, connections. Each has a bound."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from msgspec import Raw

from raylog.base.errors import ConnectionFailed
from raylog.rpc import FrameTooLarge, WriteCoalescer
from raylog.rpc.auth.credentials import derived_client_secret
from raylog.rpc.framing import REPLY, REQUEST, FrameDecoder, encode_header
from tests.unit.rpc.support import SECRET, is_cut, leave, limits, raw_member, serving, stranger, until, until_full

CLIENTS = derived_client_secret(SECRET)


async def test_pipelined_requests_are_handled_as_fast_as_answers_are_taken() -> None:
    """A hundred small requests for a megabyte each fit into one read: 96 MiB of answers lay unsent."""
    mark, answer_bytes = 4_194_304, 1_000_000
    async with serving() as place, raw_member(place) as (reader, writer):
        writer.write(b"".join(encode_header(REQUEST, n, "blob", [answer_bytes], 0) for n in range(1, 101)))
        await until(lambda: len(place.server.connections) == 1, "the server takes note of the connection")
        (accepted,) = place.server.connections
        await until_full(accepted)
        assert accepted.statistics()["unsent_bytes"] <= mark + answer_bytes + 100
        await place.still_serves()
        taken, most = 0, 0
        while taken < 100 * answer_bytes:
            taken += len(await reader.read(1 << 20))
            most = max(most, accepted.statistics()["unsent_bytes"])
        assert len(place.echo.seen) == 101
        assert most <= mark + answer_bytes + 100


async def test_answers_to_own_calls_are_read_while_the_peers_requests_wait() -> None:
    async with serving(limits=limits(send_high_water_bytes=100_000)) as place, raw_member(place) as (_, writer):
        writer.write(encode_header(REQUEST, 1, "blob", [50_000_000], 0))
        await until(lambda: len(place.server.connections) == 1, "the server takes note of the connection")
        (accepted,) = place.server.connections
        await until(lambda: accepted.is_behind, "the socket takes no more")
        call = accepted.call_nowait("question", timeout_s=10)
        accepted._dispatch(
            [
                ((REQUEST, 2, "note", Raw(b"\xc0")), memoryview(b"")),
                ((REPLY, 1, None, Raw(b"\xa6answer")), memoryview(b"")),
            ]
        )
        assert (await call).args == "answer"
        assert [method for method, _ in place.echo.seen] == ["blob"]


async def test_above_the_process_budget_peers_with_unsent_bytes_must_wait() -> None:
    bounds = limits(max_process_unsent_bytes=20_000_000, send_high_water_bytes=100_000_000)
    async with serving(limits=bounds) as place, AsyncExitStack() as stack:
        writers = [(await stack.enter_async_context(raw_member(place)))[1] for _ in range(3)]
        for writer in writers:  # each stays below its own mark
            writer.write(encode_header(REQUEST, 1, "blob", [30_000_000], 0))
        shared = WriteCoalescer.on(asyncio.get_running_loop())
        await until(lambda: shared.unsent_bytes > 60_000_000, "answers pile up")
        unsent = sum(connection.statistics()["unsent_bytes"] for connection in place.server.connections)
        assert shared.unsent_bytes == unsent
        handled = len(place.echo.seen)
        writers[0].write(encode_header(REQUEST, 2, "echo", [], 0))
        await place.still_serves()
        assert len(place.echo.seen) == handled + 1
    assert WriteCoalescer.on(asyncio.get_running_loop()).unsent_bytes == 0


def test_a_header_over_the_limit_is_refused_before_it_is_decoded() -> None:
    decoder = FrameDecoder(10_000_000, max_header_bytes=1000)
    sound = encode_header(REQUEST, 1, "echo", [b"x" * 900], 0)
    decoder.get_buffer()[: len(sound)] = sound
    assert len(decoder.buffer_updated(len(sound))) == 1
    large = encode_header(REQUEST, 2, "echo", [b"x" * 1000], 0)
    decoder.get_buffer()[: len(large)] = large
    assert not decoder.buffer_updated(len(large))
    assert isinstance(decoder.failure, FrameTooLarge)
    assert "request less" in str(decoder.failure)


async def test_a_frame_that_never_becomes_whole_ends_its_connection() -> None:
    async with serving(limits=limits(frame_timeout_s=0.2)) as place, raw_member(place) as (reader, writer):
        writer.write(encode_header(REQUEST, 1, "size", [], 50_000_000) + bytes(1000))
        await place.still_serves()
        assert await is_cut(reader)


async def test_a_peer_that_takes_no_answer_is_cut_and_its_memory_given_back() -> None:
    async with serving(limits=limits(stalled_peer_timeout_s=0.2, close_linger_s=0.1)) as place:
        async with raw_member(place) as (_, writer):
            writer.write(encode_header(REQUEST, 1, "blob", [50_000_000], 0))
            await until(lambda: len(place.server.connections) == 1, "the server takes note of the connection")
            await until(lambda: not place.server.connections, "the server cuts it")
        await place.still_serves()


async def test_silent_strangers_block_no_member_and_cost_one_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bounds = limits(max_unauthenticated=20, max_connections=80)
    async with serving(limits=bounds) as place, AsyncExitStack() as stack:
        members = [await place.connect() for _ in range(3)]
        for _ in range(100):
            await stack.enter_async_context(stranger(place))
        await place.still_serves()
        await until(lambda: len(place.server._strangers) <= 20, "the oldest strangers are closed")
        for member in members:
            assert (await member.call("echo", [1], timeout_s=5)).args == [1]
            await leave(member)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) <= 2


async def test_an_idle_client_is_closed_and_an_idle_member_stays() -> None:
    async with serving(limits=limits(idle_timeout_s=0.2)) as place:
        member, client = await place.connect(), await place.connect(secret=CLIENTS)
        await until(lambda: client.is_closed, "the idle client is closed")
        assert not member.is_closed
        assert (await member.call("echo", [1], timeout_s=5)).args == [1]
        await leave(member)


async def test_a_client_that_waits_for_an_answer_is_not_idle() -> None:
    async with serving(limits=limits(idle_timeout_s=0.1)) as place:
        waiting, idle = await place.connect(secret=CLIENTS), await place.connect(secret=CLIENTS)
        answer = waiting.call_nowait("keep", ["parked"], timeout_s=10)
        await until(lambda: idle.is_closed, "the idle client is closed")
        place.echo.kept[0].reply("here")
        assert (await answer).args == "here"
        await leave(waiting)


async def test_clients_leave_room_for_members() -> None:
    async with serving(limits=limits(max_connections=20)) as place:
        clients = [await place.connect(secret=CLIENTS) for _ in range(18)]
        late = await place.connect(secret=CLIENTS)
        await until(lambda: late.is_closed, "the client beyond the clients' share is closed")
        members = [await place.connect() for _ in range(2)]
        for connection in [*clients, *members]:
            assert (await connection.call("echo", [1], timeout_s=5)).args == [1]
        await leave(clients.pop())
        await until(lambda: len(place.server.connections) == 19, "the server notices that a client has left")
        clients.append(await place.connect(secret=CLIENTS))
        assert (await clients[-1].call("echo", [1], timeout_s=5)).args == [1]
        for connection in [*clients, *members]:
            await leave(connection)


@pytest.mark.parametrize(("secret", "is_taken"), [(SECRET, True), (CLIENTS, False)])
async def test_large_arguments_are_taken_from_members_only(secret: bytes, is_taken: bool) -> None:
    async with serving() as place:
        connection = await place.connect(secret=secret)
        call = connection.call_nowait("note", [b"x" * 1_100_000], timeout_s=5)
        if is_taken:
            await until(lambda: bool(place.echo.seen), "the request is handled")
        else:
            with pytest.raises(ConnectionFailed):
                await call
            assert not place.echo.seen
        call.cancel()
        await leave(connection)
