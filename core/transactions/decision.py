"""One step's decision of the transaction coordinator. Made and filled by ``coordinator.py``."""

from __future__ import annotations

from collections.abc import Callable

from raylog.core.coordinators.events import AppendRecords, ProposeSleep, StoreProof
from raylog.core.decision import LoggedDecision, Refuse, Reply, RequestId, Result, Story
from raylog.core.errors import RaylogError
from raylog.core.transactions.events import Effect, EndTxn, RequestProducerIds
from raylog.core.transactions.records import Record, TxnChanged


class TxnDecision(LoggedDecision[Effect, Record]):
    """Records, answers and markers that wait for them, and refusals that do not."""

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

    def reply(self, request: RequestId, result: Result) -> None:
        """Answer the request once everything written so far is committed."""
        self.after_sync.append(Reply(cause=self.cause, request=request, result=result))

    def reply_proved(self, request: RequestId, result: Result) -> None:
        """Answer the request with what is stored, once it is proved that no later incarnation has begun."""
        self.now.append(StoreProof(cause=self.cause))
        self.reply(request, result)

    def refuse(self, request: RequestId, error: RaylogError) -> None:
        """Refuse the request at once: an error depends on no record that could be lost."""
        self.now.append(Refuse(cause=self.cause, request=request, error=error))

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

    def propose_sleep(self) -> None:
        """Propose that the coordinator ends, once everything written so far is committed."""
        self.after_sync.append(ProposeSleep(cause=self.cause))

    def _store(self) -> Effect:
        return AppendRecords(cause=self.cause, records=tuple(record.to_wire() for record in self.records))
