"""Names of actors in Ray, and of the folders they own. Used by the shells and ``raylog.launch.cluster``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from raylog.base.ids import TopicPartition
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC

NAMESPACE: Final = "raylog"
"""Ray namespace of every Raylog actor; one cluster per Ray cluster."""

CONTROLLER: Final = "controller"
INTERNAL_PREFIX: Final = "__"
"""Begins the names of Raylog's own topics; users cannot create such topics."""
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
SHARE_STATE_TOPIC: Final = "__share_state"
UNDELIVERABLE_TOPIC: Final = "__undeliverable"
FORWARDING_TOPIC: Final = "__forwarding"
FENCED_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""Topics that coordinators write to as producers; their producer epoch fences earlier coordinators."""
COORDINATED_TOPICS: Final = FENCED_TOPICS | {SHARE_STATE_TOPIC, SCHEDULED_TOPIC, FORWARDING_TOPIC}
"""Topics that coordinators and leader roles own: only processes of the cluster may write to them."""
METADATA_TOPIC: Final = "__cluster_metadata"
RESOURCE: Final = "raylog"
"""Custom Ray resource: every node that offers it gets one broker."""
SPARE: Final = "spare"
"""Role of a process that has no replica yet."""
REPLICA_PREFIX: Final = "replica:"
"""Begins the names of replicas."""
SPARE_PREFIX: Final = "replica:spare:"
"""Begins the names of spare replicas; no topic's replica has such a name, because a partition's number is missing."""

_REPLICA: Final = re.compile(r"replica:(?P<topic>[^:]+)-(?P<partition>[0-9]+):broker-[0-9]+:[^:]*")

MAKERS_NAMESPACE: Final = "raylog-makers"
"""Ray namespace of the makers, processes that make replicas: they belong to their brokers, not to the cluster."""
MAKER_PREFIX: Final = "raylog-maker-"
"""Begins the names of makers."""


def broker_name(broker: int) -> str:
    """Return the actor name of a broker."""
    return f"broker-{broker}"


def node_broker_name(node_id: str) -> str:
    """Return the actor name of the broker of a Ray node."""
    return f"broker-on-{node_id[:16]}"


def replica_name(topic: str, partition: int, broker: int, topic_id: str) -> str:
    """Return the actor name of a partition replica; the topic id keeps a re-created topic apart from its namesake."""
    return f"replica:{topic}-{partition}:broker-{broker}:{topic_id[:8]}"


def partition_of_replica(name: str) -> TopicPartition | None:
    """Return the partition in the actor name of a replica; None = it is the name of another actor."""
    found = _REPLICA.fullmatch(name)
    return None if found is None else TopicPartition(found["topic"], int(found["partition"]))


def spare_prefix(broker: int) -> str:
    """Return the prefix of the names of a broker's spares, which they keep when they become replicas."""
    return f"{SPARE_PREFIX}broker-{broker}:"


def coordinator_name(kind: str, index: int) -> str:
    """Return the actor name of a coordinator."""
    return f"{kind}-coordinator-{index}"


def broker_folder(data_dir: Path, broker: int) -> Path:
    """Return the data directory of one broker below the cluster's data directory."""
    return data_dir / f"broker-{broker}"
