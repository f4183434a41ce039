"""The queue between machine and log: order, limits, and no effect before its rows, whatever the steps are like."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.core.groups.sizes import row_bytes
from raylog.core.groups.writing import WriteQueue
from raylog.core.invariants import InvariantBroken

LIMIT = 100
STEPS = st.lists(
    st.tuples(st.lists(st.integers(1, 150), max_size=6), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=12
)
"""Of each step: the sizes of its rows, how many effects it has, how many batches are stored before the next step."""


@given(steps=STEPS)
def test_every_row_is_appended_in_order_and_every_effect_leaves_behind_the_last_row_of_its_step(
    steps: list[tuple[list[int], int, int]],
) -> None:
    queue: WriteQueue[tuple[int, int], tuple[int, int]] = WriteQueue(LIMIT)
    log: list[tuple[int, int]] = []
    gone: list[tuple[int, int]] = []
    sizes = {(step, place): size for step, (rows, _, _) in enumerate(steps) for place, size in enumerate(rows)}

    def leave(effects: list[tuple[int, int]]) -> None:
        for step, effect in effects:
            assert all(row in log for row in sizes if row[0] <= step), "everything decided until then is in the log"
            gone.append((step, effect))

    def store_one() -> None:
        if queue.is_idle:
            return
        batch = queue.take()
        assert len(batch) <= 1 or sum(sizes[row] for row in batch) <= LIMIT
        log.extend(batch)
        leave(queue.stored())

    for step, (rows, effects, stored) in enumerate(steps):
        entries = [((step, place), size) for place, size in enumerate(rows)]
        leave(queue.add(entries, [(step, effect) for effect in range(effects)]))
        for _ in range(stored):
            store_one()
    for _ in range(len(sizes) + len(steps)):
        store_one()
    assert queue.is_idle
    assert log == sorted(sizes)
    assert gone == [(step, effect) for step, (_, effects, _) in enumerate(steps) for effect in range(effects)]


def test_batches_are_filled() -> None:
    queue: WriteQueue[str, str] = WriteQueue(LIMIT)
    queue.add([("a", 40)], ["A"])
    queue.add([("b", 40), ("c", 40)], ["BC"])
    queue.add([], ["read"])
    assert (queue.take(), queue.stored()) == (["a", "b"], ["A"])
    assert (queue.take(), queue.stored()) == (["c"], ["BC", "read"])


def test_effects_that_wait_for_nothing_go_at_once_and_others_wait_for_the_batch_under_way() -> None:
    queue: WriteQueue[str, str] = WriteQueue(LIMIT)
    assert queue.add([], ["read"]) == ["read"]
    queue.add([("a", 1)], [])
    assert queue.take() == ["a"]
    assert queue.add([], ["read"]) == []
    with pytest.raises(InvariantBroken):
        queue.take()
    queue.stored()
    assert (queue.take(), queue.stored()) == ([], ["read"])


WIRE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner),
    max_leaves=30,
)


@given(key=st.lists(WIRE), value=st.none() | st.lists(WIRE))
def test_the_size_of_a_row_is_never_underestimated(key: list[object], value: list[object] | None) -> None:
    packed = len(msgspec.msgpack.encode(key)) + len(msgspec.msgpack.encode(value))
    assert packed <= row_bytes(key, value)
