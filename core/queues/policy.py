"""What a queue group has set: lock, limit, back-off, order, dead letters. Pure.

A topic's configuration has the defaults for its groups; the members of a group may override each key. All members of a
group have the same settings at a time, which are kept in the queue's state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from raylog.base.errors import InvalidConfig, did_you_mean
from raylog.core.dead_letters import UNDELIVERABLE_TOPIC
from raylog.core.queues.durations import Backoff, duration_ms

LOCK: Final = "queue.lock.ms"
LOCK_MAX: Final = "queue.lock.max.ms"
LIMIT: Final = "queue.delivery.limit"
BACKOFF: Final = "queue.retry.backoff"
RETRY_MAX: Final = "queue.retry.max.ms"
ORDER: Final = "queue.order"
START: Final = "queue.auto.offset.reset"
WINDOW: Final = "queue.window.max"
ACQUIRED: Final = "queue.acquired.max"
WAITING: Final = "queue.waiting.max"
DEAD_LETTERS: Final = "errors.deadletterqueue.topic.name"
ON_FAILURE: Final = "errors.deadletterqueue.on.failure"

DELAY_MAX: Final = "delay.max.ms"
DELAY_ENABLE: Final = "delay.enable"
RETENTION: Final = "retention.ms"
DAY_MS: Final = 86_400_000
DELAY_MAX_DEFAULT_MS: Final = 40 * DAY_MS
RETENTION_DEFAULT_MS: Final = 7 * DAY_MS

LIMIT_DEFAULT: Final = 5
"""Kafka's `share.delivery.count.limit`."""
NO_LIMIT: Final = -1

DEFAULTS: Final[Mapping[str, str]] = {
    LOCK: "30000",
    LOCK_MAX: "43200000",
    LIMIT: "",
    BACKOFF: "",
    RETRY_MAX: "7200000",
    ORDER: "none",
    START: "earliest",
    WINDOW: "100000",
    ACQUIRED: "2000",
    WAITING: "100000",
    DEAD_LETTERS: "",
    ON_FAILURE: "hold",
}
"""Every key with its default. An empty limit follows from the back-off if that is a list, and is 5 otherwise."""

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")

_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    LOCK: (1_000, 43_200_000),
    LOCK_MAX: (1_000, 604_800_000),
    RETRY_MAX: (0, 604_800_000),
    WINDOW: (1, 1_000_000),
    ACQUIRED: (1, 100_000),
    WAITING: (0, 1_000_000),
}
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    ORDER: ("none", "key"),
    START: ("earliest", "latest"),
    ON_FAILURE: ("hold", "drop"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """The settings of one group, as numbers. Times are in milliseconds."""

    lock_ms: int = 30_000
    lock_max_ms: int = 43_200_000
    """A lock is extended at most to this age."""
    delivery_limit: int = LIMIT_DEFAULT
    """Hand-outs after which a record becomes a dead letter; -1 = no limit."""
    backoff: Backoff = field(default_factory=Backoff)
    retry_max_ms: int = 7_200_000
    """The longest pause that a record waits in its partition: retention must not delete it meanwhile."""
    later_max_ms: int = DELAY_MAX_DEFAULT_MS
    """The longest pause of all: if it is above ``retry_max_ms``, a copy waits in ``__scheduled``."""
    by_key: bool = False
    """Whether records of one key are handed out in order, to one member at a time."""
    starts_latest: bool = False
    """Whether a new queue begins at the end of the log."""
    window_max: int = 100_000
    """Most records that were handed out and are not finished; finished ones between them do not count."""
    acquired_max: int = 2_000
    """Most records that are locked at a time."""
    waiting_max: int = 100_000
    """Most records that wait to be retried; any more are handed out again at once."""
    dead_letter_topic: str = ""
    """Empty: `__undeliverable`."""
    drops_undeliverable: bool = False
    """Whether dead letters that cannot be stored are dropped; otherwise they wait."""


def checked(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings in canonical form; raises InvalidConfig with what would be legal."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if name not in DEFAULTS:
            raise InvalidConfig(did_you_mean("setting of a queue", name, DEFAULTS))
        if not isinstance(value, str):
            raise InvalidConfig(f"{name} is text, not {value!r:.100}.")
        found[name] = _checked(name, value.strip())
    return found


def _checked(name: str, value: str) -> str:
    if name in _BOUNDS:
        low, high = _BOUNDS[name]
        number = duration_ms(value, name) if name.endswith(".ms") else _whole(name, value)
        if not low <= number <= high:
            raise InvalidConfig(f"{name} is from {low} to {high}, not {number}.")
        return str(number)
    if name in _CHOICES and value not in _CHOICES[name]:
        raise InvalidConfig(did_you_mean(f"value of {name}", value, _CHOICES[name]))
    if name == BACKOFF:
        Backoff.parse(value)
    if name == LIMIT and value:
        check_limit(value)
    if name == DEAD_LETTERS and value:
        check_topic(value)
    return value


def check_limit(value: str) -> None:
    """Raise InvalidConfig unless this is a delivery limit."""
    if not (_whole(LIMIT, value) == NO_LIMIT or 1 <= int(value) <= 10_000):
        raise InvalidConfig(f"{LIMIT} is from 1 to 10000, or -1 for no limit, not {value}.")


def check_topic(value: str) -> None:
    """Raise InvalidConfig unless dead letters may go to a topic of this name."""
    if value != UNDELIVERABLE_TOPIC and (value.startswith("__") or not _TOPIC.fullmatch(value)):
        raise InvalidConfig(
            f"{DEAD_LETTERS} is the name of a topic of your own: letters, digits, '.', '_' and '-', not {value!r:.100}."
        )


def _whole(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise InvalidConfig(f"{name} is a whole number, not {value!r:.100}.") from None


def policy_of(settings: Mapping[str, str], topic: Mapping[str, str]) -> QueuePolicy:
    """Return the policy of a group: its own settings, then the topic's, then the defaults. Raises InvalidConfig."""
    given = {name: topic[name] for name in DEFAULTS if name in topic}
    found = {**DEFAULTS, **checked({**given, **settings})}
    backoff = Backoff.parse(found[BACKOFF])
    retry_max_ms, later_max_ms = _pauses_max(int(found[RETRY_MAX]), topic)
    limit = int(found[LIMIT]) if found[LIMIT] else backoff.limit or LIMIT_DEFAULT
    return QueuePolicy(
        lock_ms=int(found[LOCK]),
        lock_max_ms=max(int(found[LOCK]), int(found[LOCK_MAX])),
        delivery_limit=limit,
        backoff=backoff,
        retry_max_ms=retry_max_ms,
        later_max_ms=later_max_ms,
        by_key=found[ORDER] == "key",
        starts_latest=found[START] == "latest",
        window_max=int(found[WINDOW]),
        acquired_max=int(found[ACQUIRED]),
        waiting_max=int(found[WAITING]),
        dead_letter_topic=found[DEAD_LETTERS],
        drops_undeliverable=found[ON_FAILURE] == "drop",
    )


def _pauses_max(retry_max_ms: int, topic: Mapping[str, str]) -> tuple[int, int]:
    """Return the longest pause in the partition, and the longest pause of all, in milliseconds."""
    retention_ms = int(topic.get(RETENTION, RETENTION_DEFAULT_MS))
    if retention_ms >= 0:
        retry_max_ms = min(retry_max_ms, retention_ms // 2)
    if topic.get(DELAY_ENABLE, "true") != "true":
        return retry_max_ms, retry_max_ms
    return retry_max_ms, max(retry_max_ms, int(topic.get(DELAY_MAX, DELAY_MAX_DEFAULT_MS)))
