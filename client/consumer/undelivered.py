"""Remembers which positions a take has moved until the user has its records. Owned by `assignment.py`. Pure.

A position counts only once a poll has *returned* its records. Positions move as batches are opened, and until the
records are returned, a signal handler, a deserializer or a cancellation may raise at any step. Then the positions are
moved back before the next take, and commits until then use the positions before the take.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from raylog.base.errors import ConcurrentUse, InterceptorFailed, RaylogError
from raylog.base.ids import TopicPartition

if TYPE_CHECKING:
    from raylog.client.consumer.partition import PartitionState


class Undelivered:
    """The last take. One thread takes at a time; the loop may call `returned` and `before_last` meanwhile."""

    __slots__ = ("is_done", "moved")

    def __init__(self) -> None:
        """Nothing was taken yet."""
        self.is_done = True
        """Whether the user has the last take's records. Set by a plain assignment right before they are returned."""
        self.moved: list[tuple[PartitionState, int, int | None]] = []
        """The partitions that the last take has moved, each with its session and position before."""

    def begin(self) -> None:
        """Begin a take."""
        self.moved = []
        self.is_done = False

    def note(self, state: PartitionState) -> None:
        """Remember this partition's position, which is about to move."""
        self.moved.append((state, state.session, state.position))

    def next_poll(self) -> None:
        """The user polls again: the records returned before count as processed."""
        if self.is_done:
            self.moved = []

    def gave_nothing(self) -> None:
        """The take found no record for the user. Positions may have moved past hidden ones, and stay there."""
        self.is_done = True
        self.moved = []

    def failed(self, error: RaylogError) -> None:
        """A take raised. With an interceptor's error, or that of a partition's next record, nothing was taken.

        Any other error came from outside, and the positions are moved back.
        """
        if isinstance(error, InterceptorFailed) or any(state.failure is error for state, _, _ in self.moved):
            self.gave_nothing()

    def interrupted(self, error: BaseException, before: object) -> None:
        """An error leaves the poll: the records that it took do not reach the user, even if they were complete.

        `before` is what `moved` was when the poll began.
        """
        if self.moved and self.moved is not before and not isinstance(error, ConcurrentUse):
            self.is_done = False  # not for ConcurrentUse: it is raised in another thread than the one that takes

    def before_last(self, states: Iterable[PartitionState]) -> dict[TopicPartition, int | None]:
        """The positions before the last take, whether its records were returned or not."""
        positions = {state: state.position for state in states}
        for state, session, position in list(self.moved):
            if state in positions and state.session == session:
                positions[state] = position
        return {state.partition: position for state, position in positions.items()}

    def returned(self, states: Iterable[PartitionState]) -> dict[TopicPartition, int | None]:
        """The positions after the records that were returned."""
        states = list(states)
        positions = {state.partition: state.position for state in states}
        return positions if self.is_done else self.before_last(states)

    def put_back(self) -> list[PartitionState]:
        """Move positions back to before the last take; return the partitions to fetch again. On the loop."""
        found = []
        for state, session, position in self.moved:
            if state.session == session and position is not None:  # drops its buffers, which may be half taken
                state.return_to(position)
                found.append(state)
        self.moved = []
        self.is_done = True
        return found
