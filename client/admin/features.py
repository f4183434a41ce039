"""The cluster's feature level, which limits what it uses while brokers run different releases. Part of `AsyncAdmin`."""

from __future__ import annotations

from dataclasses import dataclass

from raylog.client.cluster.cluster_client import ClusterClient
from raylog.protocol.admin import (
    DESCRIBE_CLUSTER,
    RAISE_FEATURE_LEVEL,
    DescribeClusterRequest,
    RaiseFeatureLevelRequest,
)


@dataclass(frozen=True, slots=True)
class FeatureDescription:
    """The feature level that the cluster uses, and the levels that its brokers support."""

    level: int
    """The cluster's feature level."""
    brokers: dict[int, tuple[int, int]]
    """The lowest and the highest level that each broker's release supports, by broker id."""


class AsyncFeatures:
    """Feature-level methods of `AsyncAdmin`."""

    cluster: ClusterClient

    async def describe_features(self, *, timeout_s: float = 30.0) -> FeatureDescription:
        """The cluster's feature level, and the levels that each broker's release supports.

        A controller whose release has no feature levels reports none; then all of them are 1.
        """
        reply = await self.cluster.call_broker(DESCRIBE_CLUSTER, DescribeClusterRequest(), timeout_s=timeout_s)
        known = {row.broker: (row.feature_levels[0], row.feature_levels[1]) for row in reply.brokers}
        return FeatureDescription(reply.feature_level, known)

    async def raise_feature_level(self, level: int | None = None, *, timeout_s: float = 30.0) -> tuple[int, int]:
        """Raise the feature level of the cluster; return the new level and the one before.

        None = the highest that every broker supports. It cannot be lowered again. Raises UnsupportedVersion, which
        names the brokers that do not support the level.
        """
        wanted = -1 if level is None else level
        request = RaiseFeatureLevelRequest(wanted)
        reply = await self.cluster.call_broker(RAISE_FEATURE_LEVEL, request, timeout_s=timeout_s)
        return reply.level, reply.previous_level
