"""The controller's pure core: metadata records, the image they add up to, and the machine that decides on them.

- :class:`ControllerMachine` with :class:`ControllerSettings`: ``start(now_ms)`` once, then ``step(event)``; both return
  an :class:`~raylog.core.outbox.Outbox` with :class:`WriteRecords` in ``now`` and everything else in ``after_sync``.
- :class:`MetadataImage` (with :class:`TopicImage`, :class:`BrokerImage`, :class:`Coordinator`): the cluster at one
  version. ``apply(record)`` changes it; ``to_records()`` and ``restore(version, records)`` are its snapshot.
- records (``RECORD_TYPES`` by name, ``to_wire()`` / :func:`record_from_wire`): what is written to the metadata log.
- events: the ``...Received``, ``...Requested`` and ``Session...`` classes and :class:`Tick`.
- effects: :class:`WriteRecords`, :class:`PublishMetadata`, :class:`SendPartitionState`, :class:`StopReplica`,
  :class:`CloseSession`, :class:`StartCoordinator`, :class:`Reply`, :class:`Refuse`.
- :func:`place_replicas`: which brokers hold a new topic. ``INTERNAL_TOPICS``: the topic behind each coordinator kind.
"""

from raylog.core.controller.controller import ControllerMachine
from raylog.core.controller.coordinators import INTERNAL_TOPICS
from raylog.core.controller.events import (
    AlterTopicConfigReceived,
    BrokerRegistrationReceived,
    CloseSession,
    CoordinatorRegistrationReceived,
    CoordinatorRequested,
    CreateTopicReceived,
    DeleteTopicReceived,
    DescribeClusterReceived,
    Effect,
    Event,
    IsrChangeReceived,
    LeaderResigned,
    ProducerIdsRequested,
    PublishMetadata,
    Refuse,
    ReplicaRegistrationReceived,
    Reply,
    RequestId,
    SendPartitionState,
    SessionHeard,
    SessionId,
    SessionLost,
    StartCoordinator,
    StopReplica,
    Tick,
    VotersShown,
    WriteRecords,
)
from raylog.core.controller.image import BrokerImage, Coordinator, MetadataImage, TopicImage
from raylog.core.controller.ledger import ControllerSettings
from raylog.core.controller.placement import place_replicas
from raylog.core.controller.records import (
    RECORD_TYPES,
    BrokerOffline,
    BrokerRegistered,
    ClusterConfigured,
    ClusterCreated,
    ControllerStarted,
    CoordinatorPlaced,
    MetadataRecord,
    PartitionChanged,
    ProducerIdsAllocated,
    ReplicaLogLost,
    ReplicaPlaced,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
    TopicsDeletedBefore,
    VotersEntered,
    record_from_wire,
)

__all__ = [
    "INTERNAL_TOPICS",
    "RECORD_TYPES",
    "AlterTopicConfigReceived",
    "BrokerImage",
    "BrokerOffline",
    "BrokerRegistered",
    "BrokerRegistrationReceived",
    "CloseSession",
    "ClusterConfigured",
    "ClusterCreated",
    "ControllerMachine",
    "ControllerSettings",
    "ControllerStarted",
    "Coordinator",
    "CoordinatorPlaced",
    "CoordinatorRegistrationReceived",
    "CoordinatorRequested",
    "CreateTopicReceived",
    "DeleteTopicReceived",
    "DescribeClusterReceived",
    "Effect",
    "Event",
    "IsrChangeReceived",
    "LeaderResigned",
    "MetadataImage",
    "MetadataRecord",
    "PartitionChanged",
    "ProducerIdsAllocated",
    "ProducerIdsRequested",
    "PublishMetadata",
    "Refuse",
    "ReplicaLogLost",
    "ReplicaPlaced",
    "ReplicaRegistrationReceived",
    "Reply",
    "RequestId",
    "SendPartitionState",
    "SessionHeard",
    "SessionId",
    "SessionLost",
    "StartCoordinator",
    "StopReplica",
    "Tick",
    "TopicConfigured",
    "TopicCreated",
    "TopicDeleted",
    "TopicImage",
    "TopicsDeletedBefore",
    "VotersEntered",
    "VotersShown",
    "WriteRecords",
    "place_replicas",
    "record_from_wire",
]
