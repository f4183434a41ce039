"""A side topic whose replicas doze, with something done to their processes in each round.

The fault of ``make chaos`` that is about stopped processes: used by both arenas in Ray. May signal processes of Ray
workers only.
"""

import random
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import raylog
from raylog.base.errors import RaylogError
from tests.chaos import sight
from tests.chaos.arena import Injected, NoTarget
from tests.chaos.injuries.sleepers import AWAY_S, LOSE, PAUSE_S, WITHIN_S, read_all

if TYPE_CHECKING:
    from tests.chaos.actors import RayActors

PARTITIONS: Final = 2
ROUNDS: Final = 4
RECORDS: Final = 20
"""Records of each round and partition."""
CONFIG: Final = {"replica.doze.after.ms": 200, "replica.sleep.after.ms": -1}
STRIKE_S: Final = (0.0, 0.1)
"""When it is done: before or after the first record arrives."""
INJURIES: Final = ("kill a replica", "stop a replica", "continue a replica", "kill a broker", "stop a broker")


def strike_dozers(arena: "RayActors", rng: random.Random) -> Injected:
    """Let a side topic doze, injure a replica or its broker each time as records come in, and read everything."""
    name = f"dozer-{rng.getrandbits(32):08x}"
    injuries = [rng.choice((*INJURIES, LOSE) if arena.can_lose_nodes else INJURIES) for _ in range(ROUNDS)]
    if arena.can_lose_nodes:
        injuries[0] = LOSE  # what no other arena can do
    seed = rng.getrandbits(64)
    done = threading.Event()

    def live() -> None:
        try:
            _live(arena, name, injuries, random.Random(seed))
        except (RaylogError, TimeoutError, AssertionError) as error:
            arena.remarks.append(f"{name} did not doze and go on: {error!r}")
        else:
            done.set()

    threading.Thread(target=live, name=name, daemon=True).start()
    return Injected(name, done.is_set, note=", ".join(injuries))


def _live(arena: "RayActors", name: str, injuries: list[str], rng: random.Random) -> None:
    stored: set[tuple[int, bytes]] = set()
    with raylog.Admin(**arena.clients()) as admin, raylog.Producer(**arena.clients()) as producer:
        arena.create_side_topic(admin, name, PARTITIONS, CONFIG)
        for number, injury in enumerate(injuries):
            _wait(lambda: bool(dozing(name)), f"a replica of {name} dozes")
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
        read_all(arena, name, PARTITIONS, stored)
        admin.delete_topic(name, timeout_s=WITHIN_S)


def _injure(arena: "RayActors", name: str, injury: str, after_s: float, hold_s: float) -> None:
    """Do it to a process that dozes, to its broker or its node; nothing if there is none at that moment."""
    found = dozing(name)
    if not found:
        return
    replica = found[0]
    pid = sight.pid_of_broker(replica["broker"]) if injury.endswith("broker") else int(replica["pid"])
    time.sleep(after_s)
    try:
        if injury == LOSE:
            arena.lose_node_for(replica["broker"], hold_s)
        elif pid is None or not sight.is_actor_process(pid):
            return
        elif injury.startswith("kill"):
            arena.send_signal(pid, signal.SIGKILL)
        elif injury.startswith("continue"):
            arena.send_signal(pid, signal.SIGCONT)
        else:
            arena.pause_for(pid, hold_s)
    except NoTarget:
        pass  # another fault was faster


def dozing(topic: str) -> list[dict[str, Any]]:
    """Status of the replicas of a topic whose processes their brokers have stopped now."""
    rows = []
    for broker in sight.actor_names("broker-"):
        found: dict[str, dict[str, Any]] | None = sight.call(broker, "dozing")
        rows += [row for row in (found or {}).values() if row["topic"] == topic]
    return rows


def _wait(holds: Callable[[], bool], what: str) -> None:
    if not sight.wait_until(holds, WITHIN_S):
        raise TimeoutError(f"it does not hold that {what}")
