"""What Ray does with actors, calls and tasks, as the product relies on it and the simulator models it; one Ray for all.

The table of `tests/simulation/README.md` names what relies on each rule. A test that fails here with a new release of
Ray says which model is no longer true.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raylog.actors.naming import NAMESPACE
from raylog.actors.processes import ray_actors, ray_support
from raylog.actors.processes.made_actors import REPLICA, OwnActors, Recipe, class_of
from raylog.actors.processes.ray_support import actor_options
from tests.cluster.ray_support import alive, kill, own_ray
from tests.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.cluster, pytest.mark.timeout(120)]
ANSWER_S = 30.0


class Probe:
    """An actor that notes in a folder what happens to it. Files of the test decide how its later lives begin."""

    async def __init__(self, folder: str, word: str = "", unready: object = None) -> None:  # type: ignore[misc]
        self.folder, self.word = Path(folder), word
        self.seen: list[int] = []
        atexit.register(self.note, "hook")
        self.note("life")
        if (self.folder / "raises").exists():
            raise OSError("the constructor raises")
        if (self.folder / "exits").exists():
            os._exit(70)
        while (self.folder / "waits").exists():  # noqa: ASYNC110  # for the test's own file
            await asyncio.sleep(0.01)

    def note(self, what: str) -> None:
        """Add a line to the file of this name."""
        with (self.folder / what).open("a") as file:
            file.write(f"{os.getpid()}\n")

    async def about(self) -> tuple[int, str, bool]:
        """Return process id, word, and whether Ray has started the actor again."""
        return os.getpid(), self.word, ray.get_runtime_context().was_current_actor_reconstructed

    async def mark(self, what: str) -> None:
        """Note it."""
        self.note(what)

    async def mark_and_end(self, what: str) -> None:
        """Note it, and end the process before the caller has an answer."""
        self.note(what)
        os._exit(70)

    async def take(self, number: int) -> None:
        """Keep a number."""
        self.seen.append(number)

    async def taken(self) -> list[int]:
        """Return the numbers, in the order in which they came."""
        return self.seen

    async def make(self, name: str, *, is_lasting: bool) -> int:
        """Make another one from here; returns its process id."""
        options = actor_options(name) if is_lasting else {"name": name, "namespace": NAMESPACE, "num_cpus": 0}
        made: Any = ray.remote(Probe).options(**options).remote(str(self.folder))
        pid, _, _ = await made.about.remote()
        self.made = made
        return int(pid)

    async def gap(self) -> tuple[list[str], float]:
        """Which of the product's look-ups were done, and how long the event loop stood still meanwhile, in seconds."""
        class_of(REPLICA)  # loads modules
        looking = {asyncio.ensure_future(work()): what for what, work in LOOK_UPS.items()}
        self.note("looking")
        last, longest = time.monotonic(), 0.0
        while (self.folder / "looking").exists():
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        done = [what for task, what in looking.items() if task.done() and task.exception() is None]
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
        return done, longest

    async def request_and_wait(self, name: str) -> None:
        """Request one whose argument is never there."""
        self.made = ray.remote(Probe).options(**actor_options(name)).remote(str(self.folder), "", never.remote())


def unplaced() -> Recipe:
    """Of an actor that cannot be placed."""
    return Recipe(kind=REPLICA, arguments=(None, None), node_id="0" * 56)


LOOK_UPS: dict[str, Callable[[], Awaitable[object]]] = {
    "the controller": ray_support.find_controller,
    "a voter": lambda: ray_actors.find_voter(1),
    "brokers": ray_actors.find_brokers,
    "nodes": ray_actors.nodes_alive,
    "an actor": lambda: OwnActors().exists("looked-for"),
    "a call": lambda: OwnActors().call("looked-for", "endpoint", timeout_s=1.0),
    "an end": lambda: OwnActors().end("ended", is_stopped_first=False),
    "a request": lambda: OwnActors().make("requested-meanwhile", unplaced()),
    "the wait for an end": lambda: ray_support.wait_until_ended("looking", 1.0),
}
"""What the product's actors look up at Ray's control store, in the event loops that serve."""
AWAY_S = 4.0


@ray.remote(num_cpus=0)
def never() -> None:
    """A task that does not end by itself."""
    time.sleep(600)


@pytest.fixture(scope="module", autouse=True)
def ray_here() -> Iterator[None]:
    with own_ray():
        yield


@pytest.fixture
def names() -> Iterator[list[str]]:
    """Names of detached actors to be ended with the test."""
    made: list[str] = []
    yield made
    for name in made:
        with suppress(ValueError):
            ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)


def probe(names: list[str], name: str, folder: Path, word: str = "", **options: Any) -> Any:
    """Make one with the options that every Raylog actor has."""
    names.append(name)
    return ray.remote(Probe).options(**{**actor_options(name), **options}).remote(str(folder), word)


def about(handle: Any) -> tuple[int, str, bool]:
    found: tuple[int, str, bool] = ray.get(handle.about.remote(), timeout=ANSWER_S)
    return found


def again(handle: Any, before: int) -> tuple[int, str, bool]:
    """What an actor says once it has another process."""
    found = before, "", False

    def has_begun() -> bool:
        nonlocal found
        with suppress(ray.exceptions.RayActorError):
            found = about(handle)
        return found[0] != before

    wait_for(has_begun, "Ray starts the actor again", ANSWER_S)
    return found


def is_known(name: str) -> bool:
    with suppress(ValueError):
        ray.get_actor(name, namespace=NAMESPACE)
        return True
    return False


def lines(folder: Path, what: str) -> int:
    path = folder / what
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_requests_at_once_make_one_actor(names: list[str], tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda word: probe(names, "once", tmp_path, str(word)), range(4)))
    assert len({about(handle) for handle in made}) == 1
    assert lines(tmp_path, "life") == 1


def test_a_killed_actor_begins_again_as_it_was_made(names: list[str], tmp_path: Path) -> None:
    handle = probe(names, "killed", tmp_path, "first")
    probe(names, "killed", tmp_path, "second")
    pid, word, is_again = about(handle)
    assert (word, is_again) == ("first", False)
    for _ in range(2):
        kill(pid)
        assert is_known("killed"), "its name stays while it is started again"
        pid, word, is_again = again(handle, pid)
        assert (word, is_again) == ("first", True)
    ray.kill(handle, no_restart=True)
    wait_for(lambda: not is_known("killed"), "its name is free", ANSWER_S)
    wait_for(lambda: not alive(pid), "its process has ended", ANSWER_S)
    assert lines(tmp_path, "hook") == 0, "no exit hook runs"


def test_a_call_to_a_process_that_ends_fails_and_may_be_done(names: list[str], tmp_path: Path) -> None:
    handle = probe(names, "amid", tmp_path)
    pid, _, _ = about(handle)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(handle.mark_and_end.remote("done"), timeout=ANSWER_S)
    again(handle, pid)
    assert lines(tmp_path, "done") == 1, "it was done, and is not repeated"


def test_a_call_to_a_process_that_begins_again_fails_and_is_never_done(names: list[str], tmp_path: Path) -> None:
    handle = probe(names, "never", tmp_path)
    pid, _, _ = about(handle)
    (tmp_path / "waits").touch()
    kill(pid)
    wait_for(lambda: lines(tmp_path, "life") == 2, "its next life begins", ANSWER_S)
    with pytest.raises((ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError)):
        ray.get(handle.mark.remote("late"), timeout=2.0)
    (tmp_path / "waits").unlink()
    again(handle, pid)
    assert lines(tmp_path, "late") == 0


def test_calls_of_one_caller_may_overtake_each_other(names: list[str], tmp_path: Path) -> None:
    handle = probe(names, "overtaken", tmp_path)
    for number in range(50):
        handle.take.remote(number)
    wait_for(lambda: len(ray.get(handle.taken.remote(), timeout=ANSWER_S)) == 50, "all have come", ANSWER_S)
    found = ray.get(handle.taken.remote(), timeout=ANSWER_S)
    assert sorted(found) == list(range(50)), "each comes once"
    print(f"in their order: {found == sorted(found)}")


def test_a_name_is_free_before_its_process_has_ended(names: list[str], tmp_path: Path) -> None:
    handle = probe(names, "lingering", tmp_path)
    pid, _, _ = about(handle)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    ray.kill(handle, no_restart=True)
    wait_for(lambda: not is_known("lingering"), "its name is free", ANSWER_S)
    assert alive(pid)
    successor = probe(names, "lingering", tmp_path)
    assert about(successor)[0] != pid
    was_there = alive(pid)
    print(f"the next one serves after {time.monotonic() - began:.2f} s; is the first there? {was_there}")
    wait_for(lambda: not alive(pid), "Ray ends the process", ANSWER_S)
    print(f"the first has ended after {time.monotonic() - began:.2f} s")
    ray.kill(handle, no_restart=True)
    assert about(successor)[2] is False, "a handle means one actor, and none that has its name later"


def test_ray_gives_up_on_an_actor_whose_constructor_raises(names: list[str], tmp_path: Path) -> None:
    (tmp_path / "raises").touch()
    handle = probe(names, "raising", tmp_path)
    with pytest.raises(ray.exceptions.ActorDiedError, match="the constructor raises"):
        about(handle)
    wait_for(lambda: not is_known("raising"), "its name is free", ANSWER_S)
    (tmp_path / "raises").unlink()
    pid, _, _ = about(handle := probe(names, "raising", tmp_path))
    (tmp_path / "raises").touch()
    kill(pid)
    wait_for(lambda: not is_known("raising"), "it is given up, whatever max_restarts is", ANSWER_S)


def test_ray_tries_again_when_a_constructor_ends_its_process(names: list[str], tmp_path: Path) -> None:
    handle = probe(names, "exiting", tmp_path)
    pid, _, _ = about(handle)
    (tmp_path / "exits").touch()
    kill(pid)
    wait_for(lambda: lines(tmp_path, "life") >= 3, "it has tried twice", ANSWER_S)
    assert is_known("exiting")
    (tmp_path / "exits").unlink()
    again(handle, pid)


def test_detached_actors_outlive_their_maker_and_others_do_not(names: list[str], tmp_path: Path) -> None:
    maker = probe(names, "maker", tmp_path, max_restarts=0)
    pid, _, _ = about(maker)
    names.append("lasting")
    lasting = ray.get(maker.make.remote("lasting", is_lasting=True), timeout=ANSWER_S)
    passing = ray.get(maker.make.remote("passing", is_lasting=False), timeout=ANSWER_S)
    kill(pid)
    wait_for(lambda: not alive(passing), "what is not detached ends with its maker", ANSWER_S)
    assert about(ray.get_actor("lasting", namespace=NAMESPACE))[0] == lasting


def test_what_was_requested_and_not_handed_over_goes_with_its_requester(names: list[str], tmp_path: Path) -> None:
    requester = probe(names, "requester", tmp_path, max_restarts=0)
    pid, _, _ = about(requester)
    ray.get(requester.request_and_wait.remote("requested"), timeout=ANSWER_S)
    names.append("requested")
    assert is_known("requested"), "its name is taken from the request on"
    listed = ray.util.list_named_actors(all_namespaces=True)
    assert {"name": "requested", "namespace": NAMESPACE} in listed
    kill(pid)
    wait_for(lambda: not is_known("requested"), "it never begins", ANSWER_S)


def test_an_actor_for_a_node_that_is_not_there_is_given_up(names: list[str], tmp_path: Path) -> None:
    nowhere = NodeAffinitySchedulingStrategy(node_id="0" * 56, soft=False)
    handle = probe(names, "nowhere", tmp_path, scheduling_strategy=nowhere)
    with pytest.raises(ray.exceptions.ActorUnschedulableError):
        about(handle)


def test_while_rays_control_store_hangs_event_loops_go_on(names: list[str], tmp_path: Path) -> None:
    node: Any = ray._private.worker._global_node  # below this process another Ray may run, which its tests share
    store = psutil.Process(node.all_processes["gcs_server"][0].process.pid)
    handle = probe(names, "looking", tmp_path)
    for actor in (handle, probe(names, "ended", tmp_path)):
        about(actor)
    store.suspend()
    try:
        call = handle.gap.remote()
        wait_for(lambda: lines(tmp_path, "looking"), "the look-ups begin", ANSWER_S)
        ray.wait([call], timeout=AWAY_S)
        (tmp_path / "looking").unlink()
        done, longest_s = ray.get(call, timeout=ANSWER_S)
    finally:
        store.resume()
    assert done == [], "the look-ups wait"
    assert longest_s < AWAY_S / 2


def numbers(folder: str, plan: list[str]) -> Iterator[tuple[int, int]]:
    """(attempt, number) of five numbers; an attempt ends after three, or as the plan has it before its second."""
    worker: Any = ray._private.worker.global_worker
    attempt = worker.core_worker.get_current_task_attempt_number()
    for number in range(5):
        if number == 1 and plan[attempt] == "raises":
            raise OSError("the generator raises")
        if number == 3 and plan[attempt] == "ends":
            while not (Path(folder) / str(attempt)).exists():
                time.sleep(0.01)
            os._exit(70)
        yield attempt, number


def received(folder: Path, plan: list[str]) -> list[tuple[int, int]]:
    """What the reader of a generator gets, of which each attempt goes on once the ones before have arrived."""
    found: list[tuple[int, int]] = []
    options: dict[str, Any] = {"num_returns": "streaming", "max_retries": 2, "num_cpus": 0}
    task: Any = ray.remote(**options)(numbers)
    for reference in task.remote(str(folder), plan):
        found.append(ray.get(reference, timeout=ANSWER_S))
        if len(found) == 3:
            for attempt in range(3):
                (folder / str(attempt)).touch()
    return found


def test_a_generator_that_is_repeated_goes_on_behind_what_has_arrived(tmp_path: Path) -> None:
    assert received(tmp_path, ["ends", "works"]) == [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4)]


def test_an_error_of_a_repeated_generator_may_never_be_seen(tmp_path: Path) -> None:
    assert received(tmp_path, ["ends", "raises"]) == [(0, 0), (0, 1), (0, 2)], "it ends without an error"


def test_a_generator_whose_every_attempt_ends_is_a_lost_worker(tmp_path: Path) -> None:
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        received(tmp_path, ["ends"] * 3)


def test_the_error_of_a_first_attempt_is_raised(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the generator raises"):
        received(tmp_path, ["raises"])
