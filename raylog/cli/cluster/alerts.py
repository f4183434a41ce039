"""Alert rules for Prometheus, beside the Grafana page (``dashboard.py``). Pure.

``raylog metrics alerts`` prints them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule: it fires when ``query`` has had a result for as long as ``lasting`` (a Prometheus duration)."""

    name: str
    query: str
    lasting: str
    severity: str
    summary: str
    """What is wrong; may contain Prometheus templates."""
    action: str
    """What to do first."""


ALERTS: Final = (
    Alert(
        "RaylogPartitionsOffline",
        "max(kafka_controller_kafkacontroller_offlinepartitionscount) > 0",
        "1m",
        "critical",
        "{{ $value }} partitions have no leader: nothing can be written to them or read.",
        "See raylog status; bring back a broker of their ISR or ELR.",
    ),
    Alert(
        "RaylogNoSingleController",
        "sum(kafka_controller_kafkacontroller_activecontrollercount) != 1",
        "2m",
        "critical",
        "{{ $value }} controllers answer instead of one: nothing is elected or created.",
        "See that Ray runs on the nodes of the metadata voters, and that every node is scraped once.",
    ),
    Alert(
        "RaylogPageMissing",
        'up{job="raylog"} == 0',
        "2m",
        "critical",
        "{{ $labels.instance }} does not answer: its broker, or its node, is down.",
        "See raylog status and the log of the node's broker.",
    ),
    Alert(
        "RaylogUnderMinIsr",
        "sum by (instance, broker) (kafka_server_replicamanager_underminisrpartitioncount) > 0",
        "1m",
        "critical",
        "{{ $value }} partitions led by broker {{ $labels.broker }} refuse acks=all: their ISR is too small.",
        "Bring back the brokers of the missing replicas.",
    ),
    Alert(
        "RaylogUnderReplicated",
        "sum by (instance, broker) (kafka_server_replicamanager_underreplicatedpartitions) > 0",
        "15m",
        "warning",
        "{{ $value }} partitions led by broker {{ $labels.broker }} have replicas out of sync.",
        "See raylog status for the brokers that are missing, and whether a follower is too slow.",
    ),
    Alert(
        "RaylogUncleanElection",
        "sum(increase(kafka_controller_controllerstats_uncleanleaderelections_total[10m])) > 0",
        "0m",
        "critical",
        "A leader was elected outside ISR and ELR: acknowledged records may be missing.",
        "See raylog status --json, unclean_partitions.",
    ),
    Alert(
        "RaylogSlowDisk",
        "histogram_quantile(0.99, sum by (instance, broker, le) "
        "(rate(raylog_log_flush_duration_seconds_bucket[5m]))) > 0.1",
        "10m",
        "warning",
        "A sync to disk on broker {{ $labels.broker }} takes {{ $value | humanizeDuration }} (p99).",
        "See what else writes to this disk; acks=all waits for it.",
    ),
    Alert(
        "RaylogLagGrows",
        "max by (consumergroup, topic) (raylog_consumergroup_lag_seconds) > 60 "
        "and max by (consumergroup, topic) (delta(raylog_consumergroup_lag_seconds[10m])) > 0",
        "10m",
        "warning",
        "Group {{ $labels.consumergroup }} is {{ $value | humanizeDuration }} behind on {{ $labels.topic }} and loses.",
        "Add members, or see whether one of them is stuck: raylog group describe.",
    ),
    Alert(
        "RaylogTransactionOpenLong",
        "max by (coordinator) (raylog_transaction_longest_open_seconds) > 900",
        "5m",
        "warning",
        "A transaction of coordinator {{ $labels.coordinator }} is open for {{ $value | humanizeDuration }}: readers "
        "of committed records wait for its end.",
        "See raylog transaction list, and end it: raylog transaction abort.",
    ),
    Alert(
        "RaylogDiskFills",
        "raylog_disk_free_bytes / raylog_disk_size_bytes < 0.15",
        "5m",
        "warning",
        "The disk of broker {{ $labels.broker }} has {{ $value | humanizePercentage }} left.",
        "Shorten retention.ms, add a broker and balance, or add space; a full disk makes its leaders resign.",
    ),
)


def rule_file() -> dict[str, Any]:
    """Return the content of the Prometheus rule file as dicts and lists."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.query,
            "for": alert.lasting,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "action": alert.action},
        }
        for alert in ALERTS
    ]
    return {"groups": [{"name": "raylog", "rules": rules}]}


def alert_rules() -> str:
    """Return the rules as a Prometheus rule file (YAML)."""
    lines = ["groups:", "  - name: raylog", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.query)}",
            f"        for: {alert.lasting}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          action: {json.dumps(alert.action)}",
        ]
    return "\n".join(lines) + "\n"
