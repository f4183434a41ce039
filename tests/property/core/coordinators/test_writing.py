"""The queue between machine and log: order, limits, and durable end, for any sequence of steps."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.base.invariants import InvariantBroken
from raylog.core.coordinators.sizes import row_bytes
from raylog.core.coordinators.writing import RowQueue

LIMIT = 100
STEPS = st.lists(st.tuples(st.lists(st.integers(1, 150), max_size=6), st.integers(0, 3)), min_size=1, max_size=12)
"""Of each step: the sizes of its rows, and how many batches are stored before the next step."""


@given(steps=STEPS)
def test_rows_are_appended_in_order_in_batches_that_the_log_takes(steps: list[tuple[list[int], int]]) -> None:
    queue: RowQueue[tuple[int, int]] = RowQueue(lambda: None)
    log: list[tuple[int, int]] = []
    batches: list[set[int]] = []
    sizes = {(step, place): size for step, (rows, _) in enumerate(steps) for place, size in enumerate(rows)}

    def store_one() -> bool:
        batch = queue.take(LIMIT)
        assert len(batch) <= 1 or sum(sizes[row] for row in batch) <= LIMIT
        assert queue.durable_end() == len(log), "a batch counts when it is stored"
        log.extend(batch)
        batches.append({step for step, _ in batch})
        if batch:
            queue.stored()
        assert queue.durable_end() == len(log)
        return bool(batch)

    for step, (rows, stored) in enumerate(steps):
        queue.add(((step, place), size) for place, size in enumerate(rows))
        assert queue.end() == sum(row[0] <= step for row in sizes)
        for _ in range(stored):
            store_one()
    while store_one():
        pass
    assert log == sorted(sizes)
    for step, (rows, _) in enumerate(steps):
        if rows and sum(rows) <= LIMIT:
            assert sum(step in batch for batch in batches) == 1, "a step that fits into a batch is stored whole"


def test_batches_are_filled_with_whole_steps() -> None:
    queue: RowQueue[str] = RowQueue(lambda: None)
    queue.add([("a", 40)])
    queue.add([("b", 40)])
    queue.add([("c", 10), ("d", 40)])
    assert queue.take(LIMIT) == ["a", "b"]
    queue.stored()
    assert queue.take(LIMIT) == ["c", "d"]


def test_a_step_that_is_larger_than_a_batch_is_split() -> None:
    queue: RowQueue[str] = RowQueue(lambda: None)
    queue.add([("a", 40)])
    queue.add([("b", 40), ("c", 40), ("d", 40)])
    assert queue.take(LIMIT) == ["a", "b"]
    queue.stored()
    assert queue.take(LIMIT) == ["c", "d"]


def test_a_second_batch_waits_for_the_first() -> None:
    queue: RowQueue[str] = RowQueue(lambda: None)
    queue.add([("a", 1)])
    assert queue.take(LIMIT) == ["a"]
    with pytest.raises(InvariantBroken):
        queue.take(LIMIT)
    queue.stored()
    with pytest.raises(InvariantBroken):
        queue.stored()


def test_rows_wake_the_writer() -> None:
    woken: list[int] = []
    queue: RowQueue[str] = RowQueue(lambda: woken.append(queue.end()))
    queue.add([("a", 1), ("b", 1)])
    assert woken == [2]


WIRE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner),
    max_leaves=30,
)


@given(key=st.lists(WIRE), value=st.none() | st.lists(WIRE))
def test_the_size_of_a_row_is_never_underestimated(key: list[object], value: list[object] | None) -> None:
    packed = len(msgspec.msgpack.encode(key)) + len(msgspec.msgpack.encode(value))
    assert packed <= row_bytes(key, value)
