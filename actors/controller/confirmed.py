"""Answers of the controller that state facts, held until they are committed and no newer controller was promised.

A controller that was paused, or cut off, does not know yet that it was deposed: what it has decided may be void, and
what others have decided since is unknown to it. Members conclude from its answers that topics and replicas do not
exist, and delete folders and leave markers out for that (R9). Owned by the controller's runner. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol

from raylog.actors.request_table import RequestT
from raylog.core.errors import NotController

HELD_MS: Final = 5_000
"""How long an answer waits; its requester waits no longer either."""
HELD_MAX: Final = 10_000
"""Most answers that wait; what comes then is refused."""


class QuestionedLog(Protocol):
    """The parts of the metadata log that decide when an answer counts."""

    @property
    def committed_offset(self) -> int:
        """The end of the committed records."""

    @property
    def confirmed_question(self) -> int:
        """The last question that a majority has answered."""

    def question(self) -> int:
        """Question a majority whether this controller leads; returns the number of that. Raises NotController."""


@dataclass(frozen=True, slots=True)
class _Answer(Generic[RequestT]):
    request: RequestT
    send: Callable[[RequestT], None]
    end: int
    question: int
    until_ms: int


class ConfirmedAnswers(Generic[RequestT]):
    """The answers that wait, in the order of their requests."""

    def __init__(self, log: QuestionedLog) -> None:
        """``log``: the controller's."""
        self._log = log
        self._held: deque[_Answer[RequestT]] = deque()

    def send(self, request: RequestT, send: Callable[[RequestT], None], *, end: int, now_ms: int) -> None:
        """Send an answer once it counts. ``end``: of the log when its request came.

        What is behind that end was appended after the request, so its commit is a majority's answer.
        """
        if self._log.committed_offset > end:
            send(request)
            return
        if len(self._held) >= HELD_MAX:
            request.fail(_unconfirmed())
            return
        try:
            question = self._log.question()
        except NotController as deposed:
            request.fail(deposed)
            return
        self._held.append(_Answer(request, send, end, question, now_ms + HELD_MS))
        self.settle()

    def settle(self) -> None:
        """Send what counts now."""
        held, log = self._held, self._log
        while held:
            first, committed = held[0], log.committed_offset
            is_confirmed = committed == first.end and log.confirmed_question >= first.question
            if not (committed > first.end or is_confirmed):
                return
            held.popleft()
            first.send(first.request)

    def expire(self, now_ms: int) -> None:
        """Refuse what has waited for too long: no majority answers."""
        while self._held and self._held[0].until_ms <= now_ms:
            self._held.popleft().request.fail(_unconfirmed())

    def end(self) -> None:
        """Drop everything: the connections of this controller end."""
        self._held.clear()


def _unconfirmed() -> NotController:
    return NotController("No majority of the metadata voters confirms in time that this controller leads; try again.")
