"""Builds the requests by which a replica proposes changes to the controller. Pure; used by the replica's shell."""

from __future__ import annotations

from raylog.actors.actor_specs import ReplicaSpec
from raylog.actors.replica.ports import Log
from raylog.base.ids import Incarnation
from raylog.core.partition import SleepPoint
from raylog.core.replication import events as ev
from raylog.protocol.controller import AlterPartitionRequest, IsrMember, SleepPartitionRequest


def alter_request(spec: ReplicaSpec, incarnation: Incarnation, effect: ev.ProposeIsr) -> AlterPartitionRequest:
    """Return the request to change the ISR."""
    return AlterPartitionRequest(
        topic_id=spec.topic_id,
        topic=spec.topic,
        partition=spec.partition,
        broker=spec.broker,
        incarnation=incarnation,
        leader_epoch=effect.leader_epoch,
        partition_epoch=effect.partition_epoch,
        isr=[IsrMember(broker, life) for broker, life in effect.isr],
        drops_eligible=effect.drops_eligible,
    )


def sleep_request(
    spec: ReplicaSpec, incarnation: Incarnation, effect: ev.ProposeSleep, log: Log
) -> SleepPartitionRequest:
    """Return the request to let the partition sleep, with the state of its log."""
    point = SleepPoint(
        log_start_offset=effect.log_start_offset,
        end_offset=effect.end_offset,
        last_epoch=effect.last_epoch,
        oldest_ms=log.oldest_ms,
        size_bytes=log.size_bytes,
    )
    return SleepPartitionRequest(
        topic_id=spec.topic_id,
        topic=spec.topic,
        partition=spec.partition,
        broker=spec.broker,
        incarnation=incarnation,
        leader_epoch=effect.leader_epoch,
        partition_epoch=effect.partition_epoch,
        point=point.to_row(),
    )
