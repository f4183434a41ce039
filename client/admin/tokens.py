"""What a token grants: checked before `AsyncAdmin.create_token` makes one, and read from the text of one. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raylog.base.errors import InvalidConfig
from raylog.rpc.auth.token_text import parse_token
from raylog.rpc.auth.tokens import TokenError

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


def topic_names(what: str, topics: Iterable[str]) -> tuple[str, ...]:
    """The topics of an argument. Raises InvalidConfig for a single text."""
    if isinstance(topics, str):
        raise InvalidConfig(f"{what} takes a list of topics: write {what}=[{topics!r}].")
    return tuple(topics)


def check_grant(
    reads: tuple[str, ...], writes: tuple[str, ...], prefix: str | None, group: str | None, lifetime_s: float
) -> None:
    """Raise InvalidConfig for a grant of nothing, and for arguments that do not fit together."""
    if not reads and not writes:
        raise InvalidConfig("A token has to grant something: name topics to read or to write.")
    for name, value in (("transactional_id_prefix", prefix), ("group", group)):
        if value is not None and not value.strip():
            raise InvalidConfig(f"{name} may not be empty; leave it out for a token without.")
    if prefix is not None and not writes:
        raise InvalidConfig("transactional_id_prefix has no use without topics to write; name them, or leave it out.")
    if not 0 < lifetime_s < 2**40:
        raise InvalidConfig(f"lifetime_s must be above 0 seconds, not {lifetime_s!r}.")
