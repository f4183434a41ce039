"""The faults of a world: processes killed and paused, nodes without power, links blocked, slow or one-way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.whole.cluster import Actor
from tests.simulation.whole.schemes import Schemes
from tests.simulation.whole.stops import request_rest

if TYPE_CHECKING:
    from tests.simulation.whole.world import World


class Nemesis:
    """Draws faults at the rate of the world's plan; ``heal`` undoes all of them."""

    def __init__(self, world: World) -> None:
        """No fault before :meth:`start`."""
        self._world = world
        self._scheduler = world.scheduler
        self._network = world.network
        self.schemes = Schemes(world, self)
        self._active = False
        self.faults = 0
        self.lost_s = math.inf
        """When one node was lost and no other fault was in effect any more."""

    @property
    def is_active(self) -> bool:
        """Whether faults are drawn."""
        return self._active

    def start(self) -> None:
        """Begin."""
        self._active = True
        if self._world.plan.is_operated:
            self._scheduler.after(self._scheduler.between(1.0, 4.0), self.schemes.lose_unclean)
        if self._world.plan.loses_one:
            self._scheduler.after(self._scheduler.between(1.0, 3.0), self._lose_one)
        for after_s in self._world.plan.stops_called_off_s:
            self._scheduler.after(after_s, request_rest, self._world)
        self._again()

    def _lose_one(self) -> None:
        """Lose one node until the heal, but not the controller's: power, network, its disk, or all processes hang."""
        cluster = self._world.cluster
        controller = cluster.actors["controller"].process
        hosts = [host for host in cluster.hosts if controller is None or host != controller.host]
        host = hosts[int(self._scheduler.random.random() * len(hosts))]
        if self._world.plan.loses_last_man:
            self.schemes.lose_last_man(host)
        else:
            self.lose(host)

    def lose(self, host: str) -> None:
        """Lose a node, or its disk, until the heal; no other fault is in effect from now on."""
        disks = self._world.disks
        deeds = [self._cut_off, self._power_off, self._hang] if disks is None else disks.deeds
        deeds[int(self._scheduler.random.random() * len(deeds))](host)
        self.faults += 1
        self.lost_s = self._world.now_s

    def _hang(self, host: str) -> None:
        self._world.log("nemesis", f"all processes of {host} hang")
        for actor in self._world.cluster.actors.values():
            if actor.process is not None and actor.process.host == host:
                actor.process.pause()

    def heal(self) -> None:
        """Undo all faults, and inject no more."""
        self._active = False
        for source, target in list(self._network.blocked):
            self._network.heal(source, target)
        self._network.slow.clear()
        self._network.clock_jump_s.clear()
        for host in list(self._network.down):
            self._power_on(host)
        if self._world.disks is not None:
            self._world.disks.repair_all()
        for host in list(self._world.cluster.lost):
            self._world.cluster.find_node(host)
        for actor in self._world.cluster.actors.values():
            if actor.process is not None:
                actor.process.resume()
        for process in self._world.clients:
            process.resume()
        for part in self._world.parts:
            part.heal()
        self._world.log("nemesis", "everything is healed")

    def _again(self) -> None:
        plan = self._world.plan
        if self._active and plan.fault_pause_s:
            self._scheduler.after(self._scheduler.random.expovariate(1 / plan.fault_pause_s), self._strike)

    def _strike(self) -> None:
        if not self._active:
            return
        self.faults += 1
        number = self.faults - 1
        if number >= self._world.plan.faults_max:
            return
        if number in self._world.plan.spared:
            self._again()
            return
        deeds = [*self._deeds(), *(getattr(self.schemes, name) for name in self._world.plan.schemes)]
        deeds[int(self._scheduler.random.random() * len(deeds))]()
        self._again()

    def _deeds(self) -> list[Callable[[], None]]:
        return [
            self._kill_replica,
            self._kill_replica,
            self._kill_replica,
            self._kill_actor,
            self._kill_controller,
            self._kill_coordinator,
            self._strike_member,
            self._pause,
            self._strike_broker,
            self._cut_host,
            self._cut_link,
            self._slow_link,
            self._power_cut,
            self._jump_clock,
            *([] if self._world.disks is None else [self._strike_disk, self._strike_disk]),
            *(fault for part in self._world.parts for fault in part.faults),
        ]

    def _pick(self, actors: list[Actor]) -> Actor | None:
        running = [actor for actor in actors if actor.process is not None]
        return running[int(self._scheduler.random.random() * len(running))] if running else None

    def replicas(self) -> list[Actor]:
        """Return the actors of all replicas."""
        others = ("broker-", "controller", "coordinator-")
        return [actor for name, actor in self._world.cluster.actors.items() if not name.startswith(others)]

    def _kill(self, actor: Actor | None) -> None:
        if actor is not None and actor.process is not None:
            actor.process.kill("killed by the nemesis")

    def _kill_replica(self) -> None:
        self._kill(self._pick(self.replicas()))

    def _kill_actor(self) -> None:
        self._kill(self._pick(list(self._world.cluster.actors.values())))

    def _kill_controller(self) -> None:
        self._kill(self._pick(self._world.cluster.named("controller")))

    def _kill_coordinator(self) -> None:
        self._kill(self._pick(self._world.cluster.named("coordinator-")))

    def _strike_member(self) -> None:
        """Kill the process of a group member, which another follows, or pause it beyond its session timeout."""
        world = self._world
        place = int(self._scheduler.random.random() * len(world.places))
        process, calls = world.places[place], f"member-{place}."
        if self._scheduler.chance(0.5):
            process.kill("killed by the nemesis")
            world.books.excuse(calls, math.inf)
            self._scheduler.after(self._scheduler.between(0.1, 2.0), world.fill_place, place)
        elif not process.is_paused:
            for_s = self._scheduler.between(0.5, 9.0)
            process.pause()
            world.books.excuse(calls, for_s)
            self._scheduler.after(for_s, process.resume)

    def _pause(self) -> None:
        actor = self._pick(list(self._world.cluster.actors.values()))
        if actor is not None and actor.process is not None:
            process = actor.process
            process.pause()
            self._scheduler.after(self._scheduler.between(0.05, 8.0), process.resume)

    def _strike_broker(self) -> None:
        """Kill a broker or let it hang, with or without a replica beside it."""
        broker = self._pick(self._world.cluster.named("broker-"))
        if broker is None or broker.process is None:
            return
        host = broker.process.host
        beside = [actor for actor in self.replicas() if actor.process is not None and actor.process.host == host]
        struck = [actor for actor in (self._pick(beside),) if actor is not None and self._scheduler.chance(0.5)]
        for actor in [*struck, *([] if self._scheduler.chance(0.5) else [broker])]:
            if actor.process is not None:
                actor.process.pause()
                self._scheduler.after(self._scheduler.between(0.5, 12.0), actor.process.resume)
        if not broker.process.is_paused:
            self._kill(broker)

    def _cut_host(self) -> None:
        host = self.a_host()
        self._cut_off(host)
        self._scheduler.after(self._scheduler.between(0.2, 12.0), self._reconnect, host)

    def _reconnect(self, host: str) -> None:
        for source, target in self._links_of(host):
            self._network.heal(source, target)
        self._world.cluster.find_node(host)

    def _cut_off(self, host: str) -> None:
        self._world.log("nemesis", f"{host} is cut off")
        for source, target in self._links_of(host):
            self._network.block(source, target)
        self._scheduler.after(self._scheduler.between(2.0, 6.0), self._take_for_lost, host)

    def _take_for_lost(self, host: str) -> None:
        if all(link in self._network.blocked for link in self._links_of(host)):
            self._world.cluster.lose_node(host)

    def _links_of(self, host: str) -> list[tuple[str, str]]:
        return [link for other in self._all_hosts() if other != host for link in ((host, other), (other, host))]

    def _cut_link(self) -> None:
        source, target = (
            self.a_host(),
            self._all_hosts()[int(self._scheduler.random.random() * len(self._all_hosts()))],
        )
        if source != target:
            both = self._scheduler.chance(0.5)
            self._world.log("nemesis", f"the link {source} -> {target} is cut{' both ways' if both else ''}")
            self.block([(source, target), *([(target, source)] if both else [])], self._scheduler.between(0.2, 12.0))

    def block(self, links: list[tuple[str, str]], for_s: float) -> None:
        """Block links for a time; none any more once all is healed."""
        for source, target in links if self._active else ():
            self._network.block(source, target)
            self._scheduler.after(for_s, self._network.heal, source, target)

    def _slow_link(self) -> None:
        source, target = self.a_host(), self.a_host()
        self._network.slow[(source, target)] = self._scheduler.between(0.01, 0.5)
        self._scheduler.after(self._scheduler.between(0.5, 8.0), self._network.slow.pop, (source, target), None)

    def _power_cut(self) -> None:
        if self._network.down or not self._world.plan.power_cuts:
            return
        self.lose_power(self.a_host(), self._scheduler.between(0.5, 12.0))

    def lose_power(self, host: str, for_s: float) -> None:
        """Cut a node's power for a time, unless some node has none, or all is healed: schemes strike late."""
        if self._active and not self._network.down:
            self._power_off(host)
            self._scheduler.after(for_s, self._power_on, host)

    def _power_off(self, host: str) -> None:
        self._world.log("nemesis", f"{host} loses power")
        self._network.power_off(host)
        for actor in list(self._world.cluster.actors.values()):
            if actor.process is not None and actor.process.host == host:
                actor.process.kill("its node lost power")
        self._world.cluster.lose_power(host)
        self._world.memory.lose_power(host)
        if self._world.disks is not None:
            self._world.disks.lose_power(host)

    def _power_on(self, host: str) -> None:
        if host in self._network.down:
            self._world.log("nemesis", f"{host} has power again")
            self._network.power_on(host)

    def _strike_disk(self) -> None:
        disks, host = self._world.disks, self.a_host()
        assert disks is not None
        disks.repair(host)
        disks.deeds[int(self._scheduler.random.random() * len(disks.deeds))](host)
        self._scheduler.after(self._scheduler.between(0.5, 12.0), disks.repair, host)

    def _jump_clock(self) -> None:
        if self._world.plan.forgets_producers_s or any(part.clocks_agree for part in self._world.parts):
            return  # by a clock that is ahead everything may have expired
        host = self.a_host()
        jump_s = self._scheduler.between(-1_000.0, 1_000.0)
        plan = self._world.plan
        goes_by_clocks = any(part.goes_by_clocks for part in plan.parts)
        if plan.delayers or plan.expirers or plan.workers or goes_by_clocks:
            self._network.clock_jump_s.clear()  # most brokers' clocks decide when records are due
        self._world.log("nemesis", f"the clock of {host} jumps by {jump_s:.0f} s")
        self._network.clock_jump_s[host] = jump_s

    def a_host(self) -> str:
        """Draw a node's host."""
        hosts = self._world.cluster.hosts
        return hosts[int(self._scheduler.random.random() * len(hosts))]

    def _all_hosts(self) -> list[str]:
        return [*self._world.cluster.hosts, *self._world.client_hosts]
