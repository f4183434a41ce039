"""Status of one replica for operators, as plain values, and the content of its heartbeats. Used by its shell."""

from __future__ import annotations

import os
from typing import Final

from raylog.actors.actor_specs import ReplicaSpec
from raylog.actors.replica.runner import ReplicaRunner
from raylog.core.replication.replica import ReplicationSettings
from raylog.protocol.controller import SessionHeartbeatRequest

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
