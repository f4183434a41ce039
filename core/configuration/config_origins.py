"""Where the value of each setting comes from: a default, the cluster's configuration, or the topic's own. Pure.

Used by the controller to answer ``describe_configs``. "cluster" is what Kafka calls a broker's configuration: here all
brokers share one. Its values are given at a start (Kafka's static configuration) or by an alteration (Kafka's dynamic
default for all brokers).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from raylog.core.configuration.altering import ClusterValues, value_of
from raylog.core.configuration.config import DOZE_KEY, SLEEP_KEY, majority
from raylog.core.configuration.config_key import Change
from raylog.core.configuration.config_keys import CLUSTER_KEYS, TOPIC_KEYS

DEFAULT: Final = "default"
CLUSTER: Final = "cluster"
"""Origin of a topic's setting that has the cluster's value."""
TOPIC: Final = "topic"
START: Final = "start"
"""Origin of a cluster's setting that was given at a start of the cluster."""
ALTERED: Final = "altered"
"""Origin of a cluster's setting that was altered while the cluster ran."""
FIXED: Final = "fixed"
"""In place of a Change: the key cannot change any more, because all topics that it is for exist."""
INHERITED: Final[Mapping[str, str]] = {
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    DOZE_KEY: DOZE_KEY,
    SLEEP_KEY: SLEEP_KEY,
}
"""Topic key -> the cluster key whose value a topic has that does not set the topic key."""


class DescribedSetting(NamedTuple):
    """One key of a topic or of the cluster, with the value in force."""

    name: str
    value: str
    origin: str
    """DEFAULT, CLUSTER or TOPIC for a topic's key; DEFAULT, START or ALTERED for a key of the cluster."""
    default: str
    """The value without any configuration."""
    legal: str
    meaning: str
    change: str = Change.AT_ONCE.value
    """When a change takes effect: a :class:`~raylog.core.configuration.config_key.Change`, or FIXED."""
    next: str = ""
    """The value from the next start of the cluster on; empty = the same."""


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


def describe_cluster(values: ClusterValues, topics: Collection[str]) -> list[DescribedSetting]:
    """Return every key of the cluster with these values, by name; ``topics``: those that exist."""
    return [_described(name, values, topics) for name in sorted(CLUSTER_KEYS)]


def _described(name: str, values: ClusterValues, topics: Collection[str]) -> DescribedSetting:
    key, value, wanted = CLUSTER_KEYS[name], value_of(name, values.config), value_of(name, values.wanted)
    if name not in values.config:
        origin = DEFAULT
    elif values.altered.get(name, value_of(name, values.given)) != value:
        origin = ALTERED  # the alteration has ended or was replaced, and stays in force until the next start
    else:
        origin = ALTERED if name in values.altered else START
    is_fixed = key.change is Change.UNTIL_CREATED and all(topic in topics for topic in key.fixed_by)
    return DescribedSetting(
        name,
        value,
        origin,
        key.default,
        key.legal(),
        key.doc,
        FIXED if is_fixed else key.change.value,
        "" if wanted == value else wanted,
    )
