"""Configuration keys of topics for queue mode: the defaults of all groups that work on a topic. Pure.

The members of a group may override most of them; ``core/queues/policy.py`` reads both.
"""

from __future__ import annotations

from typing import Final

from raylog.core.configuration.config_key import ConfigKey, int_key
from raylog.core.queues import policy
from raylog.core.queues.durations import Backoff
from raylog.core.queues.origins import OF

QUEUE_KEYS: Final = (
    int_key(policy.ACQUIRED, 2_000, 1, "Most records of a queue that are locked at a time, in a partition.", 100_000),
    ConfigKey(
        name=policy.START,
        kind="choice",
        default="earliest",
        choices=("earliest", "latest"),
        doc="Where a queue begins when its first member comes. Kafka's share groups: latest.",
    ),
    ConfigKey(
        name=policy.LIMIT,
        kind="text",
        default="",
        check=policy.check_limit,
        form="-1, or 1 to 10000",
        computed="one more than `queue.retry.backoff` has pauses, 5 without it",
        doc="How often a record is handed out before it becomes a dead letter; -1 = no limit.",
    ),
    int_key(policy.LOCK_MAX, 43_200_000, 1_000, "To what age the lock of a record is extended at most.", 604_800_000),
    int_key(policy.LOCK, 30_000, 1_000, "How long a record is locked for the member that has got it.", 43_200_000),
    ConfigKey(
        name=policy.ORDER,
        kind="choice",
        default="none",
        choices=("none", "key"),
        doc="`key`: records of a key are handed out in order, and to one member at a time.",
    ),
    ConfigKey(
        name=policy.BACKOFF,
        kind="text",
        default="",
        check=Backoff.parse,
        form="pauses such as `10s 1m 10m`, or `exponential(1s, 2, 10m, 0.2)`",
        computed="no pause",
        doc="How long a record waits before it is handed out again: after the first time, the second, and so on.",
    ),
    int_key(
        policy.RETRY_MAX,
        7_200_000,
        0,
        "The longest pause for which a record waits in its partition, and half of "
        "`retention.ms` at most; for a longer one a copy waits in `__scheduled`.",
        604_800_000,
    ),
    ConfigKey(
        name=OF,
        kind="text",
        default="",
        check=policy.check_topic,
        form="the name of a topic",
        computed="none",
        doc="Of a group's retry topic, set by Raylog: the topic whose records come there for a late retry.",
    ),
    int_key(policy.WAITING, 100_000, 0, "Most records of a queue that wait to be retried, in a partition.", 1_000_000),
    int_key(
        policy.WINDOW,
        100_000,
        1,
        "Most records of a queue that were handed out and are not finished, in a partition.",
        1_000_000,
    ),
    ConfigKey(
        name=policy.DEAD_LETTERS,
        kind="text",
        default="",
        check=policy.check_topic,
        form="the name of a topic",
        computed="`__undeliverable`",
        doc="Where dead letters go (KIP-1191); the topic is created with the first one.",
    ),
    ConfigKey(
        name=policy.ON_FAILURE,
        kind="choice",
        default="hold",
        choices=("hold", "drop"),
        doc="What becomes of a dead letter whose topic does not exist and cannot be created, or is too small for it: "
        "`hold` = it waits; `drop` = it is dropped, or sent without its body.",
    ),
)
