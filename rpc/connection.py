"""One authenticated connection: calls and notifications in both directions over one TCP stream.

Made by `connect()` and `RpcServer`; used by clients, brokers and replicas. Everything here belongs to the event loop
that made the connection and must be called from there. May touch: its socket, the loop's clock and timers.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from raylog.base.access import Role
from raylog.base.errors import (
    AuthenticationFailed,
    ClusterAuthorizationFailed,
    ConnectionFailed,
    InvalidRequest,
    RaylogError,
    ThrottlingQuotaExceeded,
    UnknownServerError,
)
from raylog.rpc.auth.addresses import canonical
from raylog.rpc.auth.handshake import ClientHandshake, Endpoints, Greeting, Peer, ServerHandshake
from raylog.rpc.auth.tls import LoadedContext
from raylog.rpc.calls import CallbackWaiter, PendingCalls, Waiting, fail
from raylog.rpc.errors import FrameTooLarge, TooManyPendingCalls
from raylog.rpc.framing import (
    ERROR,
    NO_PAYLOAD,
    NOTIFICATION,
    REPLY,
    REQUEST,
    Buffer,
    Buffers,
    Frame,
    FrameDecoder,
    check_frame_bytes,
    decode_error,
    encode_header,
    payload_parts,
)
from raylog.rpc.host import configure_socket
from raylog.rpc.intake import REQUEST_BYTES, SHARE_MIN_BYTES, UNSENT_SLACK_BYTES, Intake, Stake
from raylog.rpc.limits import Limits
from raylog.rpc.occasional import OccasionalDefects, OccasionalWarning
from raylog.rpc.patience import Vitals
from raylog.rpc.permissions import Permissions, token_expired
from raylog.rpc.reply import Reply
from raylog.rpc.request import Handler, Refusals, Request, describe, refuse_requests
from raylog.rpc.sending import SendQueue, WriteCoalescer

logger = logging.getLogger(__name__)
# Shared by the process: neither peers that cannot authenticate nor others that send nonsense may fill its log.
_unproved = OccasionalWarning(logger)
TURN_REQUESTS = 64
"""Requests of a client that are handled in one turn of the loop: then other connections have theirs."""
_malformed = OccasionalWarning(logger)
_defects = OccasionalDefects(logger)


class Connection(asyncio.BufferedProtocol):
    """Symmetric after the handshake: both ends may call, notify and answer.

    `peer` is the other end's host and port; `stays_here` means that both ends have one address, so that the peer is
    probably on this machine; `peer_is_member` is False for a client of ours; `is_closed` means that no call can succeed
    any more, `close_reason` why. Once `ready`, `role` is the role of the connecting end; `peer_feature_level` and
    `peer_software` describe the peer; `is_replaced`: a newer secret replaces the one that this end has proved. The
    methods of asyncio's protocol are for the event loop only.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handshake: ClientHandshake | ServerHandshake,
        handler: Handler | None,
        limits: Limits,
        on_ready: Callable[[Connection], None] | None = None,
        permissions: Permissions | None = None,
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._queue = SendQueue(loop, limits, self._send_queue_low, self._send_failed)
        self._pending = PendingCalls(loop)
        self.peer = "unknown"
        self.is_closed = False
        self.close_reason = ""
        self._greeting: Greeting | None = Greeting(handshake, limits.max_preauth_bytes)
        self._accepted = self._greeting.is_accepting
        self._handler = handler or refuse_requests
        self._on_ready = on_ready
        self._permissions = permissions
        self._allowed: frozenset[str] | None = None  # methods that the peer may call; None = all of the handler's
        self.ready: asyncio.Future[None] = loop.create_future()
        self._closed_future: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.Transport | None = None
        # Starts here, not in `connection_made`, which is never called when the TLS handshake fails.
        self._auth_timer = loop.call_later(limits.auth_timeout_s, self._authentication_late)
        self._decoder: FrameDecoder | None = None  # for an authenticated peer only
        self._intake = Intake.on(loop)
        self._stake: Stake | None = None  # what a client's connection holds of the budget; None = a member's
        self._expires_s = 0.0  # the end of the peer's token; 0 = it has proved a secret
        self._now_s = time.time if permissions is None else permissions.now_s
        self._coalescer = WriteCoalescer.on(loop)
        self._unanswered = self._unanswered_bytes = 0
        self._reading_paused = False
        self._close_callbacks: list[Callable[[Connection], None]] = []
        self._late_replies = 0
        self._backlog: deque[Request] = deque()  # requests that wait for a turn, or until the peer has read our answers
        self._goes_on = False
        self._rounds = 0
        self.refusals: Refusals | None = None
        """The server's counts of refused requests, by (method, error code); None = they are not counted."""
        self.stays_here = False
        self.peer_is_member = True
        self.role, self.peer_feature_level, self.peer_software = Role.TOKEN, 0, ""
        self.is_replaced = False

    # Public methods

    @property
    def was_made(self) -> bool:
        """Whether the peer has accepted the connection."""
        return self._transport is not None

    @property
    def is_silent(self) -> bool:
        """Whether no byte of the peer has come yet."""
        return self._greeting is not None and not self._greeting.has_received

    async def call(self, method: str, args: object = None, payload: Buffers = NO_PAYLOAD, *, timeout_s: float) -> Reply:
        """Call the peer's handler and wait for its answer.

        Raises the handler's own error with `is_remote` set; RequestTimedOut, ConnectionFailed, TooManyPendingCalls
        and FrameTooLarge without.
        """
        return await self.call_nowait(method, args, payload, timeout_s=timeout_s)

    def call_nowait(
        self, method: str, args: object = None, payload: Buffers = NO_PAYLOAD, *, timeout_s: float
    ) -> asyncio.Future[Reply]:
        """Queue the request before returning (order is kept; it leaves at the end of this loop tick).

        All errors of `call` come through the future; only arguments that cannot be encoded raise TypeError here.
        Large payload parts are sent without a copy: do not change them before the answer has come.
        """
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._send_request(method, args, payload, timeout_s, future)
        return future

    def call_then(
        self,
        method: str,
        args: object,
        payload: Buffers = NO_PAYLOAD,
        *,
        timeout_s: float,
        then: Callable[[Reply | RaylogError], None],
    ) -> None:
        """As `call_nowait`, but `then` gets the answer itself, before this connection handles the bytes after it.

        Its arguments are still encoded: the method's page reads them into its type at once. Frames that `then` sends
        leave at once with the rest. It must not block; errors are delivered in a later iteration of the loop.
        """
        self._send_request(method, args, payload, timeout_s, CallbackWaiter(self._loop, then))

    def notify(self, method: str, args: object = None, payload: Buffers = NO_PAYLOAD) -> None:
        """Send a request without an answer; lost silently when the connection closes. Raises FrameTooLarge."""
        if not self.is_closed:
            self._send(NOTIFICATION, 0, method, () if args is None else args, payload)

    async def drain(self) -> None:
        """Wait while the unsent bytes are over the high mark; returns at once when the connection is closed.

        Ends at the latest when the peer counts as dead (`Limits.dead_peer_timeout_s`).
        """
        if self._queue.is_over and not self.is_closed:
            await self._queue.wait_low()

    def on_close(self, callback: Callable[[Connection], None]) -> None:
        """Call `callback` once, soon after this connection is closed; soon, if it is closed already."""
        if self.is_closed:
            self._loop.call_soon(callback, self)
        else:
            self._close_callbacks.append(callback)

    def close(self, reason: str = "closed by this end") -> None:
        """Fail pending calls, send what is queued, then close. Cut after `Limits.close_linger_s`. Never raises."""
        self._end(reason or "closed by this end")
        self._queue.close_when_sent(self._limits.close_linger_s)

    def abort(self, reason: str) -> None:
        """Close at once, without sending what is queued."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the socket is closed; call `close` first. Ends at the latest after the linger time."""
        await asyncio.shield(self._closed_future)

    def statistics(self) -> dict[str, int]:
        """Metrics: pending calls in either direction, and answers that came after their deadline."""
        return {
            "pending_calls": len(self._pending),
            "unanswered_requests": self._unanswered,
            "unanswered_bytes": self._unanswered_bytes,
            "unsent_bytes": self._queue.unsent_bytes,
            "late_replies": self._late_replies,
        }

    @property
    def is_behind(self) -> bool:
        """Whether the peer has more of our answers to read than `Limits.send_high_water_bytes`."""
        return self._queue.is_over

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the peer has not read."""
        return self._queue.unsent_bytes

    @property
    def answer_room_bytes(self) -> int:
        """How large an answer may be now; 0 = the peer has to read earlier ones first."""
        if self._queue.is_over:
            return 0
        stake = self._stake
        return self._limits.max_frame_bytes if stake is None else stake.room_for_answer(self._coalescer.unsent_bytes)

    @property
    def is_quiet(self) -> bool:
        """Whether no part of a frame waits here in either direction; calls and requests may be unanswered."""
        vitals = self.vitals()
        return not (vitals.partial_bytes or vitals.unsent_bytes or self._backlog or self._reading_paused)

    def vitals(self) -> Vitals:
        """Counters that separate a live peer from a stuck one."""
        return Vitals(
            rounds=self._rounds,
            partial_bytes=0 if self._decoder is None or self._reading_paused else self._decoder.partial_bytes,
            unsent_bytes=self._queue.unsent_bytes,
            writes=self._queue.writes,
            is_busy=bool(self._unanswered or self._backlog or len(self._pending)),
        )

    def __repr__(self) -> str:
        return f"<Connection with {self.peer}{', closed' if self.is_closed else ''}>"

    def _send_request(self, method: str, args: object, payload: Buffers, timeout_s: float, waiting: Waiting) -> None:
        """Queue a request and register `waiting` for its answer; or deliver an error, when it cannot be sent."""
        pending = self._pending
        if self.is_closed:
            fail(waiting, ConnectionFailed(f"The connection for {method} is closed: {self.close_reason}"))
            return
        if len(pending.calls) >= self._limits.max_pending_calls:
            reason = f"{len(pending)} calls to {self.peer} wait for answers; wait for some of them."
            fail(waiting, TooManyPendingCalls(reason))
            return
        parts: Sequence[Buffer]
        if type(payload) is bytes:
            parts, payload_bytes = (payload,), len(payload)
        else:
            parts, payload_bytes = payload_parts(payload)
        pending.last_id = correlation_id = pending.last_id + 1
        header = encode_header(REQUEST, correlation_id, method, () if args is None else args, payload_bytes)
        if len(header) + payload_bytes > self._limits.max_frame_bytes:
            try:
                check_frame_bytes(header, payload_bytes, self._limits.max_frame_bytes)
            except FrameTooLarge as error:
                fail(waiting, error)
                return
        pending.add(correlation_id, method, timeout_s, waiting)
        self._queue.put(header, parts, payload_bytes)

    def _send(self, kind: int, correlation_id: int, third: object, args: object, payload: Buffers) -> None:
        parts, payload_bytes = payload_parts(payload) if payload is not NO_PAYLOAD else ((), 0)
        header = encode_header(kind, correlation_id, third, args, payload_bytes)
        if len(header) + payload_bytes > self._limits.max_frame_bytes:
            check_frame_bytes(header, payload_bytes, self._limits.max_frame_bytes)
        self._queue.put(header, parts, payload_bytes)

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting; only the handshake is read until the peer has authenticated."""
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
        here = transport.get_extra_info("sockname")
        self.stays_here = isinstance(name, tuple) and isinstance(here, tuple) and name[0] == here[0]
        self._pending = PendingCalls(self._loop, self.peer)
        configure_socket(transport.get_extra_info("socket"), self._limits.dead_peer_timeout_s)
        self._queue.attach(transport)
        if self.is_closed:  # closed while it was being opened
            transport.abort()
            return
        self._auth_timer.cancel()
        self._auth_timer = self._loop.call_later(self._limits.auth_timeout_s, self._authentication_late)
        if self._greeting is not None:
            self._queue.put(self._greeting.open(_endpoints_of(transport, accepted=self._accepted)), (), 0)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the socket's next bytes: the handshake's message, later the decoder's memory."""
        decoder = self._decoder
        if decoder is not None:
            buffer = decoder.get_buffer() if decoder.held_bytes else decoder.view
            if not self._intake.is_used_up or self._stake is None:
                return buffer
            return buffer[:SHARE_MIN_BYTES]
        return cast(Greeting, self._greeting).get_buffer()  # there is a greeting until there is a decoder

    def buffer_updated(self, nbytes: int) -> None:
        """Process `nbytes` bytes from the peer, and send all immediate answers in one write."""
        if self.is_closed:
            return
        decoder = self._decoder
        if decoder is None:
            self._handshake_updated(nbytes)
            return
        frames = decoder.buffer_updated(nbytes)
        stake = self._stake
        if stake is not None and decoder.held_bytes != stake.held_bytes:
            stake.hold(decoder.held_bytes, is_new=bool(frames))
        if frames:
            self._rounds += 1
            coalescer = self._coalescer
            if coalescer.unsent_bytes > self._limits.max_process_unsent_bytes:
                self._limit_unsent()
            coalescer.depth += 1
            try:
                self._dispatch(frames)
            finally:
                coalescer.depth -= 1
                if not coalescer.depth and coalescer.queues:  # as `flush`, without its call: every frame passes here
                    queues, coalescer.queues = coalescer.queues, []
                    for queue in queues:
                        queue.scheduled_flush()
            limits = self._limits
            if (  # otherwise reading is neither to be paused nor to be resumed
                self._unanswered > limits.max_unanswered_requests
                or self._unanswered_bytes > limits.max_unanswered_bytes
                or self._queue.is_over
                or self._reading_paused
                or self._backlog
                or (self._stake is not None and self._intake.is_used_up)
            ):
                self._govern_reading()
        if decoder.failure is not None:
            self._refuse(decoder.failure)

    def eof_received(self) -> bool:
        """The peer has closed its end; close ours."""
        self._end(f"{self.peer} closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._end(f"the connection with {self.peer} broke: {exc}" if exc else f"{self.peer} closed the connection")
        self._queue.detach()
        self._transport = None
        if not self._closed_future.done():
            self._closed_future.set_result(None)

    def pause_writing(self) -> None:
        """The socket's send buffer is full."""
        self._queue.pause()
        if self._stake is not None:
            self._stake.stalled()

    def resume_writing(self) -> None:
        """The socket accepts bytes again."""
        if self._stake is not None:
            self._stake.unstalled()
        self._queue.resume()

    # Handshake

    def _handshake_updated(self, count: int) -> None:
        greeting = self._greeting
        if greeting is None:
            return
        try:
            self._queue.put(greeting.take(count), (), 0)
        except AuthenticationFailed as error:
            self._queue.put(greeting.farewell, (), 0)
            self._refuse(error)
            return
        if greeting.peer is not None:
            self._greeting = None
            self._admit(greeting.peer)

    def _admit(self, peer: Peer) -> None:
        self.role, self.peer_feature_level, self.peer_software = peer.role, peer.feature_level, peer.software
        self.is_replaced = peer.is_replaced
        self.peer_is_member = not self._accepted or peer.role == Role.CLUSTER
        if self._permissions is not None:
            if self._permissions.members_only and not self.peer_is_member:
                self._refuse(ClusterAuthorizationFailed(f"A {self._permissions.endpoint} admits members only."))
                return
            self._allowed, self._handler = self._permissions.admit(peer.role, peer.grant, self._handler)
        limits = self._limits
        frame_bytes = header_bytes = limits.max_frame_bytes
        if not self.peer_is_member:
            self._stake = Stake(self._intake, self, limits)
            header_bytes = limits.max_header_bytes
            if peer.grant is not None:
                self._expires_s = peer.grant.expires_s
                header_bytes = limits.max_token_frame_bytes
                if self._permissions is not None:
                    frame_bytes = header_bytes + self._permissions.record_bytes(peer.grant)
        self._decoder = FrameDecoder(
            min(frame_bytes, limits.max_frame_bytes),
            self._intake.receive_buffer,
            max_header_bytes=min(header_bytes, limits.max_frame_bytes),
            grow=None if self._stake is None else self._stake.may_grow,
        )
        self._auth_timer.cancel()
        if not self.ready.done():
            self.ready.set_result(None)
        if self._on_ready is not None:
            self._on_ready(self)

    def _authentication_late(self) -> None:
        if self._transport is None and not self._accepted:
            return  # there is no peer yet: `connect` reports that none was reached
        if self._greeting is not None:
            self._refuse(
                AuthenticationFailed(f"{self.peer} did not authenticate within {self._limits.auth_timeout_s} seconds.")
            )

    # Incoming frames

    def _dispatch(self, frames: list[Frame]) -> None:
        pending, stake, left = self._pending, self._stake, TURN_REQUESTS
        for (kind, correlation_id, third, args), payload in frames:
            if kind == REPLY:
                if not pending.resolve(correlation_id, args, payload):
                    self._late_replies += 1
            elif kind == ERROR:
                if correlation_id not in pending.calls or not pending.reject(correlation_id, decode_error(third)):
                    self._late_replies += 1
            elif kind == NOTIFICATION and self._permissions and third not in self._permissions.notifications:
                reason = f"{self.peer} sent {third} as a notification; a {self._permissions.endpoint} takes none such."
                self._refuse(InvalidRequest(reason))
            else:
                request = Request(self, correlation_id, third, args, payload, kind == NOTIFICATION)
                size = request.size
                if kind == REQUEST:
                    self._unanswered += 1
                    self._unanswered_bytes += size
                if stake is not None:
                    weight, intake = size + REQUEST_BYTES, stake.intake
                    stake.request_bytes += weight  # as `Stake.answered`, without a call: every batch passes here
                    intake.request_bytes += weight
                    if intake.request_bytes > stake.few_bytes:
                        stake.weigh()
                if self._accepted and (self._queue.is_over or self._backlog):
                    self._backlog.append(request)
                elif left == 0 and stake is not None:
                    self._backlog.append(request)
                    self._go_on_soon()
                else:
                    left -= left > 0
                    self._handle(request)
            if self.is_closed:
                return

    def _handle(self, request: Request) -> None:
        method = request.method
        if self._allowed is not None and method not in self._allowed and self._permissions is not None:
            request.fail(self._permissions.refusal(method, self.role, request.args))
            return
        if self._intake.is_used_up and self._stake is not None and self._stake.has_more_than_its_share():
            request.fail(
                ThrottlingQuotaExceeded(
                    "The requests of all clients that wait here take too many bytes, and those of this connection more "
                    "than its share: wait for answers, then try again."
                )
            )
            return
        try:
            self._handler(request)
        except RaylogError as refusal:
            request.fail(refusal)
        except Exception as error:  # a handler's bug may fail one request, never the connection or the server
            _defects.report(error, "The handler of %s, called by %s, raised an error.", method, self.peer)
            request.fail(error)

    def _limit_unsent(self) -> None:
        """More bytes are unsent than this process may hold: wait for this peer, if it has answers to read.

        Far above the limit, cut the peers that have taken nothing for longest.
        """
        if self._queue.unsent_bytes:
            self._queue.is_over = True  # until this peer has read something
        excess = self._coalescer.unsent_bytes - self._limits.max_process_unsent_bytes
        if excess > UNSENT_SLACK_BYTES:
            self._intake.cut_stalled(excess)

    def _go_on_soon(self) -> None:
        """Handle requests that wait in a later turn of the loop."""
        if not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._work_off_backlog)

    def _work_off_backlog(self) -> None:
        """Handle requests that waited for the peer to read our answers, or for a turn, until it is behind again."""
        self._goes_on = False
        left = len(self._backlog) if self._stake is None else TURN_REQUESTS
        with self._coalescer:
            while left > 0 and self._backlog and not self._queue.is_over and not self.is_closed:
                left -= 1
                self._handle(self._backlog.popleft())
        if self._backlog and not self._queue.is_over and not self.is_closed:
            self._go_on_soon()
        self._govern_reading()

    def _govern_reading(self) -> None:
        """Pause reading while the peer has too much unanswered, or does not read our answers; resume at half.

        Only the accepting end considers unsent bytes: if both did, they could deadlock.
        """
        limits, transport = self._limits, self._transport
        share = 2 if self._reading_paused else 1
        too_much = (
            self._unanswered * share > limits.max_unanswered_requests
            or self._unanswered_bytes * share > limits.max_unanswered_bytes
            or (self._accepted and (self._queue.is_over or bool(self._backlog)))
            or (self._intake.is_used_up and self._stake is not None and self._stake.has_more_than_its_share(share))
        )
        if too_much != self._reading_paused and transport is not None and not self.is_closed:
            self._reading_paused = too_much
            if too_much:
                transport.pause_reading()
            else:
                transport.resume_reading()

    # Answers

    def send_reply(self, correlation_id: int, args: object, payload: Buffers, request_bytes: int) -> None:
        """For Request: answer it. Raises before anything is sent or counted."""
        if self.is_closed:
            return
        if self._expires_s and self._now_s() >= self._expires_s:
            self.send_error(correlation_id, describe(token_expired()), request_bytes)
            return
        if payload is NO_PAYLOAD:  # as `_send`, without its call: the answer to every produced batch passes here
            header = encode_header(REPLY, correlation_id, None, args, 0)
            if len(header) > self._limits.max_frame_bytes:
                check_frame_bytes(header, 0, self._limits.max_frame_bytes)
            self._queue.put(header, (), 0)
        else:
            self._send(REPLY, correlation_id, None, args, payload)
        self._unanswered -= 1  # as `_answered`, without its call: every batch passes here
        self._unanswered_bytes -= request_bytes
        stake = self._stake
        if stake is not None:
            weight, intake = request_bytes + REQUEST_BYTES, stake.intake
            stake.request_bytes -= weight
            intake.request_bytes -= weight
            if intake.is_used_up:
                stake.weigh()
        if self._reading_paused:
            self._govern_reading()

    def send_error(self, correlation_id: int, description: list[object], request_bytes: int) -> None:
        """For Request: answer it with an error."""
        if self.is_closed:
            return
        try:
            self._send(ERROR, correlation_id, description, None, NO_PAYLOAD)
        except Exception:  # details of any type can come with an error; the code and message must be delivered
            logger.warning("The details of an error cannot be sent and are left out: %r", description[2])
            self._send(ERROR, correlation_id, [description[0], str(description[1])[:1000], {}], None, NO_PAYLOAD)
        self._answered(request_bytes)

    def _answered(self, request_bytes: int) -> None:
        self._unanswered -= 1
        self._unanswered_bytes -= request_bytes
        if self._stake is not None:
            self._stake.answered(request_bytes)
        if self._reading_paused:
            self._govern_reading()

    def abandoned(self, correlation_id: int, method: str, request_bytes: int) -> None:
        """For Request: it was dropped unanswered. May run in any thread, as garbage collection does."""
        if not self.is_closed and not self._loop.is_closed():
            error = UnknownServerError(f"The handler dropped {method} without an answer.")
            self._loop.call_soon_threadsafe(self.send_error, correlation_id, describe(error), request_bytes)

    def forgotten(self, size: int) -> None:
        """For Request: a notification is not kept any more. May run in any thread, as garbage collection does."""
        if self._stake is not None:
            self._stake.answered(size)

    # Closing

    def _refuse(self, error: RaylogError) -> None:
        """The peer violated the protocol: log it and close."""
        if not self.is_closed:
            if self._accepted and self._decoder is None:
                _unproved.warn("Connection with %s closed: %s", self.peer, error)
            else:
                _malformed.warn("Connection with %s closed: %s", self.peer, error)
            if not self.ready.done():
                self.ready.set_exception(error)
                self.ready.exception()
            self.close(str(error))

    def _send_queue_low(self) -> None:
        if self._backlog:
            self._go_on_soon()  # deferred: this is called inside a write, and answers would write again inside it
        elif self._reading_paused:
            self._govern_reading()

    def _send_failed(self, error: OSError) -> None:
        self.abort(f"the connection with {self.peer} broke: {error}")

    def _end(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.close_reason = reason
        self._auth_timer.cancel()
        self._backlog.clear()
        if self._stake is not None:
            self._stake.leave()
            self._stake = None
        if self._decoder is not None:
            self._decoder.forget()
        if self._transport is not None:
            self._transport.pause_reading()  # further bytes of this peer are ignored
        elif not self._closed_future.done():
            self._closed_future.set_result(None)  # there is no socket yet; if one is opened, it is closed at once
        if not self.ready.done():
            self.ready.set_exception(ConnectionFailed(f"The handshake was cut short: {reason}"))
            self.ready.exception()
        self._pending.fail_all(reason)
        self._queue.release_waiters()
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            self._loop.call_soon(callback, self)


def _endpoints_of(transport: asyncio.BaseTransport, *, accepted: bool) -> Endpoints:
    """The server's address and certificate, as the accepting or the connecting end sees them, for the handshake."""
    name = transport.get_extra_info("sockname" if accepted else "peername")
    return Endpoints(address=canonical(name), certificate=_certificate(transport, accepted))


def _certificate(transport: asyncio.BaseTransport, accepted: bool) -> bytes:
    session = transport.get_extra_info("ssl_object")
    if session is None:
        return b""
    if accepted:
        context = session.context
        return context.certificate_digest if isinstance(context, LoadedContext) else b""
    shown = session.getpeercert(binary_form=True)
    return hashlib.sha256(shown).digest() if shown else b""
