"""A side topic whose partitions fall asleep and wake, with something of them killed in each round.

The fault of ``make chaos`` that is about sleep: used by both arenas in Ray. May signal processes of Ray workers only.
"""

import random
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import raylog
from raylog.actors.naming import CONTROLLER, broker_name
from raylog.core.errors import RaylogError
from tests.chaos import sight
from tests.chaos.arena import Injected

if TYPE_CHECKING:
    from tests.chaos.actors import RayActors

PARTITIONS: Final = 2
ROUNDS: Final = 3
RECORDS: Final = 20
"""Records of each round and partition."""
SLEEP_AFTER_MS: Final = 1_000
WITHIN_S: Final = 90.0
STRIKE_S: Final = (0.0, 0.4)
"""When something is killed: after the first record has begun to wake its partition, or while it sleeps."""


def strike_sleepers(arena: "RayActors", rng: random.Random) -> Injected:
    """Let a side topic sleep and wake, kill a replica, its broker or the controller each time, and read everything."""
    name = f"sleeper-{rng.getrandbits(32):08x}"
    victims = [rng.choice(("replica", "broker", "controller")) for _ in range(ROUNDS)]
    delays = [rng.uniform(*STRIKE_S) for _ in range(ROUNDS)]
    done = threading.Event()

    def live() -> None:
        try:
            _live(arena, name, victims, delays)
        except (RaylogError, TimeoutError, AssertionError) as error:
            arena.remarks.append(f"{name} did not sleep and wake: {error!r}")
        else:
            done.set()

    threading.Thread(target=live, name=name, daemon=True).start()
    return Injected(name, done.is_set, note=f"kills {', '.join(victims)}")


def _live(arena: "RayActors", name: str, victims: list[str], delays: list[float]) -> None:
    stored: set[tuple[int, bytes]] = set()
    with raylog.Admin(**arena.clients()) as admin, raylog.Producer(**arena.clients()) as producer:
        arena.create_side_topic(admin, name, PARTITIONS, {"replica.sleep.after.ms": SLEEP_AFTER_MS})
        for number, (victim, delay_s) in enumerate(zip(victims, delays, strict=True)):
            killer = threading.Thread(target=_kill, args=(arena, name, victim, delay_s), daemon=True)
            killer.start()
            sent = [
                (partition, value, producer.send(name, value=value, partition=partition))
                for partition in range(PARTITIONS)
                for value in (f"{number}/{partition}/{index}".encode() for index in range(RECORDS))
            ]
            for partition, value, item in sent:
                item.result(timeout=WITHIN_S)
                stored.add((partition, value))
            killer.join(WITHIN_S)
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


def _kill(arena: "RayActors", name: str, victim: str, delay_s: float) -> None:
    """Kill a process that has to do with the topic's first partition; nothing if there is none at that moment."""
    time.sleep(delay_s)
    view = sight.status()
    rows = [] if view is None else view["topics"].get(name, [])
    leader = rows[0]["leader"] if rows else -1
    if victim == "controller":
        actor = CONTROLLER
    elif victim == "broker" and leader >= 0:
        actor = broker_name(leader)
    else:
        replicas = sight.actor_names(f"replica:{name}-0:")
        actor = replicas[0] if replicas else ""
    pid = sight.pid_of(actor) if actor else None
    if pid is not None:
        arena.send_signal(pid, signal.SIGKILL)


def _is_asleep(name: str) -> bool:
    view = sight.status()
    rows = [] if view is None else view["topics"].get(name, [])
    return bool(rows) and all(row["asleep"] for row in rows)


def _wait(holds: Callable[[], bool], what: str) -> None:
    if not sight.wait_until(holds, WITHIN_S):
        raise TimeoutError(f"it does not hold that {what}")
