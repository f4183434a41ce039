"""Sends the expired records of one partition to their dead-letter topic. Owned by the role (``expiry.py``).

Two forwarders read the partition. `Expiry` waits at each record until the topic's time to live is over. `Filing` reads
on at once, and puts records that have a time to live of their own into ``__scheduled``. When the topic's settings
change, a forwarder ends after its current turn, and another one begins with the new settings.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final

from raylog.actors.clock import monotonic_ms
from raylog.actors.forwarding.forwarder import Forwarder
from raylog.actors.forwarding.places import OwnSource
from raylog.actors.forwarding.progress import StoredProgress
from raylog.actors.roles.host import RoleHost
from raylog.actors.roles.time_of_day import TimeOfDay
from raylog.core.forwarding.machine import ForwarderSettings
from raylog.core.forwarding.rules import ExpiryRule, FilingRule, Rule
from raylog.core.forwarding.settings import GROUP, KEY, TOPIC, TTL, expires, files, ttl_ms
from raylog.storage.batch.key_hash import hash_of_key

_KEYS: Final = (TTL, TOPIC, KEY, GROUP)
FRESH_MS: Final = 2_000
"""How long the id of the dead-letter topic is used before it is looked up again."""


class Work(ABC):
    """One of the two forwarders of the partition; it begins again with each change of the settings."""

    kind: ClassVar[str]

    def __init__(self, host: RoleHost, clock: TimeOfDay) -> None:
        """Make it; nothing is done before :meth:`run`."""
        self.host = host
        self.source = OwnSource(host)
        self.settings = self._now()
        self.forwarder: Forwarder | None = None
        self._clock = clock
        self._changed = asyncio.Event()

    @abstractmethod
    def is_on(self) -> bool:
        """Return whether the topic's settings require this forwarder."""

    def look_again(self) -> None:
        """Take note of the topic's settings."""
        if self._now() != self.settings:
            self._changed.set()
            if self.forwarder is not None:
                self.forwarder.stop()

    async def run(self) -> None:
        """Forward as long as the leadership lasts."""
        place = self.source.place
        while True:
            self._changed.clear()
            self.settings = self._now()
            if not self.is_on():
                await self._changed.wait()
                continue
            self.forwarder = Forwarder(
                self.host,
                f"{self.kind} of {self.host.partition}",
                source=self.source,
                store=StoredProgress(self.host, f"{self.kind}:{place.topic_id}:{place.partition}"),
                owner=self,
                settings=ForwarderSettings(),
                start=self._start,
            )
            await self.forwarder.run()
            self.forwarder = None

    async def _start(self) -> int:
        return self.host.log.log_start_offset

    def _now(self) -> Mapping[str, str]:
        config = self.host.config
        return {name: config[name] for name in _KEYS if name in config}

    @property
    def is_busy(self) -> bool:
        """Whether records wait for the time when they expire, or are on their way."""
        return self.forwarder is not None and not self.forwarder.machine.is_undecided

    # ------------------------------------------------------------ for the forwarder

    async def look(self) -> None:  # noqa: B027  most rules depend on the settings alone
        """Look up what the rule depends on besides the settings."""

    @abstractmethod
    def rule(self, text: str | None) -> Rule:
        """Return the rule for forwarding: by the present settings, or (``text``) as stored progress has it."""

    @abstractmethod
    def due_ms(self, timestamp_ms: int) -> int:
        """Return when a record with this timestamp may be forwarded."""

    async def acknowledged(self) -> int:
        """Return the offset below which nothing is forwarded."""
        return 0

    def now_ms(self) -> int:
        """Return the time of day by which records expire."""
        return self._clock.now_ms()

    def day_ms(self) -> int:
        """Return the time of day for the timestamps of forwarded records."""
        return self._clock.now_ms()


class Expiry(Work):
    """Sends records to the dead-letter topic when the topic's time to live is over."""

    kind = "ttl"

    def is_on(self) -> bool:
        """Return whether the topic has a time to live and a dead-letter topic."""
        return expires(self.settings)

    def rule(self, text: str | None) -> ExpiryRule:
        """Return the rule for where expired records go."""
        if text is not None:
            return ExpiryRule.of_text(text)
        key = self.settings.get(KEY, "")
        return ExpiryRule(
            self.settings[TOPIC], hash_of_key(key.encode()) if key else -1, self.settings.get(GROUP, ""), key
        )

    def due_ms(self, timestamp_ms: int) -> int:
        """Return when a record expires. A timestamp in the future counts as now.

        So a record from a producer whose clock is ahead holds up those behind it for the time to live at most.
        """
        return min(timestamp_ms, self.now_ms()) + ttl_ms(self.settings)

    async def acknowledged(self) -> int:
        """Return the offset below which the group has acknowledged everything."""
        group = self.settings.get(GROUP, "")
        return max(0, await self.host.targets.committed(group, self.source.place)) if group else 0


class Filing(Work):
    """Files records with a time to live of their own in ``__scheduled``: dead letters, due when it is over."""

    kind = "file"

    def __init__(self, host: RoleHost, clock: TimeOfDay) -> None:
        """Make it; the dead-letter topic is looked up when records are read."""
        super().__init__(host, clock)
        self._topic_id = ""
        self._known_ms = -FRESH_MS

    def is_on(self) -> bool:
        """Return whether the topic has a dead-letter topic that applies to all its records."""
        return files(self.settings)

    async def look(self) -> None:
        """Look up the id of the dead-letter topic."""
        now_ms = monotonic_ms()
        if now_ms - self._known_ms >= FRESH_MS:
            (row,) = (await self.host.metadata([self.settings[TOPIC]])).topics
            self._topic_id, self._known_ms = "" if row.error_code else row.topic_id, now_ms

    def rule(self, text: str | None) -> FilingRule:
        """Return the rule for which records are filed, and how."""
        if text is not None:
            return FilingRule.of_text(text)
        topic = self.settings[TOPIC]
        shard = hash_of_key(topic.encode())
        return FilingRule(topic, self._topic_id, ttl_ms(self.settings), shard, self.settings.get(KEY, ""))

    def due_ms(self, timestamp_ms: int) -> int:
        """Return 0: records are filed at once."""
        return 0


class Expiring:
    """Both forwarders of one partition in one leader epoch."""

    def __init__(self, host: RoleHost) -> None:
        """Nothing is done before :meth:`begin`."""
        self._host = host
        self._clock = TimeOfDay(host)
        self._works = (Expiry(host, self._clock), Filing(host, self._clock))

    def begin(self) -> None:
        """Forward as long as the leadership lasts."""
        self._host.spawn(self._run(), "expiry")
        self._host.spawn(self._clock.follow(self._tick), "expiry clock")

    async def _run(self) -> None:
        await self._clock.set()
        for work in self._works:
            self._host.spawn(work.run(), work.kind)

    def look_again(self) -> None:
        """Take note of the topic's settings."""
        for work in self._works:
            work.look_again()

    def _tick(self) -> None:
        for work in self._works:
            if work.forwarder is not None:
                work.forwarder.poke()

    @property
    def is_busy(self) -> bool:
        """Whether records wait for the time when they expire, or are on their way."""
        return any(work.is_busy for work in self._works)

    def figures(self) -> dict[str, int]:
        """Return counters and gauges."""
        expiry, filing = (work.forwarder for work in self._works)
        return {
            "expired": 0 if expiry is None else expiry.machine.progress.sent,
            "filed": 0 if filing is None else filing.machine.progress.sent,
            "position": -1 if expiry is None else expiry.machine.progress.position,
            "unreadable": sum(work.forwarder.unreadable for work in self._works if work.forwarder is not None),
            "holding": sum(work.forwarder is not None and work.forwarder.machine.is_holding for work in self._works),
        }
