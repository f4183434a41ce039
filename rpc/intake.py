"""What the clients of one event loop make it hold: one receive buffer for all, and one budget of bytes.

A process of Raylog has one event loop that serves, so this is the process' budget. Connections of members are not in
it. Used by `Connection` alone. Pure, but for the loops that it knows.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Protocol
from weakref import WeakKeyDictionary

from raylog.rpc.framing import RECEIVE_BUFFER_BYTES
from raylog.rpc.limits import Limits

REQUEST_BYTES = 1024
"""Memory that a waiting request takes in addition to its own bytes."""
SHARE_MIN_BYTES = 16 * 1024
"""Least that a connection may hold, however many there are; and most that is read at once above the budget."""
ANSWER_MIN_BYTES = 64 * 1024
"""Largest answer above the budget, for a peer that has read all earlier answers."""
UNSENT_SLACK_BYTES = 64 * 1024 * 1024
"""Unsent bytes beyond the budget from which on peers that read nothing are cut, the longest first."""


class Holder(Protocol):
    """A connection of a client."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the peer has not read."""

    def abort(self, reason: str) -> None:
        """Close at once; what it holds is given back before this returns."""


class Intake:
    """The receive buffer and the budget of one event loop."""

    __slots__ = ("_begun", "_stalled", "clients", "incomplete_bytes", "is_used_up", "receive_buffer", "request_bytes")
    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, Intake]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self.receive_buffer = bytearray(RECEIVE_BUFFER_BYTES)
        """Shared by all connections of the loop, members' and clients': it is empty between two reads."""
        self.clients = 0
        """Connections of clients."""
        self.incomplete_bytes = 0
        """Memory of their incomplete frames."""
        self.request_bytes = 0
        """Bytes of their requests that wait or are unanswered."""
        self.is_used_up = False
        """Whether the clients hold more than the budget."""
        self._begun: dict[Holder, None] = {}
        """Connections with an incomplete frame, the oldest frame first."""
        self._stalled: dict[Holder, None] = {}
        """Connections whose sockets take no more bytes, the longest stalled first."""

    @classmethod
    def on(cls, loop: asyncio.AbstractEventLoop) -> Intake:
        """The intake of this loop."""
        found = cls._of_loops.get(loop)
        if found is None:
            found = cls._of_loops[loop] = cls()
        return found

    def make_room(self, holder: Holder, more: int, most: int) -> bool:
        """Close the connections with the oldest incomplete frames until `holder` has room for `more` bytes.

        `most`: bytes that all incomplete frames together may take. False if this frame alone would take more.
        """
        while self.incomplete_bytes + more > most:
            oldest = next((each for each in self._begun if each is not holder), None)
            if oldest is None:
                return False
            oldest.abort("its frame was incomplete for longest, and there was no memory for others")
        return True

    def hold(self, holder: Holder, before: int, now: int, *, is_new: bool) -> None:
        """Count what the incomplete frame of a connection takes now; `is_new`: it is another one than before."""
        self.incomplete_bytes += now - before
        if is_new or not now:
            self._begun.pop(holder, None)
        if now:
            self._begun[holder] = None

    def stall(self, holder: Holder) -> None:
        """Note that a connection's socket takes no more."""
        self._stalled[holder] = None

    def unstall(self, holder: Holder) -> None:
        """Note that it takes bytes again, or is closed."""
        self._stalled.pop(holder, None)

    def cut_stalled(self, excess_bytes: int) -> None:
        """Close the connections that have taken nothing for longest, until `excess_bytes` unsent bytes are freed."""
        while excess_bytes > 0 and self._stalled:
            longest = next(iter(self._stalled))
            excess_bytes -= longest.unsent_bytes
            longest.abort("it read none of its answers, and there was no memory for those of others")


class Stake:
    """The part of one client's connection in the intake of its loop."""

    __slots__ = ("_holder", "_limits", "few_bytes", "held_bytes", "intake", "request_bytes")

    def __init__(self, intake: Intake, holder: Holder, limits: Limits) -> None:
        self.intake, self._holder, self._limits = intake, holder, limits
        self.few_bytes = limits.max_process_request_bytes // 2
        """While the requests of all clients take no more than this, another request needs no call of `weigh`."""
        self.held_bytes = 0
        """Memory of its incomplete frame."""
        self.request_bytes = 0
        """Bytes of its requests that wait or are unanswered; `Connection` adds each that comes."""
        intake.clients += 1

    def may_grow(self, more: int) -> bool:
        """Whether its incomplete frame may take `more` bytes; connections with older ones are closed for it."""
        return self.intake.make_room(self._holder, more, self._limits.max_process_request_bytes // 2)

    def hold(self, now: int, *, is_new: bool) -> None:
        """Note what its incomplete frame takes now; `is_new`: it is another one than before."""
        self.intake.hold(self._holder, self.held_bytes, now, is_new=is_new)
        self.held_bytes = now
        self.weigh()
        if self.intake.incomplete_bytes * 2 > self._limits.max_process_request_bytes:
            self.may_grow(0)

    def answered(self, size: int) -> None:
        """Note the answer to a request of `size` bytes."""
        intake, size = self.intake, size + REQUEST_BYTES
        self.request_bytes -= size
        intake.request_bytes -= size
        if intake.is_used_up:
            self.weigh()

    def has_more_than_its_share(self, factor: int = 1) -> bool:
        """Whether `factor` times the requests of this connection take more than an equal part of the budget."""
        share = self._limits.max_process_request_bytes // self.intake.clients
        return self.request_bytes * factor > max(share, SHARE_MIN_BYTES)

    def weigh(self) -> None:
        """Update `Intake.is_used_up`: whether the clients hold more than the budget."""
        intake = self.intake
        held = intake.incomplete_bytes + intake.request_bytes
        intake.is_used_up = held > self._limits.max_process_request_bytes

    def room_for_answer(self, process_unsent_bytes: int) -> int:
        """How large an answer may be; a peer that has read everything always gets a little. 0 = earlier ones first."""
        room = self._limits.max_process_unsent_bytes - process_unsent_bytes
        if room >= ANSWER_MIN_BYTES:
            return room
        return 0 if self._holder.unsent_bytes else ANSWER_MIN_BYTES

    def stalled(self) -> None:
        """Note that its socket takes no more."""
        self.intake.stall(self._holder)

    def unstalled(self) -> None:
        """Note that it takes bytes again."""
        self.intake.unstall(self._holder)

    def leave(self) -> None:
        """Give everything back: the connection is closed, and handlers drop its requests soon."""
        self.intake.clients -= 1
        self.intake.hold(self._holder, self.held_bytes, 0, is_new=False)
        self.intake.request_bytes -= self.request_bytes
        self.weigh()
        self.intake.unstall(self._holder)
