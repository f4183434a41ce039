"""One step's decision of the group coordinator. Made by ``coordinator.py``, filled by the machine's other parts."""

from __future__ import annotations

from collections.abc import Callable

from raylog.core.coordinators.decision import CoordinatorDecision
from raylog.core.decision import RequestId, Result, Story
from raylog.core.groups.events import AppendRecords, Effect
from raylog.core.groups.settings import GroupSettings
from raylog.protocol.rows import Row, Tombstone


class GroupDecision(CoordinatorDecision[Row | Tombstone]):
    """Records of groups, and answers that wait for them."""

    __slots__ = ("settings", "wall_ms")

    def __init__(
        self,
        cause: str,
        now_ms: int,
        *,
        apply: Callable[[Row | Tombstone], None],
        settings: GroupSettings,
        wall_ms: int = -1,
        story: Story | None = None,
    ) -> None:
        """``wall_ms`` is the time of day for stamps in records, which outlive this process; -1 = unknown."""
        super().__init__(cause, now_ms, apply=apply, story=story)
        self.settings = settings
        self.wall_ms = wall_ms

    def reply_rows(self, request: RequestId, rows: list[list[object]]) -> None:
        """Answer with rows that each end with an error code, 0 = done; if one is an error, as :meth:`reply_proved`."""
        result: Result = [*rows]
        if any(row[-1] for row in rows):
            self.reply_proved(request, result)
        else:
            self.reply(request, result)

    def _store(self) -> Effect:
        return AppendRecords(cause=self.cause, records=tuple(record.to_wire() for record in self.records))
