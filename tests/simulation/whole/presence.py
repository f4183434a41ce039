"""Which replicas the controller takes for present (W22): all that run while voters can decide, and none that hangs.

Watched where a controller ends silent sessions, and by looking at its sessions. Called by `observer.py`; changes
nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from raylog.actors.naming import replica_name
from raylog.base.ids import BrokerId, TopicPartition
from raylog.core.controller.sessions import ReplicaMember, Session, Sessions
from tests.simulation.whole.dozing.claims import WITHOUT_KEEPER_S
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.cluster import Actor
    from tests.simulation.whole.world import World

RULE: Final = "W22"
SLACK_S: Final = 1.0
"""For links that are slow, and the pauses between two looks."""
FOUND_S: Final = 5.0
"""Time to find a controller and to connect to it."""
Link = tuple[str, str]


class Presence:
    """Compares the sessions of replicas with what their processes do."""

    def __init__(self, world: World) -> None:
        """Watch every controller, and every link, from now on."""
        self._world = world
        config = world.plan.config
        self._timeout_s = int(config["broker.session.timeout.ms"]) / 1000
        self._heartbeat_s = int(config["broker.heartbeat.interval.ms"]) / 1000
        self._unsteady_s: dict[Link, float] = {}
        """When a link was last blocked or slow."""
        self._absent_s: dict[str, float] = {}
        """Since when a replica has been expected in vain."""
        self._watch_links()
        self._watch_controllers()

    def look(self) -> None:
        """No replica is present that hangs; note links that are slow now."""
        self._note_links()
        actor = self._world.cluster.actors.get("controller")
        if actor is None or actor.process is None or not actor.serves or actor.process.is_paused:
            return
        machine = None if actor.server._runner is None else actor.server._runner.machine
        if machine is None:
            return
        # Heartbeats may be held by a blocked link, for as long as it takes to end the session of their broker.
        limit_s = 2 * self._timeout_s + 3 * self._heartbeat_s + SLACK_S
        # A registration counts from its commit on: without a majority of voters no controller could answer it.
        may_register = self._has_majority(machine, actor.process.host)
        for replica in self._world.nemesis.replicas():
            process, server = replica.process, replica.server
            if process is None or server is None:
                continue
            steady_s = self._world.now_s - max(process.changed_s, actor.process.changed_s)
            session = machine._sessions.of(member_of(server))
            is_present = session is not None and session.life == server._incarnation
            if process.hangs and is_present and steady_s > limit_s:
                self._world.fail(Violation(RULE, f"{replica.name} hangs for {steady_s:.1f} s, and is present"))
            is_free = may_register and self._is_expected(replica, machine, actor.process.host)
            if is_present or steady_s < FOUND_S or not is_free:
                self._absent_s.pop(replica.name, None)
            elif self._world.now_s - self._absent_s.setdefault(replica.name, self._world.now_s) > limit_s:
                self._world.fail(Violation(RULE, f"{replica.name} runs for {limit_s:.1f} s, and has not registered"))

    def _has_majority(self, machine: Any, controller: str) -> bool:
        """Whether most voters have run for a while, have disks that write, and reach the controller."""
        world, since_s = self._world, self._world.now_s - FOUND_S
        votes = 0
        for voter in machine.image.voters:
            actor = world.cluster.actors.get(f"broker-{voter}")
            process = None if actor is None or not actor.serves else actor.process
            if process is None or process.hangs or process.changed_s > since_s:
                continue
            writes = world.disks is None or world.disks.writes(process.host)
            votes += writes and self.are_steady(process.host, controller, since_s)
        return votes > len(machine.image.voters) // 2

    def _is_expected(self, replica: Actor, machine: Any, controller: str) -> bool:
        """Whether a replica runs, may find the controller, and is to be registered."""
        process, server = replica.process, replica.server
        if process is None or process.hangs or not replica.serves or server._stopping is not None:
            return False
        member = member_of(server)
        state = machine.image.partition(member.partition, member.topic_id)
        is_wanted = state is not None and state.place(member.broker) is not None
        since_s = self._world.now_s - FOUND_S
        is_free = is_wanted and not machine.image.is_stopped(member.broker)
        return is_free and self.are_steady(process.host, controller, since_s)

    def alone(self) -> str:
        """Return a replica that sends its own heartbeats; empty = brokers vouch for all that belong to a partition."""
        controller = self._world.cluster.controller()
        if controller is None or controller._runner is None:
            return "no controller"
        machine, host = controller._runner.machine, controller.spec.host
        for replica in self._world.nemesis.replicas():
            if self._is_expected(replica, machine, host) and not replica.server._link._is_vouched_for:
                return f"{replica.name} sends its own heartbeats"
        return ""

    # ------------------------------------------------------------ running replicas

    def _watch_controllers(self) -> None:
        original, presence = Sessions.silent_since, self

        def checked(sessions: Sessions, limit_ms: int) -> list[Session]:
            silent = original(sessions, limit_ms)
            for session in silent:
                if isinstance(session.member, ReplicaMember):
                    presence._is_silent(session, session.member)
            return silent

        Sessions.silent_since = checked  # type: ignore[assignment, method-assign]

    def _is_silent(self, session: Session, member: ReplicaMember) -> None:
        """A controller takes a replica for silent: it was not running all the time, or not connected."""
        world, at = self._world, member.partition
        replica = world.cluster.actors.get(replica_name(at.topic, at.partition, member.broker, member.topic_id))
        controller = world.scheduler.current
        if replica is None or replica.process is None or replica.server is None or controller is None:
            return
        process, since_s = replica.process, world.now_s - 2 * self._timeout_s - SLACK_S
        if not process.is_alive or process.hangs or max(process.changed_s, controller.changed_s) > since_s:
            return
        killed_s = world.strikes.keepers_killed_s.get(f"broker-{member.broker}", -WITHOUT_KEEPER_S)
        if process.is_paused and world.now_s - killed_s < WITHOUT_KEEPER_S:
            return  # its broker has stopped it, and hangs without a keeper that would continue it
        if not replica.server._link.is_connected:
            return  # its registration is not answered before it is committed, and no majority of voters may be there
        if not self.are_steady(process.host, controller.host, since_s):
            return
        if replica.server._incarnation == session.life:
            world.fail(Violation(RULE, f"{replica.name} runs, and is taken for silent: {session}"))

    # ------------------------------------------------------------ links

    def _watch_links(self) -> None:
        network, unsteady = self._world.network, self._unsteady_s
        block, heal = network.block, network.heal

        def blocked(source: str, target: str) -> None:
            unsteady[source, target] = math.inf
            block(source, target)

        def healed(source: str, target: str) -> None:
            if (source, target) in network.blocked:
                unsteady[source, target] = self._world.now_s
            heal(source, target)

        network.block, network.heal = blocked, healed  # type: ignore[method-assign]

    def are_steady(self, here: str, there: str, since_s: float) -> bool:
        """Return whether no link between two hosts was blocked or slow since a time."""
        return all(self._unsteady_s.get(link, 0.0) <= since_s for link in ((here, there), (there, here)))

    def _note_links(self) -> None:
        network, now_s = self._world.network, self._world.now_s
        for link in network.slow:
            self._unsteady_s[link] = max(now_s, self._unsteady_s.get(link, 0.0))
        for host in network.down:
            for other in self._world.cluster.hosts:
                for link in ((host, other), (other, host)):
                    self._unsteady_s[link] = max(now_s, self._unsteady_s.get(link, 0.0))


def member_of(server: Any) -> ReplicaMember:
    """Return a replica as the owner of a session."""
    spec = server.spec
    return ReplicaMember(spec.topic_id, TopicPartition(spec.topic, spec.partition), BrokerId(spec.broker))
