"""A cluster in Ray with a process for every replica, broker, coordinator and the controller, and the faults for them.

Signals go only to processes of Ray workers, whose ids the actors themselves reported. :meth:`RayActors.release`
continues every paused process, even after an error. ``processes.py`` and ``nodes.py`` add their own faults.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import raylog
from raylog.actors.naming import CONTROLLER
from raylog.base.errors import InvalidReplicationFactor, RaylogError, TopicAlreadyExists
from tests.chaos import sight
from tests.chaos.arena import Injected, NoTarget, Setup, Strike
from tests.chaos.injuries.crowd import CROWD, Crowd
from tests.chaos.injuries.dozers import strike_dozers
from tests.chaos.injuries.sleepers import strike_sleepers

TARGET_WITHIN_S: Final = 10.0
PAUSE_S: Final = (1.0, 5.0)
STRANDED_S: Final = (0.5, 2.0)
"""Below the session timeout, so that the controller still counts the followers as in sync."""
LONG_PAUSE_S: Final = (8.0, 10.0)
SIDE_PARTITIONS: Final = 2
SIDE_WITHIN_S: Final = 60.0
COORDINATORS: Final = ("group-coordinator-", "transaction-coordinator-")


class RayActors:
    """Faults of single processes of a cluster in Ray, on any node."""

    can_lose_nodes = False
    """Whether :meth:`lose_node_for` can be done here."""

    def __init__(self, setup: Setup) -> None:
        """Nothing is started yet."""
        self._setup = setup
        self._topic = setup.topic
        self._partitions = setup.partitions
        self._brokers = setup.brokers
        self._cluster: raylog.Cluster | None = None
        self._paused: set[int] = set()
        self.remarks: list[str] = []
        self.faults: Mapping[str, Strike] = {kind: partial(strike, self) for kind, strike in ACTOR_FAULTS.items()}

    def stop(self) -> None:
        """Stop the cluster; Ray keeps running."""
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            cluster.stop()

    def secret(self) -> str:
        """Return the cluster's secret."""
        if self._cluster is None:
            raise NoTarget("the cluster does not run")
        return self._cluster.secret()

    def bootstrap(self) -> str:
        """Return the addresses of the brokers that are online."""
        if self._cluster is None:
            raise NoTarget("the cluster does not run")
        return self._cluster.bootstrap()

    def release(self) -> None:
        """Continue every paused process."""
        for pid in list(self._paused):
            self._continue(pid)

    def clients(self) -> dict[str, Any]:
        """Return nothing: clients find the cluster through Ray."""
        return {}

    def status(self) -> dict[str, Any] | None:
        """Return the controller's view."""
        return sight.status()

    def replica_states(self) -> list[dict[str, Any]]:
        """Return the status of every replica that answers."""
        return list(sight.replica_states().values())

    def missing(self) -> str:
        """Return the reason why the cluster is not whole."""
        return sight.missing(self._brokers)

    # Targets

    def _replica(self, rng: random.Random, role: str) -> tuple[str, int]:
        """Actor name and process id of a leader or of a follower of the topic."""
        deadline_s = time.monotonic() + TARGET_WITHIN_S
        while time.monotonic() < deadline_s:
            view = sight.status()
            partitions = [] if view is None else view["topics"].get(self._topic, [])
            if partitions:
                one = partitions[rng.randrange(len(partitions))]
                leads = [one["leader"]] if one["leader"] >= 0 else []
                brokers = leads if role == "leader" else [b for b in one["replicas"] if b != one["leader"]]
                name = sight.replica_of(self._topic, one["partition"], rng.choice(brokers)) if brokers else None
                pid = sight.pid_of(name) if name is not None else None
                if name is not None and pid is not None:
                    return name, pid
            time.sleep(sight.LOOK_S)
        raise NoTarget(role)

    def actor(self, name: str) -> tuple[str, int]:
        """Return an actor's name and process id. Raises NoTarget."""
        deadline_s = time.monotonic() + TARGET_WITHIN_S
        while time.monotonic() < deadline_s:
            pid = sight.pid_of(name)
            if pid is not None:
                return name, pid
            time.sleep(sight.LOOK_S)
        raise NoTarget(name)

    def _coordinator(self) -> tuple[str, int]:
        names = sight.actor_names("group-coordinator-")
        if not names:
            raise NoTarget("no group coordinator runs")
        return self.actor(names[0])

    def _broker(self, rng: random.Random) -> tuple[str, int]:
        names = sight.actor_names("broker-")
        if not names:
            raise NoTarget("no broker runs")
        return self.actor(rng.choice(names))

    # Faults

    def _signal(self, pid: int, number: signal.Signals) -> None:
        if not sight.is_actor_process(pid):
            raise NoTarget(f"process {pid} has ended")
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise NoTarget(f"process {pid} has ended") from None

    def kill(self, *targets: tuple[str, int]) -> Injected:
        """SIGKILL processes; the fault is over when all actors answer from others."""
        for _, pid in targets:
            self._signal(pid, signal.SIGKILL)
        return Injected(" + ".join(name for name, _ in targets), _replaced(*targets))

    def pause(self, target: tuple[str, int], hold_s: float) -> Injected:
        """SIGSTOP a process for a time."""
        name, pid = target
        self._signal(pid, signal.SIGSTOP)
        self._paused.add(pid)
        return Injected(name, hold_s=hold_s, heal=lambda: self._continue(pid), note=f"paused for {hold_s:.1f} s")

    def _continue(self, pid: int) -> None:
        self._paused.discard(pid)
        try:
            self._signal(pid, signal.SIGCONT)
        except NoTarget:
            pass  # it was killed while it was paused

    def kill_leader(self, rng: random.Random) -> Injected:
        """SIGKILL the process of a leader."""
        return self.kill(self._replica(rng, "leader"))

    def kill_follower(self, rng: random.Random) -> Injected:
        """SIGKILL the process of a follower."""
        return self.kill(self._replica(rng, "follower"))

    def kill_partition(self, rng: random.Random) -> Injected:
        """SIGKILL all replicas of a partition at once: acknowledged records are on disk."""
        partition = rng.randrange(self._partitions)
        targets = [
            (name, pid)
            for name in sight.actor_names(f"replica:{self._topic}-{partition}:")
            if (pid := sight.pid_of(name)) is not None
        ]
        if not targets:
            raise NoTarget("no replica answers")
        return self.kill(*targets)

    def kill_controller(self, _: random.Random) -> Injected:
        """SIGKILL the controller's process."""
        return self.kill(self.actor(CONTROLLER))

    def kill_coordinator(self, _: random.Random) -> Injected:
        """SIGKILL a group coordinator's process."""
        return self.kill(self._coordinator())

    def kill_broker(self, rng: random.Random) -> Injected:
        """SIGKILL a broker actor's process; its replicas keep running."""
        return self.kill(self._broker(rng))

    def kill_spare(self, rng: random.Random) -> Injected:
        """SIGKILL a spare, a process that waits to become a replica."""
        names = sight.spares()
        if not names:
            raise NoTarget("there is no spare")
        return self.kill(self.actor(rng.choice(names)))

    def make_topic(self, rng: random.Random) -> Injected:
        """Make another topic, write to each partition and delete it, concurrently with other faults.

        Its replicas are new processes, or spares if available; the fault is over when all three steps have succeeded.
        """
        name = f"side-{rng.getrandbits(32):08x}"
        done = threading.Event()

        def live() -> None:
            try:
                with raylog.Admin(**self.clients()) as admin:
                    self.create_side_topic(admin, name, SIDE_PARTITIONS)
                    with raylog.Producer(**self.clients()) as producer:
                        sent = [
                            producer.send(name, value=b"here", partition=partition)
                            for partition in range(SIDE_PARTITIONS)
                        ]
                        for item in sent:
                            item.result(timeout=SIDE_WITHIN_S)
                    admin.delete_topic(name, timeout_s=SIDE_WITHIN_S)
            except (RaylogError, TimeoutError) as error:
                self.remarks.append(f"{name} did not live: {error!r}")
            else:
                done.set()

        threading.Thread(target=live, name=name, daemon=True).start()
        return Injected(name, done.is_set)

    def create_side_topic(
        self, admin: raylog.Admin, name: str, partitions: int, config: Mapping[str, object] | None = None
    ) -> None:
        """Create a side topic, as soon as enough brokers are online for its replicas. Raises TimeoutError."""
        factor = min(3, self._brokers)

        def created() -> bool:
            try:
                admin.create_topic(name, partitions, factor, dict(config or {}), timeout_s=SIDE_WITHIN_S)
            except InvalidReplicationFactor:
                return False  # another fault has killed a broker
            except TopicAlreadyExists:
                pass  # by a request whose answer was lost
            return True

        if not sight.wait_until(created, SIDE_WITHIN_S):
            raise TimeoutError(f"{name} was not created within {SIDE_WITHIN_S:.0f} s")

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        """Signal a process of a Ray worker; no other process is ever signalled."""
        self._signal(pid, number)

    def pause_for(self, pid: int, hold_s: float) -> None:
        """SIGSTOP a process of a Ray worker, and continue it after so long, or earlier by :meth:`release`."""
        paused = self.pause((f"process {pid}", pid), hold_s)
        time.sleep(hold_s)
        paused.heal()

    def lose_node_for(self, broker: int, away_s: float) -> None:
        """Lose the node of a broker, and bring it back after so long. Raises NoTarget where all are on one node."""
        raise NoTarget(f"broker {broker} shares its node with all others")

    def pause_leader(self, rng: random.Random) -> Injected:
        """SIGSTOP a leader for 1 to 5 s: it wakes as a zombie if another was elected meanwhile."""
        return self.pause(self._replica(rng, "leader"), rng.uniform(*PAUSE_S))

    def hang_leader(self, rng: random.Random) -> Injected:
        """SIGSTOP a leader for 8 to 10 s: long enough to see whether clients continue with its successor."""
        return self.pause(self._replica(rng, "leader"), rng.uniform(*LONG_PAUSE_S))

    def strand_leader(self, rng: random.Random) -> Injected:
        """SIGSTOP all followers of a partition, a little later SIGKILL its leader, then continue the followers.

        Records that the leader took meanwhile are on its disk alone: it must not have acknowledged them or shown them.
        """
        leader, pid = self._replica(rng, "leader")
        partition_prefix = leader[: leader.index(":broker-") + 1]
        others = [name for name in sight.actor_names(partition_prefix) if name != leader]
        followers = [follower for name in others if (follower := sight.pid_of(name)) is not None]
        for follower in followers:
            self._signal(follower, signal.SIGSTOP)
            self._paused.add(follower)

        def heal() -> None:
            try:
                self._signal(pid, signal.SIGKILL)
            finally:
                for follower in followers:
                    self._continue(follower)

        hold_s = rng.uniform(*STRANDED_S)
        return Injected(leader, _replaced((leader, pid)), hold_s, heal, f"alone for {hold_s:.1f} s")

    def crowd_leader(self, rng: random.Random) -> Injected:
        """Open a thousand connections to a leader that never authenticate, and replace each one that it closes."""
        name, pid = self._replica(rng, "leader")
        endpoint = sight.call(name, "endpoint")
        if endpoint is None:
            raise NoTarget(name)
        crowd = Crowd(*endpoint)
        crowd.start()
        hold_s = rng.uniform(*PAUSE_S)

        def heal() -> None:
            crowd.end()
            if sight.pid_of(name) not in (None, pid):
                self.remarks.append(f"{name} was another process after its crowd had left")

        return Injected(name, hold_s=hold_s, heal=heal, note=f"{CROWD} silent connections for {hold_s:.1f} s")

    def pause_follower(self, rng: random.Random) -> Injected:
        """SIGSTOP a follower for 1 to 5 s."""
        return self.pause(self._replica(rng, "follower"), rng.uniform(*PAUSE_S))

    def pause_controller(self, rng: random.Random) -> Injected:
        """SIGSTOP the controller for 1 to 5 s."""
        return self.pause(self.actor(CONTROLLER), rng.uniform(*PAUSE_S))

    def ray_kill(self, rng: random.Random) -> Injected:
        """Have Ray kill an actor of any role and start it again."""
        import ray

        names = sight.actor_names(f"replica:{self._topic}-", *COORDINATORS, "broker-", CONTROLLER)
        target = self.actor(rng.choice(names)) if names else None
        if target is None:
            raise NoTarget("no actor runs")
        ray.kill(sight.handle_of(target[0]), no_restart=False)
        return Injected(target[0], _replaced(target))


def _replaced(*targets: tuple[str, int]) -> Callable[[], bool]:
    """Whether every actor answers from a process other than its earlier one."""
    waiting = dict(targets)

    def back() -> bool:
        for name, pid in list(waiting.items()):
            if sight.pid_of(name) not in (None, pid):
                del waiting[name]
        return not waiting

    return back


ACTOR_FAULTS: Final[dict[str, Callable[[RayActors, random.Random], Injected]]] = {
    "kill-leader": RayActors.kill_leader,
    "kill-follower": RayActors.kill_follower,
    "kill-partition": RayActors.kill_partition,
    "kill-controller": RayActors.kill_controller,
    "kill-coordinator": RayActors.kill_coordinator,
    "kill-broker": RayActors.kill_broker,
    "kill-spare": RayActors.kill_spare,
    "make-topic": RayActors.make_topic,
    "strike-sleepers": strike_sleepers,
    "strike-dozers": strike_dozers,
    "pause-leader": RayActors.pause_leader,
    "hang-leader": RayActors.hang_leader,
    "strand-leader": RayActors.strand_leader,
    "crowd-leader": RayActors.crowd_leader,
    "pause-follower": RayActors.pause_follower,
    "pause-controller": RayActors.pause_controller,
    "ray-kill": RayActors.ray_kill,
}
