"""A small HTTP/1.1 server for pages about a process: GET and HEAD only, for monitoring systems and health checks.

It is hardened against slow, broken and hostile clients:

- Each connection has a deadline for its request, and one for its answer.
- At most ``MAX_HEAD_BYTES`` are read before a request is complete, and a request has no body.
- At most ``MAX_CONNECTIONS`` are open. A new connection replaces the one that has been without a request for longest.
  If all wait for answers, there are ``HEALTH_CONNECTIONS`` more for health checks; any others are closed at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 8192
MAX_CONNECTIONS: Final = 64
HEALTH_CONNECTIONS: Final = 16
"""Further connections, on which only ``HEALTH_PATHS`` are answered."""
HEALTH_PATHS: Final = ("/healthz", "/readyz")
REQUEST_S: Final = 5.0
"""Time for a complete request, counted from the connection or from the last answer."""
ANSWER_S: Final = 10.0
"""Time for making an answer, and again for sending it."""
REQUESTS_PER_CONNECTION: Final = 1000

_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,2000}) HTTP/1\.([01])\Z")


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: status, content type, body."""

    status: HTTPStatus
    content_type: str
    body: bytes


Handler = Callable[[str], Awaitable[Page]]
"""Makes the page of a path, which comes without its query; an error becomes status 500."""


def json_page(status: HTTPStatus, content: object) -> Page:
    """Return a page of JSON."""
    return Page(status, "application/json", json.dumps(content).encode() + b"\n")


def text_page(status: HTTPStatus, text: str) -> Page:
    """Return a page of plain text."""
    return Page(status, "text/plain; charset=utf-8", text.encode())


class BadRequest(Exception):
    """A bad request: it gets an error as answer, and its connection is closed."""

    def __init__(self, status: HTTPStatus, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = dict(headers or {})


class HttpServer:
    """Serves pages on one address until it is closed."""

    def __init__(self, handler: Handler) -> None:
        """Make it; it does not listen before :meth:`start`."""
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._places: set[asyncio.StreamWriter] = set()
        """Connections that are open and were not given up."""
        self._silent: dict[asyncio.StreamWriter, None] = {}
        """Connections whose request has not come yet, the one that has waited longest first."""

    @property
    def open_connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns host and port. Raises OSError when the address is taken, or not one of this machine's."""
        self._server = await asyncio.start_server(self._accepted, host, port, limit=MAX_HEAD_BYTES)
        name = self._server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def close(self) -> None:
        """Stop listening and cut all connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if server is not None:
            await server.wait_closed()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._places) >= MAX_CONNECTIONS and self._silent:
            self._give_up(next(iter(self._silent)))
        if len(self._places) >= MAX_CONNECTIONS + HEALTH_CONNECTIONS or self._server is None:
            writer.transport.abort()
            return
        is_spare = len(self._places) >= MAX_CONNECTIONS
        self._places.add(writer)
        self._silent[writer] = None
        task = asyncio.create_task(self._converse(reader, writer, is_spare=is_spare), name="http connection")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    def _give_up(self, writer: asyncio.StreamWriter) -> None:
        """Free a connection's place, and abort it; its task ends soon."""
        self._silent.pop(writer, None)
        self._places.discard(writer)
        writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_spare: bool) -> None:
        try:
            for _ in range(REQUESTS_PER_CONNECTION):
                if not await self._exchange(reader, writer, is_spare=is_spare):
                    break
        except (OSError, TimeoutError, EOFError):
            pass  # the client is slow, or closed the connection
        except Exception:  # a defect may spoil this connection, never the process
            logger.exception("a request for a page failed")
        finally:
            self._silent.pop(writer, None)
            self._places.discard(writer)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_spare: bool) -> bool:
        """Answer one request; returns whether the connection stays open."""
        headers: Mapping[str, str] = {}
        if writer in self._places:
            self._silent[writer] = None
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await _read_head(reader)
            self._silent.pop(writer, None)
            if head is None:
                return False
            method, path, keep = _parsed(head)
        except BadRequest as error:
            method, keep, headers = "GET", False, error.headers
            page = text_page(error.status, f"{error}\n")
        else:
            if is_spare and path not in HEALTH_PATHS:
                keep = False
                page = text_page(HTTPStatus.SERVICE_UNAVAILABLE, f"{MAX_CONNECTIONS} others wait for their pages\n")
            else:
                page = await self._page(path)
        writer.write(_encoded(page, keep=keep, with_body=method != "HEAD", headers=headers))
        async with asyncio.timeout(ANSWER_S):
            await writer.drain()
        return keep

    async def _page(self, path: str) -> Page:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._handler(path)
        except TimeoutError:
            return text_page(HTTPStatus.SERVICE_UNAVAILABLE, f"no answer within {ANSWER_S:.0f} s\n")
        except Exception:  # a defect of one page; the others must stay reachable
            logger.exception("the page %s failed", path)
            return text_page(HTTPStatus.INTERNAL_SERVER_ERROR, "the page failed; the broker's log says why\n")


async def _read_head(reader: asyncio.StreamReader) -> bytes | None:
    """Return request line and headers; None when the client closed without a request."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise BadRequest(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a request has at most {MAX_HEAD_BYTES} bytes"
        ) from None


def _parsed(head: bytes) -> tuple[str, str, bool]:
    """Return method, path without query, and whether the connection stays open. Raises :class:`BadRequest`."""
    first, *rest = head[:-4].split(b"\r\n")
    found = _REQUEST_LINE.match(first)
    if found is None:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "this is no HTTP/1 request")
    method, target, minor = found.groups()
    headers: dict[bytes, bytes] = {}
    for line in rest:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip() or b"\n" in line or b"\r" in line:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a header is malformed")
        headers[name.lower()] = value.strip()
    if method not in (b"GET", b"HEAD"):
        raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered here", {"Allow": "GET, HEAD"})
    if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "a request has no body here")
    wish = headers.get(b"connection", b"").lower()
    keep = wish == b"keep-alive" if minor == b"0" else wish != b"close"
    return method.decode(), target.partition(b"?")[0].decode(), keep


def _encoded(page: Page, *, keep: bool, with_body: bool, headers: Mapping[str, str]) -> bytes:
    lines = [
        f"HTTP/1.1 {page.status.value} {page.status.phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        f"Connection: {'keep-alive' if keep else 'close'}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + (page.body if with_body else b"")
