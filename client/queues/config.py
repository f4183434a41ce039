"""The configuration keys of queue consumers. Pure.

Keys of the group (`order`, `lock`, `retry`, ...) have to be the same for all its members. If they are left out, the
topic's configuration decides.
"""

# ruff: noqa: RUF009 - `key` only makes a dataclass field, once, as `field` itself does.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from raylog.base.errors import InvalidConfig
from raylog.client.accepted import Duration
from raylog.client.config import ClientConfig, key
from raylog.core.queues import policy
from raylog.core.queues.durations import duration_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConsumerConfig(ClientConfig):
    """Keys of QueueConsumer and AsyncQueueConsumer."""

    group_id: str | None = key(None, "The group whose members share the work. Needed.")
    order: str | None = key(
        None,
        "`key`: records of a key are handed out in order, one after the other; `none`: as they come. Of the group.",
        one_of=("key", "none"),
    )
    lock: Any = key(
        None,
        "How long a record is locked for its consumer: `30s`, ms or timedelta. Of the group.",
        accepts="Duration",
    )
    lock_max: Any = key(None, "To what age a lock is extended at most; 12 hours. Of the group.", accepts="Duration")
    retry: Any = key(
        None,
        "Pauses before a record is handed out again: `10s 1m 10m`, or `exponential(1s, 2, 10m, 0.2)`. Of the group.",
        accepts="str | Sequence[Duration]",
    )
    delivery_limit: int | None = key(
        None,
        "Hand-outs after which a record becomes a dead letter; -1 = none. Default: one more than `retry` has pauses, "
        "otherwise 5. Of the group.",
    )
    dead_letter_topic: str | None = key(
        None, "Topic of what is rejected or handed out too often; `__undeliverable` without it. Of the group."
    )
    auto_offset_reset: str | None = key(
        None, "Where a new group begins; default `earliest`. Of the group.", one_of=("earliest", "latest")
    )
    priority: Any = key(
        None,
        "Between several topics: `strict`, from the first one down, or their weights, as a mapping or in their order. "
        "Default: none goes before another. Of the consumer.",
        accepts="PriorityChoice",
    )
    max_poll_records: int = key(500, "Most records that are locked ahead, before they are taken.", low=1)
    fetch_max_bytes: int = key(1_048_576, "Most bytes of one fetch; one batch is always returned.", low=1)
    fetch_max_wait_ms: int = key(20_000, "How long a fetch waits for the first record.", low=1)
    acknowledge_linger_ms: int = key(5, "How long an acknowledgement waits for others, to go with them.", low=0)
    renew_locks: bool = key(True, "Renew the locks of what this consumer holds, each time half of a lock is over.")
    session_timeout_ms: int = key(45_000, "A member whose heartbeats stay out for so long is removed.", low=1)
    heartbeat_interval_ms: int = key(3_000, "Time between two heartbeats.", low=1)
    consumer_timeout_ms: int | None = key(None, "Iteration ends after so long without a record; none: never.", low=0)
    check_crcs: bool = key(True, "Check the checksum of every batch.")
    key_deserializer: Any = key(
        None,
        "`json`, `msgpack`, `string`, `bytes`, `int` or a function from bytes.",
        accepts="DeserializerChoice",
    )
    value_deserializer: Any = key(
        None,
        "`json`, `msgpack`, `string`, `bytes`, `int` or a function from bytes.",
        accepts="DeserializerChoice",
    )

    def __post_init__(self) -> None:
        if not self.group_id:
            raise InvalidConfig("A queue's consumer needs group_id: the group whose members share the work.")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise InvalidConfig(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be below session_timeout_ms "
                f"({self.session_timeout_ms}); a third of it is usual."
            )
        policy.policy_of(self.settings(), {})

    def settings(self) -> dict[str, str]:
        """The group's settings that are given here, by the topic's keys and in normal form. Raises InvalidConfig."""
        given: dict[str, str | None] = {
            policy.ORDER: self.order,
            policy.LOCK: _ms(self.lock),
            policy.LOCK_MAX: _ms(self.lock_max),
            policy.BACKOFF: _backoff(self.retry),
            policy.LIMIT: None if self.delivery_limit is None else str(self.delivery_limit),
            policy.DEAD_LETTERS: self.dead_letter_topic,
            policy.START: self.auto_offset_reset,
        }
        return policy.checked({name: value for name, value in given.items() if value is not None})


def milliseconds(duration: Duration) -> int:
    """The milliseconds of a duration: `30s`, a timedelta, or a number of ms. Raises InvalidConfig."""
    if isinstance(duration, timedelta):
        return round(duration.total_seconds() * 1000)
    if isinstance(duration, str):
        return duration_ms(duration)
    if isinstance(duration, (int, float)) and not isinstance(duration, bool) and duration >= 0:
        return round(duration)
    raise InvalidConfig(f"A duration is text such as '30s', milliseconds or a timedelta, not {duration!r:.100}.")


def _ms(duration: Duration | None) -> str | None:
    return None if duration is None else str(milliseconds(duration))


def _backoff(retry: str | Sequence[Duration] | None) -> str | None:
    if retry is None or isinstance(retry, str):
        return retry
    return " ".join(f"{milliseconds(pause)}ms" for pause in retry)
