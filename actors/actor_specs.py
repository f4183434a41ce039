"""Constructor arguments of the actors: plain values that Ray can pickle. Made by brokers and
``raylog.launch.cluster``.

``secret`` names the files of the secrets (:class:`raylog.rpc.auth.secret_files.SecretFiles`) in every specification
that Ray gets, because Ray keeps those. ``allow_plaintext``: the actor may listen beyond this machine without TLS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raylog.rpc import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSpec:
    """The controller: what the cluster was started with. Ray keeps it, so that the actor can go to another node.

    ``data_directory`` is the cluster's, on the node where it was started.
    """

    data_directory: Path
    secret: Secret = field(repr=False)
    cluster_id: str
    cluster_config: Mapping[str, str] = field(default_factory=dict)
    cluster_start: str = ""
    """Names this start of the cluster; with the next one all settings count that were altered. Empty = not known."""
    host: str = "127.0.0.1"
    allow_plaintext: bool = False
    voters: tuple[int, ...] = ()
    """Brokers that found a new cluster. The controller queries them first for the metadata log, which may have moved.

    Empty = the cluster exists, and any broker may hold the log.
    """
    quorum_timeout_s: float = 60.0
    """How long the controller waits for a majority of voters before it gives up and is restarted."""
    node_folder: Path | None = None
    """Data directory of the broker that every node with the resource ``raylog`` gets; None = only embedded brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSpec:
    """One broker: the data directory that it locks; ``broker`` None takes the id kept there, or gets a new one."""

    broker: int | None
    folder: Path
    secret: Secret = field(repr=False)
    cluster_id: str
    node_id: str
    host: str = "127.0.0.1"
    allow_plaintext: bool = False
    listeners: Mapping[str, str] = field(default_factory=dict)
    """``listeners`` and ``advertised.listeners`` as this start was given them; the directory has those from before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """One partition replica: which partition, on which broker, in which folder, with which configuration."""

    topic_id: str
    topic: str
    partition: int
    broker: int
    data_directory: Path
    """The broker's data directory; the partition's folder lies below it."""
    secret: Secret = field(repr=False)
    replication_factor: int
    topic_config: Mapping[str, str]
    cluster_config: Mapping[str, str]
    host: str = "127.0.0.1"
    allow_plaintext: bool = False
    catch_up_bytes_per_s: int = 0
    """How fast this replica may fetch while a reassignment adds it; 0 = as fast as it can."""
    as_of: int = -1
    """Version of the metadata that the settings are of; a replica ignores those of an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareSpec:
    """A spare process without a replica yet: the file that will name its replica, and the settings that all share."""

    role_file: Path
    data_directory: Path
    secret: Secret = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSpec:
    """One group coordinator: the partition of the offsets topic that it answers for."""

    kind: str
    index: int
    secret: Secret = field(repr=False)
    cluster_config: Mapping[str, str]
    host: str = "127.0.0.1"
    allow_plaintext: bool = False
    folder: Path | None = None
    """The cluster's data directory; ports are kept there, on machines that have it. None = nowhere."""
