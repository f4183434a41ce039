"""What a reader was promised, and whether what it got is that: exactly these rows, or an error that fits. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.readers.trials import HEALED, REPEATED, Trial

Place = tuple[int, int]
"""Partition and offset."""

TOKEN_OF_ANOTHER: Final = "ClusterAuthorizationFailed"
"""A topic that was created again is another one, which the token of the first does not read."""
CAUSES: Final[Mapping[str, frozenset[str]]] = {
    "delete": frozenset({"OffsetOutOfRange"}),
    "retention": frozenset({"OffsetOutOfRange"}),
    "ruin": frozenset({"CorruptMessage"}),
    "expire": frozenset({"ClusterAuthorizationFailed", "AuthenticationFailed"}),
    "recreate": frozenset(
        {"UnknownTopicId", "UnknownTopicOrPartition", "OffsetOutOfRange", "NoOffsetForPartition", TOKEN_OF_ANOTHER}
    ),
}
"""The errors that name each cause."""
LOST_WORKER: Final = frozenset({"WorkerCrashedError", "NotRepeatable"})
"""Ray shows no other error of a repeated task; the worker has logged the cause."""
KNOWN: Final = frozenset().union(*CAUSES.values()) | LOST_WORKER


@dataclass
class Promise:
    """The rows of a topic as a reader that begins now has to see them, and what faults take away from that."""

    trial: Trial
    rows: Mapping[Place, bytes]
    latest: frozenset[Place] = frozenset()
    """Those that stay when the log is compacted."""
    log_starts: dict[int, int] = field(default_factory=dict)
    """By partition; grows with deletions."""
    is_deleted: bool = False
    """The topic was deleted."""
    is_compacted: bool = False
    """The cleaner may have passed."""
    ruined: set[int] = field(default_factory=set)
    """Partitions of which no replica is whole."""
    happened: set[str] = field(default_factory=set)
    """Kinds of faults."""

    def required(self) -> set[Place]:
        """Rows without which a read may not end without an error."""
        wanted = set(self.latest) if self.is_compacted else set(self.rows)
        if self.trial.fails_on_loss:
            return wanted
        if self.is_deleted:
            return set()
        return {(partition, offset) for partition, offset in wanted if offset >= self.log_starts.get(partition, 0)}

    def allowed(self) -> frozenset[str]:
        """The errors that fit what has happened."""
        found: set[str] = set()
        for kind in self.happened:
            found |= CAUSES.get(kind, frozenset())
        if "worker" in self.happened and self.trial.reader in REPEATED:
            if self.trial.reader == "follow":
                found |= LOST_WORKER  # where a lost worker ends the read, by design
            elif self.trial.reader == "ray" and (self.happened - HEALED - {"worker"} or self.trial.kind == "compacted"):
                found |= LOST_WORKER
        if "damage" in self.happened and self.trial.replicas == 1:
            found |= CAUSES["ruin"]
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended."""

    word: str
    """`exact`, `part` (what is lost was skipped, as wanted), or the class of the error."""
    problem: str = ""
    """Why that is wrong; empty where it is right."""


def judge(promise: Promise, found: Sequence[tuple[int, int, bytes]], error: BaseException | None) -> Outcome:
    """Compare what arrived with what was promised."""
    if promise.is_deleted and promise.trial.reader in ("columns", "follow") and not promise.trial.fails_on_loss:
        found = [row for row in found if b"-new" not in row[2]]  # a consumer goes on with the new topic
    word = outcome_word(promise, found, error)
    times = Counter((partition, offset) for partition, offset, _ in found)
    if doubled := sorted(place for place, count in times.items() if count > 1):
        return Outcome(word, f"{len(doubled)} rows came twice, as {doubled[:3]}")
    if wrong := sorted((p, o) for p, o, value in found if promise.rows.get((p, o)) != value):
        return Outcome(word, f"{len(wrong)} rows are not those of the topic, as {wrong[:3]}")
    if out_of_order := _out_of_order(promise.trial, found):
        return Outcome(word, f"rows of a partition came out of order, as {out_of_order}")
    if error is not None:
        names = set(names_of(error))
        fits = promise.allowed()
        if names & fits:
            return Outcome(word)
        return Outcome(word, f"no fault explains this error (fitting: {sorted(fits)}): {error!r:.500}")
    if missing := sorted(promise.required() - times.keys()):
        return Outcome(word, f"{len(missing)} rows are missing without an error, as {missing[:3]}")
    return Outcome(word)


def outcome_word(promise: Promise, found: Sequence[tuple[int, int, bytes]], error: BaseException | None) -> str:
    """One word for a table."""
    if error is not None:
        return next((name for name in names_of(error) if name in KNOWN), type(error).__name__)
    return "exact" if len(found) == len(promise.rows) else "part"


def names_of(error: BaseException) -> list[str]:
    """The classes of an error and of its causes; of one from Spark those that its text names."""
    texts = [str(each) for each in chain_of(error) if type(each).__module__.startswith("pyspark")]
    named = [name for name in sorted(KNOWN) if any(name in text for text in texts)]
    return [*(type(each).__name__ for each in chain_of(error)), *named]


def chain_of(error: BaseException) -> Iterable[BaseException]:
    """An error and its causes; those that Ray wraps as well."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        found = waiting.pop(0)
        if isinstance(found, BaseException) and all(found is not other for other in seen):
            seen.append(found)
            waiting += [getattr(found, "cause", None), found.__cause__, found.__context__]
    return seen


def _out_of_order(trial: Trial, found: Sequence[tuple[int, int, bytes]]) -> Place | None:
    """A row that lies before the one that came before it, where order is promised: with one task, or of a consumer."""
    if trial.tasks > 1 and trial.reader not in ("columns", "follow"):
        return None
    last: dict[int, int] = {}
    for partition, offset, _ in found:
        if offset <= last.get(partition, -1):
            return partition, offset
        last[partition] = offset
    return None
