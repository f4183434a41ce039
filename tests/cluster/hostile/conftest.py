"""The cluster of these tests, and the end of what each one has left."""

import gc
import warnings
from collections.abc import Iterator

import pytest

from tests.cluster.hostile.world import world

__all__ = ["world"]


@pytest.fixture(autouse=True)
def _own_garbage() -> Iterator[None]:
    """Collect what a test's interrupted calls have left, sockets among it, before the next one is blamed for it."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
