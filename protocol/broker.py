"""Methods of a broker: metadata, producer ids, coordinators and metrics; its voter's methods; those it forwards.

It also answers as the leader of the partitions that sleep on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from raylog.protocol.admin import FORWARDED
from raylog.protocol.message import Description, Int16, Int32, Int64, Message, Names
from raylog.protocol.method import CLUSTER, TOKEN, Endpoint, Method, TokenScope
from raylog.protocol.replica import LEADER_METHODS
from raylog.protocol.voter import VOTER_METHODS


class MetadataRequest(Message, frozen=True):
    """Describe brokers, topics and leaders, as far as this server has applied the metadata log.

    ``topics``: names of topics; None = all. A topic that does not exist is in the reply, with an error code.
    ``known_version``: the version of an earlier reply about these topics; if nothing has changed since, the reply says
    so and lists nothing. -1 = none.
    """

    topics: Names | None
    known_version: Int64 = -1


class MetadataBroker(Message, frozen=True):
    """A running broker and its endpoint."""

    broker: Int64
    host: str
    port: Int64
    node_id: str
    """Ray's id of the node."""


class MetadataReplica(Message, frozen=True):
    """Endpoint of a replica; port 0 = it does not run."""

    broker: Int64
    host: str
    port: Int64


class MetadataPartition(Message, frozen=True):
    """One partition: its leader in an epoch, its replicas and their endpoints."""

    partition: Int32
    leader: Int64
    """-1 = none."""
    leader_epoch: Int32
    leader_host: str
    leader_port: Int64
    replicas: Sequence[Int64]
    """Broker ids, the preferred leader in front."""
    isr: Sequence[Int64]
    places: Sequence[MetadataReplica]
    elr: Sequence[Int64] = ()
    """Replicas outside the ISR that have every committed record."""
    unclean_leader_epoch: Int32 = 0
    """The last epoch that began with a replica that may have lacked committed records; 0 = none."""
    is_asleep: bool = False
    """No replica of it has a process: the leader's endpoint is that of its broker."""


class MetadataTopic(Message, frozen=True):
    """One topic; ``error_code`` other than 0: it is not known, and only ``topic`` counts."""

    error_code: Int64
    topic_id: str
    topic: str
    is_internal: bool
    partitions: Sequence[MetadataPartition]
    config: Mapping[str, Any]
    """The configuration keys that were set for it."""


class MetadataReply(Message, frozen=True):
    """``version``: how many records of the metadata log it comes from; of two replies the higher one is newer.

    ``creates_topics``: the cluster has `auto.create.topics.enable`, so a client may create a topic by using it.
    ``feature_level``: the cluster's. ``is_unchanged``: the version is the one that the request knows; brokers and
    topics are left out.
    """

    cluster_id: str
    version: Int64
    brokers: Sequence[MetadataBroker]
    topics: Sequence[MetadataTopic]
    creates_topics: bool = False
    feature_level: Int64 = 1
    is_unchanged: bool = False


class InitProducerIdRequest(Message, frozen=True):
    """Get an id for an idempotent producer, which no other producer has or had.

    ``lasting``: partitions never forget it, so that its owner may keep it, and send a batch again after any time. A
    broker that does not know the field answers with an ordinary id, below ``LASTING_PRODUCERS``.
    """

    lasting: bool = False


class InitProducerIdReply(Message, frozen=True):
    """The producer's identity in the headers of its batches."""

    producer_id: Int64
    producer_epoch: Int16


class FindCoordinatorRequest(Message, frozen=True):
    """Find the coordinator of a group or of a transactional id, and start it if it does not run.

    ``key_type``: ``group`` or ``transaction``. ``key``: the group's id, or the transactional id.
    """

    key_type: str
    key: str


class FindCoordinatorReply(Message, frozen=True):
    """``index``: the partition of the internal topic that the coordinator owns."""

    index: Int64
    host: str
    port: Int64


class BrokerMetricsRequest(Message, frozen=True):
    """Get metrics of a broker and its replicas, a second old at most, and why it is not ready."""


class BrokerMetricsReply(Description, frozen=True):
    """``families``: metric families as ``core/metrics/exposition.py`` writes them; no ``reasons`` = ready."""

    families: Sequence[Any]
    reasons: Sequence[str] = ()


class ClockRequest(Message, frozen=True):
    """Get the time of day of a broker's machine."""


class ClockReply(Message, frozen=True):
    """``wall_ms``: milliseconds since 1970."""

    wall_ms: Int64


METADATA: Final = Method("metadata", MetadataRequest, MetadataReply, TOKEN, TokenScope.TOPICS)
INIT_PRODUCER_ID: Final = Method(
    "init_producer_id", InitProducerIdRequest, InitProducerIdReply, TOKEN, TokenScope.PRODUCER
)
FIND_COORDINATOR: Final = Method(
    "find_coordinator", FindCoordinatorRequest, FindCoordinatorReply, TOKEN, TokenScope.COORDINATOR
)
CLOCK: Final = Method("clock", ClockRequest, ClockReply, CLUSTER)
BROKER_METRICS: Final = Method("broker_metrics", BrokerMetricsRequest, BrokerMetricsReply, CLUSTER)

BROKER: Final = Endpoint.of(
    "broker",
    (METADATA, INIT_PRODUCER_ID, FIND_COORDINATOR, CLOCK, *FORWARDED, *LEADER_METHODS, BROKER_METRICS, *VOTER_METHODS),
)
