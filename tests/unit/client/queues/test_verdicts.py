"""Verdicts on their way to the leader: as few ranges as say the same, and no renewal beside a final word."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from raylog.client.queues.verdicts import DAMAGED_RETRY_MS, Settled, gap_verdicts, is_unasked, taken_verdicts
from raylog.core.queues import events as ev
from raylog.protocol.queues import QueueFailure, QueueRange

rows = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.tuples(st.integers(1, 2), st.just(5)),
        st.sampled_from(sorted(ev.VERDICTS)),
        st.just(-1),
        st.just(""),
    ),
    max_size=30,
)


@given(rows)
def test_ranges_hold_for_each_record_what_was_reported(settled: list[Settled]) -> None:
    found = taken_verdicts(deque(settled), len(settled))
    reported = [(at, (row.count, row.lease), row.kind) for row in found for at in range(row.first, row.end)]
    final = {row[:2] for row in settled if row[2] != ev.RENEW}
    assert sorted(row for row in reported if row[2] != ev.RENEW) == sorted(
        row[:3] for row in settled if row[2] != ev.RENEW
    )
    renewed = [row[:2] for row in reported if row[2] == ev.RENEW]
    assert sorted(renewed) == sorted({row[:2] for row in settled if row[2] == ev.RENEW} - final)


def test_equal_verdicts_on_neighbours_are_one_range() -> None:
    settled: deque[Settled] = deque((at, (1, 5), ev.ACCEPT, -1, "") for at in (3, 1, 2, 7))
    assert [(row.first, row.end) for row in taken_verdicts(settled, 10)] == [(1, 4), (7, 8)]


def test_at_most_so_many_are_taken() -> None:
    settled: deque[Settled] = deque((at, (1, 5), ev.ACCEPT, -1, "") for at in range(10))
    assert [(row.first, row.end) for row in taken_verdicts(settled, 4)] == [(0, 4)]
    assert len(settled) == 6


def test_a_stale_renewal_does_not_answer_for_an_acknowledgement() -> None:
    """Its refusal has the same offset as the acknowledgement of a later hand-out, and the count of its own."""
    settled: deque[Settled] = deque(
        [(22, (1, 5), ev.RENEW, -1, ""), (22, (2, 6), ev.ACCEPT, -1, ""), (23, (1, 5), ev.RENEW, -1, "")]
    )
    found = taken_verdicts(settled, 10)
    assert [(row.first, row.kind, row.count) for row in found] == [
        (22, ev.RENEW, 1),
        (22, ev.ACCEPT, 2),
        (23, ev.RENEW, 1),
    ]
    assert is_unasked(QueueFailure(22, 23, 1, "", 1, 5), found)
    assert not is_unasked(QueueFailure(22, 23, 1, "", 2, 6), found)
    assert is_unasked(QueueFailure(23, 24, 1, "", 1, 5), found)


def test_a_record_whose_batch_did_not_come_is_handed_out_again() -> None:
    """Nothing is known of it: it is no gap, which would finish it."""
    rows = [QueueRange(3, 8, 1, 7)]
    found = list(gap_verdicts(rows, {5}, range(5, 7), None, None))
    assert [(offset, kind, delay_ms) for offset, _, kind, delay_ms, _ in found] == [
        (3, ev.RETURN, DAMAGED_RETRY_MS),
        (4, ev.RETURN, DAMAGED_RETRY_MS),
        (6, ev.GAP, -1),
        (7, ev.RETURN, DAMAGED_RETRY_MS),
    ]
