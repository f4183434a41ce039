"""Constructor arguments of the actors: plain values that Ray can pickle. Made by brokers and
``raylog.launch.cluster``.

Ray keeps these specifications. So their ``secret`` names the files of the secrets
(:class:`raylog.rpc.auth.secret_files.SecretFiles`), and has no value. ``allow_plaintext``: the actor may listen beyond
this machine without TLS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raylog.rpc import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSpec:
    """The controller: what the cluster was started with. Ray keeps it, so that the actor can move to another node.

    ``data_directory``: the cluster's, on the node where it was started.
    """

    data_directory: Path
    secret: Secret = field(repr=False)
    cluster_id: str
    cluster_config: Mapping[str, str] = field(default_factory=dict)
    cluster_start: str = ""
    """Id of this start of the cluster; with the next start all altered settings take effect. Empty = not known."""
    host: str = "127.0.0.1"
    allow_plaintext: bool = False
    voters: tuple[int, ...] = ()
    """The first voters of the metadata log. The controller queries them first; the log may have moved since.

    Empty = the cluster exists, and any broker may hold the log.
    """
    quorum_timeout_s: float = 60.0
    """How long the controller waits for a majority of voters before it fails and is restarted."""
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
    """``listeners`` and ``advertised.listeners`` given to this start; the directory has those of earlier starts."""


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
    """Version of the metadata that the settings come from; a replica ignores settings of an earlier version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareSpec:
    """A spare process, without a replica yet: the file that will name its replica, and the settings of all spares."""

    role_file: Path
    data_directory: Path
    secret: Secret = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSpec:
    """One coordinator: its kind, and the partition of its topic that it owns."""

    kind: str
    index: int
    secret: Secret = field(repr=False)
    cluster_config: Mapping[str, str]
    host: str = "127.0.0.1"
    allow_plaintext: bool = False
    folder: Path | None = None
    """The cluster's data directory, where ports are kept on machines that have it. None = ports are not kept."""
