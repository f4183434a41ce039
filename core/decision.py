"""Decision: the effects of one step, collected while the step runs. Shared by machines in ``core``.

``step`` makes a decision, passes it to its handlers and returns it: a decision is the step's outbox. A machine
that keeps its state in a log uses :class:`LoggedDecision`: a record is applied when it is decided, by the function that
replays the log. Effects that depend on the record wait in ``after_sync``. Pure.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from raylog.base.errors import RaylogError
from raylog.base.invariants import require
from raylog.core.outbox import EffectT, Outbox

RecordT = TypeVar("RecordT")

RequestId = int
"""Number that a shell gives to a request, unique within one incarnation of its process."""
Result = list[object] | dict[str, object]
"""Values of an answer as they go over the wire."""

STORY_STEPS_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer a request."""

    cause: str
    request: RequestId
    result: Result
    warning: str = ""
    """Additional warning for the requester; empty = none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Answer a request with an error."""

    cause: str
    request: RequestId
    error: RaylogError


class Story(deque[object]):
    """The last steps of a machine, oldest first, for messages about defects; formatted only when one is raised."""

    def __init__(self) -> None:
        super().__init__(maxlen=STORY_STEPS_MAX)


class Decision(Outbox[EffectT]):
    """The effects of one step, with its cause, its time, and the story."""

    __slots__ = ("cause", "now_ms", "story")

    def __init__(self, cause: str, now_ms: int, story: Story | None = None) -> None:
        """Begin a step. ``cause`` goes into its effects, ``story`` into what is raised by :meth:`require`."""
        # The base class's lists, without calling its __init__: a decision is made for every event.
        self.now: list[EffectT] = []
        self.after_sync: list[EffectT] = []
        self.cause = cause
        self.now_ms = now_ms
        self.story = Story() if story is None else story

    def require(self, holds: bool, claim: str) -> None:
        """Raise :class:`InvariantBroken` with the machine's story unless the claim holds."""
        require(holds, claim, self.story)


class LoggedDecision(Decision[EffectT], Generic[EffectT, RecordT]):
    """A step of a machine whose state is in a log: the records it decides on, and the answers that wait for them.

    Invariant: what :meth:`finish` returns stores the step's records before any other effect of the step.
    """

    __slots__ = ("_apply", "records")

    def __init__(
        self, cause: str, now_ms: int, *, apply: Callable[[RecordT], None], story: Story | None = None
    ) -> None:
        """Begin a step. ``apply`` is the only function that changes the machine's logged state; replay uses it too."""
        super().__init__(cause, now_ms, story)
        self.records: list[RecordT] = []
        self._apply = apply

    def write(self, record: RecordT) -> None:
        """Decide on a record: it applies to the machine's view at once, and goes to the log with the others."""
        self._apply(record)
        self.records.append(record)

    @abstractmethod
    def _store(self) -> EffectT:
        """Return the effect that appends the step's records to the log."""

    def finish(self) -> Outbox[EffectT]:
        """End the step and return its effects."""
        if self.records:
            self.now.insert(0, self._store())
        return self
