"""The cost of a batch in calls, frames, system calls, syncs and copies stays within benchmarks/budgets.toml.

No clock is involved, so every machine gives the same result: a change that lengthens the hot path fails here.
"""

import pytest

from tests.cluster.counts import Counts, budgets, measure

pytestmark = pytest.mark.cluster
BUDGETED = [(what, name) for what, counts in budgets().items() for name in counts]


@pytest.fixture(scope="module")
def counted() -> dict[str, Counts]:
    return measure()


@pytest.mark.parametrize(("what", "name"), BUDGETED, ids=[f"{what}-{name}" for what, name in BUDGETED])
def test_a_batch_costs_no_more_than_its_budget(counted: dict[str, Counts], what: str, name: str) -> None:
    found, allowed = counted[what][name], budgets()[what][name]
    assert found <= allowed, (
        f"{what}: {name} is {found:.2f} a batch, the budget is {allowed:g}. Make the path shorter again, or raise the "
        "budget in benchmarks/budgets.toml and say in the commit what it buys."
    )


@pytest.mark.parametrize(("what", "name"), BUDGETED, ids=[f"{what}-{name}" for what, name in BUDGETED])
def test_a_budget_is_near_enough_to_notice_something(counted: dict[str, Counts], what: str, name: str) -> None:
    if name == "blocks_kept":
        pytest.skip("what is kept is near nothing, of which there is no double")
    found, allowed = counted[what][name], budgets()[what][name]
    assert allowed <= 2.5 * found, f"{what}: {name} is {found:.2f} a batch; lower its budget of {allowed:g}"


def test_every_count_has_a_budget(counted: dict[str, Counts]) -> None:
    assert {(what, name) for what, counts in counted.items() for name in counts} == set(BUDGETED)
