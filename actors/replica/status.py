"""What a replica reports: its status for operators, its metrics, and its heartbeats. Used by its shell."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from raylog.actors.actor_specs import ReplicaSpec
from raylog.actors.metrics.process import usage_of
from raylog.actors.replica.runner import ReplicaRunner
from raylog.core.replication.replica import ReplicationSettings
from raylog.protocol.controller import SessionHeartbeatRequest
from raylog.rpc import RpcServer

DAMAGE_CHARACTERS: Final = 600
"""Most characters of the damage text in a heartbeat."""


def damage_of(runner: ReplicaRunner) -> str:
    """Return the damage in the log that is not repaired yet, as one sentence; empty = none.

    The damage of a log that was set aside counts as repaired when the replica is in the ISR again.
    """
    machine, damage = runner.machine, runner.damage
    if machine is None:
        return damage.before
    if machine.damaged_at is not None:
        return damage.last
    return "" if machine.broker in machine.isr else damage.before


def heartbeat(runner: ReplicaRunner | None) -> SessionHeartbeatRequest:
    """Return the content of this replica's next heartbeat, and remember it as reported."""
    if runner is None:
        return SessionHeartbeatRequest()
    damage, is_mended = runner.damage.reported = _to_report(runner)
    return SessionHeartbeatRequest(runner.disk_hanging_ms, damage=damage, is_mended=is_mended)


def has_reported(runner: ReplicaRunner) -> bool:
    """Return whether heartbeats have nothing left to report; they report damage for as long as it lasts."""
    return not damage_of(runner) and runner.damage.reported == _to_report(runner)


def _to_report(runner: ReplicaRunner) -> tuple[str, bool]:
    present = damage_of(runner)
    damage = (present or runner.damage.before or runner.damage.remade)[:DAMAGE_CHARACTERS]
    return damage, bool(damage and not present)


def replica_status(spec: ReplicaSpec, runner: ReplicaRunner, settings: ReplicationSettings) -> dict[str, object]:
    """Return role, offsets, ISR and the state of the disk; ``settings`` count until there is a state machine."""
    log, machine = runner.log, runner.machine
    scrub = None if runner.scrubber is None else runner.scrubber.figures()
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
        "damage": damage_of(runner),
        "scrubbed_ms": 0 if scrub is None else scrub.last_ms,
        "scrub_offset": -1 if scrub is None else scrub.offset,
        "size_bytes": log.size_bytes,
        "held_from": runner.hold.offset,
        "hold_given_up": runner.hold.given_up,
        "clock_jump_ms": runner.clock.jump_ms,
        "pid": os.getpid(),
    }


def replica_metrics(
    spec: ReplicaSpec, runner: ReplicaRunner, server: RpcServer, roles: Mapping[str, Mapping[str, int]]
) -> dict[str, object]:
    """Return the reply to ``replica_metrics``; readers ignore names that they do not know.

    ``roles``: the metrics of the leader's roles, by kind.
    """
    log, machine = runner.log, runner.machine
    cleaner = None if runner.cleaner is None else runner.cleaner.figures()
    return {
        "topic_id": spec.topic_id,
        "role": "starting" if machine is None else machine.role,
        "size_bytes": log.size_bytes,
        "log_start_offset": log.log_start_offset,
        "log_end_offset": log.log_end_offset,
        "high_watermark": -1 if machine is None else machine.high_watermark,
        "damage": damage_of(runner),
        "cleaner": None if cleaner is None else cleaner.to_wire(),
        "scrub": None if runner.scrubber is None else runner.scrubber.figures().to_wire(),
        "roles": {kind: dict(figures) for kind, figures in roles.items()},
        **runner.counters.to_wire(),
        "process": usage_of(server).to_wire(),
    }
