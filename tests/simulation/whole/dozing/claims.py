"""What must hold of processes that their brokers have stopped (W23). Called by `observer.py`; changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from raylog.actors.naming import replica_name
from raylog.core.replication.leader import Leader
from raylog.core.vouching import Pace
from tests.simulation.whole.dozing.ports import GOES_ON, OFFER, STOP
from tests.simulation.whole.loop.processes import SimProcess
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.cluster import Actor
    from tests.simulation.whole.world import World

RULE: Final = "W23"
AWAY: Final = "its broker does not run"
SLACK_S: Final = 1.0
"""For a broker that is busy, and the pauses between two looks."""
WITHOUT_KEEPER_S: Final = 25.0
"""How long after the death of a keeper nothing is claimed of what its broker has stopped."""


class DozeClaims:
    """Looks at the processes that are stopped."""

    def __init__(self, world: World) -> None:
        """Before any was."""
        self._world = world
        self.ended = 0
        """How many dozes have ended."""
        config = world.plan.config
        heartbeat_ms, timeout_ms = (
            int(config[f"broker.{name}.ms"]) for name in ("heartbeat.interval", "session.timeout")
        )
        self._keeper_s = Pace.of(heartbeat_ms, timeout_ms).hung_after_ms / 1000
        self._since_s: dict[tuple[SimProcess, str], float] = {}
        """Since when something holds of a process that must soon be continued."""
        self._away_s: dict[str, float] = {}
        """When each broker was last seen not to run."""
        self._lag_s = int(config["replica.lag.time.max.ms"]) / 1000
        self._rested_s: dict[SimProcess, float] = {}
        """When the doze of each process last ended."""
        if world.plan.dozes:
            self._watch_leaders()

    def look(self) -> None:
        """No process is stopped for longer than it may be."""
        if self._world.dozes is None:
            return
        self._look_at_brokers()
        reasons: set[tuple[SimProcess, str]] = set()
        for replica in self._world.nemesis.replicas():
            process = replica.process
            if process is None or not (process.is_paused and process.is_dozing):
                continue
            for reason, limit_s in self._reasons(replica, process):
                reasons.add((process, reason))
                for_s = self._world.now_s - self._since_s.setdefault((process, reason), self._world.now_s)
                if for_s > limit_s:
                    self._world.fail(Violation(RULE, f"{replica.name} is stopped for {for_s:.1f} s, and {reason}"))
        for ended in [key for key in self._since_s if key not in reasons]:
            del self._since_s[ended]

    def _look_at_brokers(self) -> None:
        for actor in self._world.cluster.named("broker-"):
            if actor.process is None or actor.process.is_paused or not actor.serves:
                self._away_s[actor.name] = self._world.now_s

    def _reasons(self, replica: Actor, process: SimProcess) -> list[tuple[str, float]]:
        """Return why a stopped process must be continued, and how soon."""
        world, server = self._world, replica.server
        broker, now_s = f"broker-{server.spec.broker}", world.now_s
        if now_s - world.strikes.keepers_killed_s.get(broker, -WITHOUT_KEEPER_S) < WITHOUT_KEEPER_S:
            return []
        away_s = now_s - self._away_s.get(broker, -SLACK_S)
        if away_s == 0:
            mine = world.cluster.actors[broker].process
            if mine is not None and mine.hangs:  # it may have run between two looks, and its keeper counts from then on
                self._since_s[process, AWAY] = max(mine.changed_s, self._since_s.get((process, AWAY), now_s))
            return [(AWAY, self._keeper_s + SLACK_S)]
        if away_s <= SLACK_S:
            return []
        found = []
        if not process.is_blocked:
            found.append(("it is not at rest", SLACK_S))
        if process.has_input():
            found.append(("something can be read", SLACK_S))
        if world.dozes is not None and now_s > world.dozes.until_s.get(process, now_s):
            found.append(("it offered to be stopped until earlier", SLACK_S))
        if self._is_due(server):
            found.append(("a deadline of its own has passed", SLACK_S))
        return found

    def step(self, name: str, process: SimProcess, broker: str) -> None:
        """A doze has come to a step."""
        if name == GOES_ON:
            self.ended += 1
            self._rested_s[process] = self._world.now_s
        replica = self._world.cluster.actors.get(process.name)
        if replica is None or replica.process is not process or not process.is_alive:
            return
        if name == OFFER and (number := open_requests(replica.server)):
            self._world.fail(Violation(RULE, f"{process.name} offers to be stopped with {number} open requests"))
        mine = self._world.cluster.actors[broker].process
        calls = self._world.cluster.calls.values()
        if name == STOP and any(callee == process.name and caller is mine for callee, caller in calls):
            self._world.fail(Violation(RULE, f"{process.name} is to be stopped, and {broker} waits for its answer"))

    def _is_due(self, server: Any) -> bool:
        """Whether the machine has something to do now, or the flush policy has."""
        now_ms, runner = int(self._world.now_s * 1000), server._runner
        if runner is None or runner.machine is None:
            return False
        machine, leader = runner.machine, runner.machine._leader
        due_ms = runner.flush_due_ms(machine.next_due_ms(now_ms, now_ms + 1))
        may_sleep = leader is not None and not runner.log.has_open_transactions
        sleeps = may_sleep and leader.idleness.is_due(now_ms, machine.settings.sleep_after_ms)
        return bool(due_ms <= now_ms or sleeps)

    def _watch_leaders(self) -> None:
        propose, claims = Leader._propose, self

        def checked(leader: Leader, *rest: Any, leaving: Any = (), **others: Any) -> None:
            for broker in leaving:
                claims._leaves(leader, broker)
            propose(leader, *rest, leaving=leaving, **others)

        Leader._propose = checked  # type: ignore[assignment, method-assign]

    def _leaves(self, leader: Leader, broker: int) -> None:
        """A leader drops a follower that lags: it has not just rested, with nothing to fetch."""
        world, process = self._world, self._world.scheduler.current
        me = None if process is None else world.cluster.actors.get(process.name)
        if process is None or me is None:
            return
        spec = me.server.spec
        replica = world.cluster.actors.get(replica_name(spec.topic, spec.partition, broker, spec.topic_id))
        follower = None if replica is None else replica.process
        if follower is None or follower.hangs:
            return
        is_resting = follower.is_dozing and follower.is_paused
        rested_s = world.now_s - (world.now_s if is_resting else self._rested_s.get(follower, -self._lag_s))
        since_s = world.now_s - self._lag_s - self._keeper_s - SLACK_S
        if world.disks is not None and not world.disks.were_well(follower.host, since_s):
            return  # it may lag because its disk takes nothing
        steady_s = max(process.changed_s, follower.changed_s, self._away_s.get(f"broker-{broker}", 0.0))
        if steady_s > since_s or not world.observer.presence.are_steady(process.host, follower.host, since_s):
            return
        if rested_s < self._lag_s / 2 and world.network.connects(process, follower):
            text = f"{follower.name} rested until {rested_s:.2f} s ago, and leaves the ISR for its lag"
            world.fail(Violation(RULE, text))

    def awake(self) -> str:
        """Return a replica that does not doze although nothing has happened for a while; empty = all do."""
        for replica in self._world.nemesis.replicas():
            process, server = replica.process, replica.server
            if server is not None and server.is_stopped:
                continue  # of a deleted topic: it serves no more, and its broker may not know of it
            if process is None or not (process.is_paused and process.is_dozing):
                return f"{replica.name} is awake{'' if server is None else stirring(server)}"
        return ""


def stirring(server: Any) -> str:
    """Return what keeps a replica's process awake, for the stories of failed runs."""
    runner = server._runner
    machine = None if runner is None else runner.machine
    if machine is None:
        return ", and serves not yet"
    log = machine._log
    return (
        f": busy {server._is_busy}, up to date {runner.is_up_to_date}, {len(runner.requests)} requests, "
        f"{machine.role} with {log.high_watermark} of {log.end} known, {machine.quiet(0)}, "
        f"dozes after {machine.settings.doze_after_ms} ms"
    )


def open_requests(server: Any) -> int:
    """Return how many requests a replica has to answer, besides those that wait for records."""
    runner = server._runner
    leader = runner.machine._leader
    waiting = 0 if leader is None else len(leader.visibility.waiting) + len(leader.fetches.waiting)
    return len(runner.requests) - waiting
