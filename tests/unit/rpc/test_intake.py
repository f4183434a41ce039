"""What clients can make a process hold: incomplete frames, requests that wait, answers that they leave unread."""

import asyncio
import struct
import time
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest

from raylog.base.errors import (
    ClusterAuthorizationFailed,
    ConnectionFailed,
    InvalidRequest,
    RaylogError,
    ThrottlingQuotaExceeded,
)
from raylog.rpc import Connection, Grant, Permissions, Request, Role, Secret, Token, TopicGrant, mint
from raylog.rpc import connection as connections
from raylog.rpc.auth.credentials import derived_client_secret
from raylog.rpc.framing import GROWTH, NOTIFICATION, REQUEST, FrameDecoder, encode_header
from raylog.rpc.intake import SHARE_MIN_BYTES, Intake
from raylog.rpc.occasional import OccasionalWarning
from tests.unit.rpc.support import SECRET, Place, is_cut, leave, limits, raw_peer, serving, until

CLIENTS = derived_client_secret(SECRET)
ANNOUNCED = 104_857_600
METHODS: Mapping[str, Role] = {"echo": Role.TOKEN, "size": Role.TOKEN, "blob": Role.TOKEN, "keep": Role.TOKEN}
OPEN = Permissions("place", METHODS, missing=lambda *_: "")


def token(*, writes: bool = False, life_s: float = 3600) -> Token:
    topic = TopicGrant("id", "t", (range(1),), writes)
    return mint(SECRET, Grant(int(time.time() + life_s), (topic,)))


@asynccontextmanager
async def client(place: Place, secret: Secret = CLIENTS) -> AsyncIterator[Connection]:
    connection = await place.connect(secret=secret)
    yield connection
    await leave(connection)


def intake() -> Intake:
    return Intake.on(asyncio.get_running_loop())


def test_an_announced_frame_takes_memory_as_it_arrives() -> None:
    decoder = FrameDecoder(ANNOUNCED + 4, grow=lambda _more: True)
    decoder.get_buffer()[:12] = struct.pack(">II", ANNOUNCED, 100) + b"xxxx"
    assert decoder.buffer_updated(12) == []
    assert (decoder.held_bytes, decoder.partial_bytes) == (12, 12)
    came = 12
    tracemalloc.start()
    while came < 3_000_000:
        room = len(decoder.get_buffer())
        decoder.buffer_updated(min(room, 50_000))
        came += min(room, 50_000)
        assert decoder.partial_bytes >= came - 8
        assert decoder.held_bytes <= GROWTH * came
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held <= GROWTH * came
    assert peak <= 2 * GROWTH * came
    decoder.forget()
    assert decoder.held_bytes == 0


async def test_frames_that_are_announced_and_never_come_take_nothing() -> None:
    """Thirty connections and 360 bytes took 3 GB of a leader."""
    async with serving() as place, AsyncExitStack() as stack:
        for _ in range(30):
            _, writer = await stack.enter_async_context(raw_peer(place, CLIENTS))
            writer.write(struct.pack(">II", ANNOUNCED, 100) + b"xxxx")
        await until(lambda: intake().incomplete_bytes == 30 * 12, "the announcements have come")
        await place.still_serves()
    assert (intake().incomplete_bytes, intake().clients) == (0, 0)


async def test_the_oldest_incomplete_frames_are_given_up_when_memory_is_short() -> None:
    bounds = limits(max_process_request_bytes=8_000_000)
    async with serving(limits=bounds) as place, AsyncExitStack() as stack:
        peers = []
        for _ in range(8):
            reader, writer = await stack.enter_async_context(raw_peer(place, CLIENTS))
            writer.write(encode_header(REQUEST, 1, "size", [], 10_000_000) + bytes(1_000_000))
            peers.append(reader)
            await until(lambda: intake().incomplete_bytes > 0, "a frame has begun")
            await asyncio.sleep(0)
        await until(lambda: len(place.server.connections) < 8, "the first are closed")
        assert await is_cut(peers[0])
        async with client(place) as honest:
            began_s = time.monotonic()
            assert (await honest.call("size", [], bytes(1_000_000), timeout_s=5)).args == 1_000_000
            assert time.monotonic() - began_s < 1
        assert intake().incomplete_bytes <= 4_000_000


async def test_a_frame_that_no_budget_has_room_for_is_refused() -> None:
    async with serving(limits=limits(max_process_request_bytes=1_000_000)) as place:
        connection = await place.connect(secret=CLIENTS)
        with pytest.raises(ConnectionFailed):
            await connection.call("size", [], bytes(2_000_000), timeout_s=5)
        await leave(connection)
        await place.still_serves()


async def test_waiting_requests_of_one_leave_others_their_share() -> None:
    bounds = limits(max_process_request_bytes=1_000_000)
    async with serving(limits=bounds) as place, client(place) as greedy, client(place) as honest:
        parked = [greedy.call_nowait("keep", [b"x" * 10_000], timeout_s=30) for _ in range(300)]
        await until(lambda: any(call.done() for call in parked), "more than its share is refused, or is not read")
        assert intake().request_bytes < 1_500_000
        assert all(isinstance(call.exception(), ThrottlingQuotaExceeded) for call in parked if call.done())
        for _ in range(20):
            began_s = time.monotonic()
            assert (await honest.call("size", [], bytes(100_000), timeout_s=5)).args == 100_000
            assert time.monotonic() - began_s < 1
        for request in place.echo.kept:
            request.reply(None)
        for call in parked:
            call.cancel()
    assert intake().request_bytes == 0


async def test_a_flood_of_requests_leaves_others_their_turns() -> None:
    """All that was read at once was handled in one turn: thousands of requests, of each of many connections."""
    handled: list[str] = []
    seen: list[int] = []
    begun = asyncio.Event()

    def handler(request: Request) -> None:
        handled.append(request.method)
        begun.set()
        if request.method == "echo":
            seen.append(len(handled))
        request.reply(None)

    async with serving(handler) as place, client(place) as honest, AsyncExitStack() as stack:
        flood = b"".join(encode_header(REQUEST, number, "size", [], 0) for number in range(1, 5_001))
        peers = [await stack.enter_async_context(raw_peer(place, CLIENTS)) for _ in range(4)]
        for _, writer in peers:
            writer.write(flood)
        await begun.wait()
        before = len(handled)
        assert before <= 4 * 2 * connections.TURN_REQUESTS
        await honest.call("echo", [], timeout_s=10)
        await until(lambda: len(handled) == 20_001, "nothing is lost")
        assert seen[0] - before <= 4 * 6 * connections.TURN_REQUESTS, "a few turns of each connection, and no more"
        assert handled.count("size") == 20_000


async def test_requests_of_a_flood_keep_their_order() -> None:
    order: list[int] = []

    def handler(request: Request) -> None:
        order.append(msgspec.msgpack.decode(request.args)[0])
        request.reply(None)

    async with serving(handler) as place, client(place) as one:
        calls = [one.call_nowait("echo", [number], timeout_s=20) for number in range(3_000)]
        await asyncio.gather(*calls)
    assert order == list(range(3_000))


async def test_over_the_budget_little_is_read_at_a_time() -> None:
    async with serving(limits=limits(max_process_request_bytes=100_000)) as place, client(place) as one:
        assert (await one.call("size", [], bytes(40_000), timeout_s=5)).args == 40_000
        calls = [one.call_nowait("keep", [], bytes(40_000), timeout_s=30) for _ in range(3)]
        await until(lambda: len(place.echo.kept) >= 2, "requests wait")
        (accepted,) = place.server.connections
        if intake().request_bytes > 100_000:
            assert len(accepted.get_buffer(0)) <= SHARE_MIN_BYTES
        for request in place.echo.kept:
            request.reply(None)
        for call in calls:
            call.cancel()


async def test_what_is_unread_in_a_process_bounds_the_next_answers() -> None:
    bounds = limits(max_process_unsent_bytes=20_000_000, send_high_water_bytes=100_000_000)
    rooms = []

    def answer(request: Request) -> None:
        rooms.append(request.room_bytes)
        request.reply(None, bytes(min(8_000_000, request.room_bytes)))

    async with serving(answer, limits=bounds) as place, AsyncExitStack() as stack:
        for number in range(12):
            _, writer = await stack.enter_async_context(raw_peer(place, CLIENTS))
            writer.write(encode_header(REQUEST, 1, "fetch", [], 0))
            await until(lambda count=number + 1: len(rooms) == count, "it is answered")  # type: ignore[misc]
        async with client(place) as honest:
            began_s = time.monotonic()
            reply = await honest.call("fetch", [], timeout_s=5)
            assert time.monotonic() - began_s < 1
        assert len(reply.payload) > 0
        unsent = sum(connection.unsent_bytes for connection in place.server.connections)
        assert unsent < 21_000_000
        assert rooms[0] == 20_000_000
        assert rooms == sorted(rooms, reverse=True)


async def test_peers_that_read_nothing_are_cut_before_memory_ends() -> None:
    bounds = limits(max_process_unsent_bytes=1_000_000, send_high_water_bytes=1 << 30)
    async with serving(limits=bounds) as place, AsyncExitStack() as stack:
        for _ in range(12):  # each answer is one that the handler does not shorten
            _, writer = await stack.enter_async_context(raw_peer(place, CLIENTS))
            writer.write(encode_header(REQUEST, 1, "blob", [10_000_000], 0))
        await until(lambda: len(place.echo.seen) == 12, "all are answered")
        await place.still_serves()
        async with client(place) as honest:
            assert (await honest.call("size", [], b"xyz", timeout_s=5)).args == 3
        await until(
            lambda: sum(connection.unsent_bytes for connection in place.server.connections) < 80_000_000,
            "those that read nothing for longest are cut",
        )


@pytest.mark.parametrize(("writes", "size"), [(False, 70_000), (True, 1_200_000)])
async def test_frames_of_a_token_are_as_large_as_its_right(writes: bool, size: int) -> None:
    async with serving(permissions=OPEN) as place, client(place, token(writes=writes)) as one:
        fits = size - 10_000 if not writes else 1_040_000
        assert (await one.call("size", [], bytes(fits), timeout_s=5)).args == fits
        with pytest.raises(ConnectionFailed):
            await one.call("size", [], bytes(size), timeout_s=5)


async def test_arguments_of_tokens_and_of_refused_requests_are_bounded() -> None:
    async with serving(permissions=OPEN) as place:
        async with client(place, token(writes=True)) as one:
            with pytest.raises(ConnectionFailed):
                await one.call("echo", [b"x" * 70_000], timeout_s=5)
        async with client(place) as one:
            with pytest.raises(InvalidRequest, match="knows no method"):
                await one.call("unheard", [[]] * 900_000, timeout_s=5)
        assert place.echo.seen == []


async def test_arguments_stay_encoded_and_count_until_the_answer() -> None:
    kept: list[Request] = []
    async with serving(kept.append) as place, client(place) as one:
        call = one.call_nowait("fetch", ["id", *[[]] * 50_000], timeout_s=5)
        await until(lambda: bool(kept), "it has come")
        assert 50_000 < kept[0].size < 50_100
        assert 50_000 < intake().request_bytes < 52_000
        kept[0].reply(None)
        await call
        assert intake().request_bytes == 0


async def test_names_that_no_page_states_have_one_count_together() -> None:
    async with serving(permissions=OPEN) as place, client(place, token()) as one:
        for number in range(300):
            with pytest.raises(RaylogError):
                await one.call(f"unheard-{number}", [], timeout_s=5)
        assert dict(place.server.refusals) == {("other", InvalidRequest.code): 300}


async def test_notifications_that_no_page_states_end_the_connection() -> None:
    async with serving(permissions=OPEN) as place, raw_peer(place, CLIENTS) as (reader, writer):
        writer.write(encode_header(NOTIFICATION, 0, "echo", [], 0) * 1000)
        assert await is_cut(reader)
        assert place.echo.seen == []
        await place.still_serves()


async def test_notifications_that_the_page_states_count_until_they_are_handled() -> None:
    kept: list[Request] = []
    noted = Permissions("place", METHODS, missing=lambda *_: "", notifications=frozenset({"echo"}))
    async with serving(kept.append, permissions=noted) as place, client(place) as one:
        for _ in range(100):
            one.notify("echo", [], bytes(10_000))
        await until(lambda: len(kept) == 100, "all have come")
        assert intake().request_bytes > 1_000_000
        kept.clear()
        assert intake().request_bytes == 0


async def test_nothing_is_answered_after_the_end_of_a_token() -> None:
    async with serving(permissions=OPEN) as place, client(place, token(life_s=2)) as one:
        call = one.call_nowait("keep", [], timeout_s=10)
        await until(lambda: bool(place.echo.kept), "it waits")
        (accepted,) = place.server.connections
        await until(lambda: time.time() >= accepted._expires_s, "the token ends")
        place.echo.kept[0].reply("late")
        with pytest.raises(ClusterAuthorizationFailed, match="expired"):
            await call


async def test_an_endpoint_for_members_admits_no_clients() -> None:
    members = Permissions("place", METHODS, members_only=True)
    async with serving(permissions=members) as place:
        secrets: list[Secret] = [CLIENTS, token()]
        for secret in secrets:
            connection = await place.connect(secret=secret)
            with pytest.raises(ConnectionFailed):
                await connection.call("echo", [], timeout_s=5)
        await place.still_serves()


async def test_malformed_frames_of_authenticated_peers_cost_few_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_malformed", OccasionalWarning(connections.logger))
    async with serving() as place:
        for _ in range(20):
            async with raw_peer(place, CLIENTS) as (reader, writer):
                writer.write(b"\xff" * 8)
                assert await is_cut(reader)
    assert len([entry for entry in caplog.records if "closed" in entry.message]) == 1


async def test_idle_connections_of_authenticated_peers_keep_no_buffer() -> None:
    """256 KiB each were 540 MB for two thousand of them."""
    async with serving() as place, AsyncExitStack() as stack:
        await stack.enter_async_context(client(place))
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(50):
            await stack.enter_async_context(raw_peer(place, CLIENTS))
        await until(lambda: len(place.server.connections) == 51, "all are there")
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (after - before) / 50 < 40_000  # both ends: the raw one has asyncio's streams
