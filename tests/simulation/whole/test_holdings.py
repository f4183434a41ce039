"""What counts as a leak: a collection that is larger from visit to visit, wherever in a process it is held."""

from __future__ import annotations

from collections import deque
from functools import partial

import pytest

from raylog.core.metrics.changes import PartitionChanges
from tests.simulation.whole.holdings import rising, sizes_below

pytestmark = pytest.mark.sim


@pytest.mark.parametrize(
    ("sizes", "leaks"),
    [
        ([5, 6, 7, 8], True),
        ([5, 6, 6, 7, 8, 8, 9, 10], True),
        ([5, 6, 7, 7, 7, 7, 7, 7], False),
        ([8, 13, 2, 7, 12, 1, 6, 11], False),
        ([9, 9, 9, 9], False),
    ],
    ids=["each time", "most times", "fills up once", "emptied now and then", "flat"],
)
def test_what_rises_all_along_is_a_leak(sizes: list[int], leaks: bool) -> None:
    key = "broker-1, life 1", "Server._calls"
    assert rising([{key: size} for size in sizes]) == ({key: sizes} if leaks else {})


def test_collections_are_found_wherever_they_are_held() -> None:
    inner = PartitionChanges()
    inner._known = {("t", number): (1, 1) for number in range(3)}
    held = [{"one": 1}, deque([1, 2], maxlen=2), partial(print, [1, 2, 3, 4], inner.note)]
    assert sizes_below(("root", held)) == {"root": 3, "root[]": 1 + 4, "PartitionChanges._known": 3}


def test_what_is_reached_twice_counts_once() -> None:
    shared = [1, 2]
    assert sizes_below(("a", [shared, shared])) == {"a": 2, "a[]": 2}
