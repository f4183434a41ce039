"""Processes of Raylog's actors killed with SIGKILL while queries run: leaders of partitions and coordinators."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import ray

import raylog
from raylog.actors.naming import NAMESPACE

EVERY_S: Final = 4.0
"""Time between two kills: enough for a replica to come back before the next one of its partition ends."""
ANSWER_S: Final = 15.0


@dataclass(slots=True)
class Kills:
    """Kills processes of one cluster in turn, and counts them."""

    cluster: raylog.Cluster
    done: list[str] = field(default_factory=list)

    @contextmanager
    def during(self, topics: Sequence[str]) -> Iterator[None]:
        """While the block runs, kill by turns the leader of a partition of these topics, and a coordinator."""
        over = threading.Event()

        def work() -> None:
            for turn in itertools.count():
                pid = None if turn % 3 == 2 else self._leader(topics[turn % len(topics)])
                self._kill(self._coordinator(turn) if pid is None else pid)
                if over.wait(EVERY_S):
                    return

        killer = threading.Thread(target=work, name="kills", daemon=True)
        killer.start()
        try:
            yield
        finally:
            over.set()
            killer.join()

    def summary(self) -> str:
        """What was killed and how often, in one line."""
        return ", ".join(f"{name} ({count})" for name, count in sorted(Counter(self.done).items()))

    def _kill(self, found: tuple[str, int] | None) -> None:
        if found is None:
            return
        name, pid = found
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.done.append(name)

    def _leader(self, topic: str) -> tuple[str, int] | None:
        """Return the leader of the topic's first partition; None when no process of it leads now."""
        with raylog.Admin() as admin:
            leader = admin.describe_topic(topic).partitions[0].leader
        for replica in self.cluster.replicas():
            if (replica["topic"], replica["partition"], replica["broker"]) == (topic, 0, leader):
                return f"leader of {topic}-0", replica["pid"]
        return None

    def _coordinator(self, turn: int) -> tuple[str, int] | None:
        """Return a coordinator of groups or transactions that answers; None when none does."""
        listed: list[dict[str, str]] = ray.util.list_named_actors(all_namespaces=True)
        names = sorted(each["name"] for each in listed if each["namespace"] == NAMESPACE)
        coordinators = [name for name in names if "-coordinator-" in name]
        if not coordinators:
            return None
        name = coordinators[turn % len(coordinators)]
        try:
            handle: Any = ray.get_actor(name, namespace=NAMESPACE)
            return name, ray.get(handle.pid.remote(), timeout=ANSWER_S)
        except (ray.exceptions.RayError, ValueError):
            return None  # it has just ended, or is being restarted
