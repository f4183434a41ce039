"""A Grafana page for a cluster, made of the metrics in ``core/metrics/families.py`` and ``groups.py``. Pure.

``raylog metrics dashboard`` prints it. One page, read from top to bottom: health, throughput, latency, consumer lag,
resources that run out, errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

COLUMNS: Final = 24
HEIGHT: Final = 8
STAT_HEIGHT: Final = 4
RATE: Final = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Target:
    """One query, and the template for the names of its lines."""

    query: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel, ``width`` of 24 columns wide. ``stat``: a single number instead of lines.

    Its colour is red from ``bad_from`` on, and below ``bad_below``; None = no such limit.
    """

    title: str
    targets: tuple[Target, ...]
    unit: str = "short"
    stat: bool = False
    bad_from: float | None = None
    bad_below: float | None = None
    width: int = 8


def _one(title: str, query: str, legend: str = "__auto", unit: str = "short", width: int = 8) -> Panel:
    return Panel(title, (Target(query, legend),), unit=unit, width=width)


def _stat(title: str, query: str, *, bad_from: float | None = 1, bad_below: float | None = None) -> Panel:
    return Panel(title, (Target(query, title),), stat=True, bad_from=bad_from, bad_below=bad_below, width=4)


def _quantiles(title: str, request: str) -> Panel:
    name = "raylog_request_duration_seconds_bucket"
    return Panel(
        title,
        tuple(
            Target(
                f'histogram_quantile({quantile}, sum by (le) (rate({name}{{request="{request}"}}{RATE})))',
                f"p{str(quantile).removeprefix('0.').ljust(2, '0')}",
            )
            for quantile in (0.5, 0.99, 0.999)
        ),
        unit="s",
    )


ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Is anything wrong?",
        (
            _stat("Partitions offline", "max(kafka_controller_kafkacontroller_offlinepartitionscount)"),
            _stat("Under-replicated", "sum(kafka_server_replicamanager_underreplicatedpartitions)"),
            _stat("Under min ISR", "sum(kafka_server_replicamanager_underminisrpartitioncount)"),
            _stat(
                "Controllers",
                "sum(kafka_controller_kafkacontroller_activecontrollercount)",
                bad_from=2,
                bad_below=1,
            ),
            _stat("Brokers away", "max(kafka_controller_kafkacontroller_fencedbrokercount)"),
            _stat("Replicas that do not answer", 'sum(raylog_replicas{role="unreachable"})'),
        ),
    ),
    (
        "What moves",
        (
            _one(
                "Bytes in",
                f"sum by (topic) (rate(kafka_server_brokertopicmetrics_bytesin_total{RATE}))",
                "{{topic}}",
                "Bps",
            ),
            _one(
                "Bytes out",
                f"sum by (topic) (rate(kafka_server_brokertopicmetrics_bytesout_total{RATE}))",
                "{{topic}}",
                "Bps",
            ),
            _one(
                "Records in",
                f"sum by (topic) (rate(kafka_server_brokertopicmetrics_messagesin_total{RATE}))",
                "{{topic}}",
                "cps",
            ),
        ),
    ),
    (
        "How fast",
        (
            _quantiles("Produce, until acknowledged", "Produce"),
            _quantiles("Fetch, waiting for records included", "FetchConsumer"),
            _one(
                "Sync to disk, p99",
                f"histogram_quantile(0.99, sum by (le, broker) (rate(raylog_log_flush_duration_seconds_bucket{RATE})))",
                "broker {{broker}}",
                "s",
            ),
        ),
    ),
    (
        "Replication",
        (
            Panel(
                "ISR changes",
                (
                    Target(f"sum(increase(kafka_server_replicamanager_isrshrinks_total{RATE}))", "shrinks"),
                    Target(f"sum(increase(kafka_server_replicamanager_isrexpands_total{RATE}))", "expands"),
                ),
            ),
            Panel(
                "Elections",
                (
                    Target(f"sum(increase(kafka_controller_controllerstats_leaderelections_total{RATE}))", "all"),
                    Target(
                        f"sum(increase(kafka_controller_controllerstats_uncleanleaderelections_total{RATE}))", "unclean"
                    ),
                ),
            ),
            _one("Partitions led", "kafka_server_replicamanager_leadercount", "broker {{broker}}"),
        ),
    ),
    (
        "Consumer groups",
        (
            _one(
                "Lag in records",
                "sum by (consumergroup, topic) (kafka_consumergroup_lag)",
                "{{consumergroup}} {{topic}}",
                width=12,
            ),
            _one(
                "Lag in seconds",
                "max by (consumergroup, topic) (raylog_consumergroup_lag_seconds)",
                "{{consumergroup}} {{topic}}",
                "s",
                width=12,
            ),
        ),
    ),
    (
        "What runs out",
        (
            _one(
                "Disk full in",
                "raylog_disk_free_bytes / clamp_min(-deriv(raylog_disk_free_bytes[6h]), 1)",
                "broker {{broker}}",
                "s",
                width=6,
            ),
            _one(
                "CPU",
                f"sum by (instance, process) (rate(raylog_process_cpu_seconds_total{RATE}))",
                "{{instance}} {{process}}",
                "percentunit",
                width=6,
            ),
            _one(
                "Memory",
                "sum by (instance, process) (raylog_process_resident_memory_bytes)",
                "{{instance}} {{process}}",
                "bytes",
                width=6,
            ),
            _one("Replicas", "sum by (role) (raylog_replicas)", "{{role}}", width=6),
        ),
    ),
    (
        "Errors",
        (
            _one(
                "Requests answered with an error",
                f"sum by (method, error) (rate(raylog_request_errors_total{RATE})) > 0",
                "{{method}} {{error}}",
                "cps",
                width=12,
            ),
            _one(
                "Bytes that peers have not taken",
                "sum by (instance, process) (raylog_unsent_bytes)",
                "{{instance}} {{process}}",
                "bytes",
                width=12,
            ),
        ),
    ),
)


def queries() -> Iterator[str]:
    """Yield all queries of the page."""
    for _, panels in ROWS:
        for panel in panels:
            for target in panel.targets:
                yield target.query


def dashboard(title: str = "Raylog") -> dict[str, Any]:
    """Return the page in Grafana's JSON (schema 36, Grafana 9 and newer); the data source is chosen at the import."""
    panels: list[dict[str, Any]] = []
    y = 0
    for name, row in ROWS:
        panels.append(_placed({"type": "row", "title": name, "collapsed": False, "panels": []}, 0, y, COLUMNS, 1))
        y += 1
        x = 0
        height = STAT_HEIGHT if row[0].stat else HEIGHT
        for panel in row:
            panels.append(_placed(_panel(panel), x, y, panel.width, height))
            x += panel.width
        y += height
    for number, made in enumerate(panels, start=1):
        made["id"] = number
    return {
        "__inputs": [
            {"name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource", "pluginId": "prometheus"},
        ],
        "uid": "raylog",
        "title": title,
        "tags": ["raylog", "kafka"],
        "timezone": "browser",
        "schemaVersion": 36,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "panels": panels,
    }


def _placed(panel: dict[str, Any], x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {**panel, "gridPos": {"x": x, "y": y, "w": width, "h": height}}


def _panel(panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    steps: list[dict[str, Any]] = [{"color": "green" if panel.bad_below is None else "red", "value": None}]
    if panel.bad_below is not None:
        steps.append({"color": "green", "value": panel.bad_below})
    if panel.bad_from is not None:
        steps.append({"color": "red", "value": panel.bad_from})
    return {
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "datasource": source,
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": source, "expr": target.query, "legendFormat": target.legend}
            for number, target in enumerate(panel.targets)
        ],
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": {"colorMode": "background", "graphMode": "none"} if panel.stat else {"tooltip": {"mode": "multi"}},
    }
