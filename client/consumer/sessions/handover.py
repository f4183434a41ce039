"""From the partitions that a member holds to those it shall hold, one call of the listener at a time.

What stays is not touched: its position and buffer are kept, and its fetches go on. What goes is committed, then the
listener is called, then it is dropped; what comes is added, and the listener is called again. Used by sessions of
groups, whatever protocol has decided on the target. Belongs to the engine's loop. May touch: what `commit` does.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.partition import Start
from raylog.client.group.consumer_membership import ConsumerMembership
from raylog.client.group.membership import Membership
from raylog.client.tasks import LastingTask
from raylog.core.errors import RaylogError
from raylog.core.ids import TopicPartition

MemberT = TypeVar("MemberT", Membership, ConsumerMembership)


class ListenerCall(NamedTuple):
    """A pending listener call: `kind` is "revoked", "lost" (already assigned to others) or "assigned"."""

    kind: str
    partitions: list[TopicPartition]


class Handover:
    """One change of an assignment after another. `begin`, then `advance` until `is_done`."""

    def __init__(
        self,
        assignment: Assignment,
        *,
        commit_positions: Callable[[], Awaitable[None]] | None,
        on_assignment: Callable[[], None],
        notify: Callable[[], None],
        reads_on: bool = False,
    ) -> None:
        """`commit_positions` is awaited before partitions are revoked; None without automatic commits.

        `on_assignment` is called after each change, `notify` when `advance` can go on. `reads_on`: records of what
        stays may be returned during the commit, because what goes is paused; `commit_positions` has to take the
        positions when it is called.
        """
        self._assignment = assignment
        self._commit_positions = commit_positions
        self._on_assignment = on_assignment
        self._notify = notify
        self._reads_on = reads_on
        self._target: list[TopicPartition] | None = None
        self._announces = self._is_lost = self._is_fresh = False
        self._commit: asyncio.Task[None] | None = None
        self.call: ListenerCall | None = None
        """The call that has to be made before anything else."""

    @property
    def is_done(self) -> bool:
        """Whether the target of the last `begin` is in force, and no call is left."""
        return self._target is None and self.call is None

    @property
    def is_committing(self) -> bool:
        """Whether it waits for a commit alone, and records of what stays may be returned."""
        return self._reads_on and self.call is None and self._commit is not None and not self._commit.done()

    @property
    def revoked(self) -> list[TopicPartition]:
        """What is held, and not part of the target, or not kept in any case."""
        target = frozenset(() if self._is_fresh else self._target or ())
        return [each for each in self._assignment.states if each not in target]

    def begin(
        self,
        target: Iterable[TopicPartition],
        *,
        is_lost: bool = False,
        is_fresh: bool = False,
        announces: bool = False,
    ) -> None:
        """Change to these partitions.

        `is_lost`: what goes belongs to others already, and is not committed. `is_fresh`: so may what stays, which
        begins at the committed offset again. `announces`: the listener learns what has come, even if that is nothing;
        without it the target adds nothing.
        """
        self._target = list(dict.fromkeys(TopicPartition(*each) for each in target))
        self._is_lost, self._is_fresh, self._announces = is_lost or is_fresh, is_fresh, announces
        if self.revoked and self._commit_positions is not None and not self._is_lost:
            if self._reads_on:
                for partition in self.revoked:
                    self._assignment.states[partition].hold_back()
            self._commit = asyncio.ensure_future(self._committed(self._commit_positions()))
            self._commit.add_done_callback(lambda _: self._notify())
        else:
            self._revoke()

    def advance(self) -> bool:
        """Do the next step that needs no wait; False when there is none."""
        if self.call is not None or self._commit is None or not self._commit.done():
            return False
        self._commit = None
        self._revoke()
        return True

    def called(self) -> None:
        """The listener call was made."""
        call, self.call = self.call, None
        if call is not None and call.kind != "assigned":
            self._change()

    def cancel(self) -> asyncio.Task[None] | None:
        """The consumer ends: what is still to be committed is not. Returns the task, which then ends."""
        if self._commit is not None:
            self._commit.cancel()
        return self._commit

    def _revoke(self) -> None:
        revoked = self.revoked
        if revoked:
            self.call = ListenerCall("lost" if self._is_lost else "revoked", revoked)
        else:
            self._change()

    def _change(self) -> None:
        target, self._target = self._target or [], None
        if self._is_fresh:
            self._assignment.set_partitions((), Start.COMMITTED)
            self._on_assignment()
        held = self._assignment.states
        added = [each for each in target if each not in held]
        if added or len(held) != len(target):
            self._assignment.set_partitions(target, Start.COMMITTED)
            self._on_assignment()
        if self._announces:
            self.call = ListenerCall("assigned", added)

    async def _committed(self, commit: Awaitable[None]) -> None:
        try:
            await commit
        except RaylogError:
            pass  # the records since the last commit are read again by the next owner, as at least once allows


class PollTurns(ABC, Generic[MemberT]):
    """What the sessions of both protocols do inside poll(): step after step, to the next call of the listener."""

    membership: MemberT
    _handover: Handover

    def __init__(self) -> None:
        """No poll yet."""
        self._error: RaylogError | None = None
        self._heart: LastingTask | None = None
        self.last_poll_s = 0.0
        self.is_polling = False

    def turn(self) -> ListenerCall | None:
        """Advance a change of the assignment. The caller makes the returned call, then calls `listener_called()`.

        Raises errors that only the user can resolve: an unknown topic, a fenced instance id, no common assignor,
        another group protocol.
        """
        self.last_poll_s = asyncio.get_running_loop().time()
        if self._heart is None:
            self._heart = LastingTask(self._beat, "raylog-heartbeat")
        while self._handover.call is None:
            if self.membership.fenced is not None:
                raise self.membership.fenced
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if not self._advanced():
                return None
        return self._handover.call

    def stop(self) -> list[asyncio.Task[Any]]:
        """End the tasks, from now on; returns those that end with the next turns of the loop."""
        commit = self._handover.cancel()
        tasks: list[asyncio.Task[Any]] = [] if commit is None else [commit]
        if self._heart is not None:
            self._heart.cancel()
            tasks.append(self._heart.task)
        return [task for task in tasks if not task.done()]

    @abstractmethod
    def _advanced(self) -> bool:
        """Do the next step that needs no wait; False when there is none."""

    @abstractmethod
    async def _beat(self) -> None:
        """Send heartbeats."""
