"""Requests on the wire turned into events of the controller's machine. Used by its shell; keeps no state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raylog.actors.derived_events import DerivedEvent, table_of
from raylog.base.features import LevelRange
from raylog.base.ids import TopicPartition
from raylog.core.controller import events as ev
from raylog.protocol import admin, controller
from raylog.protocol.message import Message

EVENTS: Final[Mapping[type[Message], DerivedEvent[ev.Event]]] = table_of(
    (
        DerivedEvent(
            controller.REGISTER_BROKER,
            ev.BrokerRegistrationReceived,
            levels=lambda args: LevelRange(args.lowest_level, args.highest_level),
            capacity=lambda args: tuple(args.capacity),
        ),
        DerivedEvent(
            controller.REGISTER_REPLICA,
            ev.ReplicaRegistrationReceived,
            partition=lambda args: TopicPartition(args.topic, args.partition),
        ),
        DerivedEvent(controller.REGISTER_COORDINATOR, ev.CoordinatorRegistrationReceived),
        DerivedEvent(controller.SLEEP_COORDINATOR, ev.CoordinatorSleepProposed),
        DerivedEvent(controller.SESSION_HEARTBEAT, ev.SessionHeartbeat),
        DerivedEvent(
            controller.ALTER_PARTITION,
            ev.IsrChangeReceived,
            partition=lambda args: TopicPartition(args.topic, args.partition),
        ),
        DerivedEvent(
            controller.SLEEP_PARTITION,
            ev.SleepProposed,
            partition=lambda args: TopicPartition(args.topic, args.partition),
        ),
        DerivedEvent(
            controller.RESIGN_LEADER,
            ev.LeaderResigned,
            partition=lambda args: TopicPartition(args.topic, args.partition),
        ),
        DerivedEvent(controller.ALLOCATE_PRODUCER_IDS, ev.ProducerIdsRequested),
        DerivedEvent(controller.ENSURE_COORDINATOR, ev.CoordinatorRequested),
        DerivedEvent(
            admin.CREATE_TOPIC,
            ev.CreateTopicReceived,
            {"partitions": "num_partitions", "assignment": "assignments", "config": "configs"},
        ),
        DerivedEvent(admin.DELETE_TOPIC, ev.DeleteTopicReceived),
        DerivedEvent(admin.ALTER_TOPIC_CONFIG, ev.AlterTopicConfigReceived),
        DerivedEvent(admin.ALTER_CLUSTER_CONFIG, ev.AlterClusterConfigReceived),
        DerivedEvent(admin.DESCRIBE_CONFIGS, ev.DescribeConfigsReceived),
        DerivedEvent(
            admin.CREATE_PARTITIONS, ev.CreatePartitionsReceived, {"total": "count", "assignment": "assignments"}
        ),
        DerivedEvent(admin.ALTER_PARTITION_REASSIGNMENTS, ev.AlterReassignmentsReceived),
        DerivedEvent(admin.LIST_PARTITION_REASSIGNMENTS, ev.ListReassignmentsReceived),
        DerivedEvent(
            admin.ELECT_LEADERS,
            ev.ElectLeadersReceived,
            partitions=lambda args: (
                None
                if args.partitions is None
                else tuple(TopicPartition(each.topic, each.partition) for each in args.partitions)
            ),
        ),
        DerivedEvent(admin.STOP_BROKER, ev.StopBrokerReceived),
        DerivedEvent(admin.RESUME_BROKER, ev.ResumeBrokerReceived),
        DerivedEvent(admin.RAISE_FEATURE_LEVEL, ev.RaiseFeatureLevelReceived),
        DerivedEvent(admin.WAKE_PARTITIONS, ev.WakeRequested),
        DerivedEvent(admin.ENSURE_INTERNAL_TOPIC, ev.InternalTopicRequested),
        DerivedEvent(admin.DESCRIBE_CLUSTER, ev.DescribeClusterReceived),
    )
)
"""How each request becomes an event; the shell answers the others itself."""


def event_for(args: Message, session: int, number: int, now_ms: int) -> ev.Event:
    """Return the event for a request on ``session``; the machine replies to ``number``, except to a heartbeat."""
    return EVENTS[type(args)].make(args, session=session, request=number, now_ms=now_ms)
