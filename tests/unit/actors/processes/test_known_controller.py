"""Actors are made with the controller's address: each process that calls its actor would leave something there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.actor_specs import ControllerSpec
from raylog.actors.processes.coordinator_factory import RayCoordinators
from raylog.actors.processes.made_actors import Recipe
from raylog.actors.processes.replica_factory import RayReplicaFactory
from raylog.actors.processes.spares import SpareReplicas
from tests.unit.actors.specs import replica_spec
from tests.waiting import eventually

PLACE = ("10.0.0.2", 7)
SECRET = b"s" * 32


class Actors:
    """Notes what actors are made of."""

    def __init__(self) -> None:
        self.made: dict[str, Recipe] = {}

    async def start(self, name: str, recipe: Recipe) -> None:
        self.made[name] = recipe

    async def exists(self, name: str) -> bool:
        return name in self.made

    async def call(self, name: str, method: str, *_: object, timeout_s: float) -> Any:
        raise AssertionError(f"{name} is called: {method}")

    async def end(self, name: str, *, is_stopped_first: bool) -> None:
        del self.made[name]


class Awake:
    """No replica dozes."""

    @contextmanager
    def held_awake(self, replica: str) -> Iterator[None]:
        yield


async def test_a_replica_is_made_with_the_place_of_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replica_spec(tmp_path, secret=SECRET)

    async def none(_: str) -> set[str]:
        return set()

    monkeypatch.setattr("raylog.actors.processes.spares.listed_names", none)
    actors = Actors()
    spares = SpareReplicas(tmp_path, actors=actors, node_id="n", secret=SECRET)
    resting: Any = Awake()
    factory = RayReplicaFactory(actors, spares, resting, node_id="n", sharing=lambda: 1, controller=lambda: PLACE)
    await factory.ensure(spec)
    assert [recipe.arguments for recipe in actors.made.values()] == [(spec, None, PLACE)]


async def test_a_coordinator_is_made_with_the_place_of_the_controller(tmp_path: Path) -> None:
    actors = Actors()
    spec = ControllerSpec(data_directory=tmp_path, secret=SECRET, cluster_id="c" * 32)
    coordinators = RayCoordinators(spec, actors, dict, lambda: PLACE)
    coordinators.start("group", 3)
    await eventually(lambda: bool(actors.made))
    assert [recipe.arguments[1] for recipe in actors.made.values()] == [PLACE]
