"""Answers the scheduler's requests: to schedule records, to cancel, move, find and list them, and to describe itself.

Called by the role, each request in a task of its own.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Collection, Sequence
from typing import Any, Final, Protocol

from raylog.actors.permissions import lacks_schedule
from raylog.actors.roles.time_of_day import TimeOfDay
from raylog.actors.scheduling import halves
from raylog.actors.scheduling.checks import Checked, check_batch
from raylog.actors.scheduling.decoded_batches import envelope_of
from raylog.actors.scheduling.lateness import Lateness
from raylog.actors.scheduling.placing import Placing
from raylog.base.errors import (
    CoordinatorLoadInProgress,
    DelayTooLong,
    HalfMessageDecided,
    HalfMessagesFull,
    InvalidRecord,
    InvalidRequest,
    NotLeaderOrFollower,
    RaylogError,
    ScheduleFull,
)
from raylog.core.decision import RequestId
from raylog.core.received import Received
from raylog.core.scheduling.envelope import HalfId, HalfOutcome, id_among, name_among, name_of
from raylog.core.scheduling.events import Command, MoveReceived
from raylog.core.scheduling.keys import HELD_MS, NAMED_MS, due_of, first_after, key_of, offset_of
from raylog.protocol.halves import ListHalvesRequest
from raylog.protocol.message import Message
from raylog.protocol.replica import ProduceReply
from raylog.protocol.scheduling import (
    CancelScheduledReply,
    CancelScheduledRequest,
    DescribeSchedulerReply,
    DescribeSchedulerRequest,
    FindScheduledReply,
    FindScheduledRequest,
    ListScheduledReply,
    ListScheduledRequest,
    MoveScheduledReply,
    MoveScheduledRequest,
    ParkedTarget,
    ScheduledRecord,
    ScheduleReply,
    ScheduleRequest,
)
from raylog.rpc import Grant, Request
from raylog.rpc.permissions import not_covered
from raylog.storage.log.validation import inspect

KINDS: Final[frozenset[type[Message]]] = frozenset(
    {
        ScheduleRequest,
        CancelScheduledRequest,
        MoveScheduledRequest,
        ListScheduledRequest,
        DescribeSchedulerRequest,
        FindScheduledRequest,
        *halves.KINDS,
    }
)
LOADED_WITHIN_S: Final = 10.0
DELAY_MAX_MS: Final = 10 * 366 * 86_400_000
"""Longest delay that a topic may allow: ten years."""
TAKEN_FRESH_MS: Final = 500
"""Age from which on a topic's metadata is fetched again before records for it are accepted. In this time, records with
the id of a deleted topic may be accepted; they are undeliverable."""
LIST_MAX: Final = 1_000
LOOK_MAX: Final = 10_000
"""Most records that are examined for one page of a list."""
NOT_FOUND: Final = "NOT_FOUND"
NOT_KNOWN: Final = -1
SHARE_OF_A_GROUP: Final = 10
"""A token's group may hold at most ``half.max.pending`` divided by this, so that it cannot take the room of all."""
HALVES_PENDING: Final = 100_000
"""Default of ``half.max.pending``."""


class Scheduler(halves.HalvesOwner, Protocol):
    """The part of the role that answers use."""

    clock: TimeOfDay
    lateness: Lateness
    placing: Placing
    loaded: asyncio.Event

    async def append(self, batch: bytes, count: int) -> ProduceReply:
        """Append a batch, and feed the log to the state machine up to its end."""


async def answered(role: Scheduler, request: Request, args: Any) -> None:
    """Answer a request; a RaylogError is its answer."""
    try:
        match args:
            case ScheduleRequest():
                request.reply(await _schedule(role, request))
            case CancelScheduledRequest():
                request.reply(await _cancel(role, request, args))
            case MoveScheduledRequest():
                request.reply(await _move(role, request, args))
            case ListScheduledRequest():
                request.reply(await _list(role, args))
            case FindScheduledRequest():
                request.reply(await _find(role, args))
            case DescribeSchedulerRequest():
                request.reply(await _describe(role, request.grant))
            case _:
                await _loaded(role)
                if isinstance(args, ListHalvesRequest):
                    await _proved(role)
                request.reply(await halves.answer(role, request, args))
    except RaylogError as error:
        request.fail(error)
    except asyncio.CancelledError:
        request.fail(NotLeaderOrFollower(f"{role.host.partition} does not lead here any more; refresh the metadata."))
        raise


async def _loaded(role: Scheduler) -> None:
    try:
        async with asyncio.timeout(LOADED_WITHIN_S):
            await role.loaded.wait()
    except TimeoutError:
        raise CoordinatorLoadInProgress(f"{role.host.partition} is reading its log; try again.") from None


async def _schedule(role: Scheduler, request: Request) -> ScheduleReply:
    await _loaded(role)
    payload = bytes(request.payload)
    batches = inspect(payload)
    latest_ms = role.now_ms() + DELAY_MAX_MS
    checked = [check_batch(payload, position, header, latest_ms) for position, header in batches]
    halves_of = [name for each in checked for name in each.halves]
    _check_grant(request.grant, checked)
    held = len(halves_of)
    _check_undecided(role, halves_of)
    _check_room_for_halves(role, held, () if request.grant is None else {group for group, _ in halves_of})
    await _check_targets(role, {target for each in checked for target in each.targets})
    limit = int(role.host.config.get("delay.max.pending", "-1"))
    count = sum(header.record_count for _, header in batches)
    if held < count and 0 <= limit < role.machine.pending.count + count - held:
        raise ScheduleFull(
            f"{role.machine.pending.count} delayed records wait, and delay.max.pending of {role.host.partition.topic} "
            f"is {limit}; try again when some are due, or raise it."
        )
    reply = await role.append(payload, count)
    replaced: list[int] = []
    if any(header.max_timestamp >= NAMED_MS for _, header in batches):
        known = role.machine.names.replaced
        replaced = [int(known.get(reply.base_offset + index, NOT_KNOWN)) for index in range(count)]
    return ScheduleReply(reply.base_offset, reply.log_start_offset, replaced=replaced)


def _check_grant(grant: Grant | None, checked: Sequence[Checked]) -> None:
    """Refuse records that the sender's token does not cover; only here their targets and groups are known."""
    if grant is None:
        return
    targets = {target for each in checked for target in each.targets}
    lacking = lacks_schedule(grant, sorted(targets), sorted({group for each in checked for group, _ in each.halves}))
    if lacking:
        raise not_covered("schedule", lacking)


async def _check_targets(role: Scheduler, targets: set[tuple[str, str]]) -> None:
    """Refuse records for a topic that was deleted, or created again with another id.

    If the controller does not answer, they are accepted, and checked when they are due.
    """
    placing, now_ms = role.placing, role.host.now_ms()

    def doubtful() -> list[tuple[str, str]]:
        known = [(name, topic_id, placing.topic(name)) for name, topic_id in targets]
        # A sender that did not know the topic gives no id. Such records are accepted, and undeliverable when due.
        return [(name, named) for name, named, topic in known if named and not (topic and topic.has_id(named))]

    names = {name for name, _ in doubtful()} | {
        name for name, _ in targets if not placing.is_known(name, now_ms, TAKEN_FRESH_MS)
    }
    if not names or not await placing.look_up(names):
        return
    for name, topic_id in doubtful():
        raise InvalidRecord(
            f"The topic {name} with the id {topic_id} does not exist any more: it was deleted, or created again. Send "
            "the record again if it is for the topic that has the name now."
        )


def _check_undecided(role: Scheduler, names: Sequence[HalfId]) -> None:
    """Refuse records of half messages that are already decided: they could never be committed."""
    for group, txid in names:
        outcome = role.machine.halves.outcome((group, txid))
        if outcome not in (HalfOutcome.HELD, HalfOutcome.NOT_FOUND):
            raise HalfMessageDecided(
                f"Half message {txid!r} of group {group!r} is {outcome} already, within the last ten minutes: a txid "
                "names one half message; prepare this one under another."
            )


def _check_room_for_halves(role: Scheduler, held: int, groups: Collection[str]) -> None:
    """Refuse half messages above the limit; ``groups``: the groups of a token, each of which has a lower limit."""
    limit, there = int(role.host.config.get("half.max.pending", HALVES_PENDING)), len(role.machine.halves.held)
    for group in groups:
        share = max(1, limit // SHARE_OF_A_GROUP)
        if there >= share and sum(name[0] == group for name in role.machine.halves.held) + held > share:
            raise HalfMessagesFull(
                f"Group {group!r} has {share} half messages without decision, the most that a token may have: decide "
                f"about some, or raise half.max.pending of {role.host.partition.topic}, of which that is a part."
            )
    if held and there + held > limit:
        raise HalfMessagesFull(
            f"{there} half messages without decision are held, and half.max.pending of {role.host.partition.topic} is "
            f"{limit}; decide about some (`raylog half list`), or raise it."
        )


async def _cancel(role: Scheduler, request: Request, args: CancelScheduledRequest) -> CancelScheduledReply:
    await _loaded(role)
    if len(args.dues) != len(args.offsets) or not args.dues:
        raise InvalidRequest("A cancellation names each record by a due time and an offset.")
    keys = [key_of(due, offset) for due, offset in zip(args.dues, args.offsets, strict=True)]
    there = [key for key in keys if _exists(role, key)]
    reply = await _cancelled(role, request.method, there)
    outcomes = dict(zip(there, reply.outcomes, strict=True))
    return CancelScheduledReply([outcomes.get(key, NOT_FOUND) for key in keys])


async def _cancelled(role: Scheduler, cause: str, keys: Sequence[int]) -> CancelScheduledReply:
    dues, offsets = [due_of(key) for key in keys], [offset_of(key) for key in keys]
    message = CancelScheduledRequest(
        role.host.topic_id, role.host.partition.partition, role.host.leader_epoch, dues, offsets
    )

    def make(number: RequestId) -> Command:
        return Received(message=message, cause=cause, request=number, now_ms=role.now_ms())

    reply: CancelScheduledReply = await halves.decided(role, make)
    return reply


async def _move(role: Scheduler, request: Request, args: MoveScheduledRequest) -> MoveScheduledReply:
    await _loaded(role)
    key, now_ms = key_of(args.due_ms, args.offset), role.now_ms()
    if args.new_due_ms > now_ms + DELAY_MAX_MS:
        raise DelayTooLong(f"The record would be due at {args.new_due_ms}, more than ten years from now.")
    if not _exists(role, key):
        await _proved(role)
        return MoveScheduledReply(NOT_FOUND, args.due_ms)
    await _check_delay(role, args.offset, max(0, args.new_due_ms - now_ms))

    # A record that does not wait may have been deleted since; its answer needs no name.
    name = name_among(role.bodies.read(args.offset).headers) if role.machine.waits(key) else 0

    def make(number: RequestId) -> Command:
        return MoveReceived(message=args, cause=request.method, request=number, now_ms=now_ms, name=name)

    reply: MoveScheduledReply = await halves.decided(role, make)
    return reply


async def _check_delay(role: Scheduler, offset: int, delay_ms: int) -> None:
    """Check a move against the settings of the record's topic, as its producer did. Raises DelayTooLong."""
    try:
        envelope = envelope_of(role.bodies.read(offset))
    except RaylogError:
        return  # it was deleted, so it does not wait
    if envelope is None:
        return
    placing = role.placing
    if not placing.is_known(envelope.topic, role.host.now_ms()):
        await placing.look_up([envelope.topic])
    topic = placing.topic(envelope.topic)
    most_ms = int(DELAY_MAX_MS if topic is None else topic.config.get("delay.max.ms", DELAY_MAX_MS))
    if delay_ms > most_ms:
        raise DelayTooLong(
            f"The record would be due in {delay_ms} ms, and delay.max.ms of {envelope.topic} is {most_ms}; move it "
            "less far, or raise that (to ten years at most)."
        )


async def _proved(role: Scheduler) -> None:
    """Return when a row is committed that was appended after the call: so no later leader had begun before it (R12).

    The row is a cancellation of nothing; one that waits already may be used as well.
    """
    await _cancelled(role, "prove", ())


def _exists(role: Scheduler, key: int) -> bool:
    """Return whether a record is or was scheduled with this key: it waits, or is in the log with this due time."""
    machine = role.machine
    if due_of(key) >= HELD_MS:
        return False
    if key in machine.moved or machine.pending.holds(key) or machine.pending.was_cancelled(key):
        return True
    offset = offset_of(key)
    if not role.host.log.log_start_offset <= machine.space.place_of(offset) < machine.read_end:
        return False
    try:
        due_ms = role.bodies.due_ms(offset)
    except RaylogError:
        return False
    return due_ms == due_of(key) or any(key in lane.waiting for lane in machine.lanes.values())


async def _find(role: Scheduler, args: FindScheduledRequest) -> FindScheduledReply:
    await _loaded(role)
    await _proved(role)
    machine = role.machine
    key = machine.names.find(name_of(args.target_topic_id, args.schedule_id.encode()))
    if key is None:
        return FindScheduledReply(NOT_FOUND, None)
    if machine.waits(key):
        return FindScheduledReply("WAITING", _row(role, key))
    return FindScheduledReply("CANCELLED" if machine.pending.was_cancelled(key) else "DELIVERED", None)


async def _list(role: Scheduler, args: ListScheduledRequest) -> ListScheduledReply:
    await _loaded(role)
    await _proved(role)
    low = 0 if args.from_due_ms < 0 else key_of(args.from_due_ms, args.from_offset)
    limit = min(max(1, args.limit), LIST_MAX)
    end, most = first_after(args.before_ms), LOOK_MAX if args.topic else limit + 1
    # Records that are due and wait for their targets come first, mostly.
    parked = (key for lane in role.machine.lanes.values() for key in lane.waiting if low <= key < end)
    keys = heapq.nsmallest(most, [*parked, *role.machine.pending.between(low, end, most)])
    rows: list[ScheduledRecord] = []
    for key in keys:
        if len(rows) == limit:
            return ListScheduledReply(rows, due_of(key), offset_of(key))
        row = _row(role, key)
        if not args.topic or row.topic == args.topic:
            rows.append(row)
    if len(keys) == LOOK_MAX:
        return ListScheduledReply(rows, due_of(keys[-1]), offset_of(keys[-1]) + 1)
    return ListScheduledReply(rows, -1, -1)


def _row(role: Scheduler, key: int) -> ScheduledRecord:
    body = role.bodies.read(offset_of(key))
    envelope = envelope_of(body)
    topic, partition, sent_ms = (
        ("", -1, -1)
        if envelope is None
        else (
            envelope.topic,
            envelope.partition,
            envelope.sent_ms,
        )
    )
    value_bytes = len(body.value or b"")
    return ScheduledRecord(
        due_of(key), offset_of(key), topic, partition, sent_ms, body.key, value_bytes, id_among(body.headers)
    )


async def _describe(role: Scheduler, grant: Grant | None) -> DescribeSchedulerReply:
    await _loaded(role)
    machine = role.machine
    next_due_ms = machine.pending.next_due_ms()
    return DescribeSchedulerReply(
        clock_ms=role.now_ms(),
        waiting=machine.pending.count,
        next_due_ms=-1 if next_due_ms is None else next_due_ms,
        delivered=machine.delivered_count,
        cancelled=machine.cancelled_count,
        runs=len(machine.pending.runs),
        lateness_p99_ms=role.lateness.p99_ms(),
        clock_step_ms=role.clock.step_ms,
        parked=_parked(role, grant),
    )


def _parked(role: Scheduler, grant: Grant | None) -> Sequence[ParkedTarget]:
    lanes = list(role.machine.lanes.values())
    if grant is not None:
        written = {topic.topic for topic in grant.topics if topic.writes}
        lanes = [lane for lane in lanes if lane.topic in written]
    return [ParkedTarget(lane.topic, lane.id[1], len(lane.waiting)) for lane in lanes if lane.waiting]
