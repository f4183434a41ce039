"""A step with the checks of a single machine, one of which is that shells may rest between ticks."""

from __future__ import annotations

from collections.abc import Callable

from raylog.core.invariants import require
from raylog.core.outbox import Outbox
from raylog.core.replication.events import Effect, Event, ProposeIsr, ResignLeadership, Tick
from raylog.core.replication.replica import ReplicaMachine

LOOKED_FOR = (ProposeIsr, ResignLeadership)
"""Consequences of lagging members and of disks that keep failing: no tick is due for them, each tick checks."""


def checked_step(machine: ReplicaMachine, step: Callable[[Event], Outbox[Effect]], event: Event) -> Outbox[Effect]:
    """Run the machine's step. Raises InvariantBroken by its own rules, or when a tick does something early."""
    is_early = isinstance(event, Tick) and machine.next_due_ms(event.now_ms, event.now_ms + 1) > event.now_ms
    out = step(event)
    if is_early:
        done = [item for item in (*out.now, *out.after_sync) if not isinstance(item, LOOKED_FOR)]
        require(not done, f"a tick had something to do before it was due: {done}")
    machine.validate()
    return out
