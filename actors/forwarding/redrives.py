"""Runs redrives, which send the dead letters of a topic on, with a forwarder for each partition. Owned by the role.

The machine (``core/forwarding/states.py``) decides which run and what they leave; here are their forwarders.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

from raylog.actors.forwarding.forwarder import Forwarder
from raylog.actors.forwarding.places import OtherSource, Place
from raylog.actors.forwarding.progress import decode_progress, encode_progress
from raylog.actors.roles.host import RoleHost
from raylog.actors.roles.time_of_day import TimeOfDay
from raylog.base.errors import UnknownTopicOrPartition
from raylog.core.forwarding.machine import ForwarderSettings
from raylog.core.forwarding.progress import Progress
from raylog.core.forwarding.redrives import CANCELLING, Outcome, Redrive
from raylog.core.forwarding.rules import RedriveRule
from raylog.core.forwarding.states import state_name
from raylog.protocol.forwarding import LoadForwarderReply, LoadForwarderRequest, SaveForwarderRequest
from raylog.protocol.message import Message

logger = logging.getLogger(__name__)

FRESH_MS: Final = 2_000
"""How long the number of partitions of a redrive's target is used before it is looked up again."""
OWNER_EPOCH: Final = 0
"""The epoch of the owner of a redrive's states: the leadership of the states fences by itself."""


class States(Protocol):
    """What redrives need from the role that stores them."""

    host: RoleHost

    async def call(self, request: Message) -> Any:
        """Return the answer to a request, as if it had come over the network. Raises RaylogError."""

    def redriven(self, redrive: int, partition: int, outcome: Outcome) -> None:
        """Note how a redrive has ended in one partition."""


class LocalProgress:
    """The progress of a forwarder that runs beside the role that stores it."""

    def __init__(self, states: States, name: str) -> None:
        """``name``: the name of the forwarder."""
        self._states = states
        self._name = name

    async def load(self) -> Progress | None:
        """Return the progress that was stored last."""
        request = LoadForwarderRequest("", -1, -1, self._name, OWNER_EPOCH)
        reply = LoadForwarderReply(*await self._states.call(request))
        return decode_progress(reply.progress) if reply.progress else None

    async def save(self, progress: Progress) -> None:
        """Store the progress."""
        await self._states.call(SaveForwarderRequest("", -1, -1, self._name, OWNER_EPOCH, encode_progress(progress)))


@dataclass(slots=True)
class _Run:
    """A redrive that runs in this process."""

    forwarders: dict[int, Forwarder] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """By partition in which it has ended."""


class _Owner:
    """What all forwarders of a redrive share: the rule and the clocks."""

    def __init__(self, host: RoleHost, rule: RedriveRule) -> None:
        """``rule``: without the number of partitions of its target, which is looked up."""
        self.clock = TimeOfDay(host)
        self._host = host
        self._rule = rule
        self._setting = asyncio.Lock()
        self._is_set = False
        self._known_ms = -FRESH_MS

    async def ready(self) -> None:
        """Wait until the time of day is known."""
        async with self._setting:
            if not self._is_set:
                await self.clock.set()
                self._is_set = True

    async def look(self) -> None:
        """Look up how many partitions the target has."""
        if self._rule.to and self._host.now_ms() - self._known_ms >= FRESH_MS:
            (row,) = (await self._host.metadata([self._rule.to])).topics
            self._rule = replace(self._rule, partitions=0 if row.error_code else len(row.partitions))
            self._known_ms = self._host.now_ms()

    def rule(self, text: str | None) -> RedriveRule:
        """Return the rule; a stored rule keeps its number of partitions, so that decisions stay the same."""
        return replace(self._rule, partitions=RedriveRule.of_text(text).partitions) if text else self._rule

    def due_ms(self, timestamp_ms: int) -> int:
        """Return 0: every record may be forwarded at once."""
        return 0

    async def acknowledged(self) -> int:
        """Return 0: committed offsets of groups do not matter."""
        return 0

    def now_ms(self) -> int:
        """Return a monotonic time, for pauses and rates."""
        return self._host.now_ms()

    def day_ms(self) -> int:
        """Return the time of day, which was set by most brokers' clocks when the redrive began here."""
        return self.clock.now_ms()


class _PartitionOwner:
    """The `Owner` of the forwarder of one partition."""

    def __init__(self, owner: _Owner, sent_below: int) -> None:
        """``sent_below``: the offset below which earlier redrives have sent all records except those without origin."""
        self._owner = owner
        self._sent_below = sent_below
        self.look, self.due_ms, self.acknowledged = owner.look, owner.due_ms, owner.acknowledged
        self.now_ms, self.day_ms = owner.now_ms, owner.day_ms

    def rule(self, text: str | None) -> RedriveRule:
        """Return the rule of the redrive, for this partition."""
        return replace(self._owner.rule(text), sent_below=self._sent_below)


class Redrives:
    """The redrives that run."""

    def __init__(self, states: States) -> None:
        """``states`` stores them."""
        self._states = states
        self._runs: dict[int, _Run] = {}
        self._unreadable = 0
        """How many batches could not be decoded, in redrives that have ended."""

    @property
    def is_busy(self) -> bool:
        """Whether a redrive runs."""
        return bool(self._runs)

    async def bounds(self, topic: str, to: str) -> tuple[str, list[tuple[int, int]]]:
        """Return the id of a topic, and first and end offset of each of its partitions.

        Raises UnknownTopicOrPartition if it does not exist, or the topic ``to`` (unless empty); other RaylogErrors.
        """
        host = self._states.host
        wanted = [topic, *([to] if to else [])]
        rows = {row.topic: row for row in (await host.metadata(wanted)).topics}
        for name in wanted:
            if rows[name].error_code:
                raise UnknownTopicOrPartition(f"There is no topic {name!r}.", topic=name)
        topic_id, partitions = rows[topic].topic_id, rows[topic].partitions
        sources = (OtherSource(host, Place(topic, topic_id, number)) for number in range(len(partitions)))
        return topic_id, [await source.bounds() for source in sources]

    def run(self, redrive: Redrive) -> None:
        """Forward the partitions of a redrive. If that is under way, only repeat how it has ended in some of them."""
        known = self._runs.get(redrive.number)
        if known is not None:
            for partition, outcome in list(known.outcomes.items()):
                self._states.redriven(redrive.number, partition, outcome)
            return
        run = self._runs[redrive.number] = _Run()
        owner = _Owner(self._states.host, RedriveRule(redrive.to, dict(redrive.where)))
        host = self._states.host
        for number, span in enumerate(redrive.spans):
            name = state_name(redrive.number, number)
            forwarder = run.forwarders[number] = Forwarder(
                host,
                f"redrive {redrive.number} of {redrive.topic}-{number}",
                source=OtherSource(host, Place(redrive.topic, redrive.topic_id, number)),
                store=LocalProgress(self._states, name),
                owner=_PartitionOwner(owner, redrive.sent_below_of(number)),
                settings=ForwarderSettings(end=span.end, rate=redrive.rate),
                start=partial(_given, span.start),
            )
            if redrive.state == CANCELLING:
                forwarder.stop()
            host.spawn(self._through(redrive.number, number, run, owner), name)

    async def _through(self, redrive: int, partition: int, run: _Run, owner: _Owner) -> None:
        await owner.ready()
        forwarder = run.forwarders[partition]
        await forwarder.run()
        progress = forwarder.machine.progress
        run.outcomes[partition] = Outcome(progress.position, progress.sent, progress.skipped)
        self._states.redriven(redrive, partition, run.outcomes[partition])

    def stop(self, redrive: int) -> None:
        """Let the forwarders of a redrive end after what they have begun."""
        run = self._runs.get(redrive)
        if run is not None:
            for forwarder in run.forwarders.values():
                forwarder.stop()

    def ended(self, redrive: Redrive) -> None:
        """Forget the forwarders of a redrive."""
        run = self._runs.pop(redrive.number, None)
        if run is not None:
            self._unreadable += sum(forwarder.unreadable for forwarder in run.forwarders.values())
        logger.info("redrive %d of %s has ended: %s", redrive.number, redrive.topic, redrive.state)

    def progress(self) -> Mapping[tuple[int, int], tuple[int, int]]:
        """Return position and number of sent records of those that run, by redrive and partition."""
        return {
            (redrive, partition): (forwarder.machine.progress.position, forwarder.machine.progress.sent)
            for redrive, run in self._runs.items()
            for partition, forwarder in run.forwarders.items()
            if forwarder.machine.progress.producer_id >= 0
        }

    def holding(self) -> frozenset[int]:
        """Return the redrives of which a target takes nothing at present."""
        return frozenset(redrive for redrive, run in self._runs.items() if any(map(_holds, run.forwarders.values())))

    def figures(self) -> dict[str, int]:
        """Return counters and gauges."""
        running = [forwarder for run in self._runs.values() for forwarder in run.forwarders.values()]
        return {
            "redrives": len(self._runs),
            "redrives_unreadable": self._unreadable + sum(forwarder.unreadable for forwarder in running),
            "redrives_holding": sum(map(_holds, running)),
        }


def _holds(forwarder: Forwarder) -> bool:
    return forwarder.machine.is_holding


async def _given(start: int) -> int:
    return start
