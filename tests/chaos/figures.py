"""How long the cluster takes to have a leader again: the command behind ``make chaos-figures``.

Four figures, each from many injuries of a cluster at rest with default settings: a leader killed; the controller killed
and a leader immediately after it; a node's raylet killed; a node that loses its power (in a network namespace, because
none of its connections may be closed). Times count from the injury until metadata name a new leader, and until an
active producer has its next record acknowledged.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import raylog
from raylog.base.errors import RaylogError
from tests.chaos.arena import CLUSTER_CONFIG, Arena, LeftOut, Setup
from tests.chaos.evidence.report import spread
from tests.chaos.sight import wait_until
from tests.cluster.ray_support import Wire

TOPIC: Final = "figures"
PARTITIONS: Final = 3
BROKERS: Final = 3
WHOLE_S: Final = 120.0
LED_WITHIN_S: Final = 60.0
LOOK_S: Final = 0.002
REST_S: Final = 1.0
Endpoint = tuple[str, int]


@dataclass(slots=True)
class Figure:
    """The cost of one kind of injury."""

    name: str
    goal: str
    led_s: list[float] = field(default_factory=list)
    produced_s: list[float] = field(default_factory=list)

    def line(self) -> str:
        """One row of the table."""
        columns = []
        for times in (self.led_s, self.produced_s):
            found = spread(times)
            columns.append("-" if found is None else "{median:7.3f} {p99:7.3f} {max:7.3f}".format(**found))
        return f"{self.name:<28}{len(self.led_s):>6}   {columns[0]:<24}  {columns[1]:<24}  {self.goal}"


class Watch:
    """Sees the cluster as its clients do: metadata from brokers, and one producer."""

    def __init__(self, arena: Arena, secret: str) -> None:
        """``arena`` runs, with the topic in it."""
        self.arena = arena
        self.wire = Wire(secret)
        self.producer = raylog.Producer(linger_ms=0, delivery_timeout_ms=60_000, **arena.clients())
        for partition in range(PARTITIONS):
            self.producer.send(TOPIC, b"first", partition=partition).result(30)

    def close(self) -> None:
        """End the producer and the connections."""
        self.producer.close(timeout=5)
        self.wire.close()

    def settle(self) -> None:
        """Wait until the cluster is whole, and a moment longer."""
        if not wait_until(lambda: not self.arena.missing(), WHOLE_S):
            raise TimeoutError(f"the cluster did not become whole: {self.arena.missing()}")
        time.sleep(REST_S)

    def leader(self, partition: int) -> tuple[int, int]:
        """Return the leader and the leader epoch, as the brokers report them to clients."""
        row = self._row(self.endpoints(), partition)
        return row[1], row[2]

    def endpoints(self, without: int = -1) -> list[Endpoint]:
        """Return the endpoints of all brokers except one."""
        view = self.arena.status()
        if view is None:
            raise TimeoutError("the controller does not answer")
        return [
            (broker["host"], broker["port"])
            for broker in view["brokers"]
            if broker["online"] and broker["broker"] != without
        ]

    def _row(self, endpoints: Sequence[Endpoint], partition: int) -> list[Any]:
        for endpoint in endpoints:
            with suppress(RaylogError, OSError, TimeoutError):
                return self.wire.run(self.wire.partition(endpoint, TOPIC, partition))
        raise TimeoutError("no broker answers")

    def measure(
        self, figure: Figure, partition: int, endpoints: Sequence[Endpoint], injure: Callable[[], None]
    ) -> None:
        """Injure, and measure the time to a new leader and to the next acknowledged record."""
        epoch = self._row(endpoints, partition)[2]
        injure()
        injured_s = time.monotonic()
        done: list[float] = []
        future = self.producer.send(TOPIC, b"next", partition=partition)
        future.add_done_callback(lambda _: done.append(time.monotonic()))
        while True:
            row = self._row(endpoints, partition)
            if row[2] > epoch and row[4]:
                break
            if time.monotonic() - injured_s > LED_WITHIN_S:
                raise TimeoutError(f"{figure.name}: partition {partition} is not led again")
            time.sleep(LOOK_S)
        figure.led_s.append(time.monotonic() - injured_s)
        future.result(LED_WITHIN_S)
        figure.produced_s.append(done[0] - injured_s)


def leader_kills(watch: Watch, times: int) -> Figure:
    """SIGKILL leaders."""
    figure = Figure("leader killed", "0.3 s median, 1 s p99")
    for number in range(times):
        watch.settle()
        partition = number % PARTITIONS
        pid = leader_pid(watch, partition)
        watch.measure(figure, partition, watch.endpoints(), lambda pid=pid: os.kill(pid, signal.SIGKILL))  # type: ignore[misc]
    return figure


def controller_kills(watch: Watch, times: int) -> Figure:
    """SIGKILL the controller, and a leader immediately after it."""
    from raylog.actors.naming import CONTROLLER
    from tests.chaos import sight

    figure = Figure("controller and leader killed", "3 s")
    for number in range(times):
        watch.settle()
        partition = number % PARTITIONS
        endpoints = watch.endpoints()
        pids = [sight.pid_of(CONTROLLER), leader_pid(watch, partition)]

        def kill(pids: Sequence[int | None] = pids) -> None:
            for pid in pids:
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)

        watch.measure(figure, partition, endpoints, kill)
    return figure


def leader_pid(watch: Watch, partition: int) -> int:
    """Return the process of a partition's leader."""
    leader, _ = watch.leader(partition)
    for state in watch.arena.replica_states():
        if (state["topic"], state["partition"], state["broker"]) == (TOPIC, partition, leader):
            return int(state["pid"])
    raise TimeoutError(f"the leader of partition {partition} does not answer")


def node_kills(watch: Watch, times: int) -> Figure:
    """SIGKILL the raylet of a leader's node; bring the node back afterwards."""
    from tests.chaos.injuries.nodes import RayNodes

    figure = Figure("node lost: raylet killed", "3 s")
    arena = watch.arena
    assert isinstance(arena, RayNodes)
    for number in range(times):
        watch.settle()
        partition = number % PARTITIONS
        leader, _ = watch.leader(partition)
        name = arena.name_of(leader)
        watch.measure(figure, partition, watch.endpoints(leader), lambda name=name: arena.kill_raylet(name))  # type: ignore[misc]
        arena.collect(name)
        arena.bring_back(name)
    return figure


def power_losses(watch: Watch, times: int) -> Figure:
    """Power off a leader's node."""
    from tests.chaos.injuries.network import Namespaces

    figure = Figure("node lost: power", "3 s")
    arena = watch.arena
    assert isinstance(arena, Namespaces)
    for number in range(times):
        watch.settle()
        partition = number % PARTITIONS
        leader, _ = watch.leader(partition)
        back: list[Callable[[], None]] = []
        watch.measure(
            figure,
            partition,
            watch.endpoints(leader),
            lambda leader=leader, back=back: back.append(arena.power_off(f"broker-{leader}")),  # type: ignore[misc]
        )
        back[0]()
    return figure


def in_arena(part: str, work: Sequence[Callable[[Watch], Figure]]) -> list[Figure]:
    """Start an arena, do the work in it, end it."""
    from tests.chaos.run import arena_for

    folder = Path(tempfile.mkdtemp(prefix="raylog-figures-"))
    setup = Setup(root=folder / "data", topic=TOPIC, partitions=PARTITIONS, brokers=BROKERS, config=CLUSTER_CONFIG)
    arena = arena_for(part, setup, full_disk=False)
    try:
        arena.start()
        with raylog.Admin(**arena.clients()) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, timeout_s=60)
        watch = Watch(arena, arena.secret())
        try:
            return [item(watch) for item in work]
        finally:
            watch.close()
    finally:
        arena.close()
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str] | None = None) -> int:
    """Print the figures; 0 when all of them could be measured."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, _end)
    folder = tempfile.mkdtemp(prefix="rlf")
    os.environ.setdefault("RAY_TMPDIR", folder)
    figures: list[Figure] = []
    try:
        if options.only in (None, "processes"):
            figures += in_arena(
                "processes",
                [
                    lambda watch: leader_kills(watch, options.times),
                    lambda watch: controller_kills(watch, max(1, options.times // 2)),
                ],
            )
        if options.only in (None, "nodes"):
            figures += in_arena("nodes", [lambda watch: node_kills(watch, max(1, options.times // 4))])
        if options.only in (None, "network"):  # last, because this process leaves the network that Ray uses
            with_power = [lambda watch: power_losses(watch, max(1, options.times // 3))]
            try:
                figures += in_arena("network", with_power)
            except LeftOut as reason:
                print(reason)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{'':<28}{'times':>6}   {'led again after, s':<24}  {'produced again after, s':<24}  goal")
    print(f"{'':<34}   {' median     p99     max':<24}  {' median     p99     max':<24}")
    print("\n".join(figure.line() for figure in figures), flush=True)
    if options.json is not None:
        plain = [
            {"name": figure.name, "goal": figure.goal, "led_s": figure.led_s, "produced_s": figure.produced_s}
            for figure in figures
        ]
        options.json.write_text(json.dumps(plain, indent=1) + "\n")
    return 0


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.figures", description=__doc__)
    parser.add_argument("--times", type=int, default=30, help="leaders killed; the others less often (default 30)")
    parser.add_argument("--only", choices=("processes", "nodes", "network"))
    parser.add_argument("--json", type=Path, help="also write every single time there")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
