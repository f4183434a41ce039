"""What the tests of transactions begin with."""

import pytest

from tests.unit.core.transactions.context import Transactions


@pytest.fixture
def txns() -> Transactions:
    """A coordinator that has no transactional ids yet."""
    return Transactions()
