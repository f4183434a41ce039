"""The forwarder of one partition: decides what goes where next, stores that, and sends it until it has arrived. Pure.

A turn: read pieces, find their targets, store the progress with the decision, send its parcels. The progress of the
next turn also states that this turn is done, so a turn stores once. After a crash a successor reads the progress and
sends the same parcels again: their targets recognise producer id and sequences, and store each parcel once
(``raylog.core.lane``). One parcel for each target is under way at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from raylog.base.invariants import require
from raylog.core.forwarding import events as ev
from raylog.core.forwarding.plan import after, parcels_of, routes_of
from raylog.core.forwarding.progress import (
    TURN_BYTES_MAX,
    UNDELIVERABLE,
    Again,
    Progress,
    Route,
    RouteState,
    routes_bytes,
)
from raylog.core.lane import BATCHES_MAX, Lane, Remedy, Trouble, split_at
from raylog.core.outbox import Outbox
from raylog.protocol.message import replace

PIECES_MAX: Final = BATCHES_MAX
"""Most pieces with records in a turn, so most parcels for one target."""
RETRY_FIRST_MS: Final = 50
RETRY_LAST_MS: Final = 5_000
UNSAVED_MAX: Final = 100_000
"""After so many offsets without a record to send, the position is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwarderSettings:
    """How one forwarder works."""

    end: int | None = None
    """Offset at which it ends; None = it waits for more."""
    rate: int = 0
    """Records a second; 0 = as many as there are."""


class Stage(StrEnum):
    """What the forwarder is waiting for."""

    LOADING = "loading"
    READING = "reading"
    WAITING = "waiting"
    """Until something is due, or may go by its rate."""
    RESOLVING = "resolving"
    SAVING = "saving"
    SENDING = "sending"
    ENDED = "ended"


class ForwarderMachine:
    """One forwarder, at one owner.

    Invariant: nothing is sent that the stored progress does not decide.
    """

    def __init__(self, settings: ForwarderSettings) -> None:
        """Begin; nothing is done before :class:`~raylog.core.forwarding.events.Loaded`."""
        self.settings = settings
        self.stage = Stage.LOADING
        self.progress = Progress(producer_id=-1, position=0, decided_end=0)
        """The progress as it is now; the stored one is ``_saved``."""
        self.stop_requested = False
        self.is_holding = False
        """Whether a target did not take a parcel in this turn, and is tried again."""
        self._pieces: tuple[ev.Piece, ...] = ()
        self._lanes: dict[Route, Lane[ev.Parcel]] = {}
        """The parcels of this turn, by the routes that they really take."""
        self._later: dict[Route, list[ev.Parcel]] = {}
        """Parcels that are sent once it is stored that those before have arrived."""
        self._next_offset = 0
        self._acknowledged = 0
        self._rule = ""
        self._saved = self.progress
        self._needs_producer = False
        """Whether the routes begin again under another producer id, which has yet to be resolved."""
        self._due_ms: int | None = None
        self._allowed_ms = 0
        self._turn_sent = 0
        """Records of this turn that have arrived."""
        self._out: Outbox[ev.Effect] = Outbox()

    # ------------------------------------------------------------ the door

    def step(self, event: ev.Event) -> Outbox[ev.Effect]:
        """Handle one event and return its effects."""
        out = self._out = Outbox()
        match event:
            case ev.Loaded():
                self._loaded(event)
            case ev.PiecesRead():
                self._read(event)
            case ev.Resolved():
                self._resolved(event)
            case ev.Saved():
                self._is_saved(event.now_ms)
            case ev.Sent():
                self._arrived(event)
            case ev.NotSent():
                self._not_arrived(event)
            case ev.Tick():
                self._time_passed(event.now_ms)
            case ev.StopRequested():
                self._stop()
        return out

    def next_ms(self) -> int | None:
        """Return when the next Tick is due; None = no Tick is needed."""
        if self.stage is Stage.WAITING:
            return self._due_ms
        if self.stage is Stage.SENDING:
            again = [due_ms for lane in self._lanes.values() if (due_ms := lane.due_ms()) is not None]
            return min(again, default=None)
        return None

    @property
    def is_undecided(self) -> bool:
        """Whether it is reading, and everything that it did is stored."""
        return self.stage is Stage.READING and self.progress == self._saved

    def _stop(self) -> None:
        self.stop_requested = True
        if self.stage in (Stage.READING, Stage.WAITING):
            self._end()
        elif self.stage is Stage.SENDING and self.is_holding:
            self._give_up()

    # ------------------------------------------------------------ reading

    def _loaded(self, event: ev.Loaded) -> None:
        require(self.stage is Stage.LOADING, "a forwarder is loaded once")
        self.progress = self._saved = event.progress
        self._next_offset = event.progress.position
        self._request_read(waits=False)

    def _request_read(self, *, waits: bool) -> None:
        """Read the source from the position on."""
        self.stage = Stage.READING
        progress = self.progress
        rule = progress.rule if progress.decided_end > progress.position else None
        self._out.now.append(ev.Read(progress.position, progress.decided_end, waits, rule))

    def _read(self, event: ev.PiecesRead) -> None:
        if self.stage is not Stage.READING:
            return  # the forwarder was stopped meanwhile
        progress = self.progress
        is_decided = progress.decided_end > progress.position
        if event.log_end < progress.decided_end:
            self._begin_again(min(progress.position, event.log_end))
        elif event.log_start > progress.position and is_decided:
            self._begin_again(event.log_start)
        elif event.log_start > progress.position:
            self.progress = replace(progress, position=event.log_start, decided_end=event.log_start)
        self._pieces = tuple(piece for piece in event.pieces if piece.end > self.progress.position)
        self._next_offset, self._acknowledged, self._rule = event.next_offset, event.acknowledged, event.rule
        if self.progress.decided_end > self.progress.position:
            self._replay(event.now_ms)
        else:
            self._decide(event.now_ms)

    def _begin_again(self, position: int) -> None:
        """Begin another epoch on all routes: records of the decision are lost, so its sequences cannot be repeated.

        Retention deleted the records, or an unclean leader election lost them.
        """
        routes = tuple(_rebased(state) for state in self.progress.routes)
        self.progress = replace(
            self.progress, position=position, decided_end=position, routes=routes, lost=(), again=()
        )

    def _replay(self, now_ms: int) -> None:
        """Send what an earlier owner decided again: all of its records have been read."""
        require(self._next_offset >= self.progress.decided_end, "a decision is read as a whole")
        self._send_all(now_ms)

    # ------------------------------------------------------------ deciding

    def _decide(self, now_ms: int) -> None:
        """Decide about the first pieces that were read, or wait until the first is due, or read on."""
        if self.stop_requested:
            self._end()
            return
        end = self.settings.end
        ready = [piece for piece in self._pieces if piece.first >= self.progress.position]
        if end is not None:
            ready = [piece for piece in ready if piece.first < end]
        taken = self._due(ready, now_ms)
        if taken:
            self._find_targets(taken, now_ms)
        elif ready:
            self._wait(max(ready[0].due_ms, self._allowed_ms))
        else:
            self._pass_by(self._next_offset if end is None else min(end, self._next_offset))
            if end is not None and self.progress.position >= end:
                self._end()
            elif not self._rests():
                self._request_read(waits=True)

    def _due(self, ready: list[ev.Piece], now_ms: int) -> list[ev.Piece]:
        """Return the pieces of one turn: the leading ones that may go now."""
        taken: list[ev.Piece] = []
        routes: set[Route] = set()
        count, most = 0, 1 if self.settings.rate else PIECES_MAX
        for piece in ready:
            if _has_records(piece):
                if count == most or max(piece.due_ms, self._allowed_ms) > now_ms:
                    break
                routes.update(route for route, _ in piece.parts)
                if count and routes_bytes(routes) > TURN_BYTES_MAX:
                    break  # the progress would become too large
                count += 1
            taken.append(piece)
        return taken

    def _wait(self, until_ms: int) -> None:
        if not self._rests():
            self.stage, self._due_ms = Stage.WAITING, until_ms

    def _pass_by(self, offset: int) -> None:
        """Move the position over offsets that have nothing to send."""
        if offset > self.progress.position:
            self.progress = replace(self.progress, position=offset, decided_end=offset, again=())

    def _rests(self) -> bool:
        """Save the progress before a pause; return whether there was something worth saving."""
        before, now = self._saved, self.progress
        is_near = before.decided_end == before.position and now.position - before.position < UNSAVED_MAX
        if is_near and replace(before, position=now.position, decided_end=now.decided_end) == now:
            return False
        self._save()
        return True

    def _save(self) -> None:
        self.stage = Stage.SAVING
        self._out.now.append(ev.Save(self.progress))

    def _find_targets(self, taken: list[ev.Piece], now_ms: int) -> None:
        end = taken[-1].end
        if self.progress.skipped < 0:
            skipped = next((piece.skipped for piece in taken if piece.skipped >= 0), -1)
            self.progress = replace(self.progress, skipped=skipped)
        decided = replace(self.progress, decided_end=end, skip_below=self._acknowledged, again=(), rule=self._rule)
        if not routes_of(decided, taken):
            self._pass_by(decided.decided_end)
            self._decide_on(now_ms)
            return
        if decided.is_worn:
            # Everything sent under the producer id has arrived, so no target has to recognise a repetition.
            decided, self._needs_producer = replace(decided, routes=()), True
        self.progress = decided
        self._resolve()

    def _decide_on(self, now_ms: int) -> None:
        """Decide about the remaining pieces, or read on."""
        if any(piece.first >= self.progress.position for piece in self._pieces):
            self._decide(now_ms)
        elif self._next_offset > self.progress.position or not self.stop_requested:
            self._pass_by(self._next_offset if self.settings.end is None else self.progress.position)
            self._request_read(waits=False)
        else:
            self._end()

    def _resolve(self) -> None:
        """Request the decision's unknown targets; if all are known, store the decision."""
        missing = {route for route in routes_of(self.progress, self._pieces) if self.progress.state_of(route) is None}
        if missing:
            self.stage = Stage.RESOLVING
            self._out.now.append(ev.Resolve(tuple(sorted(missing)), self._needs_producer))
        else:
            self._save()

    def _resolved(self, event: ev.Resolved) -> None:
        if self.stage is not Stage.RESOLVING:
            return
        progress = self.progress
        if self._needs_producer and event.producer_id >= 0:
            progress, self._needs_producer = replace(progress, producer_id=event.producer_id), False
        there = {route: RouteState(*route, topic_id, number) for route, topic_id, number in event.found if topic_id}
        lost = [route for route, topic_id, _ in event.found if not topic_id and route != UNDELIVERABLE]
        known = {state.route for state in progress.routes}
        self.progress = replace(
            progress,
            routes=progress.routes + tuple(state for route, state in there.items() if route not in known),
            lost=progress.lost + tuple(route for route in lost if route not in progress.lost),
        )
        self._resolve()

    # ------------------------------------------------------------ sending

    def _is_saved(self, now_ms: int) -> None:
        require(self.stage is Stage.SAVING, "only what was to be stored is stored")
        self._saved = self.progress
        if self.progress.decided_end > self.progress.position:
            self._send_all(now_ms)
        elif self.stop_requested or (self.settings.end is not None and self.progress.position >= self.settings.end):
            self._end()
        else:
            self._decide_on(now_ms)

    def _send_all(self, now_ms: int) -> None:
        self.stage, self._lanes, self._later = Stage.SENDING, {}, {}
        for parcel in parcels_of(self.progress, self._pieces):
            lane = self._lanes.get(parcel.route)
            if lane is None:
                lane = Lane(RETRY_FIRST_MS, RETRY_LAST_MS, next_sequence=parcel.base_sequence)
                self._lanes[parcel.route] = lane
            if lane.room:
                lane.add(parcel, len(parcel.offsets))
            else:
                self._later.setdefault(parcel.route, []).append(parcel)
        require(not self._later or bool(self.progress.again), "a target knows each parcel of a turn")
        for lane in self._lanes.values():
            self._send(lane, now_ms)
        self._finish_turn(now_ms)

    def _send(self, lane: Lane[ev.Parcel], now_ms: int) -> None:
        self._out.now.extend(ev.Send(parcel) for parcel in lane.sendable(now_ms))

    def _arrived(self, event: ev.Sent) -> None:
        lane = self._answering(event.route)
        if lane is None:
            return
        lane.stored(lane.unstored[0].base_sequence)
        self._send(lane, event.now_ms)
        self._finish_turn(event.now_ms)

    def _not_arrived(self, event: ev.NotSent) -> None:
        lane = self._answering(event.route)
        if lane is None:
            return
        trouble, parcel = event.trouble, lane.unstored[0]
        if event.route == UNDELIVERABLE and (trouble is Trouble.DELETED or _is_last(trouble, parcel)):
            trouble = Trouble.UNREACHABLE  # there is nowhere else
        lane.failed(parcel.base_sequence, trouble, event.now_ms)
        if trouble is not Trouble.UNREACHABLE:
            self._finish_turn(event.now_ms)
            return
        self.is_holding = True
        if self.stop_requested:
            self._give_up()

    def _answering(self, route: Route) -> Lane[ev.Parcel] | None:
        """Return the lane of a route that has a parcel under way; None = the answer is to an earlier one."""
        lane = self._lanes.get(route) if self.stage is Stage.SENDING else None
        return lane if lane is not None and lane.is_under_way else None

    def _time_passed(self, now_ms: int) -> None:
        if self.stage is Stage.WAITING and self._due_ms is not None and now_ms >= self._due_ms:
            self._due_ms = None
            self._decide(now_ms)
        elif self.stage is Stage.SENDING:
            for lane in self._lanes.values():
                self._send(lane, now_ms)

    def _finish_turn(self, now_ms: int) -> None:
        if any(lane.unstored and lane.remedy is None for lane in self._lanes.values()):
            return
        self.is_holding = False
        arrived = [parcel for lane in self._lanes.values() for parcel in lane.forget_stored()]
        routes = after(self.progress.routes, arrived)
        count = sum(len(parcel.offsets) for parcel in arrived)
        self._turn_sent += count
        again: list[Again] = []
        for route, lane in self._lanes.items():
            if lane.remedy is not None:
                again += self._other_way(route, lane, routes)
            again += [each for parcel in self._later.get(route, ()) for each in _as_it_is(parcel)]
        self._lanes, self._later = {}, {}
        progress = replace(self.progress, routes=tuple(routes.values()), sent=self.progress.sent + count)
        if again:
            self.progress = replace(progress, again=tuple(again))
            self._resolve()
            return
        # `lost` is cleared, so that missing topics are looked up again: they may be created at any time.
        self.progress = replace(progress, position=progress.decided_end, lost=(), again=())
        if self.settings.rate:
            self._allowed_ms = max(self._allowed_ms, now_ms) + self._turn_sent * 1_000 // self.settings.rate
        self._turn_sent = 0
        if self.stop_requested:
            self._end()
        else:
            self._decide_on(now_ms)

    def _other_way(self, route: Route, lane: Lane[ev.Parcel], routes: dict[Route, RouteState]) -> list[Again]:
        """Return how the remaining parcels of a lane are sent instead."""
        remedy, (first, *others) = lane.remedy, lane.take_back()
        if remedy is Remedy.REROUTE:
            routes.pop(route)  # its topic is looked up once more: it may have been created again
        elif remedy is Remedy.REBASE:
            routes[route] = _rebased(routes[route])
        found = _refused(first) if remedy in (Remedy.SPLIT, Remedy.GIVE_UP) else _as_it_is(first)
        for parcel in others:
            found += _as_it_is(parcel)
        return found

    def _give_up(self) -> None:
        """End although a target takes nothing: the parcel that was sent to it may or may not arrive."""
        self.stage = Stage.ENDED
        self._out.now.append(ev.Ended(was_stopped=True))

    def _end(self) -> None:
        if self._saved != self.progress:
            self._save()
            return
        self.stage = Stage.ENDED
        end = self.settings.end
        self._out.now.append(ev.Ended(was_stopped=end is None or self.progress.position < end))


def _rebased(state: RouteState) -> RouteState:
    return replace(state, epoch=state.epoch + 1, next_sequence=0)


def _as_it_is(parcel: ev.Parcel) -> list[Again]:
    """Return the entries by which a parcel's records are sent again unchanged."""
    return [Again(*source, parcel.first, parcel.end, *how) for source, *how in parcel.sources]


def _refused(parcel: ev.Parcel) -> list[Again]:
    """Return the entries by which a refused parcel is sent in two; a single record goes to ``__undeliverable``.

    A record that is refused even there goes without its body: the letter names the record's place in the source.
    """
    half = split_at(len(parcel.offsets))
    if not half:
        return [
            Again(*source, parcel.first, parcel.end, True, was_refused) for source, was_refused, _ in parcel.sources
        ]
    middle = parcel.offsets[half]
    halves = (parcel.first, middle), (middle, parcel.end)
    return [Again(*source, *span, *how) for span in halves for source, *how in parcel.sources]


def _is_last(trouble: Trouble, parcel: ev.Parcel) -> bool:
    """Whether a parcel for ``__undeliverable`` is refused although it cannot become smaller."""
    return trouble is Trouble.REFUSED and len(parcel.offsets) == 1 and bool(parcel.bare)


def _has_records(piece: ev.Piece) -> bool:
    return bool(piece.parts)
