"""Changes a member's assignment to a target, one call of the rebalance listener at a time.

Partitions that stay keep their position and buffer, and fetches of them go on. For revoked partitions the positions are
committed, then the listener is called, then they are dropped. New partitions are added, and the listener is called
again. The sessions of both group protocols use it. Belongs to the engine's loop. May touch: what `commit` does.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from raylog.base.errors import RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.partition import Start
from raylog.client.group.consumer_membership import ConsumerMembership
from raylog.client.group.membership import Membership
from raylog.client.tasks import LastingTask

MemberT = TypeVar("MemberT", Membership, ConsumerMembership)


class ListenerCall(NamedTuple):
    """A listener call that is due: `kind` is "revoked", "lost" (others may already have them) or "assigned"."""

    kind: str
    partitions: list[TopicPartition]


class Handover:
    """Makes one change of the assignment after another: `begin`, then `advance` until `is_done`."""

    def __init__(
        self,
        assignment: Assignment,
        *,
        commit_positions: Callable[[], Awaitable[None]] | None,
        on_assignment: Callable[[], None],
        notify: Callable[[], None],
        reads_on: bool = False,
    ) -> None:
        """`commit_positions` is awaited before partitions are revoked; None = no automatic commits.

        `on_assignment` is called after each change, `notify` when `advance` can go on. `reads_on`: records of the
        partitions that stay may be returned during the commit, while revoked ones are held back; for this
        `commit_positions` has to read the positions at once, when it is called.
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
        """The listener call that has to be made before anything else."""

    @property
    def is_done(self) -> bool:
        """Whether the last target is the assignment, and no listener call is due."""
        return self._target is None and self.call is None

    @property
    def is_committing(self) -> bool:
        """Whether it only waits for a commit, during which records may be returned (`reads_on`)."""
        return self._reads_on and self.call is None and self._commit is not None and not self._commit.done()

    @property
    def revoked(self) -> list[TopicPartition]:
        """The assigned partitions that are not in the target; all of them with `is_fresh`."""
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
        """Begin to change the assignment to these partitions.

        `is_lost`: others may already have the revoked partitions, so nothing is committed for them. `is_fresh`: this
        also holds for partitions that stay; they begin again at their committed offsets. `announces`: call the listener
        with the new partitions, even if there are none; without it the target has no new ones.
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
        """Do the next step that needs no waiting; False if there is none."""
        if self.call is not None or self._commit is None or not self._commit.done():
            return False
        self._commit = None
        self._revoke()
        return True

    def called(self) -> None:
        """The listener was called: drop revoked partitions, and add new ones."""
        call, self.call = self.call, None
        if call is not None and call.kind != "assigned":
            self._change()

    def cancel(self) -> asyncio.Task[None] | None:
        """Cancel a commit in flight, because the consumer ends. Returns its task, which has still to end."""
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
            pass  # at-least-once delivery: the next owner reads the records since the last commit again


class PollTurns(ABC, Generic[MemberT]):
    """Base of both protocols' sessions: inside poll() it does step after step, up to the next listener call."""

    membership: MemberT
    _handover: Handover

    def __init__(self) -> None:
        """No poll yet."""
        self._error: RaylogError | None = None
        self._heart: LastingTask | None = None
        self.last_poll_s = 0.0
        self.is_polling = False

    def turn(self) -> ListenerCall | None:
        """Do all steps that need no waiting. The caller makes the returned listener call, then `listener_called()`.

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
        """Cancel the tasks; return those that have still to end."""
        commit = self._handover.cancel()
        tasks: list[asyncio.Task[Any]] = [] if commit is None else [commit]
        if self._heart is not None:
            self._heart.cancel()
            tasks.append(self._heart.task)
        return [task for task in tasks if not task.done()]

    @abstractmethod
    def _advanced(self) -> bool:
        """Do the next step that needs no waiting; False if there is none."""

    @abstractmethod
    async def _beat(self) -> None:
        """Send heartbeats, until it is cancelled."""
