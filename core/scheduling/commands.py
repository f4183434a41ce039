"""Requests that wait for their row: cancellations, moves, decisions about half messages. Owned by the machine. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from raylog.core.scheduling.events import Answer, HalvesAnswer, RequestId
from raylog.core.scheduling.rows import Cancelled, HalvesDecided, Moved

COMMANDS_MAX: Final = 1_000
"""Most requests that one row decides."""
ROW_BYTES: Final = 1024 * 1024
"""About the most bytes of requests that one row decides. A larger request has a row of its own."""
_OUTCOME_BYTES: Final = 64
"""Most bytes of a key with its new time and name, or of a decision without its group and txid."""

CommandRow: TypeAlias = Cancelled | Moved | HalvesDecided


@dataclass(frozen=True, slots=True)
class _Command:
    request: RequestId
    row: CommandRow

    @property
    def size(self) -> int:
        """How many of the row's outcomes belong to this request."""
        match self.row:
            case Cancelled():
                return len(self.row.keys)
            case Moved():
                return len(self.row.moves)
            case HalvesDecided():
                return len(self.row.decisions)

    @property
    def size_bytes(self) -> int:
        """About how many bytes of a row it takes."""
        names = 0
        if isinstance(self.row, HalvesDecided):
            names = sum(4 * (len(each.group) + len(each.txid)) for each in self.row.decisions)
        return self.size * _OUTCOME_BYTES + names


class Commands:
    """The requests, in order; those in a row are answered when the row is read from the log."""

    def __init__(self) -> None:
        self._waiting: deque[_Command] = deque()
        self._in_row: list[_Command] = []

    def __bool__(self) -> bool:
        """Whether requests wait for a row."""
        return bool(self._waiting)

    def add(self, request: RequestId, row: CommandRow) -> None:
        """Add a request, in the form of the row that would decide it alone."""
        self._waiting.append(_Command(request, row))

    def row(self, now_ms: int) -> CommandRow:
        """Return one row for the first requests of one kind; there must be one."""
        kind = type(self._waiting[0].row)
        left = ROW_BYTES
        while self._waiting and type(self._waiting[0].row) is kind and len(self._in_row) < COMMANDS_MAX:
            left -= self._waiting[0].size_bytes
            if self._in_row and left < 0:
                break
            self._in_row.append(self._waiting.popleft())
        rows = [command.row for command in self._in_row]
        if kind is Cancelled:
            return Cancelled(tuple(key for row in rows if isinstance(row, Cancelled) for key in row.keys))
        if kind is Moved:
            moved = [row for row in rows if isinstance(row, Moved)]
            return Moved(
                tuple(move for row in moved for move in row.moves), tuple(name for row in moved for name in row.names)
            )
        return HalvesDecided(
            tuple(each for row in rows if isinstance(row, HalvesDecided) for each in row.decisions), now_ms
        )

    def answers(self, outcomes: Sequence[Any]) -> Iterator[Answer | HalvesAnswer]:
        """Return the answers to the requests in the row that was read, which has an outcome for each of their keys."""
        commands, self._in_row = self._in_row, []
        for command in commands:
            mine, outcomes = outcomes[: command.size], outcomes[command.size :]
            if isinstance(command.row, HalvesDecided):
                yield HalvesAnswer(request=command.request, standings=tuple(mine))
            else:
                yield Answer(request=command.request, outcomes=tuple(mine))
