"""What a take has moved, until its records are with the user. Owned by `assignment.py`. Pure.

What a poll has *returned* is what counts: positions move as batches are opened, and a signal's handler, a deserializer
or the end of a task may raise at any step before the records are handed over. What was moved by then is moved back
before the next take, and no commit takes it into account meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from raylog.core.errors import ConcurrentUse, InterceptorFailed, RaylogError
from raylog.core.ids import TopicPartition

if TYPE_CHECKING:
    from raylog.client.consumer.partition import PartitionState


class Handing:
    """The last take. One thread takes at a time; `returned` and `before_last` may be called by the loop meanwhile."""

    __slots__ = ("is_done", "moved")

    def __init__(self) -> None:
        """Nothing was taken."""
        self.is_done = True
        """Whether what was moved is with the user. Set by a plain assignment right before the records are returned."""
        self.moved: list[tuple[PartitionState, int, int | None]] = []
        """The partitions that the last take has moved, each with its session and position before."""

    def begin(self) -> None:
        """A take begins."""
        self.moved = []
        self.is_done = False

    def note(self, state: PartitionState) -> None:
        """This partition is about to move."""
        self.moved.append((state, state.session, state.position))

    def next_poll(self) -> None:
        """The user polls again: what was returned before counts as handled."""
        if self.is_done:
            self.moved = []

    def gave_nothing(self) -> None:
        """The take found no record: it has passed over what no reader sees, if it has moved at all."""
        self.is_done = True
        self.moved = []

    def failed(self, error: RaylogError) -> None:
        """A take raised: by its partition's own error nothing was taken. Else the error came from outside."""
        if isinstance(error, InterceptorFailed) or any(state.failure is error for state, _, _ in self.moved):
            self.gave_nothing()

    def interrupted(self, error: BaseException, before: object) -> None:
        """An error leaves the poll: what it has taken is not with the user, though it was about to be returned.

        `before` is what `moved` was when it began.
        """
        if self.moved and self.moved is not before and not isinstance(error, ConcurrentUse):
            self.is_done = False  # ConcurrentUse is of another thread than the one that takes

    def before_last(self, states: Iterable[PartitionState]) -> dict[TopicPartition, int | None]:
        """The positions as of before the last take, whether its records were returned or not."""
        positions = {state: state.position for state in states}
        for state, session, position in list(self.moved):
            if state in positions and state.session == session:
                positions[state] = position
        return {state.partition: position for state, position in positions.items()}

    def returned(self, states: Iterable[PartitionState]) -> dict[TopicPartition, int | None]:
        """The positions behind what was returned."""
        states = list(states)
        positions = {state.partition: state.position for state in states}
        return positions if self.is_done else self.before_last(states)

    def put_back(self) -> list[PartitionState]:
        """Move back what was not returned; the partitions that are to be fetched again. On the loop, between takes."""
        found = []
        for state, session, position in self.moved:
            if state.session == session and position is not None:  # its buffers may be halfway, too
                state.return_to(position)
                found.append(state)
        self.moved = []
        self.is_done = True
        return found
