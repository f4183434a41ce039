"""The faults: what is done to a running cluster from outside, and how it is taken back.

Used by the run. Signals go to processes of Ray workers only, whose ids the actors told themselves. Every paused process
is continued and every filled disk freed by :meth:`Nemesis.close`, whatever happened.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raylog.actors.naming import CONTROLLER, NAMESPACE, broker_folder, broker_name
from tests.chaos import sight, small_disk
from tests.chaos.history import Fault, History

WHOLE_WITHIN_S: Final = 90.0
TARGET_WITHIN_S: Final = 10.0
PAUSE_S: Final = (1.0, 5.0)
STRANDED_S: Final = (0.5, 2.0)
"""Below the session timeout, so that the followers are still in sync, as far as anybody knows."""
LONG_PAUSE_S: Final = (8.0, 10.0)


class NoTarget(Exception):
    """There is nobody to do it to at the moment."""


@dataclass(slots=True)
class Injected:
    """A fault that is in effect: whom it met, and how it ends."""

    target: str
    old: list[tuple[str, int]] = field(default_factory=list)
    """Actors that were killed, with the process ids they had."""
    hold_s: float = 0.0
    heal: Callable[[], None] = lambda: None
    note: str = ""


class Nemesis:
    """Injects faults one after the other, in one thread."""

    def __init__(
        self,
        history: History,
        *,
        root: Path,
        topic: str,
        partitions: int,
        brokers: int,
        restart: Callable[[], None],
        small_broker: int | None,
    ) -> None:
        """``restart`` stops and starts the whole cluster; ``small_broker`` has its directory on a small disk."""
        self._history = history
        self._root = root
        self._topic = topic
        self._partitions = partitions
        self._brokers = brokers
        self._restart = restart
        self._small_broker = small_broker
        self._paused: set[int] = set()
        self._filled: set[Path] = set()
        self._struck: list[tuple[str, float, Injected, float]] = []

    def close(self) -> None:
        """Take back whatever is still in effect."""
        for pid in list(self._paused):
            self._continue(pid)
        for folder in list(self._filled):
            self._free(folder)

    def strike(self, kinds: Sequence[str], rng: random.Random, *, storm: bool = False) -> list[Fault]:
        """Do these faults at nearly the same time, heal them, and wait until the cluster is whole.

        A fault that found no target is left out. In a ``storm`` nobody waits, and :meth:`settle` ends it.
        """
        struck = self._inflict(kinds, rng)
        self._struck += struck
        return [] if storm else self.settle()

    def settle(self) -> list[Fault]:
        """Wait until the cluster is whole; the faults since it last was, which are then added to the history."""
        struck, self._struck = self._struck, []
        newest = {name: pid for _, _, injected, _ in struck for name, pid in injected.old}
        began_s = time.monotonic()
        replaced = sight.wait_replaced(newest.items(), WHOLE_WITHIN_S)
        whole = replaced and self.wait_whole(max(1.0, WHOLE_WITHIN_S - (time.monotonic() - began_s)))
        whole_s = self._history.now_s() if whole else None
        note = "" if whole else (sight.missing(self._brokers) if replaced else "a killed actor was not replaced")
        faults = [
            Fault(kind, injected.target, at_s, healed_s, whole_s, note or injected.note)
            for kind, at_s, injected, healed_s in struck
        ]
        for fault in faults:
            self._history.add(fault)
        return faults

    def _inflict(self, kinds: Sequence[str], rng: random.Random) -> list[tuple[str, float, Injected, float]]:
        """Do these faults and heal them; each with its kind, its time, and the time it was healed."""
        struck: list[tuple[str, float, Injected]] = []
        for kind in sorted(kinds, key=lambda kind: "controller" in kind):  # the others ask it for their targets
            try:
                injected = FAULTS[kind](self, rng)
            except NoTarget:
                continue
            struck.append((kind, self._history.now_s(), injected))
        struck.sort(key=lambda one: one[1] + one[2].hold_s)
        healed = []
        for kind, at_s, injected in struck:
            time.sleep(max(0.0, at_s + injected.hold_s - self._history.now_s()))
            injected.heal()
            healed.append((kind, at_s, injected, self._history.now_s()))
        return healed

    def wait_whole(self, timeout_s: float = WHOLE_WITHIN_S) -> bool:
        """Whether every actor answers and every replica is in sync within the time."""
        return sight.wait_until(lambda: not sight.missing(self._brokers), timeout_s)

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

    def _actor(self, name: str) -> tuple[str, int]:
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
        return self._actor(names[0])

    def _broker(self, rng: random.Random) -> tuple[str, int]:
        return self._actor(broker_name(rng.randint(1, self._brokers)))

    # What is done to them

    def _signal(self, pid: int, number: signal.Signals) -> None:
        if not sight.is_actor_process(pid):
            raise NoTarget(f"process {pid} is gone")
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise NoTarget(f"process {pid} is gone") from None

    def _kill(self, *targets: tuple[str, int]) -> Injected:
        for _, pid in targets:
            self._signal(pid, signal.SIGKILL)
        return Injected(" + ".join(name for name, _ in targets), list(targets))

    def _pause(self, target: tuple[str, int], hold_s: float) -> Injected:
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

    def _free(self, folder: Path) -> None:
        self._filled.discard(folder)
        small_disk.free(folder)

    # The faults

    def kill_leader(self, rng: random.Random) -> Injected:
        """SIGKILL the process of a leader."""
        return self._kill(self._replica(rng, "leader"))

    def kill_follower(self, rng: random.Random) -> Injected:
        """SIGKILL the process of a follower."""
        return self._kill(self._replica(rng, "follower"))

    def kill_partition(self, rng: random.Random) -> Injected:
        """SIGKILL all replicas of a partition at once: what was acknowledged is on disk."""
        partition = rng.randrange(self._partitions)
        targets = [
            (name, pid)
            for name in sight.actor_names(f"replica:{self._topic}-{partition}:")
            if (pid := sight.pid_of(name)) is not None
        ]
        if not targets:
            raise NoTarget("no replica answers")
        return self._kill(*targets)

    def kill_controller(self, _: random.Random) -> Injected:
        """SIGKILL the controller's process."""
        return self._kill(self._actor(CONTROLLER))

    def kill_coordinator(self, _: random.Random) -> Injected:
        """SIGKILL a group coordinator's process."""
        return self._kill(self._coordinator())

    def kill_broker(self, rng: random.Random) -> Injected:
        """SIGKILL a broker actor's process; its replicas go on."""
        return self._kill(self._broker(rng))

    def pause_leader(self, rng: random.Random) -> Injected:
        """SIGSTOP a leader for 1 to 5 s: it wakes as a zombie if another was elected meanwhile."""
        return self._pause(self._replica(rng, "leader"), rng.uniform(*PAUSE_S))

    def hang_leader(self, rng: random.Random) -> Injected:
        """SIGSTOP a leader for 8 to 10 s: long enough to see whether clients go on with its successor."""
        return self._pause(self._replica(rng, "leader"), rng.uniform(*LONG_PAUSE_S))

    def strand_leader(self, rng: random.Random) -> Injected:
        """SIGSTOP all followers of a partition, a little later SIGKILL its leader, and have the followers go on.

        What the leader took meanwhile is on its disk alone: it must neither have acknowledged it nor shown it.
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
        return Injected(leader, [(leader, pid)], hold_s, heal, f"alone for {hold_s:.1f} s")

    def pause_follower(self, rng: random.Random) -> Injected:
        """SIGSTOP a follower for 1 to 5 s."""
        return self._pause(self._replica(rng, "follower"), rng.uniform(*PAUSE_S))

    def pause_controller(self, rng: random.Random) -> Injected:
        """SIGSTOP the controller for 1 to 5 s."""
        return self._pause(self._actor(CONTROLLER), rng.uniform(*PAUSE_S))

    def ray_kill(self, rng: random.Random) -> Injected:
        """Have Ray kill an actor of any role and start it again."""
        import ray

        names = sight.actor_names(f"replica:{self._topic}-", "group-coordinator-", "broker-", CONTROLLER)
        target = self._actor(rng.choice(names)) if names else None
        if target is None:
            raise NoTarget("no actor runs")
        ray.kill(ray.get_actor(target[0], namespace=NAMESPACE), no_restart=False)
        return Injected(target[0], [target])

    def restart_all(self, _: random.Random) -> Injected:
        """Stop the whole cluster, and start it on the same directories."""
        return Injected("everything", heal=self._restart)

    def full_disk(self, rng: random.Random) -> Injected:
        """Leave one broker no room on its disk for 2 to 5 s."""
        if self._small_broker is None:
            raise NoTarget("no broker has a small disk")
        folder = broker_folder(self._root, self._small_broker)
        self._filled.add(folder)
        taken = small_disk.fill(folder)
        hold_s = rng.uniform(2.0, 5.0)
        note = f"{taken >> 20} MiB taken for {hold_s:.1f} s"
        return Injected(f"broker-{self._small_broker}", hold_s=hold_s, heal=lambda: self._free(folder), note=note)


FAULTS: Final[dict[str, Callable[[Nemesis, random.Random], Injected]]] = {
    "kill-leader": Nemesis.kill_leader,
    "kill-follower": Nemesis.kill_follower,
    "kill-partition": Nemesis.kill_partition,
    "kill-controller": Nemesis.kill_controller,
    "kill-coordinator": Nemesis.kill_coordinator,
    "kill-broker": Nemesis.kill_broker,
    "pause-leader": Nemesis.pause_leader,
    "hang-leader": Nemesis.hang_leader,
    "strand-leader": Nemesis.strand_leader,
    "pause-follower": Nemesis.pause_follower,
    "pause-controller": Nemesis.pause_controller,
    "ray-kill": Nemesis.ray_kill,
    "restart-all": Nemesis.restart_all,
    "full-disk": Nemesis.full_disk,
}


class Schedule:
    """Which faults come next, by a seed: every kind once before any comes again, now and then two at a time."""

    def __init__(self, kinds: Sequence[str], rng: random.Random, *, pair_chance: float = 0.2) -> None:
        self._kinds = list(kinds)
        self._rng = rng
        self._pair_chance = pair_chance
        self._bag: list[str] = []

    def next(self) -> list[str]:
        """One kind, or two."""
        kinds = [self._draw()]
        if len(self._kinds) > 1 and self._rng.random() < self._pair_chance:
            second = self._draw()
            if "restart-all" not in (second, *kinds):  # nobody is there to be met while all is stopped
                kinds.append(second)
            else:
                self._bag.append(second)
        return kinds

    def _draw(self) -> str:
        if not self._bag:
            self._bag = list(self._kinds)
            self._rng.shuffle(self._bag)
        return self._bag.pop()
