"""A transaction coordinator on the toy cluster, for each test that uses the fixture."""

import pytest

from tests.unit.client.toy_server import ToyCluster
from tests.unit.client.transactions.toy_transactions import ToyTransactions


@pytest.fixture
def coordinator(cluster: ToyCluster) -> ToyTransactions:
    """No transactional id is known yet."""
    return ToyTransactions(cluster)
