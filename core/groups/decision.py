"""What one step decided: records to write, replies that wait for them, refusals. Shared by the parts of the machine.

``write`` applies a record at once (the uncommitted view), through the same function that replay uses; the replies wait
in ``after_sync`` until the records are committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raylog.core.errors import RaylogError
from raylog.core.groups.events import AppendRecords, Effect, Refuse, Reply, ReportStored, RequestId, TrimLog
from raylog.core.groups.records import Record
from raylog.core.outbox import Outbox


@dataclass(slots=True)
class Decision:
    """Collects what a step does; ``apply`` is the machine's only mutator of what is in the log."""

    cause: str
    now_ms: int
    apply: Callable[[Record], None]
    wall_ms: int = -1
    """Time of day for stamps in records, since ``now_ms`` means nothing to a later life; -1 = unknown."""
    records: list[Record] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    refusals: list[Refuse] = field(default_factory=list)
    trims: list[TrimLog] = field(default_factory=list)
    reports: list[ReportStored] = field(default_factory=list)

    def write(self, record: Record) -> None:
        """Append the record and apply it to the machine's view."""
        self.records.append(record)
        self.apply(record)

    def rewrite(self, record: Record) -> None:
        """Append a record that holds already: nothing changes by it."""
        self.records.append(record)

    def report_stored(self) -> None:
        """Have the machine hear when everything written so far is committed."""
        self.reports.append(ReportStored(cause=self.cause))

    def trim(self, before_offset: int) -> None:
        """Have the log's records below the offset deleted."""
        self.trims.append(TrimLog(cause=self.cause, before_offset=before_offset))

    def reply(self, request: RequestId, result: list[object] | dict[str, object]) -> None:
        """Answer the request once everything written so far is committed."""
        self.replies.append(Reply(cause=self.cause, request=request, result=result))

    def refuse(self, request: RequestId, error: RaylogError) -> None:
        """Answer the request with an error at once."""
        self.refusals.append(Refuse(cause=self.cause, request=request, error=error))

    def outbox(self) -> Outbox[Effect]:
        """Return the effects in the order in which they may be carried out."""
        out: Outbox[Effect] = Outbox()
        if self.records:
            wires = tuple(record.to_wire() for record in self.records)
            out.now.append(AppendRecords(cause=self.cause, records=wires))
        out.now.extend(self.refusals)
        out.now.extend(self.trims)
        out.after_sync.extend(self.replies)
        out.after_sync.extend(self.reports)
        return out
