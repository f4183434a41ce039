"""Holds answers of the controller that state facts, until the facts are committed and the controller is confirmed.

A controller that was paused, or cut off, may not know yet that another one has replaced it: its decisions may be void,
and it does not know the decisions of the other. Members conclude from answers that topics and replicas do not exist,
and then delete folders and leave markers out (R9). So an answer waits until a majority of voters confirms that this
controller led after the request came. Owned by the controller's runner. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol

from raylog.actors.request_table import RequestT
from raylog.base.errors import NotController

HELD_MS: Final = 5_000
"""How long an answer waits; its requester does not wait longer either."""
HELD_MAX: Final = 10_000
"""Most answers that wait; further requests are refused."""


class QuestionedLog(Protocol):
    """The part of the metadata log that decides when an answer may be sent."""

    @property
    def committed_offset(self) -> int:
        """The offset behind the last committed record."""

    @property
    def confirmed_question(self) -> int:
        """The number of the last question that a majority of voters has answered."""

    def question(self) -> int:
        """Query the voters whether this controller still leads; returns the question's number. Raises NotController."""


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
        """``log``: the controller's metadata log."""
        self._log = log
        self._held: deque[_Answer[RequestT]] = deque()

    def send(self, request: RequestT, send: Callable[[RequestT], None], *, end: int, now_ms: int) -> None:
        """Send an answer once it is confirmed. ``end``: the log end offset when its request came.

        A record behind that end was appended after the request, so its commit is a majority's confirmation as well.
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
        """Send the answers that are confirmed now."""
        held, log = self._held, self._log
        while held:
            first, committed = held[0], log.committed_offset
            is_confirmed = committed == first.end and log.confirmed_question >= first.question
            if not (committed > first.end or is_confirmed):
                return
            held.popleft()
            first.send(first.request)

    def expire(self, now_ms: int) -> None:
        """Refuse the answers that have waited for HELD_MS, because no majority of voters answers."""
        while self._held and self._held[0].until_ms <= now_ms:
            self._held.popleft().request.fail(_unconfirmed())

    def end(self) -> None:
        """Drop all answers, because the connections of this controller end."""
        self._held.clear()


def _unconfirmed() -> NotController:
    return NotController("No majority of the metadata voters confirms in time that this controller leads; try again.")
