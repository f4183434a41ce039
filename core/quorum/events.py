"""What voters and proposers of the metadata quorum hear, and what they ask their shells to do.

A *voter* keeps a copy of the metadata log in a broker; a *proposer* is the part of a controller that writes to a
majority of them. ``voter`` numbers are broker ids. An *identity* is made at random when a voter's log is made, so that
a voter whose log was lost comes back as another one, which no configuration has. A *learner* is a broker that gets the
log and does not count yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raylog.core.quorum.history import LogHistory, Span

# ---------------------------------------------------------------- what a voter hears


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseRequested:
    """A candidate asks the voter to refuse everything below ``epoch`` from now on."""

    request: int
    epoch: int
    candidate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRequested:
    """The proposer of ``epoch`` sends the batches behind ``start``, or none, to be seen and to tell ``committed``.

    ``previous_epoch`` is the epoch of the record before ``start``.
    """

    request: int
    epoch: int
    candidate: str
    start: int
    previous_epoch: int
    spans: tuple[Span, ...] = ()
    committed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequested:
    """The candidate that was promised ``epoch`` wants the batches from ``offset`` on."""

    request: int
    epoch: int
    candidate: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOffered:
    """The proposer of ``epoch`` sends what all records below ``end`` add up to, the last being of ``end_epoch``.

    All of them are committed.
    """

    request: int
    epoch: int
    candidate: str
    end: int
    end_epoch: int


VoterEvent = PromiseRequested | AppendRequested | ReadRequested | SnapshotOffered

# ---------------------------------------------------------------- what a voter asks its shell


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePromise:
    """Write the promise durably before anything behind it is carried out.

    ``trusted``: the copy has taken something from a proposer. From then on a folder without its log is a lost copy.
    """

    epoch: int
    candidate: str
    trusted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """Cut the log: what lies from ``to`` on was never committed."""

    to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendSpans:
    """Append the batches of the request from the ``first`` on, byte for byte."""

    request: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSnapshot:
    """Write the snapshot of the request durably, in place of an older one, before anything behind it is carried out."""

    request: int
    end: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPrefix:
    """Records below ``to`` are in the snapshot: they may go, now or later."""

    to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLog:
    """Empty the log, durably, and go on at offset ``at``, behind the snapshot."""

    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseReply:
    """Answer to :class:`PromiseRequested`: granted or not, and what this voter holds."""

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
    """Answer to :class:`ReadRequested`: the shell adds the bytes; refused when another epoch was promised since.

    Where ``offset`` lies below ``start``, the bytes are those of the snapshot, which ends at ``start``.
    """

    request: int
    allowed: bool
    promised: int
    offset: int
    end: int
    start: int = 0


Reply = PromiseReply | AppendReply | ReadReply
VoterEffect = SavePromise | TruncateLog | AppendSpans | SaveSnapshot | DropPrefix | RestartLog | Reply

# ---------------------------------------------------------------- what a proposer hears


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed: requests that were not answered are repeated."""

    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseAnswered:
    """A voter answered a promise request.

    ``holds_data``: its broker keeps partitions of topics. ``founder``: the start that creates the cluster has chosen it
    to be one of the first voters, and nothing has been written to its copy.
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
    """A request got no answer: lost, too late, or the voter does not run. It may have been carried out."""

    now_ms: int
    voter: int
    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRead:
    """The shell holds the log of ``source`` (None: a new, empty log) as far as its promise said.

    ``members`` is the last configuration in it: the identities that count, by voter; empty where it has none.
    """

    now_ms: int
    source: int | None
    members: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryUnreadable:
    """``source`` did not give its log; another voter may."""

    now_ms: int
    source: int
    promised: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The controller wrote a batch behind the proposer's log; ``members`` when it has another configuration."""

    now_ms: int
    span: Span
    members: Mapping[int, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken:
    """The shell holds what all records below ``end`` add up to, and forgets them; all of them are committed."""

    now_ms: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersFound:
    """These brokers run. Any of them may hold the log: which ones vote is known only when it has been read."""

    now_ms: int
    brokers: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VotersWanted:
    """These brokers shall vote. Those that do not yet are brought up to date; then one change follows the other."""

    now_ms: int
    voters: frozenset[int]


ProposerEvent = (
    Tick
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

# ---------------------------------------------------------------- what a proposer asks its shell


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPromise:
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
    """Lead ``epoch``: the adopted log is the shell's; write a record of this epoch and say :class:`Appended`.

    ``members``: the configuration to write in the same batch, where the adopted log has none; empty = it has one.
    """

    epoch: int
    members: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Everything below ``end`` is on a majority of voters and will never change."""

    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnterVoters:
    """Write a record with this configuration: whose answers count from then on."""

    members: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """A proposer of a higher epoch exists: stop, nothing more can be committed."""

    epoch: int
    by: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hopeless:
    """Waiting will not help: the sentence says what an operator has to do."""

    reason: str


ProposerEffect = (
    AskPromise | ReadHistory | SendAppend | SendSnapshot | Won | Committed | EnterVoters | Fenced | Hopeless
)
