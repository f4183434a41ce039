"""Runs one state machine: events go in one at a time; effects come out at once, or when the log is durable.

Shells have a runner, and so has every process of the simulator: here the order of events and effects is decided. Two
machines without a log are stepped by their shells (``broker/sleepers.py``, ``forwarding/forwarder.py``). A runner has
no event loop, socket, disk or clock: it gets a machine's ``step``, a handler for each kind of effect, and the durable
position. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from raylog.core.outbox import Outbox

EventT = TypeVar("EventT")
EffectT = TypeVar("EffectT")

EVENT_CHARACTERS: Final = 500
"""How much of an event is quoted when its step fails."""


class Durability(Protocol):
    """The end and the durable end of a machine's log. Positions grow with what is written; a truncation lowers them."""

    def end(self) -> int:
        """Return the position after everything written so far."""

    def durable_end(self) -> int:
        """Return the durable position: ``durable_end <= end``."""

    def kick(self) -> None:
        """Request that what was written becomes durable; the owner then has to call :meth:`Runner.release`."""


class AlwaysDurable:
    """The :class:`Durability` of a machine that keeps no log of its own: nothing waits."""

    def end(self) -> int:
        """Return 0."""
        return 0

    def durable_end(self) -> int:
        """Return 0."""
        return 0

    def kick(self) -> None:
        """Do nothing."""


class Runner(Generic[EventT, EffectT]):
    """Feeds events to a machine and carries out the effects that it decides on.

    Invariants:

    - One event is taken at a time: the outcome of an effect is queued behind the effects of its own step.
    - ``now`` effects of a step come before every effect of a later step.
    - An ``after_sync`` effect is carried out once, behind those of earlier steps, and only when everything that was
      written up to and including its step is durable.
    - After a defect, or after :meth:`end`, no more effects are carried out.
    """

    def __init__(
        self,
        step: Callable[[EventT], Outbox[EffectT]],
        carry_out: Mapping[type[Any], Callable[[Any], EventT | None]],
        durability: Durability,
        *,
        on_defect: Callable[[str], None],
    ) -> None:
        """``carry_out`` has a function for every kind of effect; it returns the event that is the effect's outcome, or
        None. ``on_defect`` has to end the process.
        """
        self._step = step
        self._carry_out = carry_out
        self._durability = durability
        self._on_defect = on_defect
        self._inbox: deque[EventT | None] = deque()
        """Events that wait for the one before them; None: carry out effects that are durable by now."""
        self._waiting: deque[tuple[int, list[EffectT]]] = deque()
        """``after_sync`` effects, each list with the position that has to be durable first."""
        self._is_taking = False
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether this runner takes no more events."""
        return self._is_over

    @property
    def waits_for_disk(self) -> bool:
        """Whether effects wait until the log is durable."""
        return bool(self._waiting)

    def feed(self, event: EventT | None) -> None:
        """Take an event; from inside an effect it is queued. None: see :meth:`release`.

        Raises the error of a defect, after ``on_defect``.
        """
        inbox, carry_out, is_over = self._inbox, self._carry_out, self._is_over
        if is_over:
            return
        if self._is_taking:
            inbox.append(event)
            return
        self._is_taking = True
        try:
            while True:
                if event is None:
                    self._release()
                else:
                    outbox = self._step(event)
                    # As in _perform, without another call: every record passes here.
                    for effect in outbox.now:
                        outcome = carry_out[type(effect)](effect)
                        if self._is_over:
                            return
                        if outcome is not None:
                            inbox.append(outcome)
                    if outbox.after_sync:
                        self._hold(outbox.after_sync)
                if not inbox:
                    return
                event = inbox.popleft()
        except Exception as defect:
            self._fail(f"{event!r:.{EVENT_CHARACTERS}}", defect)
            raise
        finally:
            self._is_taking = False

    def perform(self, outbox: Outbox[EffectT]) -> None:
        """Carry out what a machine decided outside a step, such as at its start. Not to be called from an effect."""
        self._is_taking = True
        try:
            self._perform(outbox.now)
            if outbox.after_sync and not self._is_over:
                self._hold(outbox.after_sync)
        except Exception as defect:
            self._fail("the start", defect)
            raise
        finally:
            self._is_taking = False
        if self._inbox:
            self.feed(self._inbox.popleft())

    def release(self) -> None:
        """Carry out the effects that are durable now; from inside an effect this is queued."""
        if self._waiting:
            self.feed(None)

    def settle(self) -> None:
        """From inside a ``now`` effect: carry out at once the waiting effects of earlier steps that are durable by now.

        For an effect that invalidates what those effects report, such as a truncation.
        """
        self._release()

    def end(self) -> None:
        """From now on take no event and carry out no effect, not even the rest of the current step."""
        self._is_over = True
        self._inbox.clear()
        self._waiting.clear()

    def _fail(self, what: str, defect: Exception) -> None:
        # Half a step may have been taken: only the log has the valid state.
        self.end()
        self._on_defect(f"{what} could not be carried out: {defect!r}")

    def _perform(self, effects: list[EffectT]) -> None:
        for effect in effects:
            outcome = self._carry_out[type(effect)](effect)
            if self._is_over:
                return
            if outcome is not None:
                self._inbox.append(outcome)

    def _hold(self, effects: list[EffectT]) -> None:
        """Keep effects until everything written so far is durable; carry them out at once if it is."""
        end = self._durability.end()
        is_durable = self._durability.durable_end() >= end
        if is_durable and not self._waiting:
            self._perform(effects)
            return
        self._waiting.append((end, effects))
        if is_durable:
            self._release()
        else:
            self._durability.kick()

    def _release(self) -> None:
        waiting, durable = self._waiting, self._durability.durable_end()
        # After a truncation, awaited positions may lie beyond the end: no effect has to wait any more.
        is_everything = durable >= self._durability.end()
        while waiting and (is_everything or waiting[0][0] <= durable):
            self._perform(waiting.popleft()[1])
