"""What the leaders of a queue know of it, for the stories of failed runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.actors.queues.role import QueuesRole

if TYPE_CHECKING:
    from tests.simulation.whole.world import World


def queues_of(world: World) -> str:
    """Return each loaded queue: its start, its end, what is not finished, its members."""
    found: list[str] = []
    for actor in world.cluster.actors.values():
        server = actor.server
        for role in getattr(getattr(server, "_roles", None), "_roles", ()):
            if isinstance(role, QueuesRole):
                for group, queue in role.queues.items():
                    machine = queue.machine
                    if machine is not None:
                        now_ms = round(world.now_s * 1000)
                        rows = machine.peek(machine.book.start, 5, now_ms)
                        found.append(
                            f"{actor.name} {group} {rows} {sorted(machine.members)} {queue.parked} fetches wait"
                        )
    return "; ".join(found)
