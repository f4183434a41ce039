"""Requests that wait for their row: cancellations, moves, decisions about half messages. Owned by the machine. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from raylog.base.errors import InvalidRequest
from raylog.core.decision import RequestId
from raylog.core.scheduling.events import Command, MoveReceived, Reply
from raylog.core.scheduling.keys import due_of, key_of
from raylog.core.scheduling.rows import Cancelled, HalfDecision, HalvesDecided, Keys, Moved, NameColumn, Verdict
from raylog.protocol.halves import DecideHalvesReply, DecideHalvesRequest
from raylog.protocol.scheduling import CancelScheduledReply, CancelScheduledRequest, MoveScheduledReply

COMMANDS_MAX: Final = 1_000
"""Most requests that one row decides."""
ROW_BYTES: Final = 1024 * 1024
"""About the most bytes of requests that one row decides. A larger request has a row of its own."""
HALVES_MAX: Final = 1_000
"""Most half messages that one request decides or lists."""
_OUTCOME_BYTES: Final = 64
"""Most bytes of a key with its new time and name, or of a decision without its group and txid."""
_GIVEN: Final = (Verdict.COMMIT, Verdict.ROLLBACK, Verdict.UNKNOWN)
"""The verdicts that a client may send."""

CommandRow: TypeAlias = Cancelled | Moved | HalvesDecided


def row_of(command: Command, interval_ms: int) -> CommandRow:
    """Return the row that would decide a request alone; raises InvalidRequest.

    ``interval_ms``: after how long a half message that was checked without a decision is checked again.
    """
    now_ms = command.now_ms
    if isinstance(command, MoveReceived):
        moved = command.message
        key = key_of(moved.due_ms, moved.offset)
        return Moved(Keys([key]), (max(moved.new_due_ms, now_ms),), NameColumn([command.name]))
    match command.message:
        case DecideHalvesRequest() as message:
            return HalvesDecided(_decisions(message, now_ms + interval_ms), now_ms)
        case CancelScheduledRequest(dues=dues, offsets=offsets):
            return Cancelled(Keys(key_of(due, offset) for due, offset in zip(dues, offsets, strict=True)))


def _decisions(message: DecideHalvesRequest, next_check_ms: int) -> tuple[HalfDecision, ...]:
    txids, verdicts, checks = message.txids, message.verdicts, message.checks
    if not len(txids) == len(verdicts) == len(checks) or not 0 < len(txids) <= HALVES_MAX:
        raise InvalidRequest(f"A request decides 1 to {HALVES_MAX} half messages, with a verdict and a check for each.")
    decisions = []
    for txid, word, check in zip(txids, verdicts, checks, strict=True):
        if word not in _GIVEN:
            raise InvalidRequest(f"A half message is decided by COMMIT, ROLLBACK or UNKNOWN, not {word!r:.50}.")
        again = (check, next_check_ms) if word == Verdict.UNKNOWN else ()
        decisions.append(HalfDecision(message.group, txid, Verdict(word), *again))
    return tuple(decisions)


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: RequestId
    row: CommandRow

    @property
    def size(self) -> int:
        """How many of the row's outcomes belong to this request."""
        match self.row:
            case Cancelled() | Moved():
                return len(self.row.keys)
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
        self._waiting: deque[_Waiting] = deque()
        self._in_row: list[_Waiting] = []

    def __bool__(self) -> bool:
        """Whether requests wait for a row."""
        return bool(self._waiting)

    def add(self, request: RequestId, row: CommandRow) -> None:
        """Add a request, in the form of the row that would decide it alone."""
        self._waiting.append(_Waiting(request, row))

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
            return Cancelled(Keys(key for row in rows if isinstance(row, Cancelled) for key in row.keys))
        if kind is Moved:
            moved = [row for row in rows if isinstance(row, Moved)]
            return Moved(
                Keys(key for row in moved for key in row.keys),
                tuple(due for row in moved for due in row.dues),
                NameColumn(name for row in moved for name in row.names),
            )
        return HalvesDecided(
            tuple(each for row in rows if isinstance(row, HalvesDecided) for each in row.decisions), now_ms
        )

    def replies(self, outcomes: Sequence[Any]) -> Iterator[Reply]:
        """Return the replies to the requests in the row that was read, which has an outcome for each of their keys."""
        commands, self._in_row = self._in_row, []
        for command in commands:
            mine, outcomes = outcomes[: command.size], outcomes[command.size :]
            words, numbers = [outcome.value for outcome, _ in mine], [number for _, number in mine]
            match command.row:
                case HalvesDecided():
                    yield Reply(request=command.request, message=DecideHalvesReply(words, numbers))
                case Moved():
                    yield Reply(request=command.request, message=MoveScheduledReply(words[0], due_of(numbers[0])))
                case Cancelled():
                    yield Reply(request=command.request, message=CancelScheduledReply(words))
