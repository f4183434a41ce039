"""Requests on the wire turned into events of the controller's machine. Used by its shell; keeps no state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from raylog.actors.arguments import Check, arguments, each, flag, later, optional, row, table, text, whole
from raylog.core.controller import events as ev
from raylog.core.errors import InvalidRequest
from raylog.core.features import FIRST_LEVEL, LevelRange
from raylog.core.ids import BrokerId, Incarnation, LeaderEpoch, PartitionEpoch, TopicPartition
from raylog.rpc import Request


def event_for(request: Request, session: int, number: int, now_ms: int) -> ev.Event:
    """Return the event for a request on ``session``; ``number`` is what the machine will answer to.

    Raises :class:`InvalidRequest` for a method that the controller does not know and for arguments of the wrong shape.
    """
    known = _METHODS.get(request.method)
    if known is None:
        raise InvalidRequest(f"The controller knows no method {request.method!r}.")
    build, *checks = known
    event: ev.Event = build(session, number, now_ms, arguments(request, *checks))
    return event


def heartbeat_event(request: Request, session: int, now_ms: int) -> ev.SessionHeard:
    """Return the event for a sign of life, which nobody answers but the shell; it may report a disk that hangs."""
    [hanging_ms] = arguments(request, later(whole, 0)) if request.args else [0]
    return ev.SessionHeard(cause="heartbeat", now_ms=now_ms, session=session, disk_hanging_ms=hanging_ms)


def _register_broker(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    broker, incarnation, node_id, host, port, directory_id, cluster_id, lowest, highest = args
    return ev.BrokerRegistrationReceived(
        cause="register_broker",
        now_ms=now_ms,
        session=session,
        request=number,
        broker=BrokerId(broker),
        incarnation=Incarnation(incarnation),
        node_id=node_id,
        host=host,
        port=port,
        directory_id=directory_id,
        cluster_id=cluster_id,
        levels=LevelRange(lowest, highest),
    )


def _register_replica(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    topic_id, topic, partition, broker, incarnation, host, port, log_lost, log_id, unsynced_lost = args
    return ev.ReplicaRegistrationReceived(
        cause="register_replica",
        now_ms=now_ms,
        session=session,
        request=number,
        topic_id=topic_id,
        partition=TopicPartition(topic, partition),
        broker=BrokerId(broker),
        incarnation=Incarnation(incarnation),
        host=host,
        port=port,
        log_lost=log_lost,
        log_id=log_id,
        unsynced_lost=unsynced_lost,
    )


def _register_coordinator(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    kind, index, epoch, host, port = args
    return ev.CoordinatorRegistrationReceived(
        cause="register_coordinator",
        now_ms=now_ms,
        session=session,
        request=number,
        kind=kind,
        index=index,
        epoch=epoch,
        host=host,
        port=port,
    )


def _alter_partition(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    topic_id, topic, partition, broker, incarnation, leader_epoch, partition_epoch, isr, drops_eligible = args
    return ev.IsrChangeReceived(
        cause="alter_partition",
        now_ms=now_ms,
        session=session,
        request=number,
        topic_id=topic_id,
        partition=TopicPartition(topic, partition),
        broker=BrokerId(broker),
        incarnation=Incarnation(incarnation),
        leader_epoch=LeaderEpoch(leader_epoch),
        partition_epoch=PartitionEpoch(partition_epoch),
        isr=tuple((BrokerId(member), Incarnation(life)) for member, life in isr),
        drops_eligible=drops_eligible,
    )


def _resign_leader(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    topic_id, topic, partition, broker, incarnation, leader_epoch = args
    return ev.LeaderResigned(
        cause="resign_leader",
        now_ms=now_ms,
        session=session,
        request=number,
        topic_id=topic_id,
        partition=TopicPartition(topic, partition),
        broker=BrokerId(broker),
        incarnation=Incarnation(incarnation),
        leader_epoch=LeaderEpoch(leader_epoch),
    )


def _create_topic(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    topic, partitions, replication_factor, assignment, config, validate_only, _ = args
    return ev.CreateTopicReceived(
        cause="create_topic",
        now_ms=now_ms,
        request=number,
        topic=topic,
        partitions=partitions,
        replication_factor=replication_factor,
        assignment=assignment,
        config=config,
        validate_only=validate_only,
    )


def _delete_topic(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    return ev.DeleteTopicReceived(cause="delete_topic", now_ms=now_ms, request=number, topic=args[0])


def _alter_topic_config(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    topic, changed, deleted = args
    return ev.AlterTopicConfigReceived(
        cause="alter_topic_config", now_ms=now_ms, request=number, topic=topic, set=changed, delete=deleted
    )


def _create_partitions(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    topic, total, assignment = args
    return ev.CreatePartitionsReceived(
        cause="create_partitions", now_ms=now_ms, request=number, topic=topic, total=total, assignment=assignment
    )


def _alter_reassignments(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    changes, throttle = args
    return ev.AlterReassignmentsReceived(
        cause="alter_partition_reassignments",
        now_ms=now_ms,
        request=number,
        changes=[(topic, partition, brokers) for topic, partition, brokers in changes],
        throttle=throttle,
    )


def _list_reassignments(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    return ev.ListReassignmentsReceived(cause="list_partition_reassignments", now_ms=now_ms, request=number)


def _elect_leaders(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    partitions, unclean = args
    named = None if partitions is None else [TopicPartition(topic, partition) for topic, partition in partitions]
    return ev.ElectLeadersReceived(
        cause="elect_leaders", now_ms=now_ms, request=number, partitions=named, unclean=unclean
    )


def _stop_broker(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    broker, force = args
    return ev.StopBrokerReceived(
        cause="stop_broker", now_ms=now_ms, request=number, broker=BrokerId(broker), force=force
    )


def _resume_broker(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    return ev.ResumeBrokerReceived(cause="resume_broker", now_ms=now_ms, request=number, broker=BrokerId(args[0]))


def _raise_feature_level(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    return ev.RaiseFeatureLevelReceived(cause="raise_feature_level", now_ms=now_ms, request=number, level=args[0])


def _allocate_producer_ids(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    return ev.ProducerIdsRequested(cause="allocate_producer_ids", now_ms=now_ms, request=number, count=args[0])


def _ensure_coordinator(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    kind, index = args
    return ev.CoordinatorRequested(cause="ensure_coordinator", now_ms=now_ms, request=number, kind=kind, index=index)


def _describe_cluster(session: int, number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    return ev.DescribeClusterReceived(cause="describe_cluster", now_ms=now_ms, request=number)


def _setting(value: object) -> bool:
    """Accept a value that a configuration key may have; whether it is legal is the controller's to say."""
    return isinstance(value, (str, int, float, bool))


CREATE_TOPIC: Final[tuple[Check, ...]] = (
    text,
    whole,
    whole,
    optional(each(each(whole))),
    table(_setting),
    flag,
    whole,
)
DELETE_TOPIC: Final[tuple[Check, ...]] = (text,)
ALTER_TOPIC_CONFIG: Final[tuple[Check, ...]] = (text, table(_setting), each(text))
CREATE_PARTITIONS: Final[tuple[Check, ...]] = (text, whole, optional(each(each(whole))))
ALTER_REASSIGNMENTS: Final[tuple[Check, ...]] = (each(row(text, whole, optional(each(whole)))), optional(whole))
ELECT_LEADERS: Final[tuple[Check, ...]] = (optional(each(row(text, whole))), flag)
STOP_BROKER: Final[tuple[Check, ...]] = (whole, flag)
RESUME_BROKER: Final[tuple[Check, ...]] = (whole,)
RAISE_FEATURE_LEVEL: Final[tuple[Check, ...]] = (whole,)
_LEVEL: Final = later(whole, FIRST_LEVEL)
REGISTER_BROKER: Final[tuple[Check, ...]] = (whole, whole, text, text, whole, text, text, _LEVEL, _LEVEL)

_METHODS: Final[Mapping[str, tuple[Any, ...]]] = {
    "register_broker": (_register_broker, *REGISTER_BROKER),
    "register_replica": (_register_replica, text, text, whole, whole, whole, text, whole, flag, text, flag),
    "register_coordinator": (_register_coordinator, text, whole, whole, text, whole),
    "alter_partition": (
        _alter_partition,
        *(text, text, whole, whole, whole, whole, whole),
        each(row(whole, whole)),
        later(flag, False),
    ),
    "resign_leader": (_resign_leader, text, text, whole, whole, whole, whole),
    "create_topic": (_create_topic, *CREATE_TOPIC),
    "delete_topic": (_delete_topic, *DELETE_TOPIC),
    "alter_topic_config": (_alter_topic_config, *ALTER_TOPIC_CONFIG),
    "create_partitions": (_create_partitions, *CREATE_PARTITIONS),
    "alter_partition_reassignments": (_alter_reassignments, *ALTER_REASSIGNMENTS),
    "list_partition_reassignments": (_list_reassignments,),
    "elect_leaders": (_elect_leaders, *ELECT_LEADERS),
    "stop_broker": (_stop_broker, *STOP_BROKER),
    "resume_broker": (_resume_broker, *RESUME_BROKER),
    "raise_feature_level": (_raise_feature_level, *RAISE_FEATURE_LEVEL),
    "allocate_producer_ids": (_allocate_producer_ids, whole),
    "ensure_coordinator": (_ensure_coordinator, text, whole),
    "describe_cluster": (_describe_cluster,),
}
"""How each method becomes an event, and what its arguments are."""
