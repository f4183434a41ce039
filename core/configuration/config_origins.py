"""Where the value of each setting comes from: a default, the cluster's configuration, or the topic's own. Pure.

Used by the controller to answer ``describe_configs``. "cluster" is what Kafka calls a broker's configuration: here all
brokers share one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from raylog.core.config import CLUSTER_KEYS, DOZE_KEY, SLEEP_KEY, TOPIC_KEYS, majority

DEFAULT: Final = "default"
CLUSTER: Final = "cluster"
TOPIC: Final = "topic"
INHERITED: Final[Mapping[str, str]] = {
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    DOZE_KEY: DOZE_KEY,
    SLEEP_KEY: SLEEP_KEY,
}
"""Topics' keys whose value, without one of their own, is that of a key of the cluster."""


class DescribedSetting(NamedTuple):
    """One key of a topic or of the cluster, with the value that counts."""

    name: str
    value: str
    origin: str
    """DEFAULT, CLUSTER or TOPIC."""
    default: str
    """The value that it has without any configuration."""
    legal: str
    meaning: str


def describe_topic(
    topic: Mapping[str, str], cluster: Mapping[str, str], replication_factor: int
) -> list[DescribedSetting]:
    """Return every key of a topic with this configuration in this cluster, by name."""
    found = []
    for name, key in sorted(TOPIC_KEYS.items()):
        above = INHERITED.get(name)
        default = key.default if above is None else CLUSTER_KEYS[above].default
        if name == "min.insync.replicas":
            default = str(majority(replication_factor))
        value, origin = default, DEFAULT
        if above is not None and above in cluster:
            value, origin = cluster[above], CLUSTER
        if name in topic:
            value, origin = topic[name], TOPIC
        found.append(DescribedSetting(name, value, origin, default, key.legal(), key.doc))
    return found


def describe_cluster(cluster: Mapping[str, str]) -> list[DescribedSetting]:
    """Return every key of the cluster with this configuration, by name."""
    return [
        DescribedSetting(
            name,
            cluster.get(name, key.default),
            CLUSTER if name in cluster else DEFAULT,
            key.default,
            key.legal(),
            key.doc,
        )
        for name, key in sorted(CLUSTER_KEYS.items())
    ]
