"""Metrics that a replica's process reports to its broker on a scrape."""

from __future__ import annotations

from collections.abc import Mapping

from raylog.actors.actor_specs import ReplicaSpec
from raylog.actors.metrics.process import usage_of
from raylog.actors.replica.reporting.status import damage_of
from raylog.actors.replica.runner import ReplicaRunner
from raylog.rpc import RpcServer


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
