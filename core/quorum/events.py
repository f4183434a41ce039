"""Events and effects of the voters and proposers of the metadata quorum.

A *voter* keeps a copy of the metadata log in a broker; a *proposer* is the part of a controller that writes to a
majority of them. ``voter`` numbers are broker ids. An *identity* is made at random when a voter's log is made, so that
a voter whose log was lost returns with an identity that no configuration has. A *learner* is a broker that gets the log
and does not count yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from raylog.core.quorum.history import LogHistory, Span
from raylog.core.received import Received
from raylog.protocol.voter import VoterPromiseRequest, VoterReadRequest

# ---------------------------------------------------------------- events of a voter


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRequested:
    """The proposer of ``epoch`` sends the batches from offset ``start`` on; a heartbeat has none.

    ``previous_epoch`` is the epoch of the record before ``start``. ``committed`` is the proposer's commit offset, the
    exclusive end of what is committed.
    """

    request: int
    epoch: int
    candidate: str
    start: int
    previous_epoch: int
    spans: tuple[Span, ...] = ()
    committed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOffered:
    """The proposer of ``epoch`` sends a snapshot of all records below ``end``, the last being of ``end_epoch``.

    All of them are committed.
    """

    request: int
    epoch: int
    candidate: str
    end: int
    end_epoch: int


VoterEvent: TypeAlias = Received[VoterPromiseRequest | VoterReadRequest] | AppendRequested | SnapshotOffered

# ---------------------------------------------------------------- effects of a voter


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePromise:
    """Write the promise durably before any later effect.

    ``trusted``: the copy has accepted a proposer's request. From then on a folder without its log is a lost copy.
    """

    epoch: int
    candidate: str
    trusted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """Delete the records from offset ``to`` on; they were never committed."""

    to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendSpans:
    """Append the batches of the request, byte for byte, beginning with its batch number ``first`` (from 0)."""

    request: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSnapshot:
    """Write the snapshot of the request durably, replacing an older one, before any later effect."""

    request: int
    end: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPrefix:
    """Records below offset ``to`` are in the snapshot: they may be deleted, now or later."""

    to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLog:
    """Empty the log, durably, and continue at offset ``at``, where the snapshot ends."""

    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseReply:
    """Answer to a :class:`VoterPromiseRequest`: granted or not, and the voter's log."""

    request: int
    granted: bool
    promised: int
    epochs: tuple[tuple[int, int], ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendReply:
    """Answer to :class:`AppendRequested` and :class:`SnapshotOffered`.

    ``matched`` is the end up to which the log equals the proposer's and is on disk, None when the batches did not fit.
    """

    request: int
    promised: int
    matched: int | None
    epochs: tuple[tuple[int, int], ...]
    end: int
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReply:
    """Answer to a :class:`VoterReadRequest`, to which the shell adds the bytes.

    Not ``allowed`` when another epoch was promised since.
    If ``offset`` lies below ``start``, the bytes are those of the snapshot, which ends at ``start``.
    """

    request: int
    allowed: bool
    promised: int
    offset: int
    end: int
    start: int = 0


Reply = PromiseReply | AppendReply | ReadReply
VoterEffect = SavePromise | TruncateLog | AppendSpans | SaveSnapshot | DropPrefix | RestartLog | Reply

# ---------------------------------------------------------------- events of a proposer


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed: unanswered requests are repeated."""

    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseAnswered:
    """A voter answered a promise request.

    ``holds_data``: its broker keeps partitions of topics. ``founder``: the start that creates the cluster chose it as
    one of the first voters, and its copy has not been written yet.
    """

    now_ms: int
    voter: int
    request: int
    granted: bool
    promised: int
    identity: str
    history: LogHistory
    holds_data: bool = False
    founder: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAnswered:
    """A voter answered an append."""

    now_ms: int
    voter: int
    request: int
    promised: int
    identity: str
    matched: int | None
    history: LogHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterSilent:
    """A request got no answer: lost, late, or the voter is down. The voter may have carried it out."""

    now_ms: int
    voter: int
    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRead:
    """The shell holds the log of ``source`` (None: a new, empty log) up to the end in its promise.

    ``members`` is the last configuration in it: the identities that count, by voter; empty where it has none.
    """

    now_ms: int
    source: int | None
    members: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryUnreadable:
    """Reading the log of ``source`` failed; another voter may have it."""

    now_ms: int
    source: int
    promised: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The controller appended a batch to the proposer's log; ``members``: the configuration in it, if it has one."""

    now_ms: int
    span: Span
    members: Mapping[int, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken:
    """The shell holds a snapshot of all records below ``end``, all committed, and drops the records."""

    now_ms: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersFound:
    """These brokers run. Any of them may hold the log: the voters are known only when it has been read."""

    now_ms: int
    brokers: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VotersWanted:
    """Target voters. Brokers that do not vote yet are brought up to date; then one change follows the other."""

    now_ms: int
    voters: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipQuestioned:
    """Find out whether this proposer leads at this moment: a majority has to answer what is sent from now on.

    ``question`` numbers grow; an answer to one answers all before it.
    """

    now_ms: int
    question: int


ProposerEvent = (
    Tick
    | LeadershipQuestioned
    | PromiseAnswered
    | AppendAnswered
    | VoterSilent
    | HistoryRead
    | HistoryUnreadable
    | Appended
    | SnapshotTaken
    | BrokersFound
    | VotersWanted
)

# ---------------------------------------------------------------- effects of a proposer


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPromise:
    """Send a promise request."""

    voter: int
    request: int
    epoch: int
    candidate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadHistory:
    """Read the whole log of ``source`` below ``end`` (None: a new cluster, nothing to read).

    With a ``start`` above 0 it begins with a snapshot that ends there, the last record in it being of ``start_epoch``.
    """

    source: int | None
    epoch: int
    candidate: str
    end: int
    start: int = 0
    start_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAppend:
    """Send batches from ``start`` on, as many as one message takes; none when ``start`` is the end."""

    voter: int
    request: int
    epoch: int
    candidate: str
    start: int
    previous_epoch: int
    committed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSnapshot:
    """Send the snapshot that the shell holds, which ends at ``end``: the voter lags behind it, or may drop its log."""

    voter: int
    request: int
    epoch: int
    candidate: str
    end: int
    end_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Won:
    """Lead ``epoch`` with the adopted log: write a record of this epoch and feed :class:`Appended`.

    ``members``: the configuration to write in the same batch, where the adopted log has none; empty = it has one.
    """

    epoch: int
    members: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Everything below ``end`` is on a majority of voters and will never change."""

    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """When this ``question`` (:class:`LeadershipQuestioned`) came, no majority had promised a higher epoch.

    So this proposer knows every record that was committed by then.
    """

    question: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnterVoters:
    """Write a record with this configuration: only answers of its members count from then on."""

    members: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """A proposer of a higher epoch exists: stop, no further record can be committed."""

    epoch: int
    by: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hopeless:
    """Waiting will not help: the message names the operator's next step."""

    reason: str


ProposerEffect = (
    RequestPromise
    | ReadHistory
    | SendAppend
    | SendSnapshot
    | Won
    | Committed
    | Confirmed
    | EnterVoters
    | Fenced
    | Hopeless
)
