"""One Ray for all tests of a process that can share it, with at most one Raylog cluster in it at a time.

A Ray takes seconds to start, and a cluster of three brokers as long. So a module whose tests need no Ray of their own
joins the one of this process (`shared_ray`), and starts its own cluster in it: a Ray has room for one. A module whose
tests also need no cluster of their own uses the one that stays for all of them (`three_brokers`). They may kill its
replicas and coordinators, and alter their own topics. They may not kill brokers, nor alter the cluster.

The Ray belongs to another process (`ray_holder.py`). A module joins it, and leaves it at its end: tests that expect no
Ray, or start one, find none in their process, in their environment, or in Ray's folder.

A plugin of the tests (`tests/conftest.py`). May touch: RAY_TMPDIR, RAY_ADDRESS and
RAY_AUTH_MODE, while a module has joined.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    import raylog

CONFIG: Final = {
    "group.initial.rebalance.delay.ms": "50",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.two.phase.commit.enable": "true",
}
"""Of the cluster that stays."""
IDLE_S: Final = 120.0
"""How long it is kept for the next file that joins it."""
END_S: Final = 60.0


class SharedRay:
    """The Ray of this process of tests, from its first use to its end."""

    def __init__(self) -> None:
        self._ends = ExitStack()
        self._folder: Path | None = None
        self._left_s: float | None = None
        """When this process has left it; None = it has joined it, or it does not run."""

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Within the block this process has joined it; it is started unless it runs."""
        import ray

        folder, self._left_s = self._started(), None
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("RAY_ADDRESS", raising=False)
            patch.setenv("RAY_TMPDIR", str(folder))
            patch.setenv("RAY_AUTH_MODE", "")  # so that it is restored: Ray sets it where the user has a token
            del os.environ["RAY_AUTH_MODE"]
            try:
                ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
            except BaseException:
                self.end()
                raise
            try:
                yield
            finally:
                ray.shutdown()
                self._left_s = time.monotonic()

    def _started(self) -> Path:
        from tests.cluster.ray_support import short_folder

        if self._folder is not None:
            return self._folder
        with ExitStack() as ends:
            folder = ends.enter_context(short_folder())
            holder = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.ray_holder"],
                cwd=Path(__file__).parents[2],
                env={**os.environ, "RAY_TMPDIR": str(folder)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            ends.callback(end, holder)
            assert holder.stdout is not None
            assert holder.stdout.readline() == "ready\n", "Ray does not start"
            self._ends = ends.pop_all()
        self._folder = folder
        return folder

    def end(self) -> None:
        """End it, with all of its processes, if it runs."""
        self._folder = self._left_s = None
        self._ends.close()

    def end_if_idle(self) -> None:
        """End it if no test has used it for long."""
        if self._left_s is not None and time.monotonic() - self._left_s > IDLE_S:
            self.end()

    def stop_cluster(self) -> None:
        """Stop the Raylog cluster that runs in it, if there is one."""
        import raylog
        from tests.cluster.ray_support import actor_names

        if actor_names():
            raylog.connect().stop()


def end(holder: subprocess.Popen[str]) -> None:
    """End the process that holds Ray, at the end of its input; it is killed if it does not end in time."""
    with holder:
        assert holder.stdin is not None
        holder.stdin.close()
        try:
            holder.wait(END_S)
        except subprocess.TimeoutExpired:
            holder.kill()
            raise


_KEY = pytest.StashKey[SharedRay]()


def shared_ray_of(config: pytest.Config) -> SharedRay:
    """Return that of this process; it may not run."""
    return config.stash[_KEY]


def pytest_configure(config: pytest.Config) -> None:
    """Nothing is started before the first use."""
    config.stash[_KEY] = ray = SharedRay()
    config.add_cleanup(ray.end)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End it when it is idle: what its processes cost is missing elsewhere, and files that need it may be over."""
    shared_ray_of(item.config).end_if_idle()


@pytest.fixture(scope="module")
def shared_ray(request: pytest.FixtureRequest) -> Iterator[None]:
    """This process has joined the shared Ray, in which no cluster runs; one that is left at the end is stopped."""
    ray = shared_ray_of(request.config)
    with ray.joined():
        ray.stop_cluster()
        yield
        ray.stop_cluster()


@pytest.fixture(scope="module")
def three_brokers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[raylog.Cluster]:
    """The cluster that stays; topics that a module leaves are deleted, and one that fails leaves no cluster."""
    import raylog
    from tests.cluster.ray_support import actor_names

    ray, failed = shared_ray_of(request.config), request.session.testsfailed
    with ray.joined():
        if actor_names():
            yield raylog.connect()
        else:
            yield raylog.start(tmp_path_factory.mktemp("data"), brokers=3, config=CONFIG)
        if request.session.testsfailed > failed:
            ray.stop_cluster()
            return
        with raylog.Admin() as admin:
            for topic in admin.list_topics():
                admin.delete_topic(topic)
