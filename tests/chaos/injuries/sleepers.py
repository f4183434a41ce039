"""A side topic whose partitions fall asleep and wake, with something done to its processes in each round.

The fault of ``make chaos`` that is about sleep: used by both arenas in Ray. May signal processes of Ray workers only.
"""

import random
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import raylog
from raylog.actors.naming import CONTROLLER
from raylog.base.errors import RaylogError
from tests.chaos import sight
from tests.chaos.arena import Injected, NoTarget

if TYPE_CHECKING:
    from tests.chaos.actors import RayActors

PARTITIONS: Final = 2
ROUNDS: Final = 2
RECORDS: Final = 20
"""Records of each round and partition."""
SLEEP_AFTER_MS: Final = 1_000
WITHIN_S: Final = 90.0
STRIKE_S: Final = (0.0, 0.4)
"""When it is done: after the first record has begun to wake its partition, or while it sleeps."""
PAUSE_S: Final = (0.5, 5.0)
"""How long a process stays stopped: shorter or longer than a session."""
AWAY_S: Final = (0.5, 5.0)
"""How long a node is lost."""
INJURIES: Final = ("kill a replica", "kill the broker", "kill the controller", "stop the broker", "stop the controller")
LOSE: Final = "lose the node"
"""Where there are several: the node with the broker of the leader."""


def strike_sleepers(arena: "RayActors", rng: random.Random) -> Injected:
    """Let a side topic sleep and wake, injure something that it needs for that each time, and read everything."""
    name = f"sleeper-{rng.getrandbits(32):08x}"
    injuries = [rng.choice((*INJURIES, LOSE) if arena.can_lose_nodes else INJURIES) for _ in range(ROUNDS)]
    if arena.can_lose_nodes:
        injuries[0] = LOSE  # what no other arena can do
    seed = rng.getrandbits(64)
    done = threading.Event()

    def live() -> None:
        try:
            _live(arena, name, injuries, random.Random(seed))
        except (RaylogError, TimeoutError, AssertionError) as error:
            arena.remarks.append(f"{name} did not sleep and wake: {error!r}")
        else:
            done.set()

    threading.Thread(target=live, name=name, daemon=True).start()
    return Injected(name, done.is_set, note=", ".join(injuries))


def _live(arena: "RayActors", name: str, injuries: list[str], rng: random.Random) -> None:
    stored: set[tuple[int, bytes]] = set()
    with raylog.Admin(**arena.clients()) as admin, raylog.Producer(**arena.clients()) as producer:
        arena.create_side_topic(admin, name, PARTITIONS, {"replica.sleep.after.ms": SLEEP_AFTER_MS})
        for number, injury in enumerate(injuries):
            times = rng.uniform(*STRIKE_S), rng.uniform(*(AWAY_S if injury == LOSE else PAUSE_S))
            injurer = threading.Thread(target=_injure, args=(arena, name, injury, *times), daemon=True)
            injurer.start()
            sent = [
                (partition, value, producer.send(name, value=value, partition=partition))
                for partition in range(PARTITIONS)
                for value in (f"{number}/{partition}/{index}".encode() for index in range(RECORDS))
            ]
            for partition, value, item in sent:
                item.result(timeout=WITHIN_S)
                stored.add((partition, value))
            injurer.join(WITHIN_S)
            _wait(lambda: _is_asleep(name), f"{name} sleeps")
        read_all(arena, name, PARTITIONS, stored)
        admin.delete_topic(name, timeout_s=WITHIN_S)


def read_all(arena: "RayActors", name: str, partitions: int, stored: set[tuple[int, bytes]]) -> None:
    """Read the topic, which wakes it, and compare: each record once, none missing."""
    found: list[tuple[int, bytes]] = []
    with raylog.Consumer(auto_offset_reset="earliest", **arena.clients()) as consumer:
        consumer.assign([raylog.TopicPartition(name, partition) for partition in range(partitions)])
        deadline_s = time.monotonic() + WITHIN_S
        while len(found) < len(stored) and time.monotonic() < deadline_s:
            for at, records in consumer.poll(timeout_ms=500).items():
                found += [(at.partition, record.value or b"") for record in records]
    missing = stored - set(found)
    assert not missing, f"{len(missing)} acknowledged records of {name} are missing: {sorted(missing)[:3]}"
    assert len(found) == len(set(found)), f"records of {name} are there twice"


def _injure(arena: "RayActors", name: str, injury: str, after_s: float, hold_s: float) -> None:
    """Do it to what the topic's first partition needs; nothing if there is none at that moment."""
    time.sleep(after_s)
    view = sight.status()
    rows = [] if view is None else view["topics"].get(name, [])
    leader = rows[0]["leader"] if rows else -1
    try:
        if injury == LOSE:
            if leader >= 0:
                arena.lose_node_for(leader, hold_s)
            return
        pid = _pid(name, injury, leader)
        if pid is None:
            return
        if injury.startswith("kill"):
            arena.send_signal(pid, signal.SIGKILL)
        else:
            arena.pause_for(pid, hold_s)
    except NoTarget:
        pass  # another fault was faster


def _pid(name: str, injury: str, leader: int) -> int | None:
    """Process of the controller, of the leader's broker, or of a replica; None if there is none."""
    if injury.endswith("controller"):
        return sight.pid_of(CONTROLLER)
    if injury.endswith("broker"):
        return sight.pid_of_broker(leader) if leader >= 0 else None
    replicas = sight.actor_names(f"replica:{name}-0:")
    return sight.pid_of(replicas[0]) if replicas else None


def _is_asleep(name: str) -> bool:
    view = sight.status()
    rows = [] if view is None else view["topics"].get(name, [])
    return bool(rows) and all(row["asleep"] for row in rows)


def _wait(holds: Callable[[], bool], what: str) -> None:
    if not sight.wait_until(holds, WITHIN_S):
        raise TimeoutError(f"it does not hold that {what}")
