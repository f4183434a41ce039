"""A decision as a group's committed offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.base.errors import InvalidRecord, RequestTimedOut
from raylog.client.types import OffsetAndMetadata
from raylog.spark.writing.commits import (
    Decision,
    End,
    Fence,
    Identity,
    Init,
    Initialised,
    Prepared,
    Read,
    Store,
    commit,
    is_sweep_due,
    is_task_id,
    task_id,
)
from raylog.spark.writing.coordinators import decision_texts, parsed_decision

names = st.builds(
    lambda task, attempt, producer, epoch: Prepared(task_id("p", task, attempt), producer, epoch),
    st.integers(0, 99_999),
    st.integers(0, 9),
    st.integers(0, 2**40),
    st.integers(0, 32_766),
)


@given(st.lists(names, max_size=20).map(lambda some: some * 30), st.integers(0, 2**40), st.integers(0, 20))
def test_a_decision_is_read_as_it_was_stored(some: list[Prepared], batch: int, older: int) -> None:
    decision = Decision("owner", batch, tuple(some), ("a", "b"), "run")
    texts = decision_texts(decision)
    assert all(len(text.encode()) <= 4_096 for text in texts)
    committed = {number: OffsetAndMetadata(batch - 1, "9:rest of an earlier one") for number in range(older)}
    committed |= {number: OffsetAndMetadata(batch, text) for number, text in enumerate(texts)}
    assert parsed_decision("p", committed) == decision


def test_offsets_of_a_consumer_group_are_no_decision() -> None:
    assert parsed_decision("p", {}) is None
    with pytest.raises(InvalidRecord, match="choose another transactionalIdPrefix"):
        parsed_decision("p", {0: OffsetAndMetadata(5, "")})


def test_ids_of_a_prefix_are_not_those_of_a_longer_one() -> None:
    assert is_task_id("q", task_id("q", 3, 0))
    assert not is_task_id("q", task_id("q-3", 1, 0))
    assert not is_task_id("q", "q-driver")


def test_leftovers_are_looked_for_where_a_run_or_an_attempt_was_lost() -> None:
    before = Decision("owner", 6, (), run="run")
    assert not is_sweep_due(before, "run", 7, [0, 0])
    assert is_sweep_due(before, "run", 7, [0, 1])
    assert is_sweep_due(before, "later run", 7, [0, 0])
    assert is_sweep_due(None, "run", 7, [0, 0])
    assert is_sweep_due(before, "run", None, [0, 0])
    assert sum(is_sweep_due(before, "run", batch, [0]) for batch in range(160)) == 10


def test_an_error_behind_the_decision_says_that_the_batch_counts() -> None:
    prepared = Prepared(task_id("p", 0, 0), 1, 0)
    talk = commit("job", None, [prepared], takes_over=False)
    answers: dict[type, object] = {
        Fence: Identity(2, 0),
        Read: None,
        Init: Initialised(Identity(1, 1), prepared),
        Store: None,
    }
    requests = next(talk)
    while not isinstance(requests[0], End):
        requests = talk.send([answers[type(each)] for each in requests])
    with pytest.raises(RequestTimedOut, match="Do not repeat a batch job"):
        talk.send([RequestTimedOut("no answer.")])
