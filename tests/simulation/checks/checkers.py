"""The invariants of a replicated partition as small objects outside the system (reliability, section 8).

Each checker keeps its own books of the events reported to it, and raises :class:`Violation` with its invariant's
number. Checkers never look into a machine: events carry only what an observer of disks, messages and metadata sees.
``checks.py`` feeds them from the simulation; test_checkers.py feeds them hand-made histories.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from raylog.base.ids import NO_LEADER
from raylog.core.partition import PartitionState
from tests.simulation.partition.disk import NO_PRODUCER_ID, Entry
from tests.simulation.world import Violation

EntryAt = Callable[[int], Entry | None]


class AckedIsKept:
    """I1: a batch acknowledged to an acks=all producer is at its offset in every leader of a higher epoch."""

    RULE = "I1"

    def __init__(self) -> None:
        """Begin with nothing acknowledged."""
        self._acked: list[tuple[int, int, int]] = []
        self._offsets: dict[int, int] = {}

    @property
    def end(self) -> int:
        """End offset of the acknowledged batches."""
        return 1 + max(self._offsets.values(), default=-1)

    def acknowledged(
        self, epoch: int, offset: int, value: int, *, idempotent: bool = True, forgotten_below: int = 0
    ) -> None:
        """A leader of ``epoch`` acknowledged a batch at ``offset``; retries count as one batch if idempotent.

        Batches below ``forgotten_below`` may be stored again.
        """
        known = self._offsets.setdefault(value, offset)
        if known != offset and idempotent and known >= forgotten_below:
            raise Violation("I11", f"value {value} was acknowledged at offset {known} and again at {offset}")
        self._acked.append((epoch, offset, value))

    def led(self, epoch: int, log_start: int, entry_at: EntryAt) -> None:
        """A leader of ``epoch`` has this log."""
        for acked_epoch, offset, value in self._acked:
            if acked_epoch < epoch and offset >= log_start:
                found = entry_at(offset)
                if found is None or found.value != value:
                    raise Violation(
                        self.RULE,
                        f"value {value}, acknowledged at offset {offset} in epoch {acked_epoch}, "
                        f"is not there at the leader of epoch {epoch} (found {found})",
                    )

    def finally_read(self, log_start: int, entries: Sequence[Entry]) -> None:
        """The final read of the whole partition, from ``log_start`` on."""
        for _, offset, value in self._acked:
            if offset >= log_start and (
                offset - log_start >= len(entries) or entries[offset - log_start].value != value
            ):
                raise Violation(self.RULE, f"value {value}, acknowledged at offset {offset}, is not in the final read")


class CommittedOnce:
    """I2, I6, I7, I11: committed entries never change and their required holders have them; sequences have no gap."""

    RULE = "I2"

    def __init__(self) -> None:
        """Begin with nothing committed."""
        self.entries: list[Entry] = []
        self._end_by_epoch: dict[int, int] = {}
        self._next_sequence: dict[int, int] = {}
        self.producers_forgotten = False
        """A log restarted above what retention dropped: from then on, older batches may be stored twice."""
        self.forgotten_below = 0
        """Start of the last restarted log: it has no producer state from before."""

    @property
    def end(self) -> int:
        """End of the committed entries, exclusive."""
        return len(self.entries)

    def chain_before(self, offset: int) -> int:
        """Return the chain hash of the committed entry before ``offset``; 0 when nothing is committed there."""
        return self.entries[offset - 1].chain if 0 < offset <= self.end else 0

    def log_restarted(self, at: int) -> None:
        """A log was discarded and restarts at ``at``: producers of entries below are unknown, as in Kafka."""
        self.producers_forgotten = True
        self.forgotten_below = max(self.forgotten_below, at)

    def advanced(self, replica: str, leader_epoch: int, old: int, new: int, entry_at: EntryAt) -> None:
        """A replica's high watermark moved from ``old`` to ``new`` over its own log."""
        for offset in range(old, new):
            entry = entry_at(offset)
            if offset < len(self.entries):
                # Entries that retention dropped here were compared when another replica's watermark passed them.
                if entry is not None and entry.chain != self.entries[offset].chain:
                    raise Violation(
                        self.RULE, f"{replica} commits {entry} at {offset}, before it was {self.entries[offset]}"
                    )
            elif entry is None or offset > len(self.entries):
                raise Violation(self.RULE, f"{replica} commits offset {offset} that its log lacks")
            else:
                self._commit(entry, offset)
        if new > self._end_by_epoch.get(leader_epoch, 0):
            self._end_by_epoch[leader_epoch] = new

    def led(self, epoch: int, entry_at: EntryAt, log_start: int) -> None:
        """I6: the new leader of ``epoch`` has every entry committed in earlier epochs."""
        end = max((end for earlier, end in self._end_by_epoch.items() if earlier < epoch), default=0)
        if end > log_start:
            self._holds("I6", f"the leader of epoch {epoch}", end, entry_at)

    def member(self, broker: int, end: int, log_start: int, entry_at: EntryAt) -> None:
        """I7: a running member of the controller's ISR holds everything committed, here up to ``end``."""
        if end > log_start:
            self._holds("I7", f"ISR member {broker}", end, entry_at)

    def kept(self, replica: str, watermark: int, log_start: int, entry_at: EntryAt) -> None:
        """A replica counts its entries below a persisted watermark as committed."""
        if watermark > len(self.entries):
            raise Violation(self.RULE, f"{replica} kept the watermark {watermark}, {len(self.entries)} is committed")
        self._holds(self.RULE, replica, watermark, entry_at)

    def seen(self, reader: str, offset: int, entries: Iterable[Entry]) -> None:
        """A consumer received these entries as committed."""
        for at, entry in enumerate(entries, offset):
            if at >= len(self.entries) or self.entries[at].chain != entry.chain:
                raise Violation(self.RULE, f"{reader} saw {entry} at offset {at}, which is not what is committed there")

    def _holds(self, rule: str, replica: str, end: int, entry_at: EntryAt) -> None:
        found = entry_at(end - 1)
        if found is None or found.chain != self.entries[end - 1].chain:
            raise Violation(rule, f"{replica} lacks what is committed at offset {end - 1} (found {found})")

    def _commit(self, entry: Entry, offset: int) -> None:
        if entry.producer != NO_PRODUCER_ID:
            expected = self._next_sequence.get(entry.producer, 0)
            repeated = self.producers_forgotten and entry.sequence < expected
            if entry.sequence != expected and not repeated:
                raise Violation(
                    "I11",
                    f"producer {entry.producer}: sequence {entry.sequence} is committed at offset {offset}, "
                    f"{expected} was due",
                )
            self._next_sequence[entry.producer] = max(expected, entry.sequence + 1)
        self.entries.append(entry)


class WatermarkMonotone:
    """I3: a watermark never falls within one incarnation and leader epoch; the one shown to clients never falls."""

    RULE = "I3"

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._last: dict[tuple[int, int, int], int] = {}
        self._shown: dict[int, tuple[int, int]] = {}

    def holds(self, broker: int, incarnation: int, leader_epoch: int, watermark: int) -> None:
        """A replica has this watermark now."""
        key = (broker, incarnation, leader_epoch)
        if watermark < self._last.get(key, 0):
            raise Violation(self.RULE, f"the watermark of broker {broker} in epoch {leader_epoch} fell to {watermark}")
        self._last[key] = watermark

    def shown(self, leader_epoch: int, watermark: int) -> None:
        """A leader shows this watermark to clients."""
        low, high = self._shown.get(leader_epoch, (watermark, watermark))
        self._shown[leader_epoch] = (min(low, watermark), max(high, watermark))
        for epoch, (lowest, highest) in self._shown.items():
            if epoch < leader_epoch and watermark < highest:
                raise Violation(self.RULE, f"epoch {leader_epoch} shows {watermark}, epoch {epoch} showed {highest}")
            if epoch > leader_epoch and watermark > lowest:
                raise Violation(self.RULE, f"epoch {leader_epoch} shows {watermark}, epoch {epoch} showed {lowest}")


class WatermarkEarned:
    """I4: a watermark is durable on every member of the maximal ISR, as fetched in this epoch, with enough members.

    With fewer members it may reach the start of the epoch, as long as only the maximal ISR is electable (I7).
    """

    RULE = "I4"

    def __init__(self, min_insync_replicas: int) -> None:
        """Set the minimum number of members."""
        self._min = min_insync_replicas
        self._reported: dict[tuple[int, int], int] = {}
        self._starts: dict[int, int] = {}

    def leads(self, epoch: int, end: int) -> None:
        """A leader of ``epoch`` has a log with this end; a new epoch starts there."""
        self._starts.setdefault(epoch, end)

    def reported(self, epoch: int, broker: int, durable_end: int) -> None:
        """A follower reported to the leader of ``epoch``, correctly, that it has everything below ``durable_end``."""
        key = (epoch, broker)
        self._reported[key] = max(self._reported.get(key, 0), durable_end)

    def answered(self, addressed: int, epoch: int) -> None:
        """A leader of ``epoch`` accepted a fetch addressed to the leader of epoch ``addressed`` (KIP-320)."""
        if addressed != epoch:
            raise Violation(self.RULE, f"a fetch from the leader of epoch {addressed} was answered by that of {epoch}")

    def advanced(
        self, epoch: int, leader: int, isr_size: int, members: Iterable[int], watermark: int, durable: Mapping[int, int]
    ) -> None:
        """The leader of ``epoch`` moved its watermark; ``members`` is the union of committed and proposed ISR."""
        if isr_size < self._min and watermark > self._starts.get(epoch, 0):
            raise Violation(self.RULE, f"watermark {watermark} in epoch {epoch} with an ISR of {isr_size}")
        for broker in members:
            if durable[broker] < watermark:
                raise Violation(
                    self.RULE,
                    f"watermark {watermark} in epoch {epoch}: member {broker} has {durable[broker]} on disk",
                )
            if broker != leader and self._reported.get((epoch, broker), -1) < watermark:
                raise Violation(
                    self.RULE, f"watermark {watermark} in epoch {epoch}: member {broker} never reported that it has it"
                )


class OneLeader:
    """I5: a leader epoch has one leader, in one life of its process."""

    RULE = "I5"

    def __init__(self) -> None:
        """Begin with no epoch led."""
        self._leaders: dict[int, tuple[int, int]] = {}

    def leads(self, epoch: int, broker: int, incarnation: int) -> None:
        """This life of this broker leads ``epoch``."""
        known = self._leaders.setdefault(epoch, (broker, incarnation))
        if known != (broker, incarnation):
            raise Violation(self.RULE, f"epoch {epoch} is led by {(broker, incarnation)} and by {known}")


class LogMatching:
    """I8: the same offset and epoch in two logs mean equal logs up to there."""

    RULE = "I8"

    def __init__(self) -> None:
        """Begin with nothing stored."""
        self._chains: dict[tuple[int, int], int] = {}

    def stored(self, broker: int, offset: int, entry: Entry, chain: int) -> None:
        """A broker stored ``entry`` at ``offset``; ``chain`` was computed over its own log."""
        known = self._chains.setdefault((offset, entry.epoch), chain)
        if known != chain or entry.chain != chain:
            raise Violation(
                self.RULE, f"broker {broker} has another log up to offset {offset} of epoch {entry.epoch} than others"
            )


class NoCutBelow:
    """I9: a replica never truncates what it shares with its leader; an ISR member never truncates committed entries."""

    RULE = "I9"

    def truncating(
        self, broker: int, to: int, end: int, own: Entry | None, leaders: Entry | None, *, in_isr: bool, committed: int
    ) -> None:
        """``own`` and ``leaders`` are the entries at ``to``; ``committed`` is the number of committed entries."""
        if own is not None and leaders is not None and own.chain == leaders.chain:
            raise Violation(self.RULE, f"broker {broker} cuts [{to}, {end}), and its leader has the same entry at {to}")
        if in_isr and own is not None and to < committed:
            raise Violation(
                self.RULE, f"broker {broker}, in the ISR, cuts at {to}, below the committed end {committed}"
            )


class MetadataLine:
    """I10: partition epochs rise one by one, leader epochs never fall, and no replica ever goes back."""

    RULE = "I10"

    def __init__(self, minimum: int = 0) -> None:
        """Begin with no replica versions; ``minimum`` is the topic's ``min.insync.replicas``, 0 = unknown."""
        self._minimum = minimum
        self._applied: dict[int, tuple[int, int]] = {}

    def changed(self, before: PartitionState, after: PartitionState, lost: Collection[int] = ()) -> None:
        """The durable state changed; ``lost`` are replicas without their logs."""
        places_only = after.partition_epoch == before.partition_epoch
        same = _decided(after) == _decided(before)
        if places_only and not same:
            raise Violation(self.RULE, f"the state changed within partition epoch {after.partition_epoch}")
        if not places_only and after.partition_epoch != before.partition_epoch + 1:
            raise Violation(
                self.RULE, f"partition epoch {before.partition_epoch} is followed by {after.partition_epoch}"
            )
        if after.leader_epoch < before.leader_epoch:
            raise Violation(self.RULE, f"leader epoch {before.leader_epoch} is followed by {after.leader_epoch}")
        if not after.isr or not set(after.isr) <= set(after.replicas):
            raise Violation(self.RULE, f"the ISR {after.isr} is not a part of the replicas {after.replicas}")
        moved = before.adding != after.adding or before.removing != after.removing
        if moved and not (after.adding or after.removing) and after.replicas == before.target:
            missing = sorted(set(before.target) - set(before.isr))
            if missing:
                raise Violation(self.RULE, f"a move is complete, and {missing} of its target were not in the ISR")
        if after.elr and 0 < self._minimum <= len(after.isr):
            raise Violation("I7", f"{after.elr} stay eligible while the ISR {after.isr} commits without them")
        left = set(before.isr) & set(after.replicas) - {*after.isr, *after.elr, *lost}
        if left and len(after.isr) < self._minimum and after.unclean_leader_epoch == before.unclean_leader_epoch:
            raise Violation(self.RULE, f"{sorted(left)} leave the ISR {after.isr}, and are not eligible")
        if not set(after.elr) <= set(after.replicas) - set(after.isr):
            raise Violation(self.RULE, f"the eligible replicas {after.elr} are not outside the ISR {after.isr}")
        if after.leader != NO_LEADER and after.leader not in after.isr:
            raise Violation(self.RULE, f"leader {after.leader} is not in its ISR {after.isr}")

    def accepted(self, before: PartitionState, proposed_at: int) -> None:
        """The controller applied a proposal made at partition epoch ``proposed_at``."""
        if proposed_at != before.partition_epoch:
            raise Violation(
                self.RULE, f"a proposal of partition epoch {proposed_at} was accepted at {before.partition_epoch}"
            )

    def applied(self, broker: int, leader_epoch: int, partition_epoch: int) -> None:
        """A broker's replica acts on this version; versions never fall, even across restarts."""
        known = self._applied.get(broker, (0, 0))
        if (leader_epoch, partition_epoch) < known:
            raise Violation(self.RULE, f"broker {broker} acts on {(leader_epoch, partition_epoch)} after {known}")
        self._applied[broker] = (leader_epoch, partition_epoch)


def _decided(state: PartitionState) -> tuple[object, ...]:
    """The state that a partition epoch identifies; places may change within one epoch."""
    return (
        state.leader,
        state.leader_epoch,
        state.isr,
        state.elr,
        state.unclean_leader_epoch,
        state.replicas,
        state.adding,
        state.removing,
    )
