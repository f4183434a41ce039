"""What the tests of groups begin with."""

import pytest

from tests.unit.core.groups.context import Groups


@pytest.fixture
def groups() -> Groups:
    """A coordinator that has no groups yet."""
    return Groups()
