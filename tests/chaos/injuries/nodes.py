"""The second arena: a Ray cluster of four raylets on this machine: a head, and three nodes with a broker and a disk.

The head has Ray's own control store, and losing it ends every Ray cluster. Each of the three others is a metadata
voter, and any of them may lose its raylet, and with it every process on it, at any time. It returns as a new Ray node
on the same disk. May touch: Ray, its own folder, raylets that it started itself.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import raylog
from raylog.actors.naming import CONTROLLER
from tests.chaos import sight
from tests.chaos.actors import RayActors
from tests.chaos.arena import OBJECT_STORE_BYTES, Injected, NoTarget, Setup, Strike, incomplete
from tests.chaos.injuries.processes import copy_ray_logs

AWAY_S: Final = (0.5, 8.0)
SIDE_FAULTS: Final = ("strike-sleepers", "strike-dozers")
BACK_WITHIN_S: Final = 60.0
NODE_FAULTS: Final = (
    "kill-leader-node",
    "kill-node",
    "kill-coordinator-node",
    "kill-two-nodes",
    "pause-node",
    "kill-node-and-controller",
    "kill-controller-node",
    "kill-leader",
    "kill-controller",
    *SIDE_FAULTS,
)
FOLDER: Final = "broker"
KILLED_WITHIN_S: Final = 10.0


class RayNodes(RayActors):
    """One Ray node for each broker."""

    can_lose_nodes = True

    def __init__(self, setup: Setup) -> None:
        """Nothing is started yet."""
        super().__init__(setup)
        self._ray: Any = None
        self._nodes: dict[str, Any] = {}
        self._paused_raylets: set[int] = set()
        self._lost: list[tuple[float, str, threading.Event]] = []
        """When a node that a side topic lost comes back, its name, and what waits for it."""
        self._changing = threading.Lock()
        """Held while nodes are added or removed: side topics lose nodes on threads of their own."""
        own = {
            "kill-node": self._kill_any,
            "kill-leader-node": self._kill_leaders,
            "kill-coordinator-node": self._kill_coordinators,
            "kill-two-nodes": self._kill_two,
            "kill-node-and-controller": self._kill_with_controller,
            "kill-controller-node": self._kill_controllers,
            "pause-node": self._pause_raylet,
        }
        known = {**self.faults, **own}
        self.faults = {kind: known[kind] for kind in NODE_FAULTS}
        self.faults |= {kind: self._bringing_back(known[kind]) for kind in SIDE_FAULTS}

    # The cluster

    def start(self) -> None:
        """Start the raylets and the cluster."""
        import ray
        from ray.cluster_utils import Cluster as RayCluster

        self._ray = RayCluster()
        self._ray.add_node(num_cpus=2, object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False)
        for number in range(1, self._setup.brokers + 1):
            self._add(f"node-{number}")
        ray.init(address=self._ray.address, log_to_driver=False)
        setup = self._setup
        self._cluster = raylog.start(
            setup.root / "head", config=setup.config, timeout_s=setup.start_s, allow_plaintext=True
        )

    def _add(self, name: str) -> None:
        self._nodes[name] = self._ray.add_node(
            num_cpus=1,
            resources={"raylog": 1},
            env_vars={"RAYLOG_DATA_DIR": str(self._setup.root / name)},
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
        )

    def close(self) -> None:
        """Stop the cluster and every raylet."""
        import ray

        try:
            if ray.is_initialized():
                self.stop()
        finally:
            ray.shutdown()
            if self._ray is not None:
                self._ray.shutdown()

    def release(self) -> None:
        """Continue every paused process."""
        super().release()
        self._continue_raylets()

    def _continue_raylets(self) -> None:
        while self._paused_raylets:
            with suppress(ProcessLookupError):
                os.kill(self._paused_raylets.pop(), signal.SIGCONT)

    def missing(self) -> str:
        """Return the reason why the cluster is not whole. Ray still lists brokers of lost nodes: not used."""
        lacking = incomplete(self.status(), self._brokers)
        if lacking:
            return lacking
        silent = set(sight.actor_names("replica:")) - set(sight.replica_states())
        silent |= {name for name in sight.actor_names("group-coordinator-") if sight.pid_of(name) is None}
        return f"{', '.join(sorted(silent))} does not answer" if silent else ""

    def directories(self) -> dict[int, Path]:
        """Return the data directory of each broker: the cluster assigned the id, and stores it in the directory."""
        found = {}
        for folder in sorted(self._setup.root.glob(f"*/{FOLDER}")):
            for line in (folder / "meta.properties").read_text(encoding="ascii").splitlines():
                if line.startswith("broker.id="):
                    found[int(line.partition("=")[2])] = folder
        return found

    def keep(self, folder: Path) -> None:
        """Copy Ray's logs."""
        copy_ray_logs(folder)

    # Targets

    def name_of(self, broker: int) -> str:
        """Return a broker's node, found by its disk."""
        folder = self.directories().get(broker)
        if folder is None or folder.parent.name not in self._nodes:
            raise NoTarget(f"broker {broker} has no node")
        return folder.parent.name

    def _leaders_node(self, rng: random.Random) -> str:
        name, _ = self._replica(rng, "leader")
        return self.name_of(int(name.split(":broker-")[1].partition(":")[0]))

    def _raylet_process(self, name: str) -> Any:
        from ray._private.ray_constants import PROCESS_TYPE_RAYLET

        processes = self._nodes[name].all_processes.get(PROCESS_TYPE_RAYLET)
        if not processes or processes[0].process.poll() is not None:
            raise NoTarget(f"{name} is down")
        return processes[0].process

    def _raylet(self, name: str) -> int:
        return int(self._raylet_process(name).pid)

    # Faults

    def kill_raylet(self, name: str) -> None:
        """SIGKILL a node's raylet; its actors end with it, once it is reaped."""
        raylet = self._raylet_process(name)
        raylet.kill()
        raylet.wait(KILLED_WITHIN_S)

    def collect(self, name: str) -> None:
        """End what a killed raylet left."""
        with self._changing, suppress(AssertionError):  # a process of the node needs a moment longer
            self._ray.remove_node(self._nodes[name], allow_graceful=False)

    def bring_back(self, name: str) -> None:
        """Start a new raylet on the same disk."""
        with self._changing:
            self._add(name)

    def lose_node_for(self, broker: int, away_s: float) -> None:
        """Lose the node of a broker, on any thread; it is brought back on the main one, where Ray can start a node."""
        name = self.name_of(broker)
        self.kill_raylet(name)
        self.collect(name)
        is_back = threading.Event()
        self._lost.append((time.monotonic() + away_s, name, is_back))
        is_back.wait(away_s + BACK_WITHIN_S)

    def _bringing_back(self, strike: Strike) -> Strike:
        """The fault of a side topic, which is over no earlier than its lost nodes are back."""

        def struck(rng: random.Random) -> Injected:
            found = strike(rng)
            found.back = partial(self._is_over, found.back)
            return found

        return struck

    def _is_over(self, back: Callable[[], bool]) -> bool:
        """Whether a side topic is done; called repeatedly on the main thread, and brings nodes back that are due."""
        for lost in [lost for lost in self._lost if time.monotonic() >= lost[0]]:
            self._lost.remove(lost)
            _, name, is_back = lost
            self.bring_back(name)
            is_back.set()
        return not self._lost and back()

    def _lose(self, names: list[str], rng: random.Random) -> Injected:
        for name in names:
            self.kill_raylet(name)
        for name in names:
            self.collect(name)
        hold_s = rng.uniform(*AWAY_S)

        def heal() -> None:
            for name in names:
                self.bring_back(name)

        return Injected(" + ".join(names), hold_s=hold_s, heal=heal, note=f"away for {hold_s:.1f} s")

    def _kill_any(self, rng: random.Random) -> Injected:
        """Lose any node with a broker: a voter of the metadata."""
        return self._lose([rng.choice(sorted(self._nodes))], rng)

    def _kill_leaders(self, rng: random.Random) -> Injected:
        """Lose the node with the leader of a partition."""
        return self._lose([self._leaders_node(rng)], rng)

    def _kill_coordinators(self, rng: random.Random) -> Injected:
        """Lose the group coordinator's node."""
        return self._lose([self._home(self._coordinator()[1])], rng)

    def _kill_controllers(self, rng: random.Random) -> Injected:
        """Lose the controller's node, unless that is the head."""
        return self._lose([self._home(self.actor(CONTROLLER)[1])], rng)

    def _home(self, pid: int) -> str:
        for name in sorted(self._nodes):
            if _runs_on(pid, self._raylet(name)):
                return name
        raise NoTarget(f"process {pid} runs on the head node")

    def _kill_two(self, rng: random.Random) -> Injected:
        """Lose two of the three nodes at once: a majority of the voters and of the replicas."""
        return self._lose(rng.sample(sorted(self._nodes), 2), rng)

    def _kill_with_controller(self, rng: random.Random) -> Injected:
        """Lose a leader's node and the controller at the same time."""
        name = self._leaders_node(rng)
        controller = self.kill_controller(rng)
        lost = self._lose([name], rng)
        lost.target, lost.back = f"{lost.target} + {controller.target}", controller.back
        return lost

    def _pause_raylet(self, rng: random.Random) -> Injected:
        """SIGSTOP a node's raylet for 1 to 5 s, while its actors keep running."""
        name = rng.choice(sorted(self._nodes))
        pid = self._raylet(name)
        hold_s = rng.uniform(1.0, 5.0)
        self._paused_raylets.add(pid)
        os.kill(pid, signal.SIGSTOP)
        return Injected(
            f"raylet of {name}", hold_s=hold_s, heal=self._continue_raylets, note=f"paused for {hold_s:.1f} s"
        )


def _runs_on(pid: int, raylet: int) -> bool:
    """Whether a process is a child of this raylet."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return f"PPid:\t{raylet}\n" in status
