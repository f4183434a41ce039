"""Two more invariants as small objects outside the system: deleted records stay deleted, and resignations settle.

Built like those of ``checkers.py``: own books, fed only what an observer of disks, messages and metadata could see.
"""

from __future__ import annotations

from raylog.core.partition import PartitionState
from raylog.core.replication.disk import PATIENCE_MS
from tests.simulation.world import Violation


class DeletedStaysDeleted:
    """I16: records below an acknowledged low watermark are never served again; records above the requested one stay."""

    RULE = "I16"

    def __init__(self) -> None:
        """Begin with nothing deleted."""
        self.wanted = 0
        """No client and no retention has requested the deletion of records from this offset on."""
        self._answered: list[tuple[int, int]] = []

    def requested(self, before: int) -> None:
        """A client or retention requests the deletion of the records below ``before``."""
        self.wanted = max(self.wanted, before)

    def moving(self, broker: int, to: int, committed: int) -> None:
        """A broker is about to move its log start offset."""
        if to > committed:
            raise Violation(self.RULE, f"broker {broker} starts its log at {to}, and {committed} is committed")
        if to > self.wanted:
            raise Violation(self.RULE, f"broker {broker} starts its log at {to}, requested was at most {self.wanted}")

    def answered(self, epoch: int, requested: int, low_watermark: int, committed: int) -> None:
        """A leader of ``epoch`` reported to a client that the records below ``low_watermark`` are deleted."""
        if low_watermark < requested or low_watermark > committed:
            raise Violation(
                self.RULE, f"low watermark {low_watermark} is answered, requested {requested}, committed {committed}"
            )
        if not self._answered or low_watermark > self._answered[-1][1] or epoch < self._answered[-1][0]:
            self._answered.append((epoch, low_watermark))

    def low_watermark(self, epoch: int) -> int:
        """Return the highest low watermark acknowledged in that epoch or before."""
        return max((low for answered, low in self._answered if answered <= epoch), default=0)

    def holds(self, what: str, epoch: int, log_start: int) -> None:
        """A leader of ``epoch``, or a replica eligible to lead the next one, has a log that starts here."""
        low = self.low_watermark(epoch)
        if log_start < low:
            raise Violation(self.RULE, f"{what} of epoch {epoch} has records from {log_start} on, {low} was answered")


class ResigningSettles:
    """L4: a replica that resigned is neither leader nor in sync any more, and does not resign again at once."""

    RULE = "L4"
    DELAYS_MS = 1_000
    """Two requests may arrive this much closer together than they were sent."""

    def __init__(self) -> None:
        """Begin without resignations."""
        self._last_ms: dict[int, int] = {}
        self.count = 0

    def elected(self, state: PartitionState) -> None:
        """The durable state names a leader; a leader that is alone in the ISR may resign again at once."""
        if state.isr == (state.leader,):
            self._last_ms.pop(state.leader, None)

    def resigned(self, broker: int, epoch: int, before: PartitionState, after: PartitionState, now_ms: int) -> None:
        """The controller accepted a resignation from the leadership of ``epoch``, and changed the partition."""
        if (before.leader, before.leader_epoch) != (broker, epoch):
            raise Violation(self.RULE, f"broker {broker} resigned from epoch {epoch}, {before} was changed by it")
        if after.leader == broker or broker in after.isr:
            raise Violation(self.RULE, f"broker {broker} resigned and is still in charge: {after}")
        last = self._last_ms.get(broker)
        if last is not None and now_ms - last < PATIENCE_MS - self.DELAYS_MS:
            raise Violation(self.RULE, f"broker {broker} resigned twice within {now_ms - last} ms")
        self._last_ms[broker] = now_ms
        self.count += 1
