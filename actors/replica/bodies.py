"""Decodes the bodies of large produce requests in a thread, before they are appended. Owned by a replica's shell.

Sequence numbers of producers demand that each connection's requests stay in order: a request behind one that is being
opened waits for it. Other connections do not wait. One thread opens one request at a time, so that only one is in
memory decompressed; connections take turns there.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, get_running_loop
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from raylog.actors.answering import defects
from raylog.base.errors import RaylogError, UnknownServerError
from raylog.protocol.replica import ProduceRequest
from raylog.rpc import Request
from raylog.storage.batch.compression import Buffer
from raylog.storage.log.bodies import open_bodies, takes_long
from raylog.storage.log.config import LogConfig
from raylog.storage.log.partition_log import PartitionLog

Produce = Callable[[Request, ProduceRequest], None]


class BodyOpener:
    """The produce requests of one replica whose bodies are opened first, and those that wait behind them."""

    def __init__(self, log: PartitionLog, name: str, produce: Produce, leads: Callable[[], bool]) -> None:
        """``produce`` takes a request whose turn has come, and may raise like a request handler.

        ``leads`` returns whether the replica leads. If not, it will refuse the request, and the body is not opened.
        """
        self._log, self._name, self._produce, self._leads = log, name, produce, leads
        self.lines: dict[object, deque[tuple[Request, ProduceRequest]]] = {}
        """Waiting requests by connection; the first of each is being opened."""
        self._thread: ThreadPoolExecutor | None = None
        self._is_over = False

    @property
    def is_busy(self) -> bool:
        """Whether a request waits here."""
        return bool(self.lines)

    def takes(self, request: Request, args: ProduceRequest) -> bool:
        """Take a request whose bodies are opened first; False: the caller appends it at once.

        One uncompressed batch is appended at once, unless requests of its connection wait or the log rewrites batches.
        """
        line = self.lines.get(request.connection)
        if line is not None:
            line.append((request, args))
            return True
        if not takes_long(request.payload, self._log.config) or not self._leads():
            return False
        self.lines[request.connection] = deque([(request, args)])
        self._open(request.connection, request)
        return True

    def close(self) -> None:
        """Open no more. The requests that wait are dropped without an answer."""
        self._is_over = True
        self.lines.clear()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _open(self, connection: object, request: Request) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, f"bodies-{self._name}")
        config, loop = self._log.config, get_running_loop()
        work = self._thread.submit(open_bodies, request.payload, config, self._name)
        work.add_done_callback(lambda done: _report(loop, lambda: self._opened(connection, config, done)))

    def _opened(self, connection: object, config: LogConfig, done: Future[Buffer]) -> None:
        """Append the opened request and those behind it, up to the next one that has to be opened."""
        line = self.lines.get(connection)
        if line is None or self._is_over:
            return
        request, args = line.popleft()
        error = done.exception()
        if error is None:
            request.payload, request.opened_for = memoryview(done.result()), config
            self._hand_on(request, args)
        else:
            _refuse(request, error)
        while line:
            request, args = line[0]
            if not request.is_deserted and takes_long(request.payload, self._log.config) and self._leads():
                self._open(connection, request)
                return
            line.popleft()
            self._hand_on(request, args)
        del self.lines[connection]

    def _hand_on(self, request: Request, args: ProduceRequest) -> None:
        if request.is_deserted:
            return
        try:
            self._produce(request, args)
        except Exception as error:  # is answered as by the server of requests
            _refuse(request, error)


def _refuse(request: Request, error: BaseException) -> None:
    if not isinstance(error, RaylogError):
        defects.report(error, "A request to produce could not be handled.")
        error = UnknownServerError(f"{type(error).__name__}: {error}")
    request.fail(error)


def _report(loop: AbstractEventLoop, receive: Callable[[], Any]) -> None:
    try:
        loop.call_soon_threadsafe(receive)
    except RuntimeError:
        pass  # the loop has ended
