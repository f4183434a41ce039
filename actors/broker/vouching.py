"""A broker's side of the table of beats: its heartbeats vouch for its replicas, which then send none themselves.

Called by the broker's shell. May touch: the memory that the processes of a broker share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from raylog.actors.beats import beat_memory
from raylog.actors.beats.beat_memory import OpenPages, SharedPages
from raylog.actors.beats.beat_table import USED_MS, BeatTable
from raylog.actors.clock import monotonic_ms
from raylog.actors.resting import NEVER, Resting
from raylog.core.vouching import Beat, Pace, Voucher
from raylog.protocol.controller import ReplicaNote, SessionHeartbeatReply, SessionHeartbeatRequest


class _Sent(NamedTuple):
    """A heartbeat on its way: when it was sent, and the slots to mark once it is confirmed."""

    request: SessionHeartbeatRequest
    sent_ms: int
    marks: list[tuple[int, int]]
    """Slot and incarnation of each replica to mark."""


PLAIN: Final = SessionHeartbeatRequest()


class Vouching:
    """What one broker states about its replicas, over all its sessions with controllers."""

    def __init__(
        self,
        now_ms: Callable[[], int] = monotonic_ms,
        open_pages: OpenPages | None = None,
        resting: Resting = NEVER,
    ) -> None:
        """Nothing is stated before :meth:`open` and :meth:`begin`. ``resting``: the replicas that this broker stops."""
        self._now_ms, self._open_pages, self._resting = now_ms, open_pages, resting
        self._relied_ms = 0
        self._name = ""
        self._pages: SharedPages | None = None
        self._table: BeatTable | None = None
        self._voucher: Voucher | None = None
        """None: there is no session yet."""
        self._sent: deque[_Sent] = deque()

    def open(self, name: str) -> None:
        """Make the table of this name, or take over the table that an earlier process of this broker has left."""
        self._name = name
        if self._open_pages is None:
            beat_memory.remove_abandoned(self._now_ms(), USED_MS)
        self._renew()

    def begin(self, controller_epoch: int, pace: Pace) -> None:
        """Begin a session."""
        if self._pages is not None and not self._pages.is_current():
            self._pages.close()
            self._renew()
        self._sent.clear()
        self._voucher = Voucher(pace)
        self._relied_ms = pace.hung_after_ms
        if self._table is not None:
            self._table.begin(controller_epoch)
        self._resting.expect(pace.hung_after_ms)
        self._resting.rely_until(None)  # the replicas have to run, to connect to this controller as well

    def report(self) -> SessionHeartbeatRequest:
        """Return the content of a heartbeat that leaves now.

        Replicas that it does not vouch for send their own heartbeats from now on. The others stop sending their own
        once the controller has confirmed it.
        """
        table, voucher = self._table, self._voucher
        if table is None or voucher is None:
            return PLAIN
        now_ms = self._now_ms()
        table.used(now_ms)
        beats = table.beats()
        stated = voucher.vouch(now_ms, beats, self._resting.rested(now_ms))
        marks = []
        for beat in beats:
            if beat.incarnation not in stated.vouched:
                self._unmark(table, beat)
            elif beat.vouched != beat.incarnation:
                marks.append((beat.slot, beat.incarnation))
        request = SessionHeartbeatRequest(
            vouched=sorted(stated.vouched) if stated.is_new else None,
            notes=[ReplicaNote(*note) for note in stated.notes],
            dozing=self._resting.dozing_count(),
        )
        self._sent.append(_Sent(request, now_ms, marks))
        return request

    def confirmed(self, request: SessionHeartbeatRequest, reply: SessionHeartbeatReply) -> None:
        """Take the reply to a heartbeat: from now on the vouched replicas that the controller knows may rely on it."""
        while self._sent and self._table is not None and self._voucher is not None:
            sent = self._sent.popleft()
            if sent.request is request:
                for slot, incarnation in sent.marks:
                    if incarnation in self._voucher.stated and incarnation not in reply.absent:
                        self._table.mark(slot, incarnation)
                if reply.absent:
                    self._send_back(self._table, reply.absent)
                self._table.confirm(sent.sent_ms)
                self._resting.rely_until(sent.sent_ms + self._relied_ms)
                return

    def _send_back(self, table: BeatTable, absent: Collection[int]) -> None:
        """Let replicas send heartbeats whose connection ended on the controller's side only: so they will notice it."""
        for beat in table.beats():
            if beat.incarnation in absent:
                self._unmark(table, beat)

    def _unmark(self, table: BeatTable, beat: Beat) -> None:
        """Let a replica send its own heartbeats; its process is continued if it is stopped."""
        table.unmark(beat.slot)
        self._resting.wake(beat.incarnation)

    def close(self) -> None:
        """Remove the table: replicas send their own heartbeats until the next process of this broker makes one."""
        self._resting.rely_until(None)
        pages, self._pages, self._table, self._voucher = self._pages, None, None, None
        if pages is not None:
            pages.remove()
            pages.close()

    def _renew(self) -> None:
        self._pages = (self._open_pages or beat_memory.open_pages)(self._name, make=True)
        self._table = None if self._pages is None else BeatTable(self._pages)
