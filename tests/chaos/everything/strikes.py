"""The faults of a run of everything: those of copies, of single processes, and of what serves the other features."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final

from tests.chaos import sight
from tests.chaos.actors import RayActors
from tests.chaos.arena import Injected, NoTarget, Strike
from tests.chaos.copies import strikes as copies

PAUSE_S: Final = (1.0, 8.0)
PREFIX: Final = "replica:"


def _replicas(*topics: str) -> list[str]:
    """Names of replicas: of these topics, or of any but the internal ones' sleeping partitions."""
    return sight.actor_names(*(f"{PREFIX}{topic}-" for topic in topics)) if topics else sight.actor_names(PREFIX)


def _any_replica(arena: RayActors, rng: random.Random, *topics: str) -> tuple[str, int]:
    """A replica of a topic that is drawn first, so that each topic has the same chance. Raises NoTarget."""
    names = _replicas(*topics)
    if not names:
        raise NoTarget(f"no replica of {', '.join(topics) or 'any topic'} runs")
    topic = rng.choice(sorted({_topic_of(name) for name in names}))
    return arena.actor(rng.choice([name for name in names if _topic_of(name) == topic]))


def _topic_of(name: str) -> str:
    return name.removeprefix(PREFIX).split(":")[0].rpartition("-")[0]


def _until_replaced_or_over(struck: Injected, targets: list[tuple[str, int]]) -> Injected:
    """A replica need not come back where its topic was deleted, or its partition fell asleep, meanwhile."""
    waiting = dict(targets)

    def back() -> bool:
        names = set(sight.actor_names(PREFIX, "broker-"))
        for name, pid in list(waiting.items()):
            if name not in names or sight.pid_of(name) not in (None, pid):
                del waiting[name]
        return not waiting

    return Injected(struck.target, back, struck.hold_s, struck.heal, struck.note)


def kill_any_replica(arena: RayActors, rng: random.Random, *topics: str) -> Injected:
    """SIGKILL a replica of any topic, Raylog's own included."""
    target = _any_replica(arena, rng, *topics)
    return _until_replaced_or_over(arena.kill(target), [target])


def pause_any_replica(arena: RayActors, rng: random.Random) -> Injected:
    """SIGSTOP a replica of any topic for 1 to 8 s."""
    return arena.pause(_any_replica(arena, rng), rng.uniform(*PAUSE_S))


def kill_broker_and_replicas(arena: RayActors, rng: random.Random) -> Injected:
    """SIGKILL a broker and all its replicas at once."""
    names = sight.actor_names("broker-")
    if not names:
        raise NoTarget("no broker runs")
    broker = rng.choice(names)
    found = [(name, sight.pid_of(name)) for name in (broker, *_replicas()) if name == broker or f":{broker}:" in name]
    targets = [(name, pid) for name, pid in found if pid is not None and sight.is_actor_process(pid)]
    if not targets:
        raise NoTarget(f"{broker} does not answer")
    struck = arena.kill(*targets)
    return _until_replaced_or_over(
        Injected(f"{broker} and {len(targets) - 1} replicas", struck.back, struck.hold_s, struck.heal), targets
    )


OWN_FAULTS: Final[dict[str, Callable[[RayActors, random.Random], Injected]]] = {
    "kill-any-replica": kill_any_replica,
    "pause-any-replica": pause_any_replica,
    "kill-broker-and-replicas": kill_broker_and_replicas,
    "kill-schedule-replica": lambda arena, rng: kill_any_replica(arena, rng, "__scheduled"),
    "kill-forwarding-replica": lambda arena, rng: kill_any_replica(arena, rng, "__forwarding", "wait"),
    "kill-queue-replica": lambda arena, rng: kill_any_replica(arena, rng, "jobs"),
}
SHARED_FAULTS: Final = ("kill-follower", "kill-coordinator", "ray-kill", "pause-controller", "restart-all")
EVERYTHING_FAULTS: Final = (*copies.COPIES_FAULTS, *OWN_FAULTS, *SHARED_FAULTS)
"""All faults of this part."""


def faults_of(arena: RayActors) -> dict[str, Strike]:
    """Return the faults of a run of everything, by name."""
    own: dict[str, Strike] = {kind: partial(strike, arena) for kind, strike in OWN_FAULTS.items()}
    return copies.faults_of(arena) | own | {kind: arena.faults[kind] for kind in SHARED_FAULTS}
