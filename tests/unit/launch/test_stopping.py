"""A stop waits while the replicas of sleeping partitions end, and no longer than they do."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from raylog.client.progress import Progress
from raylog.launch import stopping
from raylog.launch.stopping import FEW, QUIET_S, let_sleepers_end


class Ending:
    """Actors of which so many replicas are left at each time; its clock goes on when the stop waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left_at: Callable[[float], int]) -> None:
        self.now_s = 100.0
        self._left_at = left_at
        monkeypatch.setattr(stopping, "actor_names", self._names)
        monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._sleep))

    def _names(self) -> list[str]:
        replicas = [f"replica:flights-{number}:broker-1:0000" for number in range(self._left_at(self.now_s - 100.0))]
        return [*replicas, "controller", "broker-1", "replica:spare:broker-1:00"]

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def waited_s(self, deadline_s: float = 1_000.0) -> float:
        """How long the stop waits."""
        let_sleepers_end(100.0 + deadline_s, Progress(None))
        return self.now_s - 100.0


def test_it_waits_until_few_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Ending(monkeypatch, lambda after_s: max(0, 600 - int(20 * after_s)))
    assert ending.waited_s() == pytest.approx((600 - FEW) / 20, abs=1.0)


def test_it_waits_no_longer_when_no_more_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Ending(monkeypatch, lambda after_s: 600 if after_s < 2 else 300)
    assert ending.waited_s() == pytest.approx(2 + QUIET_S, abs=1.0)


def test_it_does_not_wait_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Ending(monkeypatch, lambda after_s: FEW).waited_s() == 0.0


def test_it_waits_no_longer_than_to_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Ending(monkeypatch, lambda after_s: 600 - int(after_s))
    assert ending.waited_s(deadline_s=10.0) == pytest.approx(10.0, abs=1.0)
