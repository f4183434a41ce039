"""A real Ray with a Raylog cluster in it, and faults for it. Used by the Ray tests of this folder.

Everything here runs on one machine, beside other Rays that may run there: this Ray is private, and only processes of
this cluster's own actors are ever killed.
"""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import pytest

import raylog
from raylog.actors.processes.spare_roles import actors_by_role
from raylog.base.errors import RaylogError
from raylog.launch.cluster import Cluster
from raylog.rpc import Connection, Reply, connect
from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.records import encode_batch
from tests.waiting import wait_for

T = TypeVar("T")
AWAKE: Final = {"replica.sleep.after.ms": "-1"}
"""For tests of replicas and their processes: those of a new partition start at once, and stay."""
NO_SPARES: Final = {"replica.spares": "0"}
"""For tests on several nodes, which one machine has to start: a cluster of nodes has spares by default."""
STORE_BYTES: Final = 80 * 2**20
"""Size of Ray's object store, which Raylog does not use."""


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder for Ray's files: a short path, because it contains sockets."""
    folder = Path(tempfile.mkdtemp(prefix="rl", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def ray_folder() -> Iterator[Path]:
    """Have Ray put its files in this test's folder."""
    with short_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        yield folder


@contextmanager
def own_ray() -> Iterator[None]:
    """A private Ray for this module, as a user's program starts one; most modules can share one (`shared_ray.py`)."""
    import ray

    with ray_folder():
        ray.init(
            address="local", include_dashboard=False, log_to_driver=False, num_cpus=2, object_store_memory=STORE_BYTES
        )
        try:
            yield
        finally:
            ray.shutdown()


class RayNodes:
    """Raylets on this machine: nodes that offer ``raylog``, each with a data directory below ``root``."""

    def __init__(self, root: Path) -> None:
        from ray.cluster_utils import Cluster

        self.root, self._rays = root, Cluster()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()
        try:
            self._rays.shutdown()  # type: ignore[no-untyped-call]
        except ValueError:  # a thread that a dataset has left connected once more; Ray has disconnected it by now
            self._rays.shutdown()  # type: ignore[no-untyped-call]

    def add(self, name: str, *, is_for_brokers: bool = True) -> Any:
        """Add a node; returns its handle."""
        return self._rays.add_node(
            num_cpus=1,
            resources={"raylog": 1} if is_for_brokers else {},
            env_vars={"RAYLOG_DATA_DIR": str(self.root / name)},
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
        )

    def remove(self, node: Any) -> None:
        """Lose a node: all its processes are killed."""
        self._rays.remove_node(node, allow_graceful=False)

    def start(self, name: str, config: dict[str, str] | None = None) -> Cluster:
        """Start Raylog as on the node of this name, without ``config`` without spare processes."""
        import ray

        if not ray.is_initialized():
            ray.init(address=self._rays.address, log_to_driver=False)
        return raylog.start(
            self.root / name, timeout_s=120, allow_plaintext=True, config=NO_SPARES if config is None else config
        )


def online(cluster: Cluster) -> set[int]:
    """Return the ids of the brokers that are online."""
    return {broker["broker"] for broker in cluster.status()["brokers"] if broker["online"]}


def actor(name: str) -> Any:
    """Return the handle of one of Raylog's actors, by the replica's name for a former spare."""
    import ray

    try:
        return ray.get_actor(name, namespace="raylog")
    except ValueError:
        return ray.get_actor(actors_by_role({}).get(name, name), namespace="raylog")


def actor_names() -> list[str]:
    """Return the names of Raylog's actors in this Ray; for a former spare, the replica's name."""
    return sorted(actors_by_role({}))


def call_actor(name: str, method: str, timeout_s: float = 90.0) -> Any:
    """Call an actor, with retries while Ray is restarting it."""
    import ray

    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ray.get(getattr(actor(name), method).remote(), timeout=timeout_s)
        except (ray.exceptions.RayActorError, ValueError):
            assert time.monotonic() < deadline, f"actor {name} did not answer within {timeout_s} s"
            time.sleep(0.05)


def kill(pid: int) -> float:
    """SIGKILL a process of the cluster under test; returns when."""
    assert pid != os.getpid()
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def kill_leaders(admin: raylog.Admin, topic: str) -> int:
    """Kill the process of each partition's leader; how many had one."""
    (found,) = admin.describe_topics([topic]).values()
    leaders = tuple(f"replica:{topic}-{row.partition}:broker-{row.leader}:" for row in found.partitions)
    pids = [call_actor(name, "status")["pid"] for name in actor_names() if name.startswith(leaders)]
    for pid in pids:
        kill(pid)
    return len(pids)


def alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def private_bytes(pid: int) -> int:
    """Return a process's private memory (Private_Clean and Private_Dirty)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def mapped(pid: int) -> str:
    """Return the files that a process has mapped, including native libraries of its imports."""
    return Path(f"/proc/{pid}/maps").read_text()


class Wire:
    """Calls to endpoints of the cluster on an event loop of its own."""

    def __init__(self, secret: str, broker: int = 1) -> None:
        self.secret = bytes.fromhex(secret)
        self.broker = broker
        self.came_up_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._connections: dict[tuple[str, int], Connection] = {}

    def close(self) -> None:
        """Close all connections and the loop."""

        async def shut() -> None:
            for connection in self._connections.values():
                connection.close("done")
                await connection.wait_closed()

        self.run(shut())
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the loop."""
        return self._loop.run_until_complete(asyncio.wait_for(work, 120))

    async def call(
        self, endpoint: tuple[str, int], method: str, args: object, payload: bytes = b"", timeout_s: float = 10
    ) -> Reply:
        """Call a method; a refusal is raised as the client's error class."""
        standing = self._connections.get(endpoint)
        if standing is None or standing.is_closed:
            standing = self._connections[endpoint] = await connect(*endpoint, secret=self.secret, timeout_s=5)
        return await standing.call(method, args, payload, timeout_s=timeout_s)

    def broker_endpoint(self) -> tuple[str, int]:
        """Return the endpoint of this wire's broker."""
        host, port = call_actor(f"broker-{self.broker}", "endpoint")
        return str(host), int(port)

    async def partition(self, endpoint: tuple[str, int], topic: str, partition: int) -> list[Any]:
        """Return [partition, leader, leader epoch, host, port, replicas, isr, places] as a broker sees it."""
        row: list[Any] = (await self.call(endpoint, "metadata", [[topic]])).args[3][0][4][partition]
        return row

    def look(self, topic: str, partition: int) -> list[Any]:
        """Return a partition as the broker sees it."""
        return self.run(self.partition(self.broker_endpoint(), topic, partition))

    def wait_whole(self, topic: str, partitions: int, timeout_s: float = 60.0) -> None:
        """Wait until all replicas of all partitions are in sync at a running leader."""

        def whole() -> bool:
            try:
                rows = [self.look(topic, number) for number in range(partitions)]
            except (RaylogError, OSError, IndexError):
                return False
            return all(row[1] > 0 and row[4] and sorted(row[6]) == sorted(row[5]) for row in rows)

        wait_for(whole, f"all replicas of {topic} are in sync", timeout_s)

    def leader_after(self, topic: str, partition: int, epoch: int, since: float) -> float:
        """Poll the broker's metadata every 2 ms until a newer epoch has a leader; returns the seconds since then."""

        async def poll(endpoint: tuple[str, int]) -> float:
            while True:
                row = await self.partition(endpoint, topic, partition)
                if row[2] > epoch and row[4]:
                    return time.monotonic() - since
                await asyncio.sleep(0.002)

        return self.run(poll(self.broker_endpoint()))

    def produce(self, topic: str, partition: int, value: bytes, timeout_s: float = 30.0) -> int:
        """Produce one record to the current leader, until all replicas have acknowledged it; returns its offset."""

        async def attempt() -> int:
            row = (await self.call(self.broker_endpoint(), "metadata", [[topic]])).args[3][0]
            number, _, epoch, host, port, *_ = row[4][partition]
            batch = encode_batch(None, [value], [int(time.time() * 1000)])
            reply = await self.call((host, port), "produce", [row[1], number, epoch, -1, 5000], batch)
            return int(reply.args[0])

        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self.run(attempt())
            except (RaylogError, OSError):
                assert time.monotonic() < deadline, f"{topic}-{partition} takes nothing"
                time.sleep(0.01)

    def end_offset(self, topic: str, partition: int) -> int:
        """Fetch everything and return the end offset; offsets have no gaps."""

        async def read() -> int:
            row = (await self.call(self.broker_endpoint(), "metadata", [[topic]])).args[3][0]
            number, _, epoch, host, port, *_ = row[4][partition]
            offset = 0
            while True:
                reply = await self.call((host, port), "fetch", [row[1], number, epoch, offset, 1 << 20, 1, 100, 0])
                for _, header in iter_headers(reply.payload):
                    assert header.base_offset <= offset
                    offset = header.next_offset
                if offset >= reply.args[0] >= 0:
                    return offset

        return self.run(read())
