"""Configuration keys of topics for delayed records. None has a counterpart in Kafka. Pure."""

from __future__ import annotations

from typing import Final

from raylog.core.config_key import DAY_MS, LONG_MAX, ConfigKey, int_key

TEN_YEARS_MS: Final = 10 * 366 * DAY_MS
"""The longest delay that a topic may allow."""

TIME_KEYS: Final = (
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
)
