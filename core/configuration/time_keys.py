"""Configuration keys of topics for delayed records. None has a counterpart in Kafka. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raylog.base.errors import InvalidConfig
from raylog.core.configuration.config_key import DAY_MS, LONG_MAX, ConfigKey, int_key
from raylog.core.forwarding.settings import TOPIC, expires, ttl_ms

TEN_YEARS_MS: Final = 10 * 366 * DAY_MS
"""The longest delay that a topic may allow."""

TIME_KEYS: Final = (
    ConfigKey(
        name="dead.letter.group",
        kind="name",
        default="",
        computed="none",
        doc="With `ttl.ms`: only what this consumer group has not committed when it expires goes to "
        "`dead.letter.topic`. Without it everything does.",
    ),
    ConfigKey(
        name="dead.letter.key",
        kind="name",
        default="",
        computed="none",
        doc="The key that records get when they expire, which decides their partition of `dead.letter.topic`. Without "
        "it they keep theirs, and those of one partition go to one partition.",
    ),
    ConfigKey(
        name="dead.letter.topic",
        kind="name",
        default="",
        computed="none",
        doc="Where records go when they expire, by `ttl.ms` or by their own time to live. Without it nothing is done "
        "about them: consumers may skip them.",
    ),
    int_key(
        "delay.default.ms",
        0,
        0,
        "How late records of this topic become visible that were sent without a delay or a time of their own; 0 = at "
        "once. For Raylog's producers.",
        TEN_YEARS_MS,
    ),
    ConfigKey(
        name="delay.enable",
        kind="bool",
        default="true",
        doc="Whether records may be delayed on their way to this topic.",
    ),
    ConfigKey(
        name="delay.headers.enable",
        kind="bool",
        default="false",
        doc="Whether a record that was delayed has the header `raylog-scheduled-at`: when it was sent, in milliseconds "
        "since 1970.",
    ),
    int_key("delay.max.ms", 40 * DAY_MS, 0, "The longest delay of a record; at most ten years.", TEN_YEARS_MS),
    int_key(
        "delay.max.pending",
        -1,
        -1,
        "Of `__scheduled`: how many records may wait in a partition of it; -1 = any number.",
        LONG_MAX,
    ),
    int_key(
        "half.check.interval.ms",
        30_000,
        100,
        "Of `__scheduled`: how long after a check that gave no decision a half message is checked again.",
        DAY_MS,
    ),
    int_key(
        "half.check.limit",
        15,
        1,
        "Of `__scheduled`: how often a half message is checked; then `half.on.unresolved` says what happens.",
        1_000_000,
    ),
    int_key(
        "half.max.pending",
        100_000,
        1,
        "Of `__scheduled`: how many half messages a partition of it may hold that have no decision.",
        1_000_000,
    ),
    ConfigKey(
        name="half.on.unresolved",
        kind="choice",
        default="hold",
        choices=("hold", "rollback", "dead_letter"),
        doc="Of `__scheduled`: what becomes of a half message without decision after the last check. `hold`: it stays, "
        "until an administrator decides; `dead_letter`: its records go to `__undeliverable`.",
    ),
    int_key(
        "ttl.ms",
        -1,
        -1,
        "How long after its timestamp a record of this topic expires; -1 = never. It is deleted by retention only.",
        TEN_YEARS_MS,
    ),
)


def check_expiry(name: str, config: Mapping[str, str]) -> None:
    """Raise InvalidConfig if the records of topic ``name`` could not be forwarded when they expire."""
    topic = config.get(TOPIC, "")
    if topic.startswith("__"):
        raise InvalidConfig(f"{TOPIC}={topic} is one of Raylog's own topics; name another one.")
    if topic == name:
        raise InvalidConfig(f"{TOPIC}={topic} is the topic's own name: its records would circle; name another one.")
    retention_ms = int(config.get("retention.ms", 7 * DAY_MS))
    if expires(config) and 0 <= retention_ms <= ttl_ms(config) and "delete" in config.get("cleanup.policy", "delete"):
        raise InvalidConfig(
            f"ttl.ms={ttl_ms(config)} is not below retention.ms={retention_ms}: records would be deleted before they "
            "expire. Raise retention.ms, with room for a time in which the dead-letter topic cannot be written."
        )
