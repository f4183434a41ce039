"""The virtual network: datagrams that may be lost, delayed, doubled and reordered, and ordered control sessions.

Requests between replicas and clients travel as datagrams, which is harsher than the connections in production: the
protocol must rely on its own request ids and epochs. The control session of a replica with the controller is a
connection in production and here: ordered, and broken as a whole.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.profiles import Faults
from tests.simulation.world import World

CONTROLLER = 0
"""Address of the controller; brokers have positive addresses, clients negative ones."""


class Network:
    """Links between addresses, each direction on its own."""

    def __init__(self, world: World, faults: Faults) -> None:
        """Start with every link open."""
        self.world = world
        self.faults = faults
        self.healed = False
        self._cut: set[tuple[int, int]] = set()
        self._clogged_ms: dict[tuple[int, int], float] = {}

    def send(self, source: int, target: int, deliver: Callable[..., None], *args: object) -> bool:
        """Send a datagram; False when the sender's side knows that it did not go out."""
        world = self.world
        if (source, target) in self._cut:
            return False
        if not self.healed:
            faults = self.faults
            if faults.loss and world.chance(faults.loss):
                return not world.chance(0.5)
            if faults.duplicate and world.chance(faults.duplicate):
                world.after(self.delay_us(source, target), deliver, *args)
        world.after(self.delay_us(source, target), deliver, *args)
        return True

    def delay_us(self, source: int, target: int) -> int:
        """Draw how long a message takes on this link."""
        world, faults = self.world, self.faults
        delay = 100 + int(world.random.random() * 1000 * faults.delay_ms)
        if faults.delay_tail and not self.healed and world.chance(faults.delay_tail):
            delay += world.between_us(0, faults.delay_tail_ms)
        clogged = self._clogged_ms
        return delay + int(clogged.get((source, target), 0) * 1000) if clogged else delay

    def is_cut(self, source: int, target: int) -> bool:
        """True when the link from ``source`` to ``target`` is cut."""
        return (source, target) in self._cut

    def cut(self, source: int, target: int) -> None:
        """Cut one direction."""
        self._cut.add((source, target))

    def join(self, source: int, target: int) -> None:
        """Open one direction."""
        self._cut.discard((source, target))

    def clog(self, source: int, target: int, ms: float) -> None:
        """Delay everything in one direction by ``ms``; 0 ends it."""
        self._clogged_ms[source, target] = ms

    def heal(self) -> None:
        """Open everything permanently; no loss or duplication any more."""
        self.healed = True
        self._cut.clear()
        self._clogged_ms.clear()


class Session:
    """One control connection between a life of a replica and a life of the controller.

    Each direction delivers in order. When it breaks, each end learns of it after its own delay; messages in flight are
    lost.
    """

    __slots__ = ("_last_us", "_network", "broken", "broker", "number", "on_controller_lost", "on_replica_lost")

    def __init__(
        self,
        network: Network,
        number: int,
        broker: int,
        *,
        on_controller_lost: Callable[[], None],
        on_replica_lost: Callable[[], None],
    ) -> None:
        """``on_controller_lost`` is called at the replica's end, ``on_replica_lost`` at the controller's."""
        self._network = network
        self.number = number
        self.broker = broker
        self.broken = False
        self.on_controller_lost = on_controller_lost
        self.on_replica_lost = on_replica_lost
        self._last_us = {True: 0, False: 0}

    def send(self, to_controller: bool, deliver: Callable[..., None], *args: object) -> None:
        """Send in order; a cut link breaks the session."""
        if self.broken:
            return
        source, target = (self.broker, CONTROLLER) if to_controller else (CONTROLLER, self.broker)
        network = self._network
        if network.is_cut(source, target):
            self.break_off()
            return
        when = max(network.world.now_us + network.delay_us(source, target), self._last_us[to_controller] + 1)
        self._last_us[to_controller] = when
        network.world.at(when, self._deliver, deliver, args)

    def break_off(self) -> None:
        """Break the session; both ends learn of it, each after its own delay."""
        if self.broken:
            return
        self.broken = True
        world = self._network.world
        world.after(world.between_us(1, 200), self.on_controller_lost)
        world.after(world.between_us(1, 200), self.on_replica_lost)

    def _deliver(self, deliver: Callable[..., None], args: tuple[object, ...]) -> None:
        if not self.broken:
            deliver(*args)
