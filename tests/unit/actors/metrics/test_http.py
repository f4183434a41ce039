"""The small HTTP server: its replies, and that slow, broken and hostile clients cost it next to nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import pytest

from raylog.actors.metrics import http
from raylog.actors.metrics.http import HttpServer, Page, json_page, text_page
from tests.waiting import eventually


async def pages(path: str) -> Page:
    if path == "/broken":
        raise RuntimeError("a defect")
    if path == "/slow":
        await asyncio.sleep(60)
    if path == "/large":
        return text_page(HTTPStatus.OK, "x" * 50_000_000)
    return json_page(HTTPStatus.OK, {"path": path})


def served(work: Callable[[int], Awaitable[None]]) -> None:
    """Run a test against a server on a free port; nothing of it is left afterwards."""

    async def run() -> None:
        server = HttpServer(pages)
        _, port = await server.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(30):
                await work(port)
        finally:
            async with asyncio.timeout(5):
                await server.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


async def exchange(port: int, sent: bytes) -> bytes:
    """Send bytes and return all that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def request(path: str, method: str = "GET", headers: str = "Connection: close\r\n", version: str = "1.1") -> bytes:
    return f"{method} {path} HTTP/{version}\r\nHost: x\r\n{headers}\r\n".encode()


def test_a_page_is_answered_with_its_length_and_type() -> None:
    async def work(port: int) -> None:
        head, _, body = (await exchange(port, request("/metrics?x=1"))).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Type: application/json\r\n" in head
        assert f"Content-Length: {len(body)}\r\n".encode() in head
        assert body == b'{"path": "/metrics"}\n'

    served(work)


def test_head_has_the_length_and_no_body() -> None:
    async def work(port: int) -> None:
        head, _, body = (await exchange(port, request("/a", method="HEAD"))).partition(b"\r\n\r\n")
        assert b"Content-Length: 15\r\n" in head
        assert body == b""

    served(work)


def test_a_connection_serves_several_requests() -> None:
    async def work(port: int) -> None:
        answers = await exchange(port, request("/a", headers="") + request("/b", headers="") + request("/c"))
        assert answers.count(b"HTTP/1.1 200 OK") == 3
        assert answers.count(b"Connection: keep-alive") == 2

    served(work)


def test_http_1_0_closes_by_default() -> None:
    async def work(port: int) -> None:
        assert b"Connection: close" in await exchange(port, request("/a", headers="", version="1.0"))

    served(work)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET /a HTTP/2.0\r\n\r\n", 400),
        (b"GET a HTTP/1.1\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nSpace : x\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nA: x\nInjected: y\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"GET /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"GET /a HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"x" * 100_000, 431),
        (request("/broken"), 500),
    ],
)
def test_what_is_wrong_gets_an_error_and_ends_the_connection(sent: bytes, status: int) -> None:
    async def work(port: int) -> None:
        answer = await exchange(port, sent)
        # A client that goes on sending may see its connection reset before it reads the answer.
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()) or (status == 431 and not answer)
        assert b"200 OK" in await exchange(port, request("/after"))

    served(work)


def test_a_client_that_sends_slowly_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.2)

    async def work(port: int) -> None:
        assert await exchange(port, b"GET /a HT") == b""
        assert await exchange(port, b"") == b""

    served(work)


async def test_a_client_that_takes_no_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_S", 0.3)
    server = HttpServer(pages)
    _, port = await server.start("127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(request("/large"))
    await eventually(lambda: server.open_connections == 1)
    await eventually(lambda: server.open_connections == 0)
    writer.close()
    await server.close()


def test_a_page_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_S", 0.2)

    async def work(port: int) -> None:
        assert b"503 Service Unavailable" in await exchange(port, request("/slow"))

    served(work)


async def test_a_new_connection_takes_the_place_of_the_longest_silent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixty-four sockets that sent half a request had every health check reset."""
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 3)
    server = HttpServer(pages)
    _, port = await server.start("127.0.0.1", 0)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
    for _, writer in silent:
        writer.write(b"GET /")
    for _ in range(10):
        assert b"200 OK" in await exchange(port, request("/healthz"))
    assert await silent[0][0].read() == b""
    assert server.open_connections <= 3
    for _, writer in silent:
        writer.close()
    await eventually(lambda: server.open_connections == 0)
    assert b"200 OK" in await exchange(port, request("/a"))
    await server.close()


async def test_health_checks_have_places_while_all_others_wait_for_their_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(http, "HEALTH_CONNECTIONS", 1)
    going = asyncio.Event()

    async def slow(path: str) -> Page:
        if path == "/metrics":
            await going.wait()
        return json_page(HTTPStatus.OK, {"path": path})

    server = HttpServer(slow)
    _, port = await server.start("127.0.0.1", 0)
    waiting = [asyncio.create_task(exchange(port, request("/metrics"))) for _ in range(3)]
    await eventually(lambda: server.open_connections == 3 and not server._silent)
    assert b"200 OK" in await exchange(port, request("/healthz"))
    assert b"503" in await exchange(port, request("/metrics"))
    going.set()
    for answer in waiting:
        assert b"200 OK" in await answer
    await server.close()
