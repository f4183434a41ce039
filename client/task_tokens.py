"""Tokens for distributed work, each to read one partition, or to write to some topics, for a limited time.

Used by the drivers of Spark and Ray Data. May touch: the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from raylog.base.errors import ClusterAuthorizationFailed, InvalidConfig
from raylog.base.ids import TopicPartition
from raylog.rpc import Grant, Token, TopicGrant, mint
from raylog.rpc.auth.tokens import ALL_PARTITIONS, TokenError, ranges_of

REUSE_S = 60.0
"""How long a token is reused for further tasks; at most a hundredth of its lifetime."""


class TaskTokens:
    """A cache of tokens that each read one partition; while they are new, tasks of several queries share them.

    So a worker can keep the connections of a task for the next task with the same token (`kept.py`).
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns seconds since 1970."""
        self._clock = clock
        self._made: dict[tuple[bytes, str, int, float], Token] = {}
        """The tokens made since `_since_s`, by secret, topic id, partition and lifetime."""
        self._since_s = 0.0

    def of(self, secret: bytes | Token, topic_id: str, partition: TopicPartition, *, lifetime_s: float) -> Token:
        """A token that may read this partition for `lifetime_s` or a little longer.

        If `secret` is a token itself, it is returned.
        """
        if isinstance(secret, Token):
            return secret
        now_s = self._clock()
        reuse_s = min(REUSE_S, lifetime_s / 100)
        if not self._since_s <= now_s < self._since_s + reuse_s:
            self._made.clear()
            self._since_s = now_s
        key = secret, topic_id, partition.partition, lifetime_s
        if key not in self._made:
            topic = TopicGrant(topic_id, partition.topic, reads=ranges_of((partition.partition,)))
            self._made[key] = mint(secret, Grant(int(now_s + lifetime_s + reuse_s) + 1, (topic,)))
        return self._made[key]


def read_token_for_topics(secret: bytes | Token, topic_ids: Mapping[str, str], *, lifetime_s: float) -> Token:
    """Make a token that may read these topics (name -> id), with partitions that are added later.

    If `secret` is a token itself, it is returned. Raises InvalidConfig for more topics than a token can name, about
    fifteen.
    """
    if isinstance(secret, Token):
        return secret
    topics = tuple(TopicGrant(topic_id, name, reads=ALL_PARTITIONS) for name, topic_id in sorted(topic_ids.items()))
    try:
        return mint(secret, Grant(_end_of(lifetime_s), topics))
    except TokenError as error:
        raise InvalidConfig(f"{error} Follow fewer topics in one read.") from None


def write_token_for(
    secret: bytes | Token,
    topic_ids: Mapping[str, str],
    *,
    transactional_id_prefix: str | None = None,
    lifetime_s: float,
) -> Token:
    """Make a token that may write to these topics (name -> id) for `lifetime_s`.

    With a prefix it may also run transactions whose ids begin with it. If `secret` is a token itself, it is returned.
    Raises InvalidConfig for more topics than a token can name, about fifteen.
    """
    if isinstance(secret, Token):
        return secret
    topics = tuple(TopicGrant(topic_id, name, writes=True) for name, topic_id in sorted(topic_ids.items()))
    try:
        return mint(secret, Grant(_end_of(lifetime_s), topics, transactional_id_prefix))
    except TokenError as error:
        raise InvalidConfig(f"{error} Write to fewer topics in one query.") from None


def require_read(token: Token, topics: Iterable[str]) -> None:
    """Raise ClusterAuthorizationFailed for a topic that the token may not read."""
    for topic in topics:
        if not any(entry.topic == topic and entry.reads for entry in token.grant.topics):
            raise ClusterAuthorizationFailed(
                f"The token does not read the topic {topic!r}: make one with `raylog token create --read {topic}`."
            )


def require_write(token: Token, topics: Iterable[str]) -> None:
    """Raise ClusterAuthorizationFailed for a topic that the token may not write to: once, and not in each task."""
    for topic in topics:
        if not any(entry.topic == topic and entry.writes for entry in token.grant.topics):
            raise ClusterAuthorizationFailed(
                f"The token does not write to the topic {topic!r}: make one with `raylog token create --write {topic}`."
            )


def require_transactions(token: Token, prefix: str) -> None:
    """Raise ClusterAuthorizationFailed unless the token covers a sink's transactions, and the group of that name."""
    grant = token.grant
    if not (grant.has_transactional_id(prefix) and grant.has_group(prefix)):
        raise ClusterAuthorizationFailed(
            f"The token covers no transactions for transactionalIdPrefix={prefix}, which exactly-once needs: make one "
            f"with `raylog token create --transactional-id-prefix {prefix}`, or set the option to the prefix of the "
            f"token ({grant.transactional_id_prefix or 'it has none'})."
        )


def _end_of(lifetime_s: float) -> int:
    return int(time.time() + lifetime_s) + 1
