"""Requests on the wire turned into events of the controller's machine. Used by its shell; keeps no state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from raylog.core.controller import events as ev
from raylog.core.features import LevelRange
from raylog.core.ids import BrokerId, Incarnation, LeaderEpoch, PartitionEpoch, TopicPartition
from raylog.protocol import admin, controller
from raylog.protocol.message import Message


class Arrival(NamedTuple):
    """Time and session of a request, and the number under which the machine replies."""

    session: int
    request: int
    now_ms: int


def event_for(args: Message, session: int, number: int, now_ms: int) -> ev.Event:
    """Return the event for a request on ``session``; the machine replies to ``number``."""
    return BUILDERS[type(args)](args, Arrival(session, number, now_ms))


def heartbeat_event(args: controller.SessionHeartbeatRequest, session: int, now_ms: int) -> ev.SessionHeard:
    """Return the event for a heartbeat; the shell replies to it. It may report a hanging disk."""
    return ev.SessionHeard(cause="heartbeat", now_ms=now_ms, session=session, disk_hanging_ms=args.disk_hanging_ms)


def _register_broker(args: controller.RegisterBrokerRequest, at: Arrival) -> ev.Event:
    return ev.BrokerRegistrationReceived(
        cause="register_broker",
        now_ms=at.now_ms,
        session=at.session,
        request=at.request,
        broker=BrokerId(args.broker),
        incarnation=Incarnation(args.incarnation),
        node_id=args.node_id,
        host=args.host,
        port=args.port,
        directory_id=args.directory_id,
        cluster_id=args.cluster_id,
        levels=LevelRange(args.lowest_level, args.highest_level),
    )


def _register_replica(args: controller.RegisterReplicaRequest, at: Arrival) -> ev.Event:
    return ev.ReplicaRegistrationReceived(
        cause="register_replica",
        now_ms=at.now_ms,
        session=at.session,
        request=at.request,
        topic_id=args.topic_id,
        partition=TopicPartition(args.topic, args.partition),
        broker=BrokerId(args.broker),
        incarnation=Incarnation(args.incarnation),
        host=args.host,
        port=args.port,
        log_lost=args.log_lost,
        log_id=args.log_id,
        unsynced_lost=args.unsynced_lost,
    )


def _register_coordinator(args: controller.RegisterCoordinatorRequest, at: Arrival) -> ev.Event:
    return ev.CoordinatorRegistrationReceived(
        cause="register_coordinator",
        now_ms=at.now_ms,
        session=at.session,
        request=at.request,
        kind=args.kind,
        index=args.index,
        epoch=args.epoch,
        host=args.host,
        port=args.port,
    )


def _alter_partition(args: controller.AlterPartitionRequest, at: Arrival) -> ev.Event:
    return ev.IsrChangeReceived(
        cause="alter_partition",
        now_ms=at.now_ms,
        session=at.session,
        request=at.request,
        topic_id=args.topic_id,
        partition=TopicPartition(args.topic, args.partition),
        broker=BrokerId(args.broker),
        incarnation=Incarnation(args.incarnation),
        leader_epoch=LeaderEpoch(args.leader_epoch),
        partition_epoch=PartitionEpoch(args.partition_epoch),
        isr=tuple((BrokerId(member.broker), Incarnation(member.incarnation)) for member in args.isr),
        drops_eligible=args.drops_eligible,
    )


def _resign_leader(args: controller.ResignLeaderRequest, at: Arrival) -> ev.Event:
    return ev.LeaderResigned(
        cause="resign_leader",
        now_ms=at.now_ms,
        session=at.session,
        request=at.request,
        topic_id=args.topic_id,
        partition=TopicPartition(args.topic, args.partition),
        broker=BrokerId(args.broker),
        incarnation=Incarnation(args.incarnation),
        leader_epoch=LeaderEpoch(args.leader_epoch),
    )


def _create_topic(args: admin.CreateTopicRequest, at: Arrival) -> ev.Event:
    return ev.CreateTopicReceived(
        cause="create_topic",
        now_ms=at.now_ms,
        request=at.request,
        topic=args.topic,
        partitions=args.num_partitions,
        replication_factor=args.replication_factor,
        assignment=_assignment(args.assignments),
        config=args.configs,
        validate_only=args.validate_only,
    )


def _delete_topic(args: admin.DeleteTopicRequest, at: Arrival) -> ev.Event:
    return ev.DeleteTopicReceived(cause="delete_topic", now_ms=at.now_ms, request=at.request, topic=args.topic)


def _alter_topic_config(args: admin.AlterTopicConfigRequest, at: Arrival) -> ev.Event:
    return ev.AlterTopicConfigReceived(
        cause="alter_topic_config",
        now_ms=at.now_ms,
        request=at.request,
        topic=args.topic,
        set=args.set,
        delete=args.delete,
    )


def _create_partitions(args: admin.CreatePartitionsRequest, at: Arrival) -> ev.Event:
    return ev.CreatePartitionsReceived(
        cause="create_partitions",
        now_ms=at.now_ms,
        request=at.request,
        topic=args.topic,
        total=args.count,
        assignment=_assignment(args.assignments),
    )


def _alter_reassignments(args: admin.AlterPartitionReassignmentsRequest, at: Arrival) -> ev.Event:
    return ev.AlterReassignmentsReceived(
        cause="alter_partition_reassignments",
        now_ms=at.now_ms,
        request=at.request,
        changes=[
            (change.topic, change.partition, None if change.replicas is None else _brokers(change.replicas))
            for change in args.changes
        ],
        throttle=args.throttle,
    )


def _list_reassignments(args: admin.ListPartitionReassignmentsRequest, at: Arrival) -> ev.Event:
    return ev.ListReassignmentsReceived(cause="list_partition_reassignments", now_ms=at.now_ms, request=at.request)


def _elect_leaders(args: admin.ElectLeadersRequest, at: Arrival) -> ev.Event:
    named = args.partitions
    return ev.ElectLeadersReceived(
        cause="elect_leaders",
        now_ms=at.now_ms,
        request=at.request,
        partitions=None if named is None else [TopicPartition(each.topic, each.partition) for each in named],
        unclean=args.unclean,
    )


def _stop_broker(args: admin.StopBrokerRequest, at: Arrival) -> ev.Event:
    return ev.StopBrokerReceived(
        cause="stop_broker",
        now_ms=at.now_ms,
        request=at.request,
        broker=BrokerId(args.broker),
        force=args.force,
    )


def _resume_broker(args: admin.ResumeBrokerRequest, at: Arrival) -> ev.Event:
    return ev.ResumeBrokerReceived(
        cause="resume_broker", now_ms=at.now_ms, request=at.request, broker=BrokerId(args.broker)
    )


def _raise_feature_level(args: admin.RaiseFeatureLevelRequest, at: Arrival) -> ev.Event:
    return ev.RaiseFeatureLevelReceived(
        cause="raise_feature_level", now_ms=at.now_ms, request=at.request, level=args.level
    )


def _allocate_producer_ids(args: controller.AllocateProducerIdsRequest, at: Arrival) -> ev.Event:
    return ev.ProducerIdsRequested(
        cause="allocate_producer_ids", now_ms=at.now_ms, request=at.request, count=args.count
    )


def _ensure_coordinator(args: controller.EnsureCoordinatorRequest, at: Arrival) -> ev.Event:
    return ev.CoordinatorRequested(
        cause="ensure_coordinator", now_ms=at.now_ms, request=at.request, kind=args.kind, index=args.index
    )


def _describe_cluster(args: admin.DescribeClusterRequest, at: Arrival) -> ev.Event:
    return ev.DescribeClusterReceived(cause="describe_cluster", now_ms=at.now_ms, request=at.request)


def _brokers(numbers: Sequence[int]) -> list[BrokerId]:
    return [BrokerId(number) for number in numbers]


def _assignment(rows: Sequence[Sequence[int]] | None) -> list[list[BrokerId]] | None:
    return None if rows is None else [_brokers(row) for row in rows]


BUILDERS: Final[Mapping[type[Message], Callable[[Any, Arrival], ev.Event]]] = {
    controller.RegisterBrokerRequest: _register_broker,
    controller.RegisterReplicaRequest: _register_replica,
    controller.RegisterCoordinatorRequest: _register_coordinator,
    controller.AlterPartitionRequest: _alter_partition,
    controller.ResignLeaderRequest: _resign_leader,
    controller.AllocateProducerIdsRequest: _allocate_producer_ids,
    controller.EnsureCoordinatorRequest: _ensure_coordinator,
    admin.CreateTopicRequest: _create_topic,
    admin.DeleteTopicRequest: _delete_topic,
    admin.AlterTopicConfigRequest: _alter_topic_config,
    admin.CreatePartitionsRequest: _create_partitions,
    admin.AlterPartitionReassignmentsRequest: _alter_reassignments,
    admin.ListPartitionReassignmentsRequest: _list_reassignments,
    admin.ElectLeadersRequest: _elect_leaders,
    admin.StopBrokerRequest: _stop_broker,
    admin.ResumeBrokerRequest: _resume_broker,
    admin.RaiseFeatureLevelRequest: _raise_feature_level,
    admin.DescribeClusterRequest: _describe_cluster,
}
"""How each request becomes an event; the shell answers the others itself."""
