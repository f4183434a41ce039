"""Faults in each step of a doze: after the offer, after the watch, between look and stop, while stopped, at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.simulation.whole.loop.processes import SimProcess

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

CHANCE: Final = 0.03
"""How often a step is struck."""
SOON_S: Final = 0.6
"""Half of the faults strike within this time after the step, not at once."""


class Strikes:
    """Strikes the replica, its broker, the controller or the network while a replica dozes."""

    def __init__(self, world: World) -> None:
        """For a world whose replicas may doze."""
        self._world = world
        self.struck: dict[str, int] = {}
        """How often each step was struck."""
        self.keepers_killed_s: dict[str, float] = {}
        """When the keeper of a broker was last killed, by the broker's name."""

    def step(self, name: str, replica: SimProcess, broker: str) -> None:
        """A doze has come to a step; now and then something fails there."""
        world = self._world
        world.observer.dozing.step(name, replica, broker)
        if not world.nemesis.is_active or not world.scheduler.chance(CHANCE):
            return
        self.struck[name] = self.struck.get(name, 0) + 1
        world.nemesis.faults += 1
        deeds = self._deeds(replica, broker)
        deed = deeds[int(world.scheduler.random.random() * len(deeds))]
        world.log("nemesis", f"strikes the doze of {replica.name}: {name}")
        if world.scheduler.chance(0.5):
            world.scheduler.after(world.scheduler.between(0.0, SOON_S), deed)
        elif world.scheduler.current is replica:
            world.scheduler.after(0.0, deed)
        else:
            deed()

    def _deeds(self, replica: SimProcess, broker: str) -> list[Callable[[], None]]:
        return [
            lambda: self._kill(replica),
            lambda: self._pause(replica, 20.0),
            lambda: self._go_on(replica),
            lambda: self._kill(self._process_of(broker)),
            lambda: self._kill(self._process_of(broker)),
            lambda: self._pause(self._process_of(broker), 10.0),
            lambda: self._kill(self._process_of("controller")),
            lambda: self._pause(self._process_of("controller"), 4.0),
            lambda: self._cut_off(replica.host),
            lambda: self._lose_power("controller"),
            *([lambda: self._kill_keeper(broker)] if self._world.scheduler.chance(0.3) else []),
        ]

    def _process_of(self, name: str) -> SimProcess | None:
        actor = self._world.cluster.actors.get(name)
        return None if actor is None else actor.process

    def _kill(self, process: SimProcess | None) -> None:
        if process is None:
            return
        if process is self._world.scheduler.current:
            process.exit("killed by the nemesis, in the middle of a step")
        process.kill("killed by the nemesis")

    def _pause(self, process: SimProcess | None, longest_s: float) -> None:
        if process is not None:
            process.pause()
            self._world.scheduler.after(self._world.scheduler.between(0.05, longest_s), process.resume)

    def _go_on(self, process: SimProcess) -> None:
        """A user continues a process that the broker has stopped."""
        process.resume()

    def _cut_off(self, host: str) -> None:
        others = [other for other in self._world.cluster.hosts if other != host]
        links = [link for other in others for link in ((host, other), (other, host))]
        self._world.nemesis.block(links, self._world.scheduler.between(0.2, 8.0))

    def _lose_power(self, name: str) -> None:
        """The node of a process falls silent: its peers, which rest, learn of it by their brokers."""
        process = self._process_of(name)
        if process is not None:
            self._world.nemesis.lose_power(process.host, self._world.scheduler.between(2.0, 12.0))

    def _kill_keeper(self, broker: str) -> None:
        dozes = self._world.dozes
        keeper = None if dozes is None else dozes.keepers.present.get(broker)
        if keeper is not None:
            keeper.kill()
            self.keepers_killed_s[broker] = self._world.now_s
