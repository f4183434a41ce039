"""Tokens for people, jobs and other clusters, made by a client that has the cluster's secret. A part of `AsyncAdmin`.

A token is computed here, from the secret; no server stores it. May touch: the network through `ClusterClient` (for the
ids of topics), the clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from raylog.base.errors import InvalidConfig
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import Deadline
from raylog.rpc import Grant, Token, TopicGrant, mint
from raylog.rpc.auth.token_text import parse_token, token_text
from raylog.rpc.auth.tokens import ALL_PARTITIONS, TokenError

DEFAULT_LIFETIME_S = 43_200.0
"""The lifetime of a token: 12 hours."""


@dataclass(frozen=True, slots=True)
class TokenDescription:
    """What a token claims to grant; only the cluster can verify its key."""

    expires_s: int
    """When it expires, in seconds since 1970."""
    read: tuple[str, ...]
    """Topics that it may read; in some of them perhaps only single partitions."""
    write: tuple[str, ...]
    transactional_id_prefix: str | None
    group: str | None


def describe_token(token: str) -> TokenDescription:
    """What a token in its text form grants, and until when. Raises InvalidConfig for a text that is no token."""
    try:
        grant = parse_token(token).grant
    except TokenError as error:
        raise InvalidConfig(str(error)) from None
    return TokenDescription(
        grant.expires_s,
        tuple(topic.topic for topic in grant.topics if topic.reads),
        tuple(topic.topic for topic in grant.topics if topic.writes),
        grant.transactional_id_prefix,
        grant.group,
    )


class AsyncTokens:
    """Token methods of `AsyncAdmin`."""

    cluster: ClusterClient

    async def create_token(
        self,
        *,
        read: Iterable[str] = (),
        write: Iterable[str] = (),
        transactional_id_prefix: str | None = None,
        group: str | None = None,
        lifetime_s: float = DEFAULT_LIFETIME_S,
        timeout_s: float = 30.0,
    ) -> str:
        """Make a token that may read and write these topics for `lifetime_s`: one line of text, for `token=`.

        It covers all partitions of the topics, even those added later, but no topic that is created again under one of
        the names. `transactional_id_prefix`: it may also run transactions whose ids begin with it, and commit offsets
        of the group with exactly that name. `group`: it may also take part in this consumer group, consume the queues
        of that group, and prepare half messages of it. Records that it may write it may also delay.
        Raises UnknownTopicOrPartition, whose message suggests the nearest name; InvalidConfig when nothing is granted,
        when the grant is too long, and when this client itself has only a token.
        """
        reads, writes = _names("read", read), _names("write", write)
        _check(reads, writes, transactional_id_prefix, group, lifetime_s)
        self.cluster.check_started()
        deadline = Deadline(timeout_s)
        await self.cluster.renew_secret(timeout_s=deadline.left_s)  # a token of an old secret would end with it
        address = self.cluster.address
        assert address is not None  # since the start
        if isinstance(address.secret, Token):
            raise InvalidConfig(
                "A client with a token cannot make tokens: give it the cluster's secret, and unset RAYLOG_TOKEN."
            )
        topics = []
        for name in dict.fromkeys((*reads, *writes)):
            info = await self.cluster.topic(name, timeout_s=deadline.left_s)
            if info.internal:
                raise InvalidConfig(f"{name!r} is Raylog's own topic, for which there are no tokens; name another one.")
            topics.append(TopicGrant(info.topic_id, name, ALL_PARTITIONS if name in reads else (), name in writes))
        grant = Grant(int(time.time() + lifetime_s) + 1, tuple(topics), transactional_id_prefix, group)
        try:
            return token_text(mint(address.secret, grant))
        except TokenError as error:
            raise InvalidConfig(str(error)) from None


def _names(what: str, topics: Iterable[str]) -> tuple[str, ...]:
    if isinstance(topics, str):
        raise InvalidConfig(f"{what} takes a list of topics: write {what}=[{topics!r}].")
    return tuple(topics)


def _check(
    reads: tuple[str, ...], writes: tuple[str, ...], prefix: str | None, group: str | None, lifetime_s: float
) -> None:
    if not reads and not writes:
        raise InvalidConfig("A token has to grant something: name topics to read or to write.")
    for name, value in (("transactional_id_prefix", prefix), ("group", group)):
        if value is not None and not value.strip():
            raise InvalidConfig(f"{name} may not be empty; leave it out for a token without.")
    if prefix is not None and not writes:
        raise InvalidConfig("transactional_id_prefix has no use without topics to write; name them, or leave it out.")
    if not 0 < lifetime_s < 2**40:
        raise InvalidConfig(f"lifetime_s must be above 0 seconds, not {lifetime_s!r}.")
