"""Events and effects of a queue's machine. Times are in milliseconds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from raylog.core.decision import Refuse, Reply, RequestId
from raylog.core.queues.records import LetterBox, QueueChange
from raylog.core.queues.states import Cause
from raylog.core.received import Received
from raylog.protocol.queues import (
    QueueAcknowledgeRequest,
    QueueFetchRequest,
    QueueOpenRequest,
    QueueRange,
    QueueResetRequest,
)

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from raylog.core.values import dataclass as value

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
RETRY: Final = 5
RETURN: Final = 6
"""What a member reports about records: GAP = no record has this offset; RETURN = not begun, so the hand-out does not
count. 0 to 4 are Kafka's acknowledge types (KIP-932, KIP-1222)."""

VERDICTS: Final[Mapping[int, str]] = {
    GAP: "gap",
    ACCEPT: "accept",
    RELEASE: "release",
    REJECT: "reject",
    RENEW: "renew",
    RETRY: "retry",
    RETURN: "return",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    cause: str
    now_ms: int


@value(frozen=True, slots=True, kw_only=True)
class Opened(Received[QueueOpenRequest]):
    """A member begins, or comes back. ``log_start``, ``readable_end``: where a new queue may begin."""

    log_start: int = 0
    readable_end: int = 0


@value(frozen=True, slots=True, kw_only=True)
class Take(Received[QueueFetchRequest]):
    """A fetch gets its turn: hand the member records of [first, end), which the leader has read.

    ``gaps``: ascending ranges in it that have no records for members: they are finished instead of being handed out.
    """

    first: int
    end: int
    gaps: Sequence[tuple[int, int]]


@value(frozen=True, slots=True, kw_only=True)
class Reset(Received[QueueResetRequest]):
    """A request to continue at another offset. ``log_start``, ``readable_end``: between which it may be."""

    log_start: int
    readable_end: int


Request: TypeAlias = Opened | Take | Reset | Received[QueueAcknowledgeRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfigured(_Timed):
    """The topic's own settings have changed; ``topic`` has them as they are now."""

    topic: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeft(_Timed):
    """A member has left, or its connection is closed."""

    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned(_Timed):
    """The records in [first, end), as (offset, hash of the key); offsets without a record are left out.

    ``tries``: (offset, count) of each copy, how often its record was handed out before it was copied.
    """

    first: int
    end: int
    keys: Sequence[tuple[int, int | None]]
    tries: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStarts(_Timed):
    """The log begins at this offset now: earlier records are deleted."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStored(_Timed):
    """The changes up to this number are committed."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterBoxFound(_Timed):
    """Where dead letters go, or copies with ``is_later``; None = nowhere at the moment, see ``is_missing``."""

    box: LetterBox | None
    topic: str = ""
    """The topic that was requested."""
    is_missing: bool = False
    """Whether the topic does not exist; False = it could not be reached."""
    is_later: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersStored(_Timed):
    """The batch of dead letters that begins with this sequence is committed in its topic; with ``is_later``, of copies.

    ``without_body``: how many of them lack the key, value and headers of their record.
    """

    sequence: int
    without_body: int = 0
    is_later: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersRefused(_Timed):
    """No letter of the batch that begins with this sequence is in the topic, and no attempt is under way.

    With ``is_replaced`` the topic was created again, or has forgotten the producer: another box has to be found.
    Otherwise the sequences are used again, for at most ``fits`` letters; 0 = as many as before.

    By offset: ``finished`` = letters that went elsewhere, because they must not go in circles; ``undeliverable`` =
    letters that are in ``__undeliverable``, because the topic takes others but not them; ``too_large`` = letters that
    exceed the topic's limit even alone; ``lost`` = copies that cannot be made or kept, and why.
    """

    sequence: int
    fits: int = 0
    finished: Sequence[int] = ()
    undeliverable: Sequence[int] = ()
    too_large: Sequence[int] = ()
    lost: Sequence[tuple[int, str]] = ()
    is_replaced: bool = False
    is_later: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(_Timed):
    """Time passes."""


Occurrence: TypeAlias = (
    MemberLeft
    | Scanned
    | LogStarts
    | ChangeStored
    | LetterBoxFound
    | LettersStored
    | LettersRefused
    | Reconfigured
    | Tick
)
Event: TypeAlias = Request | Occurrence


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """Give a member these records, under a lock of ``lock_ms``."""

    cause: str
    request: RequestId
    ranges: Sequence[QueueRange]
    lock_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChange:
    """Store a change; ``after_sync`` effects, of this step and later ones, wait for it."""

    cause: str
    change: QueueChange


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteStored:
    """Feed :class:`ChangeStored` with this number: every change up to it is stored."""

    cause: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindLetterBox:
    """Find or create the topic of dead letters, and get a producer id; :class:`LetterBoxFound` follows.

    With ``is_later`` the topic is ``__scheduled``, for copies of records that are to be retried late.
    """

    cause: str
    topic: str
    is_later: bool = False


class Letter(NamedTuple):
    """One dead letter, or a copy that is due at ``until_ms``.

    ``keeps_body`` False: it was too large for the topic, and the policy allows to drop its body.
    """

    offset: int
    tries: int
    cause: Cause
    keeps_body: bool = True
    until_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLetters:
    """Append dead letters as one batch, with the box's producer id and these sequences, until the outcome is known.

    :class:`LettersStored` or :class:`LettersRefused` follows. ``is_again``: an earlier leader may have sent the batch
    and the topic may have it, so it is sent unchanged, however large.
    """

    cause: str
    box: LetterBox
    sequence: int
    letters: Sequence[Letter]
    is_later: bool = False
    is_again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Wake waiting fetches: records may be handed out now that could not before."""

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFetches:
    """End the waiting fetches of these members without records: their locks ran out, so they may be dead.

    A live member fetches again. Otherwise a fetch of a member that hangs could take records before other members'.
    """

    cause: str
    members: Sequence[str]


Effect: TypeAlias = Hand | StoreChange | NoteStored | FindLetterBox | SendLetters | EndFetches | Wake | Reply | Refuse
