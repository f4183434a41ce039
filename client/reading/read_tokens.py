"""Tokens for distributed work: each reads one partition, for a limited time. Used by Spark's planner.

May touch: the clock.
"""

from __future__ import annotations

import time

from raylog.core.ids import TopicPartition
from raylog.rpc import ReadGrant, ReadToken, TopicGrant, mint


def token_for(secret: bytes | ReadToken, topic_id: str, partition: TopicPartition, *, lifetime_s: float) -> ReadToken:
    """Make a token that reads this partition from now on for `lifetime_s`; a holder of a token passes on its own."""
    if isinstance(secret, ReadToken):
        return secret
    expires_s = int(time.time() + lifetime_s) + 1
    return mint(secret, ReadGrant(expires_s, [TopicGrant(topic_id, partition.topic, [partition.partition])]))
