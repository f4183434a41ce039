"""Tokens for distributed work: each task reads one partition, or writes to some topics, for a limited time.

Used by the drivers of Spark and Ray Data. May touch: the clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from raylog.core.errors import ClusterAuthorizationFailed, InvalidConfig
from raylog.core.ids import TopicPartition
from raylog.rpc import Grant, Token, TopicGrant, mint
from raylog.rpc.auth.tokens import ALL_PARTITIONS, TokenError, ranges_of


def token_for(secret: bytes | Token, topic_id: str, partition: TopicPartition, *, lifetime_s: float) -> Token:
    """Make a token that reads this partition from now on for `lifetime_s`; a holder of a token passes on its own."""
    if isinstance(secret, Token):
        return secret
    topic = TopicGrant(topic_id, partition.topic, reads=ranges_of((partition.partition,)))
    return mint(secret, Grant(_end_of(lifetime_s), (topic,)))


def read_token_for_topics(secret: bytes | Token, topic_ids: Mapping[str, str], *, lifetime_s: float) -> Token:
    """Make a token that reads these topics, given with their ids, and partitions added later; else as `token_for`.

    Raises InvalidConfig for more topics than a token can name, about fifteen.
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
    """Make a token that writes to these topics, given with their ids, for `lifetime_s`; a holder passes on its own.

    With a prefix it also runs transactions whose ids begin so. Raises InvalidConfig for more topics than a token can
    name, about fifteen.
    """
    if isinstance(secret, Token):
        return secret
    topics = tuple(TopicGrant(topic_id, name, writes=True) for name, topic_id in sorted(topic_ids.items()))
    try:
        return mint(secret, Grant(_end_of(lifetime_s), topics, transactional_id_prefix))
    except TokenError as error:
        raise InvalidConfig(f"{error} Write to fewer topics in one query.") from None


def require_read(token: Token, topics: Iterable[str]) -> None:
    """Raise ClusterAuthorizationFailed for a topic that the token does not read."""
    for topic in topics:
        if not any(entry.topic == topic and entry.reads for entry in token.grant.topics):
            raise ClusterAuthorizationFailed(
                f"The token does not read the topic {topic!r}: make one with `raylog token create --read {topic}`."
            )


def require_write(token: Token, topics: Iterable[str]) -> None:
    """Fail on the driver, once, where each task would. Raises ClusterAuthorizationFailed for what the token lacks."""
    for topic in topics:
        if not any(entry.topic == topic and entry.writes for entry in token.grant.topics):
            raise ClusterAuthorizationFailed(
                f"The token does not write to the topic {topic!r}: make one with `raylog token create --write {topic}`."
            )


def require_transactions(token: Token, prefix: str) -> None:
    """Raise ClusterAuthorizationFailed unless the token covers the transactions, and their group, of a sink."""
    grant = token.grant
    if not (grant.has_transactional_id(prefix) and grant.has_group(prefix)):
        raise ClusterAuthorizationFailed(
            f"The token covers no transactions for transactionalIdPrefix={prefix}, which exactly-once needs: make one "
            f"with `raylog token create --transactional-id-prefix {prefix}`, or set the option to the prefix of the "
            f"token ({grant.transactional_id_prefix or 'it has none'})."
        )


def _end_of(lifetime_s: float) -> int:
    return int(time.time() + lifetime_s) + 1
