"""Answers requests about half messages: decisions, polls of checkers, and lists of undecided half messages.

Called by the role, each request in a task of its own. A checker's poll is a long poll: it waits until a half message of
the group has to be checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from raylog.actors.roles.host import RoleHost
from raylog.actors.scheduling.decoded_batches import Bodies, envelope_of
from raylog.base.errors import CoordinatorLoadInProgress, InvalidRequest, RaylogError
from raylog.core.decision import RequestId
from raylog.core.received import Received
from raylog.core.scheduling.commands import HALVES_MAX
from raylog.core.scheduling.envelope import without
from raylog.core.scheduling.events import Command
from raylog.core.scheduling.halves import Half, HalfPolicy, Unresolved
from raylog.core.scheduling.machine import SchedulerMachine
from raylog.protocol.halves import (
    DecideHalvesRequest,
    HalfHeader,
    HalfQuestion,
    HalfRecord,
    HeldHalf,
    ListHalvesReply,
    ListHalvesRequest,
    PollHalvesReply,
    PollHalvesRequest,
)
from raylog.protocol.message import Message
from raylog.rpc import Request

KINDS: Final[frozenset[type[Message]]] = frozenset({DecideHalvesRequest, PollHalvesRequest, ListHalvesRequest})
ANSWERED_WITHIN_S: Final = 10.0
LOOK_AGAIN_MS: Final = 1_000
"""Longest wait of a poll before it checks again: the scheduler's clock may be set meanwhile."""
POLL_MAX_MS: Final = 60_000
LEASE_MAX_MS: Final = 3_600_000
QUESTION_BYTES: Final = 1_048_576
"""Most bytes of records in one reply; the first half message may be larger."""


class HalvesOwner(Protocol):
    """The part of the role that answers use."""

    host: RoleHost
    machine: SchedulerMachine
    bodies: Bodies

    def now_ms(self) -> int:
        """Return the time of day by which records are due."""

    def decided(self, make: Callable[[RequestId], Command]) -> asyncio.Future[Any]:
        """Feed a request to the state machine; the future has the reply once it is committed."""

    async def until_halves_change(self, timeout_s: float) -> None:
        """Wait until a half message is prepared or decided, for ``timeout_s`` at most."""


def policy_of(config: Mapping[str, str]) -> HalfPolicy:
    """Return the settings for half messages from the configuration of ``__scheduled``."""
    usual = HalfPolicy()
    return HalfPolicy(
        int(config.get("half.check.interval.ms", usual.interval_ms)),
        int(config.get("half.check.limit", usual.limit)),
        Unresolved(config.get("half.on.unresolved", usual.on_unresolved)),
    )


async def decided(role: HalvesOwner, make: Callable[[RequestId], Command]) -> Any:
    """Return the reply to a request once it is committed. Raises InvalidRequest, and CoordinatorLoadInProgress."""
    try:
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            return await role.decided(make)
    except TimeoutError:
        raise CoordinatorLoadInProgress(f"{role.host.partition} did not decide in time; try again.") from None


async def answer(role: HalvesOwner, request: Request, args: Message) -> Message:
    """Return the reply to a request about half messages. Raises RaylogError."""
    match args:
        case DecideHalvesRequest():
            reply: Message = await decided(
                role, lambda number: Received(message=args, cause=request.method, request=number, now_ms=role.now_ms())
            )
            return reply
        case PollHalvesRequest():
            return await _poll(role, args)
        case ListHalvesRequest():
            return _list(role, args)
    raise InvalidRequest(f"The scheduler does not answer {type(args).__name__}.")


async def _poll(role: HalvesOwner, args: PollHalvesRequest) -> PollHalvesReply:
    machine = role.machine
    halves, until_ms = machine.halves, role.host.now_ms() + min(max(0, args.max_wait_ms), POLL_MAX_MS)
    limit, lease_ms = min(max(1, args.max_halves), HALVES_MAX), min(max(1, args.lease_ms), LEASE_MAX_MS)
    while machine is role.machine:
        queried = halves.query(args.group, role.now_ms(), limit, lease_ms)
        if queried:
            return PollHalvesReply(_questions(role, queried))
        left_ms = until_ms - role.host.now_ms()
        if left_ms <= 0:
            break
        due_ms = halves.next_check_ms(args.group)
        pause_ms = LOOK_AGAIN_MS if due_ms is None else due_ms - role.now_ms()
        await role.until_halves_change(min(max(1, pause_ms), LOOK_AGAIN_MS, left_ms) / 1000)
    return PollHalvesReply([])


def _questions(role: HalvesOwner, queried: Sequence[Half]) -> list[HalfQuestion]:
    """Return as many questions as fit into a reply; the other half messages stay due for the next poll."""
    questions: list[HalfQuestion] = []
    size = 0
    try:
        for half in queried:
            bodies = [role.bodies.read(offset) for offset in half.offsets]
            size += sum(body.size_bytes for body in bodies)
            if questions and size > QUESTION_BYTES:
                break
            records = []
            for body in bodies:
                envelope = envelope_of(body)
                topic, partition = ("", -1) if envelope is None else (envelope.topic, envelope.partition)
                headers = [HalfHeader(name, value) for name, value in without(body.headers)]
                records.append(HalfRecord(topic, partition, body.key, body.value, headers))
            questions.append(HalfQuestion(half.id[1], half.prepared_ms, half.checks, records))
    except RaylogError:
        role.machine.halves.not_queried(queried)
        raise
    role.machine.halves.not_queried(queried[len(questions) :])
    return questions


def _list(role: HalvesOwner, args: ListHalvesRequest) -> ListHalvesReply:
    halves = role.machine.halves
    names = sorted(name for name in halves.held if not args.group or name[0] == args.group)
    behind = [name for name in names if name > (args.after_group, args.after_txid)]
    return ListHalvesReply([_held(role, halves.held[name]) for name in behind[: min(max(1, args.limit), HALVES_MAX)]])


def _held(role: HalvesOwner, half: Half) -> HeldHalf:
    envelopes = [envelope_of(role.bodies.read(offset)) for offset in half.offsets]
    return HeldHalf(
        *half.id,
        half.prepared_ms,
        half.next_check_ms,
        half.checks,
        half.id in role.machine.halves.worn,
        sorted({envelope.topic for envelope in envelopes if envelope is not None}),
        len(half.offsets),
    )
