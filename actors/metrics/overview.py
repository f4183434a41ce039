"""The front page of a node, for people: what is wrong, and the main metrics of topics and groups. Pure.

It is made of the same metrics as `/metrics`, so a first look needs neither Prometheus nor Grafana. A browser reloads it
every few seconds; rates are averages since the page was last made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from raylog.core.metrics.exposition import Family

REFRESH_S: Final = 5
RATE_MIN_S: Final = 1.0
"""Shortest time over which rates are computed; pages made sooner repeat the rates."""
PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{refresh}"><title>Raylog</title>
<style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 60em; color: #222; background: #fff }}
table {{ border-collapse: collapse; margin: 0.5em 0 1.5em }}
th, td {{ padding: 0.2em 1.2em 0.2em 0; text-align: right }}
th:first-child, td:first-child, td.name, th.name {{ text-align: left }}
th {{ border-bottom: 1px solid #aaa; font-weight: 600 }}
.bad {{ color: #b00020 }}
pre {{ color: #555 }}
</style></head><body>
<h1>Raylog</h1>
{problems}
<h2>Topics, as far as this node leads them</h2>
{topics}
<h2>Groups whose coordinators are on this node</h2>
{groups}
<pre>{index}</pre>
</body></html>
"""


@dataclass(slots=True)
class Overview:
    """Makes the page, and keeps the counters from which the next page computes its rates."""

    _last_s: float = 0.0
    _last: dict[str, float] = field(default_factory=dict)
    _rates: dict[str, float] = field(default_factory=dict)

    def page(self, families: Iterable[Family], reasons: Sequence[str], index: str, now_s: float) -> str:
        """Return the page as HTML. ``now_s``: a monotonic time in seconds."""
        found: dict[str, Family] = {}
        for family in families:  # each broker of the node has families of its own
            known = found.get(family.name)
            samples = family.samples if known is None else [*known.samples, *family.samples]
            found[family.name] = Family(family.name, family.kind, family.help, samples)
        records = _by(found, "kafka_server_brokertopicmetrics_messagesin_total", "topic")
        passed_s = now_s - self._last_s
        if passed_s >= RATE_MIN_S:
            # A counter that went back has begun again, in another process.
            self._rates = {
                topic: max(0.0, count - self._last[topic]) / passed_s
                for topic, count in records.items()
                if topic in self._last
            }
            self._last, self._last_s = records, now_s
        return PAGE.format(
            refresh=REFRESH_S,
            problems=_problems(reasons),
            topics=_table(("topic", "partitions", "records", "records/s in", "bytes"), self._topics(found)),
            groups=_table(("group", "topic", "lag in records", "lag in seconds"), _groups(found)),
            index=escape(index),
        )

    def _topics(self, found: Mapping[str, Family]) -> list[tuple[str, ...]]:
        ends = _places(found, "kafka_topic_partition_current_offset")
        starts = _places(found, "kafka_topic_partition_oldest_offset")
        sizes = _by(found, "raylog_topic_size_bytes", "topic")
        rows: list[tuple[str, ...]] = []
        for topic in sorted({topic for topic, _ in ends} | sizes.keys()):
            led = [at for at in ends if at[0] == topic]
            records = sum(max(0.0, ends[at] - starts.get(at, 0.0)) for at in led)
            rate = self._rates.get(topic)
            in_words = "-" if rate is None else f"{rate:,.1f}"
            rows.append((topic, f"{len(led)}", f"{records:,.0f}", in_words, f"{sizes.get(topic, 0.0):,.0f}"))
        return rows


def _groups(found: Mapping[str, Family]) -> list[tuple[str, ...]]:
    records: dict[tuple[str, str], float] = defaultdict(float)
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for labels, value in _samples(found, "kafka_consumergroup_lag"):
        records[labels.get("consumergroup", ""), labels.get("topic", "")] += value
    for labels, value in _samples(found, "raylog_consumergroup_lag_seconds"):
        place = labels.get("consumergroup", ""), labels.get("topic", "")
        seconds[place] = max(seconds[place], value)
    return [(*place, f"{lag:,.0f}", f"{seconds[place]:,.1f}") for place, lag in sorted(records.items())]


def _problems(reasons: Sequence[str]) -> str:
    if not reasons:
        return "<p>Every broker here is ready.</p>"
    return "<ul>" + "".join(f'<li class="bad">{escape(reason)}</li>' for reason in reasons) + "</ul>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _samples(found: Mapping[str, Family], name: str) -> list[tuple[Mapping[str, str], float]]:
    family = found.get(name)
    return [] if family is None else [(labels, value) for _, labels, value in family.samples]


def _by(found: Mapping[str, Family], name: str, label: str) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for labels, value in _samples(found, name):
        if label in labels:
            sums[labels[label]] += value
    return dict(sums)


def _places(found: Mapping[str, Family], name: str) -> dict[tuple[str, str], float]:
    return {
        (labels["topic"], labels["partition"]): value
        for labels, value in _samples(found, name)
        if "topic" in labels and "partition" in labels
    }
