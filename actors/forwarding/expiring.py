"""Sends the expired records of one partition to their dead-letter topic. Owned by the role (``expiry.py``).

Records expire by the owner's clock, which neither jumps nor goes back. When the topic's settings change, the forwarder
ends after the turn that it is in, and another one begins with the new settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from raylog.actors.forwarding.forwarder import Forwarder
from raylog.actors.forwarding.notes import KeptNotes
from raylog.actors.forwarding.places import OwnSource
from raylog.actors.roles.host import RoleHost
from raylog.actors.roles.time_of_day import TimeOfDay
from raylog.core.forwarding.machine import ForwarderSettings
from raylog.core.forwarding.rules import ExpiryRule
from raylog.core.forwarding.settings import GROUP, KEY, TOPIC, TTL, expires, ttl_ms
from raylog.storage.batch.key_hash import hash_of_key

_KEYS: Final = (TTL, TOPIC, KEY, GROUP)


class Expiring:
    """The expiry of one partition in one leader epoch."""

    def __init__(self, host: RoleHost) -> None:
        """Nothing is done before :meth:`begin`."""
        self._host = host
        self._clock = TimeOfDay(host)
        self._settings = self._now()
        self._changed = asyncio.Event()
        self._forwarder: Forwarder | None = None
        self._source = OwnSource(host)
        self._sent = 0

    def begin(self) -> None:
        """Forward as long as the leadership lasts."""
        self._host.spawn(self._run(), "expiry")
        self._host.spawn(self._clock.follow(self._tick), "expiry clock")

    def _tick(self) -> None:
        if self._forwarder is not None:
            self._forwarder.poke()

    def look_again(self) -> None:
        """Take note of the topic's settings."""
        if self._now() != self._settings:
            self._changed.set()
            if self._forwarder is not None:
                self._forwarder.stop()

    async def _run(self) -> None:
        partition = self._source.place
        await self._clock.set()
        while True:
            self._changed.clear()
            self._settings = self._now()
            if not expires(self._settings):
                await self._changed.wait()
                continue
            self._forwarder = Forwarder(
                self._host,
                f"expiry of {self._host.partition}",
                source=self._source,
                notes=KeptNotes(self._host, f"ttl:{partition.topic_id}:{partition.partition}"),
                owner=self,
                settings=ForwarderSettings(),
                start=self._start,
            )
            await self._forwarder.run()
            self._sent += self._forwarder.machine.note.sent
            self._forwarder = None

    async def _start(self) -> int:
        return self._host.log.log_start_offset

    def _now(self) -> Mapping[str, str]:
        config = self._host.config
        return {name: config[name] for name in _KEYS if name in config}

    # ------------------------------------------------------------ for the forwarder

    def rule(self, text: str | None) -> ExpiryRule:
        """Return by what records are forwarded: the settings, or what a note has kept of them."""
        if text is not None:
            return ExpiryRule.of_text(text)
        key = self._settings.get(KEY, "")
        return ExpiryRule(
            self._settings[TOPIC], hash_of_key(key.encode()) if key else -1, self._settings.get(GROUP, ""), key
        )

    def due_ms(self, timestamp_ms: int) -> int:
        """Return when a record expires."""
        return timestamp_ms + ttl_ms(self._settings)

    async def acknowledged(self) -> int:
        """Return the offset below which the group has acknowledged everything."""
        group = self._settings.get(GROUP, "")
        return max(0, await self._host.targets.committed(group, self._source.place)) if group else 0

    def now_ms(self) -> int:
        """Return the time of day by which records expire."""
        return self._clock.now_ms()

    # ------------------------------------------------------------ figures

    @property
    def is_busy(self) -> bool:
        """Whether records wait for the time when they expire, or are on their way."""
        return self._forwarder is not None and not self._forwarder.machine.is_undecided

    def figures(self) -> dict[str, int]:
        """Return counters and gauges."""
        forwarder = self._forwarder
        if forwarder is None:
            return {"expired": self._sent, "position": -1, "holding": 0}
        note = forwarder.machine.note
        return {"expired": note.sent, "position": note.position, "holding": int(forwarder.machine.is_holding)}
