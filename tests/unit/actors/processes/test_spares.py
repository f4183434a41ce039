"""Which spare becomes which replica, when spares are made and ended, and the notes about their roles."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from raylog.actors.actor_specs import ReplicaSpec, SpareSpec
from raylog.actors.naming import replica_name, spare_prefix
from raylog.actors.processes import spares
from raylog.actors.processes.made_actors import ActorRaised, NoSuchActor, Recipe
from raylog.actors.processes.spare_plan import QUIET_MS, Plan, Sight, choose, plan
from raylog.actors.processes.spare_roles import name_of, noted_roles, read_role, role_file, write_role
from raylog.base.errors import DataDirectoryError
from tests.unit.actors.specs import replica_spec

ACTOR = f"{spare_prefix(1)}0a1b2c3d"
IDLE = (f"{spare_prefix(1)}0000000a", f"{spare_prefix(1)}0000000b")


def quiet(*idle: str, wanted: int, unknown: tuple[str, ...] = (), stray: tuple[str, ...] = ()) -> Sight:
    return Sight(idle=idle, unknown=unknown, stray=stray, wanted=wanted, quiet_ms=QUIET_MS)


def test_a_spare_is_made_while_there_are_fewer_than_wanted() -> None:
    assert plan(quiet("a", wanted=2)) == Plan(make=True, end=())
    assert plan(quiet("a", "b", wanted=2)) == Plan(make=False, end=())


def test_no_spare_is_made_while_replicas_start_or_just_after() -> None:
    calm = quiet(wanted=2)
    assert not plan(replace(calm, starting=1)).make
    assert not plan(replace(calm, quiet_ms=QUIET_MS - 1)).make


def test_one_that_does_not_answer_yet_counts() -> None:
    assert plan(quiet("a", unknown=("b",), wanted=2)) == Plan(make=False, end=())


def test_the_newest_go_when_there_are_too_many() -> None:
    assert plan(quiet("a", "b", "c", wanted=1)) == Plan(make=False, end=("b", "c"))
    assert plan(quiet("a", wanted=0)).end == ("a",)


def test_one_that_does_not_answer_goes_when_it_is_not_wanted() -> None:
    assert plan(quiet(unknown=("x",), wanted=0)) == Plan(make=False, end=("x",))
    assert plan(quiet("a", unknown=("x",), wanted=1)).end == ("x",)


def test_an_actor_whose_role_was_not_noted_is_ended() -> None:
    assert plan(quiet("a", stray=("x",), wanted=1)).end == ("x",)


def test_the_oldest_spare_that_is_free_is_taken() -> None:
    assert choose(["a", "b"], {}, (), "r") == "a"
    assert choose(["a", "b"], {"other": "a"}, (), "r") == "b"
    assert choose(["a"], {"other": "a"}, (), "r") is None


def test_a_replica_gets_no_second_spare_and_none_after_a_failed_start() -> None:
    assert choose(["b"], {"r": "a"}, (), "r") is None
    assert choose(["b"], {}, {"r"}, "r") is None


@pytest.fixture
def spec(tmp_path: Path) -> ReplicaSpec:
    return replica_spec(
        tmp_path,
        topic="spare",
        replication_factor=3,
        topic_config={"retention.ms": "1"},
        host="10.0.0.1",
        catch_up_bytes_per_s=5,
    )


def spare_of(spec: ReplicaSpec) -> SpareSpec:
    directory = spec.data_directory
    return SpareSpec(role_file=role_file(directory, ACTOR), data_directory=directory, secret=spec.secret)


def test_a_spare_without_a_note_stays_one(spec: ReplicaSpec) -> None:
    assert read_role(spare_of(spec)) is None


def test_a_note_says_all_but_the_secret(spec: ReplicaSpec) -> None:
    spare = spare_of(spec)
    write_role(spare.role_file, spec)
    assert read_role(spare) == spec
    assert noted_roles(spec.data_directory, spec.secret) == [(spare.role_file, spec)]
    note = json.loads(spare.role_file.read_text())
    assert not {"secret", "data_directory"} & note.keys()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"topic": "t"'])
def test_a_damaged_note_is_named_with_what_to_do(spec: ReplicaSpec, content: str) -> None:
    spare = spare_of(spec)
    write_role(spare.role_file, spec)
    spare.role_file.write_text(content)
    with pytest.raises(DataDirectoryError, match="remove the file and restart the broker"):
        read_role(spare)
    assert noted_roles(spec.data_directory, spec.secret) == [(spare.role_file, None)]


def test_no_replica_is_named_like_a_spare(spec: ReplicaSpec) -> None:
    assert not name_of(spec).startswith(spare_prefix(1))
    for name in (ACTOR, replica_name("t", 0, 1, "0123456789abcdef")):
        assert ":broker-1:" in name, "a broker that is stopped on purpose finds all that is its own"


class Actors:
    """The actors of a broker, by name; a call raises ``error``, if there is one."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.error: Exception | None = None
        self.adopted: list[str] = []
        self.arguments: list[tuple[object, ...]] = []

    async def start(self, name: str, recipe: Recipe) -> None:
        self.names.add(name)

    async def exists(self, name: str) -> bool:
        await asyncio.sleep(0)
        return name in self.names

    async def call(self, name: str, method: str, *arguments: object, timeout_s: float) -> None:
        await asyncio.sleep(0)
        if name not in self.names:
            raise NoSuchActor(name)
        if self.error is not None:
            raise self.error
        assert (method, timeout_s > 0) == ("adopt", True)
        self.adopted.append(name)
        self.arguments.append(arguments)

    async def end(self, name: str, *, is_stopped_first: bool) -> None:
        self.names.discard(name)


@pytest.fixture
def kept(spec: ReplicaSpec, monkeypatch: pytest.MonkeyPatch) -> spares.SpareReplicas:
    async def none(_: str) -> set[str]:
        return set()

    monkeypatch.setattr(spares, "listed_names", none)
    found = spares.SpareReplicas(spec.data_directory, actors=Actors(*IDLE), node_id="n", secret=b"s" * 32)
    found._idle = list(IDLE)
    return found


def actors_of(kept: spares.SpareReplicas) -> Actors:
    assert isinstance(kept._actors, Actors)
    return kept._actors


async def test_a_replica_that_failed_in_a_spare_takes_no_second_one(
    spec: ReplicaSpec, kept: spares.SpareReplicas
) -> None:
    actors_of(kept).error = ActorRaised("no room")
    with pytest.raises(ActorRaised):
        await kept.adopt(spec, None)
    assert not await kept.adopt(spec, None), "it needs a process of its own"
    assert actors_of(kept).names == {IDLE[1]}


async def test_replicas_that_start_together_take_a_spare_each(spec: ReplicaSpec, kept: spares.SpareReplicas) -> None:
    starting = [replace(spec, partition=partition) for partition in range(3)]
    assert await asyncio.gather(*(kept.adopt(replica, None) for replica in starting)) == [True, True, False]
    assert sorted(actors_of(kept).adopted) == list(IDLE)


async def test_a_spare_that_has_ended_leaves_no_note(spec: ReplicaSpec, kept: spares.SpareReplicas) -> None:
    actors_of(kept).names.clear()
    assert not await kept.adopt(spec, None)
    assert noted_roles(spec.data_directory, spec.secret) == []
    assert await kept.actor_of(name_of(spec)) == name_of(spec)


async def test_a_replica_that_has_an_actor_takes_no_spare(spec: ReplicaSpec, kept: spares.SpareReplicas) -> None:
    actors_of(kept).names.add(name_of(spec))
    assert not await kept.adopt(spec, None)
    assert actors_of(kept).adopted == []


async def test_a_spare_that_becomes_a_replica_knows_where_the_controller_is(
    spec: ReplicaSpec, kept: spares.SpareReplicas
) -> None:
    assert await kept.adopt(spec, ("10.0.0.2", 7))
    assert actors_of(kept).arguments == [(spec, ("10.0.0.2", 7))]
