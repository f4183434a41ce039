"""One step's decision of the transaction coordinator. Made and filled by ``coordinator.py``."""

from __future__ import annotations

from collections.abc import Callable

from raylog.core.coordinators.decision import CoordinatorDecision
from raylog.core.coordinators.events import AppendRecords
from raylog.core.decision import Story
from raylog.core.transactions.events import Effect, EndTxn, RequestProducerIds
from raylog.core.transactions.records import Record, TxnChanged


class TxnDecision(CoordinatorDecision[Record]):
    """Records of transactional ids, and answers and markers that wait for them."""

    __slots__ = ("wall_ms",)

    def __init__(
        self,
        cause: str,
        now_ms: int,
        *,
        apply: Callable[[Record], None],
        wall_ms: int = -1,
        story: Story | None = None,
    ) -> None:
        """``wall_ms`` is the time of day for stamps in records, which outlive this process; -1 = unknown."""
        super().__init__(cause, now_ms, apply=apply, story=story)
        self.wall_ms = wall_ms

    def end_transaction(self, decided: TxnChanged) -> None:
        """Send the outcome to the participants once it is committed."""
        self.after_sync.append(
            EndTxn(
                cause=self.cause,
                transactional_id=decided.transactional_id,
                writer=decided.writer,
                marker_epoch=decided.marker_epoch,
                committed=decided.state.outcome is True,
                partitions=decided.partitions,
                groups=decided.groups,
            )
        )

    def request_producer_ids(self, count: int) -> None:
        """Take producer ids from the controller."""
        self.now.append(RequestProducerIds(cause=self.cause, count=count))

    def _store(self) -> Effect:
        return AppendRecords(cause=self.cause, records=tuple(record.to_wire() for record in self.records))
