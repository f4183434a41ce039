"""One step's decision of the group coordinator. Made by ``coordinator.py``, filled by the machine's other parts."""

from __future__ import annotations

from collections.abc import Callable

from raylog.core.decision import LoggedDecision, Refuse, Reply, RequestId, Result, Story
from raylog.core.errors import RaylogError
from raylog.core.groups.events import AppendRecords, Effect, ProposeSleep, StoreProof
from raylog.core.groups.records import Record
from raylog.core.groups.settings import GroupSettings


class GroupDecision(LoggedDecision[Effect, Record]):
    """Records, answers that wait for them, and refusals that do not."""

    __slots__ = ("settings", "wall_ms")

    def __init__(
        self,
        cause: str,
        now_ms: int,
        *,
        apply: Callable[[Record], None],
        settings: GroupSettings,
        wall_ms: int = -1,
        story: Story | None = None,
    ) -> None:
        """``wall_ms`` is the time of day for stamps in records, which outlive this process; -1 = unknown."""
        super().__init__(cause, now_ms, apply=apply, story=story)
        self.settings = settings
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

    def propose_sleep(self) -> None:
        """Propose that the coordinator ends, once everything written so far is committed."""
        self.after_sync.append(ProposeSleep(cause=self.cause))

    def _store(self) -> Effect:
        return AppendRecords(cause=self.cause, records=tuple(record.to_wire() for record in self.records))
