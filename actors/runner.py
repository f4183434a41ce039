"""Runs one state machine: events in, one after the other; effects out, at once or behind the disk.

Every shell has one, and so has every process of the simulator: the order of events and effects is decided only here. A
runner has no event loop, socket, disk or clock: it gets a machine's ``step``, a handler for each kind of effect, and
the durable position. Pure.
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
    """How far the log behind a machine is. Positions grow with what is written; a truncation takes them back."""

    def end(self) -> int:
        """Return the position after everything written so far."""

    def durable_end(self) -> int:
        """Return the durable position: ``durable_end <= end``."""

    def kick(self) -> None:
        """Have what was written made durable; :meth:`Runner.release` is to follow."""


class Runner(Generic[EventT, EffectT]):
    """Feeds a machine and carries out what it decides.

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
        """``on_defect`` has to end the process.

        ``carry_out`` has every kind of effect; an effect returns the event that is its outcome, if it has one.
        """
        self._step = step
        self._carry_out = carry_out
        self._durability = durability
        self._on_defect = on_defect
        self._inbox: deque[EventT | None] = deque()
        """Events that wait for the one before them; None: look at the disk."""
        self._waiting: deque[tuple[int, list[EffectT]]] = deque()
        """Effects by the position that has to be durable first."""
        self._is_taking = False
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether this runner takes no more events."""
        return self._is_over

    @property
    def waits_for_disk(self) -> bool:
        """Whether effects wait until something is durable."""
        return bool(self._waiting)

    def feed(self, event: EventT | None) -> None:
        """Take an event; from inside an effect it is queued. None: look at the disk, see :meth:`release`.

        Raises what a defect raised, after ``on_defect``.
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
        """Carry out what a machine decided outside a step, such as at its start. Not from inside an effect."""
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
        """From inside a ``now`` effect: carry out at once what earlier steps left waiting and is durable by now.

        For an effect that is about to take back what those effects state, such as a truncation.
        """
        self._release()

    def end(self) -> None:
        """Take and carry out nothing more, not even the rest of the step that is under way."""
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
        """Keep effects until the disk has everything that was written up to now, or carry them out if it has."""
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
