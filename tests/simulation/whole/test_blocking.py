"""A pool of virtual threads: which work runs at once, in which order, and what is left at its end."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

import pytest

from tests.simulation.whole.loop import blocking
from tests.simulation.whole.loop.network import Network
from tests.simulation.whole.loop.processes import SimProcess
from tests.simulation.whole.loop.scheduler import Scheduler

pytestmark = pytest.mark.sim


class Pool:
    """A process with a pool, whose work takes a virtual second each."""

    def __init__(self, threads: int) -> None:
        self.scheduler = Scheduler(1)
        network = Network(self.scheduler)
        blocking.bind(network.threads)
        self.process = SimProcess(self.scheduler, network, "process", "127.0.0.1")
        self.pool = blocking.ThreadPoolExecutor(threads, "pool")
        self.story: list[str] = []
        self.futures: list[Future[str]] = []

    def submit(self, *names: str) -> None:
        for name in names:
            self.process.call_soon(lambda name=name: self.futures.append(self.pool.submit(self._work, name)))

    def run(self, seconds: float) -> list[str]:
        self.scheduler.run(self.scheduler.now_s + seconds)
        return self.story

    def _work(self, name: str) -> str:
        self.story.append(f"{name} begins")
        thread = self.scheduler.thread
        assert thread is not None
        thread.sleep(1.0)
        self.story.append(f"{name} ends")
        if name == "broken":
            raise ValueError(name)
        return name.upper()


def test_one_thread_does_one_piece_of_work_after_another() -> None:
    pool = Pool(threads=1)
    pool.submit("a", "b")
    assert pool.run(1.5) == ["a begins", "a ends", "b begins"]
    assert pool.run(1.5)[3:] == ["b ends"]
    assert [future.result(0) for future in pool.futures] == ["A", "B"]


def test_two_threads_work_at_once_and_more_work_waits() -> None:
    pool = Pool(threads=2)
    pool.submit("a", "b", "c")
    assert sorted(pool.run(0.5)) == ["a begins", "b begins"]
    assert pool.run(3.0)[-1] == "c ends"


def test_a_pool_without_work_takes_more_later() -> None:
    pool = Pool(threads=1)
    pool.submit("a")
    pool.run(5.0)
    pool.submit("b")
    assert pool.run(5.0)[2:] == ["b begins", "b ends"]


def test_an_error_is_the_outcome_of_its_work_alone() -> None:
    pool = Pool(threads=1)
    pool.submit("broken", "b")
    pool.run(5.0)
    assert isinstance(pool.futures[0].exception(0), ValueError)
    assert pool.futures[1].result(0) == "B"
    assert pool.scheduler.failures == []


def test_a_pool_that_is_shut_ends_what_has_begun_and_cancels_the_rest() -> None:
    pool = Pool(threads=1)
    pool.submit("a", "b")
    pool.run(0.5)
    pool.process.call_soon(partial(pool.pool.shutdown, wait=False, cancel_futures=True))
    assert pool.run(5.0) == ["a begins", "a ends"]
    assert pool.futures[1].cancelled()
    with pytest.raises(RuntimeError):
        pool.pool.submit(print)


def test_a_killed_process_ends_no_work() -> None:
    pool = Pool(threads=1)
    pool.submit("a")
    pool.run(0.5)
    pool.process.kill()
    assert pool.run(5.0) == ["a begins"]
