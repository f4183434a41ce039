"""Tokens for distributed work: each reads one partition, for a limited time. Used by Spark's planner.

May touch: the clock.
"""

from __future__ import annotations

import time

from raylog.core.ids import TopicPartition
from raylog.rpc import Grant, Token, TopicGrant, mint
from raylog.rpc.auth.tokens import ranges_of


def token_for(secret: bytes | Token, topic_id: str, partition: TopicPartition, *, lifetime_s: float) -> Token:
    """Make a token that reads this partition from now on for `lifetime_s`; a holder of a token passes on its own."""
    if isinstance(secret, Token):
        return secret
    expires_s = int(time.time() + lifetime_s) + 1
    topic = TopicGrant(topic_id, partition.topic, reads=ranges_of((partition.partition,)))
    return mint(secret, Grant(expires_s, (topic,)))
