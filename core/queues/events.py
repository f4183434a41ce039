"""Events and effects of a queue's machine. Times are in milliseconds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from raylog.core.decision import Refuse, Reply, RequestId
from raylog.core.queues.records import LetterBox, QueueChange
from raylog.core.queues.states import Cause

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
RETRY: Final = 5
RETURN: Final = 6
"""What a member reports about records: GAP = no record has this offset; RETURN = not begun, so that the hand-out does
not count. 0 to 4 are Kafka's numbers (KIP-932, KIP-1222)."""

VERDICTS: Final[Mapping[int, str]] = {
    GAP: "gap",
    ACCEPT: "accept",
    RELEASE: "release",
    REJECT: "reject",
    RENEW: "renew",
    RETRY: "retry",
    RETURN: "return",
}


class Verdict(NamedTuple):
    """What a member reports about [first, end), which it was handed for the ``tries``-th time; 0 = whichever.

    ``lease``: of that hand-out, as the answer had it; 0 = whichever. A count comes again where a hand-out was returned.
    ``delay_ms``: of RETRY, the pause, -1 = by the group's back-off; of RETURN, the pause, -1 = none; of RENEW, the new
    lock, -1 = the group's.
    """

    first: int
    end: int
    kind: int
    tries: int = 0
    delay_ms: int = -1
    message: str = ""
    lease: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    cause: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(_Timed):
    """A member begins, or goes on, with settings of its own.

    ``log_start``, ``readable_end``: where a queue that is new may begin.
    """

    request: RequestId
    member: str
    settings: Mapping[str, str] = field(default_factory=dict)
    log_start: int = 0
    readable_end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfigured(_Timed):
    """The topic's own settings have changed; ``topic`` has them as they are now."""

    topic: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Take(_Timed):
    """Hand a member records of [first, end), which the leader has read.

    ``gaps``: ranges of these, rising, without records for any member: they are finished where they would be handed out.
    """

    request: RequestId
    member: str
    first: int
    end: int
    max_records: int
    gaps: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged(_Timed):
    """A member's verdicts."""

    request: RequestId
    member: str
    verdicts: Sequence[Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeft(_Timed):
    """A member has left, or its connection is closed."""

    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned(_Timed):
    """The keys of the records in [first, end), by offset; offsets without records are left out.

    ``tries``: of copies, by offset, how often the record was handed out before.
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
class Reset(_Timed):
    """Go on at another offset; refused while the group has members."""

    request: RequestId
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
    """The topic that was wanted."""
    is_missing: bool = False
    """Whether the topic does not exist, as opposed to: it was not reached."""
    is_later: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersStored(_Timed):
    """The dead letters from this sequence on are committed in their topic; with ``is_later``, the copies.

    ``without_body``: how many of them are without key, value and headers of their record.
    """

    sequence: int
    without_body: int = 0
    is_later: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersRefused(_Timed):
    """None of them is, and no try is under way.

    With ``is_replaced`` the topic is another one now, or has forgotten the producer: another box is found. Otherwise
    the sequences are used again, for at most ``fits`` letters; 0 = as before. By offset: ``finished`` are letters that
    went elsewhere, because they may not go in circles; ``undeliverable`` those that are in ``__undeliverable``,
    because the topic takes the others and not them; ``too_large`` those that are above its limit alone; ``lost``, of
    copies, those that cannot be made or kept, and why.
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


Event: TypeAlias = (
    Opened
    | Take
    | Acknowledged
    | MemberLeft
    | Scanned
    | LogStarts
    | Reset
    | ChangeStored
    | LetterBoxFound
    | LettersStored
    | LettersRefused
    | Reconfigured
    | Tick
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """Give a member these records, as (first, end, hand-out count, lease), under a lock of ``lock_ms``."""

    cause: str
    request: RequestId
    ranges: Sequence[tuple[int, int, int, int]]
    lock_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChange:
    """Store a change; effects of later steps that wait for the log wait for this."""

    cause: str
    change: QueueChange


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteStored:
    """Everything up to this number is stored: feed :class:`ChangeStored`."""

    cause: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindLetterBox:
    """Find or make the topic of dead letters, and take a producer id; :class:`LetterBoxFound` follows.

    With ``is_later`` it is ``__scheduled``, for copies of records that are to be retried late.
    """

    cause: str
    topic: str
    is_later: bool = False


class Letter(NamedTuple):
    """One dead letter, or a copy that is due at ``until_ms``.

    ``keeps_body`` False: it is too large for the topic, and the policy is to drop its body then.
    """

    offset: int
    tries: int
    cause: Cause
    keeps_body: bool = True
    until_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLetters:
    """Append dead letters as one batch, with this box's producer id from this sequence on; repeat it until it is known.

    :class:`LettersStored` or :class:`LettersRefused` follows. ``is_again``: an earlier leader may have sent the batch,
    so it is sent as it is, however large: its topic may have it.
    """

    cause: str
    box: LetterBox
    sequence: int
    letters: Sequence[Letter]
    is_later: bool = False
    is_again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Records may be handed out that could not before."""

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFetches:
    """Let the fetches of these members that wait end with nothing: their locks ran out, so that they may be lost.

    One that lives fetches again. What a member that stands still has waiting must take nothing before the others.
    """

    cause: str
    members: Sequence[str]


Effect: TypeAlias = Hand | StoreChange | NoteStored | FindLetterBox | SendLetters | EndFetches | Wake | Reply | Refuse
