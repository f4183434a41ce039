"""The connection that a replica, broker or coordinator keeps to the controller.

It finds the controller, connects, registers and sends heartbeats, and starts over when the connection breaks. The rest
of the actor keeps running: losing the controller stops neither reads nor writes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

from raylog.actors.transport import dial
from raylog.base.errors import BrokerIdNotRegistered, NotController, RaylogError, RequestTimedOut, StaleBrokerEpoch
from raylog.protocol.controller import SESSION_HEARTBEAT, SessionHeartbeatReply, SessionHeartbeatRequest
from raylog.rpc import Connection, Handler, Reply, Request, Secret

logger = logging.getLogger(__name__)

FindController = Callable[[], Awaitable[tuple[str, int]]]
"""Returns host and port of the controller; raises :class:`ConnectionFailed` when it cannot be found right now."""

Place = tuple[str, int]
"""Host and port."""

RETRY_S: Final = 0.05
CONNECT_TIMEOUT_S: Final = 2.0
SILENT_BEATS: Final = 3
"""After so many heartbeat intervals without a reply, the controller is looked up again."""
ANSWER_TIMEOUT_S: Final = 10.0
REACHED_WITHIN_S: Final = 5.0
"""How long a call waits until the controller is reached: a restart takes less. It is half of a call's usual timeout, so
that a caller with that deadline still gets the refusal instead of a timeout of its own."""


def known_first(place: Place | None, find: FindController) -> FindController:
    """Return a search for the controller that first returns a known place, and from its second call on searches.

    So a process that a broker or the controller has just made need not search through Ray: each process that ever
    called the controller's actor leaves 1 to 2 kB there, which Ray never frees.
    """
    known = [] if place is None else [place]

    async def search() -> Place:
        return known.pop() if known else await find()

    return search


class ControllerLink:
    """Keeps one registered connection to the controller, from `start` to `stop`."""

    def __init__(
        self,
        find: FindController,
        *,
        name: str,
        secret: Secret,
        register: Callable[[Connection], Awaitable[None]],
        handler: Handler,
        heartbeat_s: float,
        on_superseded: Callable[[str], None],
        report: Callable[[], SessionHeartbeatRequest] = SessionHeartbeatRequest,
        on_change: Callable[[bool], None] = lambda _: None,
        on_answered: Callable[[SessionHeartbeatRequest, SessionHeartbeatReply], None] | None = None,
    ) -> None:
        """``register`` runs first on every new connection; ``handler`` gets the requests that the controller sends.

        ``on_superseded`` is called when the controller has registered a newer incarnation of this process. ``report``
        returns the content of each heartbeat; ``on_answered`` gets it back with the controller's reply. ``on_change``
        is called with whether there is a registered connection now.
        """
        self._find = find
        self._name = name
        self._secret = secret
        self._register = register
        self._handler = handler
        self.heartbeat_s = heartbeat_s
        """Seconds between two heartbeats; may be changed at any time."""
        self._on_superseded = on_superseded
        self._report = report
        self._on_change = on_change
        self._on_answered = on_answered
        self._is_vouched_for = self._is_in_doubt = False
        self._stirred = asyncio.Event()
        self.place: Place | None = None
        """Address of the controller of the last registration."""
        self._connection: Connection | None = None
        self._connected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._early: list[Request] | None = []
        self._beat_at_s = 0.0
        self._rested_s = 0.0

    def start(self) -> None:
        """Begin to look for the controller; returns at once."""
        self._task = asyncio.create_task(self._run(), name=f"controller link of {self._name}")

    async def stop(self) -> None:
        """Close the connection and end the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            self._connection.close("stopped")

    @property
    def is_connected(self) -> bool:
        """Whether there is a registered connection now."""
        return self._connected.is_set()

    @property
    def beat_due_s(self) -> float | None:
        """When the next heartbeat is due, by the loop's clock; infinity while the broker vouches for this process.

        None without a connection, and while a call or a write to the controller is under way.
        """
        connection = self._connection
        is_open = connection is not None and self.is_connected and not connection.is_closed and connection.is_quiet
        if connection is None or not is_open or connection.statistics()["pending_calls"]:
            return None
        return math.inf if self._is_vouched_for and not self._is_in_doubt else self._beat_at_s + self.heartbeat_s

    def rested(self, for_s: float) -> None:
        """Note that the broker had stopped this process for so long: the controller was not silent in that time."""
        self._rested_s += for_s

    async def wait_connected(self, timeout_s: float) -> None:
        """Wait until registered; raises :class:`NotController` after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            raise NotController(
                f"The controller could not be reached within {timeout_s:.1f} s; it is being restarted, try again."
            ) from None

    async def call(self, method: str, args: object, *, timeout_s: float) -> Reply:
        """Call the controller; waits for the connection within the same deadline, for REACHED_WITHIN_S at most.

        Raises the controller's refusals with ``is_remote`` set; NotController when it was not reached and nothing was
        sent; any other :class:`RaylogError` when the outcome is unknown.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        await self.wait_connected(min(timeout_s, REACHED_WITHIN_S))
        connection = self._connection
        if connection is None:
            raise NotController("The connection to the controller broke; try again.")
        try:
            return await connection.call(method, args, timeout_s=max(0.001, deadline - loop.time()))
        except RequestTimedOut:
            self._is_in_doubt = True  # this connection may no longer reach the controller; heartbeats will show it
            self._stirred.set()
            raise

    def vouched_for(self, is_vouched_for: bool) -> None:
        """Stop sending heartbeats, because this process's broker vouches for it, or send them again."""
        if is_vouched_for != self._is_vouched_for:
            self._is_vouched_for = is_vouched_for
            self._stirred.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._connect_once()
            except StaleBrokerEpoch as refusal:
                self._on_superseded(refusal.message)
                return
            except (RaylogError, OSError) as error:
                if isinstance(error, RaylogError) and error.is_remote:
                    logger.warning("%s: the controller refused the registration: %s", self._name, error)
                else:
                    logger.debug("%s: no controller: %s", self._name, error)
            except Exception:  # any error: without its link the actor would silently leave the cluster
                logger.exception("%s: the link to the controller failed, trying again", self._name)
            await asyncio.sleep(RETRY_S)

    async def _connect_once(self) -> None:
        host, port = await self._find()
        self._early = []
        connection = await dial(host, port, secret=self._secret, handler=self._receive, timeout_s=CONNECT_TIMEOUT_S)
        closed = self._closed_event(connection)
        try:
            await self._register(connection)
            early, self._early = self._early, None
            for request in early or []:
                self._handler(request)
            self._connection, self.place = connection, (host, port)
            self._connected.set()
            self._on_change(True)
            await self._beat_until(connection, closed)
        finally:
            if self._connected.is_set():
                self._connected.clear()
                self._on_change(False)
            self._connection = None
            connection.close("link ended")

    def _closed_event(self, connection: Connection) -> asyncio.Event:
        closed = asyncio.Event()

        def on_close(_: Connection) -> None:
            closed.set()
            self._stirred.set()

        connection.on_close(on_close)
        return closed

    def _receive(self, request: Request) -> None:
        """Pass on the controller's requests; those that arrive before the reply to the registration wait for it."""
        if self._early is None:
            self._handler(request)
        else:
            self._early.append(request)

    async def _beat_until(self, connection: Connection, closed: asyncio.Event) -> None:
        """Send heartbeats until the connection breaks, or until the controller is known to serve elsewhere.

        When the controller's node is lost, or the network is cut, the kernel keeps retransmitting, and the connection
        does not break for a long time. So a process without replies looks the controller up again. While its broker
        vouches for this process, the broker's heartbeats show that the controller replies, and none are sent here.
        """
        loop = asyncio.get_running_loop()
        answered_s, self._rested_s = loop.time(), 0.0
        search: asyncio.Task[bool] | None = None
        self._is_vouched_for = self._is_in_doubt = False

        def answered(request: SessionHeartbeatRequest, answer: asyncio.Future[Reply]) -> None:
            nonlocal answered_s
            if answer.cancelled():
                return
            error = answer.exception()
            if isinstance(error, BrokerIdNotRegistered):
                # The controller itself closes the connection only when the fencing is committed, which takes a while.
                connection.close(error.message)
            elif error is None:
                answered_s, self._rested_s = loop.time(), 0.0
                self._is_in_doubt = False
                if self._on_answered is not None:
                    self._on_answered(request, SESSION_HEARTBEAT.read_reply(answer.result().args))

        try:
            while not closed.is_set():
                if self._is_vouched_for and not self._is_in_doubt:
                    self._stirred.clear()
                    await self._stirred.wait()
                    answered_s = loop.time()
                    continue
                report = self._report()
                beat = connection.call_nowait(SESSION_HEARTBEAT.name, report, timeout_s=ANSWER_TIMEOUT_S)
                self._beat_at_s = loop.time()
                beat.add_done_callback(partial(answered, report))
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.heartbeat_s):  # wait_for of Python 3.11 can swallow a cancellation
                        await closed.wait()
                is_silent = loop.time() - answered_s - self._rested_s > SILENT_BEATS * self.heartbeat_s
                if search is None and is_silent:
                    search = asyncio.create_task(self._serves_elsewhere(), name=f"search of {self._name}")
                elif search is not None and search.done():
                    if is_silent and search.result():
                        logger.info(
                            "%s: the controller is silent on this connection, and serves on another", self._name
                        )
                        return
                    search = None
        finally:
            if search is not None:
                search.cancel()
                await asyncio.gather(search, return_exceptions=True)

    async def _serves_elsewhere(self) -> bool:
        """Return whether the controller that is found now replies; a paused or unreachable one does not.

        The connection to a paused controller is kept: when it resumes, it continues with its open connections.
        """
        try:
            host, port = await self._find()
            connection = await dial(host, port, secret=self._secret, timeout_s=CONNECT_TIMEOUT_S)
        except (RaylogError, OSError):
            return False
        connection.close("found")
        return True
