"""Which records of a partition are forwarded, and where to: by the settings of its topic, or of a redrive. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from raylog.base.errors import InvalidRequest, did_you_mean
from raylog.core.dead_letters import UNDELIVERABLE_TOPIC, Header, cause_of, may_hop, target_of, ttl_of
from raylog.core.forwarding.progress import UNDELIVERABLE, Route
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC

INTERNAL_PREFIX: Final = "__"
HEADER_PREFIX: Final = "header:"
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PARTITION_MAX: Final = 2**31 - 1
FILTERS: Final = ("reason", "topic", "partition", "group", "key", "message")
"""What a redrive can be filtered by, beside headers."""


def check_filters(where: Mapping[str, str]) -> None:
    """Raise InvalidRequest for a name by which records cannot be filtered."""
    for name in where:
        if name not in FILTERS and not (name.startswith(HEADER_PREFIX) and len(name) > len(HEADER_PREFIX)):
            raise InvalidRequest(
                f"{did_you_mean('filter', name, FILTERS)} A record's own header is {HEADER_PREFIX}<name>."
            )


@dataclass(frozen=True, slots=True)
class ExpiryRule:
    """Records of a topic with a time to live: each goes to the dead-letter topic, unless it has a time of its own.

    Records with a time of their own wait in ``__scheduled`` from the beginning (:class:`FilingRule`).
    """

    topic: str
    """The dead-letter topic; empty = there is none."""
    key_hash: int = -1
    """Hash of the key that dead letters get; -1 = they keep their own."""
    group: str = ""
    """Only records that this group has not acknowledged go; empty = all."""
    key: str = ""
    """The key that dead letters get; empty = they keep their own."""

    def to_text(self) -> str:
        """Return the rule as stored progress has it."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def of_text(cls, text: str) -> ExpiryRule:
        """Return a rule out of stored progress."""
        return replace(cls(""), **json.loads(text))

    def route(
        self, partition: int, key: bytes | None, headers: Sequence[Header] | None, spread: int = 0, offset: int = -1
    ) -> Route | None:
        """Return where a record goes; None = it stays."""
        if ttl_of(headers) is not None:
            return None
        if target_of(headers, self.topic) == UNDELIVERABLE_TOPIC:
            return UNDELIVERABLE
        return self.topic, partition if self.key_hash < 0 else self.key_hash


@dataclass(frozen=True, slots=True)
class FilingRule:
    """Records with a time to live of their own: each is filed in ``__scheduled`` at once, and due when it expires.

    So a record with a long time never holds up one behind it that expires sooner.
    """

    topic: str
    """The dead-letter topic."""
    topic_id: str
    ttl_ms: int
    """The topic's time to live; -1 = none. Of it and the record's own, the shorter one counts."""
    shard: int
    """Partition of ``__scheduled``."""
    key: str = ""
    """As in :class:`ExpiryRule`."""

    def to_text(self) -> str:
        """Return the rule as stored progress has it."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def of_text(cls, text: str) -> FilingRule:
        """Return a rule out of stored progress."""
        return replace(cls("", "", -1, 0), **json.loads(text))

    def route(
        self, partition: int, key: bytes | None, headers: Sequence[Header] | None, spread: int = 0, offset: int = -1
    ) -> Route | None:
        """Return where a record goes; None = it stays."""
        if ttl_of(headers) is None:
            return None
        return SCHEDULED_TOPIC, self.shard

    def target_id(self, headers: Sequence[Header] | None) -> str:
        """Return the target's topic id for a record; empty = the record is undeliverable once it has expired."""
        return self.topic_id if may_hop(headers) else ""

    def expires_ms(self, timestamp_ms: int, headers: Sequence[Header] | None) -> int:
        """Return when a record with this timestamp and these headers expires."""
        own_ms = ttl_of(headers) or 0
        return timestamp_ms + (own_ms if self.ttl_ms < 0 else min(own_ms, self.ttl_ms))


@dataclass(frozen=True, slots=True)
class RedriveRule:
    """Dead letters that are sent on: to a named topic, or each to where it came from."""

    to: str = ""
    """The topic; empty = each to its origin."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Only letters for which each of these filters has this value (:data:`FILTERS`)."""
    partitions: int = 0
    """Number of partitions of ``to``; 0 = not known: records keep their partition's number."""
    sent_below: int = 0
    """An earlier redrive has sent the letters below this offset, except those without an origin."""

    def to_text(self) -> str:
        """Return the rule as stored progress has it."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def of_text(cls, text: str) -> RedriveRule:
        """Return a rule out of stored progress."""
        return replace(cls(), **json.loads(text)) if text else cls()

    def route(
        self, partition: int, key: bytes | None, headers: Sequence[Header] | None, spread: int = 0, offset: int = -1
    ) -> Route | None:
        """Return where a record goes; None = it stays. ``spread``: hash of its key, or any number if it has none."""
        if not self._chooses(key, headers):
            return None
        was_sent = 0 <= offset < self.sent_below
        origin = None if self.to and not was_sent else _origin(headers)
        if was_sent and origin is not None:
            return None
        if self.to:
            return self.to, spread % self.partitions if self.partitions else partition
        return origin

    def leaves(self, headers: Sequence[Header] | None) -> bool:
        """Whether a record stays for a later redrive: it has no origin, and this redrive names no topic."""
        return not self.to and not self.where and _origin(headers) is None

    def _chooses(self, key: bytes | None, headers: Sequence[Header] | None) -> bool:
        if not self.where:
            return True
        cause = cause_of(headers)
        found: dict[str, str | None] = {"key": None if key is None else key.decode(errors="replace")}
        if cause is not None:
            found |= {
                "reason": cause.reason.value,
                "topic": cause.topic,
                "partition": str(cause.partition),
                "group": cause.group,
                "message": cause.message,
            }
        for name, value in headers or ():
            found[HEADER_PREFIX + name] = None if value is None else value.decode(errors="replace")
        return all(found.get(name) == value for name, value in self.where.items())


def _origin(headers: Sequence[Header] | None) -> Route | None:
    """Return the topic and partition that a dead letter came from; None = it names none, or none of a user."""
    cause = cause_of(headers)
    if cause is None or not _TOPIC.fullmatch(cause.topic) or cause.topic.startswith(INTERNAL_PREFIX):
        return None  # a producer of dead letters may write any name into them, and any number
    return cause.topic, min(max(0, cause.partition), _PARTITION_MAX)


Rule = ExpiryRule | FilingRule | RedriveRule
