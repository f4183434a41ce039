"""The cluster of these tests."""

from tests.cluster.hostile.world import world

__all__ = ["world"]
