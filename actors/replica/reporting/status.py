"""Status of one replica for operators, as plain values. Pure; used by the replica's shell."""

from __future__ import annotations

import os

from raylog.actors.actor_specs import ReplicaSpec
from raylog.actors.replica.runner import ReplicaRunner
from raylog.core.replication.replica import ReplicationSettings


def replica_status(spec: ReplicaSpec, runner: ReplicaRunner, settings: ReplicationSettings) -> dict[str, object]:
    """Return role, offsets, ISR and the state of the disk; ``settings`` count until there is a machine."""
    log, machine = runner.log, runner.machine
    return {
        "topic": spec.topic,
        "partition": spec.partition,
        "broker": spec.broker,
        "role": "starting" if machine is None else machine.role,
        "leader_epoch": -1 if machine is None else machine.leader_epoch,
        "high_watermark": -1 if machine is None else machine.high_watermark,
        "isr": [] if machine is None else list(machine.isr),
        "min_insync_replicas": (settings if machine is None else machine.settings).min_insync_replicas,
        "parked_fetches": 0 if machine is None else machine.parked_consumer_fetches,
        "log_start_offset": log.log_start_offset,
        "log_end_offset": log.log_end_offset,
        "synced_end_offset": log.synced_end_offset,
        "disk_hanging_ms": runner.disk_hanging_ms,
        "size_bytes": log.size_bytes,
        "held_from": runner.hold.offset,
        "hold_given_up": runner.hold.given_up,
        "clock_jump_ms": runner.clock.jump_ms,
        "pid": os.getpid(),
    }
