"""What tests give a replica as its specification."""

from pathlib import Path
from typing import Any

from raylog.actors.actor_specs import ReplicaSpec


def replica_spec(folder: Path, **other: Any) -> ReplicaSpec:
    """Return the specification of t-0 on broker 1, with its data below a folder."""
    usual: dict[str, Any] = {
        "topic_id": "0123456789abcdef",
        "topic": "t",
        "partition": 0,
        "broker": 1,
        "data_directory": folder,
        "secret": b"s" * 32,
        "replication_factor": 1,
        "topic_config": {},
        "cluster_config": {},
    }
    return ReplicaSpec(**usual | other)
