"""A tick that comes before the machine says that something is due must have nothing to do: shells rest until then."""

from __future__ import annotations

from raylog.core.invariants import require
from raylog.core.outbox import Outbox
from raylog.core.replication.events import Effect, Event, ProposeIsr, ResignLeadership, Tick
from raylog.core.replication.replica import ReplicaMachine

LOOKED_FOR = (ProposeIsr, ResignLeadership)
"""What members that lag and disks that go on failing lead to: no tick is due for them, each looks for them."""


def checked_step(machine: ReplicaMachine, event: Event) -> Outbox[Effect]:
    """Step the machine. Raises InvariantBroken when a tick had something to do before it was due."""
    if not isinstance(event, Tick):
        return machine.step(event)
    due_ms = machine.next_due_ms(event.now_ms, event.now_ms + 1)
    out = machine.step(event)
    early = [one for one in (*out.now, *out.after_sync) if not isinstance(one, LOOKED_FOR)]
    require(due_ms <= event.now_ms or not early, f"a tick had something to do before it was due: {early}")
    return out
