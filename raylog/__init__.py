"""Raylog: a Kafka-class log broker that lives inside a Ray cluster.

    import raylog

    with raylog.start("raylog-data"):                                    # or a cluster that runs: `raylog start`
        with raylog.Admin() as admin:
            admin.create_topic("orders", partitions=3)
        with raylog.Producer(value_serializer="json") as producer:
            print(producer.send("orders", {"amount": 42}, key=b"alice").result())
        with raylog.Consumer(
            "orders", auto_offset_reset="earliest", value_deserializer="json", consumer_timeout_ms=2_000
        ) as consumer:
            for record in consumer:
                print(record.partition, record.offset, record.key, record.value)

`help(raylog.Producer)` lists what a producer may be configured with, and docs/configuration.md all keys of all clients.
The errors are in `raylog.errors`, and here as well.

This is the public interface, and the only module a user has to know. Every name is imported on first use, so that
`import raylog` costs next to nothing and a service that only produces and consumes never loads Ray.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raylog import data, errors, outbox, spark
    from raylog.base.errors import (
        AssignorFailed,
        AuthenticationFailed,
        BrokerIdNotRegistered,
        BufferExhausted,
        ClientClosed,
        ClusterAuthorizationFailed,
        CommitFailed,
        ConcurrentTransactions,
        ConcurrentUse,
        ConnectionFailed,
        CoordinatorLoadInProgress,
        CoordinatorNotAvailable,
        CorruptMessage,
        DataDirectoryError,
        DelayDisabled,
        DelayTooLong,
        DeliveryTimedOut,
        DuplicateSequence,
        ElectionNotNeeded,
        EligibleLeadersNotAvailable,
        FencedInstanceId,
        FencedLeaderEpoch,
        FencedMemberEpoch,
        FencedStateEpoch,
        ForwarderFenced,
        GroupIdNotFound,
        GroupMaxSizeReached,
        GroupSubscribedToTopic,
        HalfMessageDecided,
        HalfMessagesFull,
        HandlerFailed,
        IllegalGeneration,
        InconsistentClusterId,
        InconsistentGroupProtocol,
        IneligibleReplica,
        InterceptorFailed,
        InvalidConfig,
        InvalidGroupId,
        InvalidPartitions,
        InvalidProducerEpoch,
        InvalidProducerIdMapping,
        InvalidRecord,
        InvalidRecordState,
        InvalidReplicaAssignment,
        InvalidReplicationFactor,
        InvalidRequest,
        InvalidSessionTimeout,
        InvalidTimestamp,
        InvalidTopic,
        InvalidTransactionTimeout,
        InvalidTxnState,
        InvalidUpdateVersion,
        KafkaStorageError,
        LeaderNotAvailable,
        LimitReached,
        LogTruncation,
        MemberIdRequired,
        NoClusterFound,
        NonEmptyGroup,
        NoOffsetForPartition,
        NoReassignmentInProgress,
        NotController,
        NotCoordinator,
        NotEnoughReplicas,
        NotEnoughReplicasAfterAppend,
        NotLeaderOrFollower,
        OffsetMetadataTooLarge,
        OffsetNotAvailable,
        OffsetOutOfRange,
        OutboxBoundElsewhere,
        OutboxLeaseLost,
        OutboxNotInitialized,
        OutboxVersionMismatch,
        OutOfOrderSequence,
        PreferredLeaderNotAvailable,
        ProducerFenced,
        QueueLoadInProgress,
        RaylogError,
        RebalanceInProgress,
        RecordDeserializationFailed,
        RecordTooLarge,
        RedriveRunning,
        RequestTimedOut,
        ResetOutdated,
        RetriableError,
        ScheduleFull,
        SparkStartFailed,
        StaleBrokerEpoch,
        StaleMemberEpoch,
        StaleMetadataError,
        StartFailed,
        StillStarting,
        StopRefused,
        ThrottlingQuotaExceeded,
        TooManyAwake,
        TooManyProducers,
        TopicAlreadyExists,
        TransactionAbortable,
        TransactionAborted,
        TransactionalIdNotFound,
        TransactionCoordinatorFenced,
        UnknownHalfMessage,
        UnknownLeaderEpoch,
        UnknownMemberId,
        UnknownServerError,
        UnknownTopicId,
        UnknownTopicOrPartition,
        UnreleasedInstanceId,
        UnstableOffsetCommit,
        UnsupportedAssignor,
        UnsupportedCompression,
        UnsupportedVersion,
        WrongVersions,
    )
    from raylog.base.ids import TopicPartition
    from raylog.client.admin.admin import Admin, AsyncAdmin
    from raylog.client.admin.descriptions import TopicDescription
    from raylog.client.admin.schedules import ScheduleOutcome
    from raylog.client.assignor import PartitionAssignor, RebalanceProtocol, Subscription
    from raylog.client.config import AdminConfig, ConsumerConfig, ProducerConfig, QueueConsumerConfig
    from raylog.client.consumer.consumer import AsyncConsumer, Consumer
    from raylog.client.consumer.listener import RebalanceListener
    from raylog.client.half_messages.checking import HalfVerdict, UndecidedHalf
    from raylog.client.half_messages.producer import (
        AsyncHalfMessage,
        AsyncHalfMessageProducer,
        HalfMessage,
        HalfMessageProducer,
    )
    from raylog.client.interceptors import ConsumerInterceptor, ProducerInterceptor, ProducerRecord
    from raylog.client.producer.futures import SendFuture
    from raylog.client.producer.producer import AsyncProducer, Producer
    from raylog.client.queues.consumer import AsyncQueueConsumer, QueueConsumer, QueueMessage, Reject, Retry
    from raylog.client.ranges.tables import read
    from raylog.client.types import (
        ConsumerGroupMetadata,
        EpochEndOffset,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        PreparedTxnState,
        Record,
        RecordMetadata,
    )
    from raylog.client.workers.pool import WorkerPool
    from raylog.launch.cluster import Cluster, connect, start

__version__ = "0.2.0"

# The folder is looked for by its name here, so that raylog.compiled is imported only where it is needed.
if "RAYLOG_COMPILED" in os.environ or os.path.isdir(os.path.join(os.path.dirname(__file__), "_native")):
    import_module("raylog.compiled").use()

# The public names of each module; tests/unit/packaging compares this with the imports above and with __all__.
_HOMES: dict[str, tuple[str, ...]] = {
    "raylog.launch.cluster": ("Cluster", "connect", "start"),
    "raylog.client.admin.admin": ("Admin", "AsyncAdmin"),
    "raylog.client.admin.descriptions": ("TopicDescription",),
    "raylog.client.admin.schedules": ("ScheduleOutcome",),
    "raylog.client.assignor": ("PartitionAssignor", "RebalanceProtocol", "Subscription"),
    "raylog.client.config": ("AdminConfig", "ConsumerConfig", "ProducerConfig", "QueueConsumerConfig"),
    "raylog.client.consumer.consumer": ("AsyncConsumer", "Consumer"),
    "raylog.client.consumer.listener": ("RebalanceListener",),
    "raylog.client.half_messages.checking": ("HalfVerdict", "UndecidedHalf"),
    "raylog.client.half_messages.producer": (
        "AsyncHalfMessage",
        "AsyncHalfMessageProducer",
        "HalfMessage",
        "HalfMessageProducer",
    ),
    "raylog.client.interceptors": ("ConsumerInterceptor", "ProducerInterceptor", "ProducerRecord"),
    "raylog.client.producer.futures": ("SendFuture",),
    "raylog.client.producer.producer": ("AsyncProducer", "Producer"),
    "raylog.client.queues.consumer": ("AsyncQueueConsumer", "QueueConsumer", "QueueMessage", "Reject", "Retry"),
    "raylog.client.ranges.tables": ("read",),
    "raylog.client.types": (
        "ConsumerGroupMetadata",
        "EpochEndOffset",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "OffsetAndTimestamp",
        "PreparedTxnState",
        "Record",
        "RecordMetadata",
    ),
    "raylog.client.workers.pool": ("WorkerPool",),
    "raylog.base.ids": ("TopicPartition",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Admin",
    "AdminConfig",
    "AssignorFailed",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncHalfMessage",
    "AsyncHalfMessageProducer",
    "AsyncProducer",
    "AsyncQueueConsumer",
    "AuthenticationFailed",
    "BrokerIdNotRegistered",
    "BufferExhausted",
    "ClientClosed",
    "Cluster",
    "ClusterAuthorizationFailed",
    "CommitFailed",
    "ConcurrentTransactions",
    "ConcurrentUse",
    "ConnectionFailed",
    "Consumer",
    "ConsumerConfig",
    "ConsumerGroupMetadata",
    "ConsumerInterceptor",
    "CoordinatorLoadInProgress",
    "CoordinatorNotAvailable",
    "CorruptMessage",
    "DataDirectoryError",
    "DelayDisabled",
    "DelayTooLong",
    "DeliveryTimedOut",
    "DuplicateSequence",
    "ElectionNotNeeded",
    "EligibleLeadersNotAvailable",
    "EpochEndOffset",
    "FencedInstanceId",
    "FencedLeaderEpoch",
    "FencedMemberEpoch",
    "FencedStateEpoch",
    "ForwarderFenced",
    "GroupIdNotFound",
    "GroupMaxSizeReached",
    "GroupSubscribedToTopic",
    "HalfMessage",
    "HalfMessageDecided",
    "HalfMessageProducer",
    "HalfMessagesFull",
    "HalfVerdict",
    "HandlerFailed",
    "IllegalGeneration",
    "InconsistentClusterId",
    "InconsistentGroupProtocol",
    "IneligibleReplica",
    "InterceptorFailed",
    "InvalidConfig",
    "InvalidGroupId",
    "InvalidPartitions",
    "InvalidProducerEpoch",
    "InvalidProducerIdMapping",
    "InvalidRecord",
    "InvalidRecordState",
    "InvalidReplicaAssignment",
    "InvalidReplicationFactor",
    "InvalidRequest",
    "InvalidSessionTimeout",
    "InvalidTimestamp",
    "InvalidTopic",
    "InvalidTransactionTimeout",
    "InvalidTxnState",
    "InvalidUpdateVersion",
    "KafkaStorageError",
    "LeaderNotAvailable",
    "LimitReached",
    "LogTruncation",
    "MemberIdRequired",
    "NoClusterFound",
    "NoOffsetForPartition",
    "NoReassignmentInProgress",
    "NonEmptyGroup",
    "NotController",
    "NotCoordinator",
    "NotEnoughReplicas",
    "NotEnoughReplicasAfterAppend",
    "NotLeaderOrFollower",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetMetadataTooLarge",
    "OffsetNotAvailable",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "OutboxBoundElsewhere",
    "OutboxLeaseLost",
    "OutboxNotInitialized",
    "OutboxVersionMismatch",
    "PartitionAssignor",
    "PreferredLeaderNotAvailable",
    "PreparedTxnState",
    "Producer",
    "ProducerConfig",
    "ProducerFenced",
    "ProducerInterceptor",
    "ProducerRecord",
    "QueueConsumer",
    "QueueConsumerConfig",
    "QueueLoadInProgress",
    "QueueMessage",
    "RaylogError",
    "RebalanceInProgress",
    "RebalanceListener",
    "RebalanceProtocol",
    "Record",
    "RecordDeserializationFailed",
    "RecordMetadata",
    "RecordTooLarge",
    "RedriveRunning",
    "Reject",
    "RequestTimedOut",
    "ResetOutdated",
    "RetriableError",
    "Retry",
    "ScheduleFull",
    "ScheduleOutcome",
    "SendFuture",
    "SparkStartFailed",
    "StaleBrokerEpoch",
    "StaleMemberEpoch",
    "StaleMetadataError",
    "StartFailed",
    "StillStarting",
    "StopRefused",
    "Subscription",
    "ThrottlingQuotaExceeded",
    "TooManyAwake",
    "TooManyProducers",
    "TopicAlreadyExists",
    "TopicDescription",
    "TopicPartition",
    "TransactionAbortable",
    "TransactionAborted",
    "TransactionCoordinatorFenced",
    "TransactionalIdNotFound",
    "UndecidedHalf",
    "UnknownHalfMessage",
    "UnknownLeaderEpoch",
    "UnknownMemberId",
    "UnknownServerError",
    "UnknownTopicId",
    "UnknownTopicOrPartition",
    "UnreleasedInstanceId",
    "UnstableOffsetCommit",
    "UnsupportedAssignor",
    "UnsupportedCompression",
    "UnsupportedVersion",
    "WorkerPool",
    "WrongVersions",
    "__version__",
    "connect",
    "data",
    "errors",
    "outbox",
    "read",
    "spark",
    "start",
]


def _require_pyarrow() -> None:
    """Raise ModuleNotFoundError, which names the extra to install, where pyarrow is missing."""
    if import_module("importlib.util").find_spec("pyarrow") is None:
        raise ModuleNotFoundError("raylog.read needs pyarrow: run `pip install 'raylog[data]'`.", name="pyarrow")


def _load(name: str) -> object:
    """Import a public name and keep it, so that the next use is an ordinary attribute."""
    value: object
    if name == "read":
        _require_pyarrow()
    if name in ("data", "errors", "outbox", "spark"):
        value = import_module(f"raylog.{name}")
    elif name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
    elif name in __all__:
        value = getattr(import_module("raylog.base.errors"), name)  # all the rest are errors
    else:
        raise AttributeError(f"module 'raylog' has no attribute {name!r}")
    globals()[name] = value
    return value


if not TYPE_CHECKING:
    # Hidden from type checkers, which would otherwise accept every misspelt name.
    __getattr__ = _load  # PEP 562


def __dir__() -> list[str]:
    """List the public names, imported or not, without the names that only this module uses."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
