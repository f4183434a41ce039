"""Transactions in the shipped log on a virtual disk that fails, against a slow model of what committed readers get."""

from __future__ import annotations

import pytest

from tests.simulation.storage.runs import STORAGE_TRANSACTIONS, run_storage

pytestmark = pytest.mark.sim

SEEDS = 300


@pytest.mark.parametrize("first", range(1, SEEDS, 100))
def test_committed_readers_get_what_they_may_on_a_disk_that_fails(first: int) -> None:
    for seed in range(first, first + 100):
        result = run_storage(seed, STORAGE_TRANSACTIONS)
        assert result.violation is None, "\n".join([f"seed {seed} of {STORAGE_TRANSACTIONS}", *result.story])


def test_a_seed_with_transactions_always_takes_the_same_course() -> None:
    first, second = run_storage(7, STORAGE_TRANSACTIONS), run_storage(7, STORAGE_TRANSACTIONS)
    assert (first.trace, first.events, first.story) == (second.trace, second.events, second.story)
