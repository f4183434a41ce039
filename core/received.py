"""A request that has arrived, as the event of a machine: the message of its page, and what its arrival adds. Pure.

What a machine takes is what `protocol/` states. A shell adds the number under which it will answer, the time, and what
the connection shows of the sender (ADR 0143).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from raylog.core.decision import RequestId

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from raylog.core.values import dataclass

MessageT_co = TypeVar("MessageT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """What the connection of a request shows of its sender."""

    host: str = ""
    """Where it is; empty = not known."""
    session: int = 0
    """Number of its session with the controller; 0 = it has none."""
    transactional_id_prefix: str = ""
    """The prefix of the transactional ids that its token grants; empty = it has proved a secret, or has none."""
    sees_offset: Callable[[str, str, str, int], bool] | None = None
    """Whether it may see a group's offset of a partition (group, topic id, topic, number); None = of all."""


UNKNOWN: Final = Sender()
"""A sender of which nothing is known, and which may see and do everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(Generic[MessageT_co]):
    """A request with its message; one reply or refusal with its number follows, at once or in a later step.

    None follows where its sender wants none (``acks`` 0), or where its connection was closed meanwhile.
    """

    message: MessageT_co
    cause: str
    """The name of its method, for the story of a broken invariant."""
    request: RequestId
    now_ms: int
    sender: Sender = UNKNOWN
