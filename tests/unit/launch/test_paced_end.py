"""Actors end group by group, a bounded number at a time, before a deadline; how far that is, is reported."""

from collections.abc import Sequence

import pytest

from raylog.base.errors import StartFailed
from raylog.client.progress import Progress
from raylog.launch.paced import CLEAN_STOP_S, KILL_S, NAMED_MAX, STOPS_AT_ONCE, PacedEnd

STOP_S = 0.25
"""How long a pretended actor takes to close its files."""


class Cluster:
    """Actors that answer a stop after a while, on a clock that moves when its user waits."""

    def __init__(self, names: Sequence[str]) -> None:
        self.now_s = 0.0
        self.living = list(names)
        self.hanging: set[str] = set()
        """These never answer a stop."""
        self.immortal: set[str] = set()
        """Ray does not end these."""
        self.log: list[tuple[str, str]] = []
        self.most_at_once = 0
        self.questions = 0
        self._stopping: dict[str, float] = {}

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def names(self) -> list[str]:
        self.questions += 1
        return list(self.living)

    def find(self, name: str) -> str | None:
        return name if name in self.living else None

    def request_stop(self, handle: str) -> str:
        self.log.append(("stop", handle))
        self._stopping[handle] = self.now_s + STOP_S
        self.most_at_once = max(self.most_at_once, len(self._stopping))
        return handle

    def answered(self, requests: Sequence[str], timeout_s: float) -> list[str]:
        def done() -> list[str]:
            return [name for name in requests if name not in self.hanging and self._stopping[name] <= self.now_s]

        self.now_s += 0.0 if len(done()) == len(requests) else timeout_s
        return done()

    def end(self, handle: str) -> None:
        self.log.append(("end", handle))
        self._stopping.pop(handle, None)
        if handle not in self.immortal:
            self.living.remove(handle)


def ending(cluster: Cluster, deadline_s: float = 60.0, reported: list[str] | None = None) -> PacedEnd:
    progress = Progress(None if reported is None else reported.append, cluster.clock)
    return PacedEnd(cluster, deadline_s, progress, cluster.clock, cluster.sleep)


def test_each_actor_stops_before_it_is_ended_and_a_group_before_the_next() -> None:
    cluster = Cluster(["controller", "broker-1", "broker-2", "replica:t-0:broker-1"])
    ending(cluster).run((["controller"], ["broker-1", "broker-2"], ["replica:t-0:broker-1"]))
    assert not cluster.living
    moment = {entry: number for number, entry in enumerate(cluster.log)}
    assert all(moment["stop", name] < moment["end", name] for name in ("controller", "broker-1", "broker-2"))
    assert moment["end", "controller"] < moment["stop", "broker-1"]
    assert moment["end", "broker-2"] < moment["stop", "replica:t-0:broker-1"]


def test_no_more_than_so_many_stop_at_once() -> None:
    names = [f"replica:t-{number}:broker-1" for number in range(5 * STOPS_AT_ONCE)]
    cluster = Cluster(names)
    ending(cluster).run((names,))
    assert cluster.most_at_once == STOPS_AT_ONCE
    assert [name for what, name in cluster.log if what == "stop"] == names
    assert not cluster.living


def test_ray_is_questioned_once_for_all_of_them() -> None:
    names = [f"replica:t-{number}:broker-1" for number in range(STOPS_AT_ONCE)]
    cluster = Cluster(names)
    ending(cluster).run((names,))
    assert cluster.questions < 10


def test_how_many_have_ended_is_reported_about_once_a_second() -> None:
    names = [f"replica:t-{number}:broker-1" for number in range(10 * STOPS_AT_ONCE)]
    cluster, reported = Cluster(["controller", *names]), list[str]()
    ending(cluster, reported=reported).run((["controller"], names))
    assert [line.partition(" of ")[2] for line in reported] == ["641 processes ended"] * len(reported)
    counts = [int(line.split()[0]) for line in reported]
    assert counts == sorted(set(counts))
    assert 2 <= len(counts) <= cluster.now_s


def test_an_actor_that_hangs_is_ended_and_holds_up_no_others() -> None:
    names = [f"replica:t-{number}:broker-1" for number in range(3 * STOPS_AT_ONCE)]
    cluster = Cluster(names)
    cluster.hanging = {names[0]}
    ending(cluster).run((names,))
    assert cluster.log[-1] == ("end", names[0])
    assert CLEAN_STOP_S <= cluster.now_s < CLEAN_STOP_S + 1
    assert not cluster.living


def test_a_cluster_that_hangs_is_ended_before_the_deadline() -> None:
    names = [f"replica:t-{number}:broker-1" for number in range(20 * STOPS_AT_ONCE)]
    cluster = Cluster(names)
    cluster.hanging = set(names)
    ending(cluster, deadline_s=60.0).run((names,))
    assert 60.0 - KILL_S <= cluster.now_s < 60.0
    assert not cluster.living


def test_an_actor_that_has_ended_meanwhile_is_not_stopped() -> None:
    cluster = Cluster(["broker-1"])
    ending(cluster).run((["controller"], ["broker-1"]))
    assert cluster.log == [("stop", "broker-1"), ("end", "broker-1")]


def test_actors_that_do_not_end_in_time_are_named() -> None:
    names = [f"replica:t-{number}:broker-1" for number in range(NAMED_MAX + 5)]
    cluster = Cluster(names)
    cluster.immortal = set(names)
    with pytest.raises(StartFailed, match=r"did not end in time: replica:t-0:broker-1, .* and 5 more; `ray list"):
        ending(cluster, deadline_s=3.0).run((names,))


def test_an_actor_that_appears_meanwhile_is_ended_in_a_second_run() -> None:
    cluster, reported = Cluster(["broker-1"]), list[str]()
    paced = ending(cluster, reported=reported)
    paced.run((["broker-1"],))
    cluster.living += ["replica:late-0:broker-1"]
    cluster.hanging = {"replica:late-0:broker-1"}
    paced.run((["replica:late-0:broker-1"],))
    assert not cluster.living
    assert reported == ["1 of 2 processes ended", "2 of 2 processes ended"]
