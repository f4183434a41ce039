"""What W22 demands while voters are missing. Each world has a process of its own, as in a run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.controller.runner import ControllerRunner
from raylog.core.configuration.config import SLEEP_KEY
from raylog.protocol.controller import REGISTER_REPLICA
from raylog.rpc import Request
from tests.simulation.whole.features import plan_of
from tests.simulation.whole.plan import WHOLE
from tests.simulation.whole.world import BUILT_S, World

pytestmark = pytest.mark.sim

AWAY_S = 40.0
"""Longer than a replica may take to register."""


def drop_registrations() -> None:
    """From now on the controller answers no replica that registers."""
    original = ControllerRunner.take

    def taken(self: Any, request: Request, *of: Any) -> None:
        if request.method != REGISTER_REPLICA.name:
            original(self, request, *of)

    ControllerRunner.take = taken  # type: ignore[assignment, method-assign]


def left_with(root: str, lost: int, is_dropped: bool = False) -> None:
    """Lose so many of three nodes, and then a replica on the one that is left; print the violation.

    Also which replicas are absent, with the nodes lost and some time after they are back.
    """
    drawn = plan_of(WHOLE, 1, [], {})
    plan = replace(drawn, brokers=3, voters=(1, 2, 3), topics=1, config={**drawn.config, SLEEP_KEY: "-1"})
    world = World(1, plan, Path(root))
    world.cluster.start()
    world.spawn("builder", world._build())
    world.scheduler.after(0.5, world._look)
    world._phase(lambda: world.is_built, BUILT_S, "the cluster serves")
    world.scheduler.run(world.now_s + 10.0)
    controller = world.cluster.actors["controller"].process
    assert controller is not None
    for host in [host for host in world.cluster.hosts if host != controller.host][:lost]:
        world.nemesis._power_off(host)
    world.scheduler.run(world.now_s + 2.0)
    replicas = [actor for actor in world.nemesis.replicas() if actor.process is not None]
    victim = next(actor for actor in replicas if actor.process is not None and actor.process.host == controller.host)
    world.nemesis._kill(victim)
    if is_dropped:
        drop_registrations()
    found = []
    for _ in range(2):
        world.scheduler.run(world.now_s + AWAY_S)
        found.append([victim.serves, sorted(world.observer.presence._absent_s)])
        world.nemesis.heal()
    print(json.dumps([found, "" if world.violation is None else str(world.violation)]))


def played(root: Path, *arguments: object) -> list[object]:
    code = f"from tests.simulation.whole.test_presence import left_with as run; run{(str(root), *arguments)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_replica_has_to_register_while_voters_can_commit_that(tmp_path: Path, lost: int) -> None:
    assert played(tmp_path, lost) == [[[True, []], [True, []]], ""]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_replica_that_is_never_registered_is_noticed(tmp_path: Path, lost: int) -> None:
    """Where a majority is lost, once this is back."""
    found, violation = played(tmp_path, lost, True)
    assert "has not registered" in str(violation)
    assert isinstance(found, list)
    assert bool(found[0][1]) == (lost < 2)
