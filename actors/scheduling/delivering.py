"""Finds the targets of records that are due, and sends the batches. Owned by the scheduler's role.

While a record waits, only its size and target are in memory. One turn reads a limited number of bytes to find targets,
and a delivery reads its batch. May touch: the role's own log, and through its host the controller and other partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from raylog.actors.naming import UNDELIVERABLE_TOPIC
from raylog.actors.roles.host import RoleHost
from raylog.actors.roles.late import LateWarnings
from raylog.actors.scheduling.decoded_batches import Bodies, Body, encode
from raylog.actors.scheduling.lateness import Lateness
from raylog.actors.scheduling.placing import Facts, Placing
from raylog.base.errors import DuplicateSequence, InvalidRecord, RaylogError, RecordTooLarge
from raylog.base.ids import TopicIdPartition
from raylog.core.dead_letters import Reason
from raylog.core.lane import Trouble, trouble_of
from raylog.core.scheduling import events as ev
from raylog.core.scheduling.envelope import is_internal
from raylog.core.scheduling.keys import due_of, offset_of
from raylog.core.scheduling.machine import SchedulerMachine
from raylog.core.scheduling.rows import Batch

logger = logging.getLogger(__name__)

TURN_BYTES: Final = 8 * 1024 * 1024
"""Approximate bytes of records that one turn reads to find their targets."""
TURN_KEYS: Final = 64
"""Records that a turn reads first, before it knows how large they are."""
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of records in a batch."""


class Owner(Protocol):
    """The part of the role that deliveries use."""

    host: RoleHost
    machine: SchedulerMachine
    bodies: Bodies
    placing: Placing
    lateness: Lateness

    def now_ms(self) -> int:
        """Return the time of day by which records are due."""

    def feed(self, event: ev.Event) -> None:
        """Feed an event to the state machine, and carry out its effects."""

    def failed(self, error: BaseException) -> None:
        """Load the scheduler again from the log."""


class Deliveries:
    """Finds targets, and delivers batches to them."""

    def __init__(self, owner: Owner) -> None:
        """``owner``: the role."""
        self._owner = owner
        self._late = LateWarnings()

    # ------------------------------------------------------------ targets

    def resolve(self, keys: tuple[int, ...]) -> None:
        """Find the targets of the first of these records, as many as one turn reads; feeds ``Resolved``."""
        owner = self._owner
        try:
            found = self._facts(keys)
        except RaylogError as error:
            owner.failed(error)
            return
        placing, now_ms = owner.placing, owner.host.now_ms()
        names = {facts.envelope.topic for facts in found if facts.envelope is not None}
        stale = {name for name in names if not placing.is_known(name, now_ms)}
        if stale or any(target.topic == UNDELIVERABLE_TOPIC for target in self._targets(found)):
            owner.host.spawn(self._look_up(owner.machine, found, stale), "scheduler metadata")
        else:
            self._resolved(owner.machine, found)

    def _facts(self, keys: Sequence[int]) -> list[Facts]:
        found: list[Facts] = []
        size, count = 0, TURN_KEYS
        while len(found) < len(keys) and size < TURN_BYTES:
            part = keys[len(found) : len(found) + count]
            read = self._owner.bodies.read
            # In the order of the log, so that each of its batches is decoded once.
            by_key = {key: Facts.of(key, read(offset_of(key))) for key in sorted(part, key=offset_of)}
            found += [by_key[key] for key in part]
            size += sum(facts.size_bytes for facts in by_key.values())
            count = max(1, min(4 * count, (TURN_BYTES - size) * len(found) // max(1, size)))
        return found

    async def _look_up(self, machine: SchedulerMachine, found: list[Facts], stale: set[str]) -> None:
        """Look up the topics that are not cached, and those that the cache says are deleted: it may be stale."""
        owner = self._owner
        placing = owner.placing
        fresh = stale if stale and await placing.look_up(stale) else set()
        doubtful = {name for facts in found if (name := placing.absent(facts)) is not None} - fresh
        if doubtful and not await placing.look_up(doubtful):
            for name in doubtful:
                placing.forget(name)  # so records for it wait until it is known
        is_dead = any(target.topic == UNDELIVERABLE_TOPIC for target in self._targets(found))
        if is_dead and placing.topic(UNDELIVERABLE_TOPIC) is None:
            await placing.undeliverable_topic()
        self._resolved(machine, found)

    def _resolved(self, machine: SchedulerMachine, found: list[Facts]) -> None:
        if machine is not self._owner.machine:
            return  # the scheduler was loaded again meanwhile
        targets = self._targets(found)
        self._owner.placing.next_turn()
        self._owner.feed(ev.Resolved(now_ms=self._owner.now_ms(), targets=targets))

    def _targets(self, found: Sequence[Facts]) -> tuple[ev.Target, ...]:
        machine, target = self._owner.machine, self._owner.placing.target
        refused, unresolved = machine.undeliverable, machine.unresolved
        return tuple(
            target(facts, is_refused=facts.key in refused, is_unresolved=facts.key in unresolved) for facts in found
        )

    # ------------------------------------------------------------ batches

    async def deliver(self, batch: Batch) -> None:
        """Send a batch, and feed the outcome to the state machine."""
        owner = self._owner
        machine, placing = owner.machine, owner.placing
        trouble: Trouble | None = None
        try:
            await self._send(machine, batch)
        except DuplicateSequence:
            pass  # stored before, so long ago that the target no longer knows its offset
        except (RaylogError, OSError) as error:
            trouble = trouble_of(error)
            if trouble is Trouble.REFUSED and len(batch.keys) == 1:
                trouble = self._blamed(batch, error)
            if self._is_to_be_logged(batch, trouble):
                logger.warning("%s: %s-%d: %s", owner.host.partition, batch.topic, batch.lane[1], error)
        if machine is not owner.machine:
            return  # the scheduler was loaded again
        now_ms, base = owner.now_ms(), batch.base_sequence
        if trouble is not None:
            placing.forget(batch.topic)
            owner.feed(
                ev.NotDelivered(now_ms=now_ms, lane=batch.lane, epoch=batch.epoch, base_sequence=base, trouble=trouble)
            )
            return
        placing.delivered(batch.topic, batch.keys)
        self._late.over(batch.topic)
        owner.lateness.observe(now_ms - due_of(batch.keys[0]), len(batch.keys))
        owner.feed(ev.Delivered(now_ms=now_ms, lane=batch.lane, epoch=batch.epoch, base_sequence=base))

    def _is_to_be_logged(self, batch: Batch, trouble: Trouble) -> bool:
        """Return whether to log an error. A transient one: once it has lasted for some time, and then each minute."""
        if trouble is not Trouble.UNREACHABLE:
            self._late.over(batch.topic)
            return True
        return self._late.is_due(batch.topic, due_of(batch.keys[0]), self._owner.now_ms())

    def _blamed(self, batch: Batch, error: BaseException) -> Trouble:
        if batch.topic == UNDELIVERABLE_TOPIC:  # the last resort: the record waits until the topic's settings allow it
            logger.error("%s: %s takes no record: %s", self._owner.host.partition, batch.topic, error)
            return Trouble.UNREACHABLE
        self._owner.placing.blame(batch.keys[0], f"{batch.topic} refused it: {error}")
        return Trouble.REFUSED

    async def _send(self, machine: SchedulerMachine, batch: Batch) -> None:
        owner = self._owner
        if is_internal(batch.topic) and batch.topic != UNDELIVERABLE_TOPIC:
            raise InvalidRecord(f"{batch.topic} is a topic of Raylog's own.")
        found = self._bodies(batch)
        place = TopicIdPartition(batch.topic, *batch.lane)
        try:
            await owner.host.targets.send(place, self._encoded(machine, batch, found))
        except RecordTooLarge:
            if batch.topic != UNDELIVERABLE_TOPIC or len(found) > 1 or found[0].value is None:
                raise
            small = found[0]._replace(value=None)
            note = f" Its value of {len(found[0].value)} bytes is left out: {batch.topic} takes none so large."
            await owner.host.targets.send(place, self._encoded(machine, batch, [small], note))

    def _bodies(self, batch: Batch) -> list[Body]:
        by_key: dict[int, Body] = {}
        size = 0
        for key in sorted(batch.keys, key=offset_of):
            body = by_key[key] = self._owner.bodies.read(offset_of(key))
            size += body.size_bytes
            if size > BATCH_BYTES and len(batch.keys) > 1:
                raise RecordTooLarge(f"{len(batch.keys)} records that are due together have more than {size} bytes.")
            if body.damage and batch.topic != UNDELIVERABLE_TOPIC:
                raise InvalidRecord(f"The record at offset {body.offset} cannot be opened: {body.damage}")
        return [by_key[key] for key in batch.keys]

    def _encoded(self, machine: SchedulerMachine, batch: Batch, found: Sequence[Body], note: str = "") -> bytes:
        placing = self._owner.placing
        topic = placing.topic(batch.topic)
        adds = topic is not None and topic.config.get("delay.headers.enable") == "true"
        causes = {
            body.offset: (Reason.HALF_UNRESOLVED if key in machine.unresolved else Reason.UNDELIVERABLE, cause + note)
            for key, body in zip(batch.keys, found, strict=True)
            if (cause := placing.cause_of(key, batch.topic)) is not None
        }
        return encode(found, batch, machine.writer(batch.epoch), adds_sent_time=adds, causes=causes)
