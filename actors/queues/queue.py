"""One queue at its leader: its state machine's runner, the waiting fetches, and the changes that are being stored.

Owned by the queues role (``role.py``). One task serves fetches in the order of their arrival. Another one stores
changes: those made while one call is open go together into the next call.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from raylog.actors.queues.copies import CopySender
from raylog.actors.queues.letters import LetterSender, sent_at_last
from raylog.actors.queues.reading import LogReader
from raylog.actors.queues.store import FENCED, ShareStateClient
from raylog.actors.request_table import RequestTable
from raylog.actors.roles.host import RoleHost
from raylog.actors.runner import Runner
from raylog.base.errors import NotLeaderOrFollower, RaylogError, UnknownMemberId
from raylog.core.coordinators.writing import RowQueue
from raylog.core.decision import Refuse, Reply
from raylog.core.queues import events as ev
from raylog.core.queues.machine import QueueMachine
from raylog.core.queues.records import QueueChange, joined, range_bytes
from raylog.core.received import Received
from raylog.protocol import queues as wire
from raylog.protocol.message import WAIT_MS_MAX
from raylog.rpc import Request

logger = logging.getLogger(__name__)

CHANGE_BYTES_MAX: Final = 512 * 1024
PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
"""Longest pause before fetches are served again after an error; the first one is PAUSE_S, and each one doubles."""


class _Parked:
    """A fetch that waits for records."""

    __slots__ = ("args", "came_ms", "request", "timer")

    def __init__(self, request: Request, args: wire.QueueFetchRequest, came_ms: int) -> None:
        self.request = request
        self.args = args
        self.came_ms = came_ms
        self.timer: asyncio.TimerHandle | None = None


class Queue:
    """The queue of one group on one partition, from one load of its state until the next load, here or elsewhere."""

    def __init__(
        self,
        group: str,
        host: RoleHost,
        reader: LogReader,
        states: ShareStateClient,
        letters: LetterSender,
        copies: CopySender,
        *,
        is_watched: Callable[[], bool],
        on_over: Callable[[Queue, str], None],
        wall_ms: Callable[[], Awaitable[int]],
    ) -> None:
        """``on_over`` is called with a reason when this queue has to be loaded again: fenced, not stored, or a defect.

        ``wall_ms`` returns the time of day, in milliseconds since 1970: ends of delays are stored by it, so that they
        hold under any leader. ``is_watched`` returns whether a fetch of any group waits at the end of the log.
        """
        self.group = group
        self._host = host
        self._reader = reader
        self._states = states
        self._letters = letters
        self._copies = copies
        self._is_watched = is_watched
        self._on_over = on_over
        self._wall_ms = wall_ms
        self._requests: RequestTable[Any] = RequestTable()
        self._rows: RowQueue[QueueChange] = RowQueue(self._wake_writer)
        self._parked: deque[_Parked] = deque()
        self._hand: ev.Hand | None = None
        self._connections: dict[str, object] = {}
        self._wanted = asyncio.Event()
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._version = 0
        self._sending = 0
        self._is_over = False
        self.state_epoch = -1
        self.machine: QueueMachine | None = None
        self._runner: Runner[Any, Any] | None = None

    # ------------------------------------------------------------ life

    async def load(self) -> None:
        """Load the state, and begin to serve. Raises FencedLeaderEpoch and other RaylogError."""
        self.state_epoch, stored, is_later = await self._states.read(self.group)
        await self._reader.begin()
        wall_ms = await self._wall_ms()
        machine = self.machine = QueueMachine(stored, self._host.config, is_later=is_later)
        table: dict[type[Any], Callable[[Any], object]] = {
            ev.StoreChange: self._store,
            ev.NoteStored: self._stored_note,
            ev.Hand: self._take_hand,
            ev.FindLetterBox: self._find_letter_box,
            ev.SendLetters: self._send_letters,
            ev.EndFetches: self._end_fetches,
            ev.Wake: lambda _: self._wake.set(),
            Reply: self._reply,
            Refuse: self._refuse,
        }
        runner = self._runner = Runner(machine.step, table, self._rows, on_defect=self._defect)
        runner.perform(machine.loaded(self._host.now_ms(), wall_ms))
        self._host.spawn(self._keep_writing(), f"queue {self.group} writer")
        self._host.spawn(self._keep_serving(), f"queue {self.group} server")
        self._log_start_moved(machine)

    def end(self, reason: str) -> None:
        """Serve no more. Open requests fail with NotLeaderOrFollower, so their senders look up the leader."""
        if self._is_over:
            return
        self._is_over = True
        if self._runner is not None:
            self._runner.end()
        if self._timer is not None:
            self._timer.cancel()
        error = NotLeaderOrFollower(f"The queue of group {self.group!r} on {self._host.partition} ends here: {reason}")
        self._requests.fail_all(error)
        parked, self._parked = self._parked, deque()
        for fetch in parked:
            self._answer(fetch, error)
        self._wanted.set()
        self._wake.set()

    @property
    def is_busy(self) -> bool:
        """Whether records are locked, fetches wait, or changes are not stored yet."""
        machine = self.machine
        is_writing = self._rows.durable_end() < self._rows.end()
        return bool(self._parked) or is_writing or self._sending > 0 or (machine is not None and machine.is_busy)

    @property
    def parked(self) -> int:
        """Number of fetches that wait."""
        return len(self._parked)

    @property
    def wants_more(self) -> bool:
        """Whether a fetch waits for records that are not there yet."""
        return bool(self._parked) and not self._is_over

    def more(self) -> None:
        """Serve the waiting fetches: there is more to read, or the log start offset has moved."""
        machine = self.machine
        if machine is not None:
            self._log_start_moved(machine)
        self._wake.set()

    def reconfigured(self) -> None:
        """Apply the topic's settings as they are now; a queue that is being loaded begins with them."""
        if self.machine is not None and not self._is_over:
            self._feed(ev.Reconfigured(cause="reconfigured", now_ms=self._host.now_ms(), topic=self._host.config))

    # ------------------------------------------------------------ requests

    def open(self, request: Request, args: wire.QueueOpenRequest) -> None:
        """Add a member. It leaves, and its locks end, when the connection of this request closes."""
        member = args.member_id
        connection = request.connection
        if self._connections.get(member) is not connection:
            self._connections[member] = connection
            connection.on_close(lambda closed: self._closed(member, closed))
        self._answer_member(member)  # it may have restarted, and would not know of records for an earlier fetch
        number = self._requests.remember(request)
        self._feed(
            ev.Opened(
                message=args,
                cause=wire.QUEUE_OPEN.name,
                request=number,
                now_ms=self._host.now_ms(),
                log_start=self._reader.log_start,
                readable_end=self._reader.readable_end,
            )
        )

    def fetch(self, request: Request, args: wire.QueueFetchRequest) -> None:
        """Queue a fetch, to be served in order. Raises UnknownMemberId.

        ``max_records`` of 0 ends the member's waiting fetches instead; ``max_wait_ms`` of 0 does not wait for records.
        """
        machine = self.machine
        if machine is None or args.member_id not in machine.members:
            raise UnknownMemberId(f"The queue does not know the member {args.member_id!r}; open it again.")
        fetch = _Parked(request, args, self._host.now_ms())
        if args.max_records <= 0:
            self._answer_member(args.member_id)
            self._answer(fetch, None)
            return
        if args.max_wait_ms > 0:
            fetch.timer = asyncio.get_running_loop().call_later(
                min(args.max_wait_ms, WAIT_MS_MAX) / 1000, self._fetch_over, fetch
            )
        self._parked.append(fetch)
        self._wake.set()

    def acknowledge(self, request: Request, args: wire.QueueAcknowledgeRequest) -> None:
        """Apply a member's verdicts; the reply is sent when they are stored."""
        number = self._requests.remember(request)
        cause = wire.QUEUE_ACKNOWLEDGE.name
        self._feed(Received(message=args, cause=cause, request=number, now_ms=self._host.now_ms()))

    def leave(self, member: str) -> None:
        """Remove a member."""
        self._connections.pop(member, None)
        self._answer_member(member)
        self._feed(ev.MemberLeft(cause="leave", now_ms=self._host.now_ms(), member=member))

    def reset(self, request: Request, args: wire.QueueResetRequest) -> None:
        """Continue at another offset; the reply is sent when that is stored."""
        number = self._requests.remember(request)
        self._feed(
            ev.Reset(
                message=args,
                cause=wire.QUEUE_RESET.name,
                request=number,
                now_ms=self._host.now_ms(),
                log_start=self._reader.log_start,
                readable_end=self._reader.readable_end,
            )
        )

    def peek(self, first: int, limit: int) -> list[wire.QueuePeeked]:
        """Return the states of up to ``limit`` ranges of records, from the offset ``first`` on."""
        return [] if self.machine is None else self.machine.peek(first, limit, self._host.now_ms())

    def describe(self) -> wire.QueueDescribeReply:
        """Return the queue's members, settings, counters and numbers of records. Raises NotLeaderOrFollower."""
        machine = self.machine
        if machine is None:
            raise NotLeaderOrFollower(f"The queue of group {self.group!r} is being loaded.")
        return wire.QueueDescribeReply(
            start=machine.book.start,
            end=machine.book.end,
            high_watermark=self._reader.readable_end,
            state_epoch=self.state_epoch,
            members=sorted(machine.members),
            states=machine.census(),
            settings=dict(machine.settings),
            counters=dict(machine.counters),
            hottest_key_records=0 if machine.key_queues is None else machine.key_queues.hottest(),
            dead_letter_topic=machine.policy.dead_letter_topic,
            oldest=self.peek(machine.book.start, 1),
        )

    def _answer_member(self, member: str) -> None:
        """End a member's waiting fetches without records."""
        for fetch in [fetch for fetch in self._parked if fetch.args.member_id == member]:
            self._parked.remove(fetch)
            self._answer(fetch, None)

    def _closed(self, member: str, connection: object) -> None:
        if self._connections.get(member) is connection and not self._is_over:
            self.leave(member)

    def _fetch_over(self, fetch: _Parked) -> None:
        if fetch in self._parked:
            self._parked.remove(fetch)
            self._answer(fetch, None)

    def _answer(self, fetch: _Parked, error: BaseException | None) -> None:
        if fetch.timer is not None:
            fetch.timer.cancel()
        if error is not None:
            fetch.request.fail(error)
        else:
            lock_ms = 0 if self.machine is None else self.machine.policy.lock_ms
            fetch.request.reply(wire.QueueFetchReply((), lock_ms))

    # ------------------------------------------------------------ handing out

    async def _keep_serving(self) -> None:
        pause_s = PAUSE_S
        while not self._is_over:
            self._wake.clear()
            try:
                await self._serve()
                pause_s = PAUSE_S
            except RaylogError as trouble:
                if self._is_over or self._host.is_over:
                    return
                logger.warning("%s: fetches of group %s wait: %s", self._host.partition, self.group, trouble)
                await asyncio.sleep(pause_s)
                pause_s = min(PAUSE_MAX_S, 2 * pause_s)
                self._wake.set()
            if self._parked:
                self._reader.watch(self._is_watched)
            await self._wake.wait()

    async def _serve(self) -> None:
        """Serve the waiting fetches for as long as there are records for them."""
        machine = self.machine
        while machine is not None and self._parked and not self._is_over:
            fetch = self._parked[0]
            if fetch.request.is_deserted:
                self._parked.popleft()
                continue
            self._reader.look()
            self._log_start_moved(machine)
            first = machine.next_offset(self._reader.readable_end)
            if first is None:
                if not await self._scan(machine):
                    break
                continue
            chunk = await self._reader.chunk(first)
            if self._is_over or not self._parked:
                return
            if chunk is None:
                if not self._log_start_moved(machine):
                    break
                continue
            fetch = self._parked[0]
            if not self._hand_out(fetch, chunk, first):
                break
        self._answer_impatient()

    def _hand_out(self, fetch: _Parked, chunk: Any, first: int) -> bool:
        args = fetch.args
        end = chunk.end_within(first, args.max_bytes)
        number = self._requests.remember(fetch.request)
        take = ev.Take(
            message=args,
            cause=wire.QUEUE_FETCH.name,
            request=number,
            now_ms=self._host.now_ms(),
            first=first,
            end=end,
            gaps=chunk.gaps(first, end),
        )
        hand = self._handed(take)
        self._requests.pop(number, None)
        if hand is None:  # the member has left meanwhile, and the step has refused its request
            if self._parked and self._parked[0] is fetch:
                self._parked.popleft()
            return True
        if not hand.ranges:  # e.g. there are only gaps
            return self._is_next_elsewhere(first)
        self._parked.popleft()
        if fetch.timer is not None:
            fetch.timer.cancel()
        payload, _ = chunk.cut(hand.ranges[0].first, hand.ranges[-1].end, len(chunk.payload))
        waited_ms = max(0, take.now_ms - fetch.came_ms - 1)  # -1: both times are rounded down
        fetch.request.reply(wire.QueueFetchReply(hand.ranges, hand.lock_ms, waited_ms), payload)
        return True

    def _is_next_elsewhere(self, first: int) -> bool:
        machine = self.machine
        return machine is not None and machine.next_offset(self._reader.readable_end) != first

    def _handed(self, take: ev.Take) -> ev.Hand | None:
        self._hand = None
        self._feed(take)
        return self._hand

    async def _scan(self, machine: QueueMachine) -> bool:
        """Read the keys of the next records; False if there are none to read."""
        scan = machine.next_scan(self._reader.readable_end)
        if scan is None:
            return False
        chunk = await self._reader.chunk(scan)
        if self._is_over:
            return False
        if chunk is None:
            return self._log_start_moved(machine)
        keys = chunk.keys(scan) if machine.key_queues is not None else ()
        tries = chunk.earlier_tries(scan) if machine.is_retry_topic else ()
        end = max(chunk.end, scan + 1)
        self._feed(ev.Scanned(cause="scan", now_ms=self._host.now_ms(), first=scan, end=end, keys=keys, tries=tries))
        return True

    def _log_start_moved(self, machine: QueueMachine) -> bool:
        start = self._reader.log_start
        if machine.is_new or not machine.is_behind(start):
            return False
        self._feed(ev.LogStarts(cause="log start", now_ms=self._host.now_ms(), offset=start))
        return True

    def _answer_impatient(self) -> None:
        for fetch in [fetch for fetch in self._parked if fetch.args.max_wait_ms <= 0]:
            self._parked.remove(fetch)
            self._answer(fetch, None)

    # ------------------------------------------------------------ effects

    def _feed(self, event: ev.Event) -> None:
        if self._runner is None or self._is_over:
            raise NotLeaderOrFollower(f"The queue of group {self.group!r} does not serve here any more.")
        self._runner.feed(event)
        self._set_timer()

    def _set_timer(self) -> None:
        due_ms = None if self.machine is None else self.machine.next_due_ms()
        if due_ms is None or self._is_over:
            return
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        delay_s = max(0.001, (due_ms - self._host.now_ms()) / 1000 + 0.001)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._is_over:
            self._feed(ev.Tick(cause="tick", now_ms=self._host.now_ms()))

    def _store(self, effect: ev.StoreChange) -> None:
        change = effect.change
        self._rows.add([(change, 200 + sum(map(range_bytes, change.ranges)))])

    def _stored_note(self, effect: ev.NoteStored) -> ev.ChangeStored:
        return ev.ChangeStored(cause="stored", now_ms=self._host.now_ms(), number=effect.number)

    def _take_hand(self, effect: ev.Hand) -> None:
        self._hand = effect

    def _end_fetches(self, effect: ev.EndFetches) -> None:
        for member in effect.members:
            self._answer_member(member)

    def _find_letter_box(self, effect: ev.FindLetterBox) -> None:
        self._sending += 1
        self._host.spawn(self._found_letter_box(effect), f"queue {self.group} dead-letter topic")

    async def _found_letter_box(self, effect: ev.FindLetterBox) -> None:
        try:
            found = await (self._copies if effect.is_later else self._letters).find(effect.topic)
        finally:
            self._sending -= 1
        if not self._is_over:
            self._feed(found)

    def _send_letters(self, effect: ev.SendLetters) -> None:
        self._sending += 1
        self._host.spawn(self._sent_letters(effect), f"queue {self.group} dead letters")

    async def _sent_letters(self, effect: ev.SendLetters) -> None:
        sender = self._copies if effect.is_later else self._letters
        try:
            outcome = await sent_at_last(sender, self._host, self.group, effect, lambda: self._is_over)
        finally:
            self._sending -= 1
        if outcome is not None and not self._is_over:
            self._feed(outcome)

    def _reply(self, effect: Reply) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            request.reply(effect.result)

    def _refuse(self, effect: Refuse) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            request.fail(effect.error)

    # ------------------------------------------------------------ storing

    def _wake_writer(self) -> None:
        self._wanted.set()

    async def _keep_writing(self) -> None:
        while not self._is_over:
            await self._wanted.wait()
            self._wanted.clear()
            while not self._is_over and (changes := self._rows.take(CHANGE_BYTES_MAX)):
                self._version += 1
                try:
                    await self._states.write(self.group, self.state_epoch, self._version, joined(changes))
                except FENCED as fenced:
                    self._on_over(self, str(fenced))
                    return
                except RaylogError as trouble:
                    self._on_over(self, f"its changes are not stored: {trouble}")
                    return
                self._rows.stored()
                if self._runner is not None:
                    self._runner.release()
                    self._set_timer()

    def _defect(self, reason: str) -> None:
        """End the queue, since a step may be half done: the next request loads it again from what is stored.

        That happens one turn of the event loop later, so that the request to blame is answered with its error first.
        """
        logger.error("%s, queue of group %r: %s", self._host.partition, self.group, reason)
        asyncio.get_running_loop().call_soon(self._on_over, self, "a defect, see the log of its leader")
