"""The goals, each a comparison of two measurements of one run, and whether it was reached. Pure."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.analytics.goals import GOALS as OF_ANALYTICS
from benchmarks.report import stats
from benchmarks.report.results import HIGHER_IS_BETTER, Measured, Results
from benchmarks.report.verdict import Verdict, at_least, below, median_of, row_of, times

SYNCED = "flush.messages=1"
COMMITTED = 0.95
"""Readers of committed records pay less than a twentieth."""
FLAT = 0.8
"""Within 20 % of the best."""
CREATED_S = 0.5
"""A topic of 6 partitions with three replicas, with a record in each; partitions are created asleep."""
ASSIGNED_S, READ_ON_MS = 2.0, 200.0
"""A group of 50 members comes together, and goes on reading when one more joins."""
ACKNOWLEDGED, DUE = 20_000.0, 15_000.0
"""Acknowledged messages of a queue, and delayed ones of one shard, in a second."""
QUEUEING = ("kafka share group", "rabbitmq quorum queue", "nats", "redis streams")
DELAYING = ("rabbitmq ttl, dead letters",)
"""Contestants that a queue, and delayed messages, are compared with."""
AXES = (("1 to 24 partitions", False, ", 24 partitions"), ("1 to 20 GB on disk", True, ", 20 GB on disk"))
"""What grows, whether its cases are about data on disk, and the case without which the goal is undecided."""
GROWING = {"produce": ("raylog send", "raylog send_batch"), "consume": ("raylog records", "raylog columns")}


def verdicts(results: Results) -> list[Verdict]:
    """Every goal of the scenarios that the run has, in a fixed order.

    The pair with page cache and the pair with an fsync each count.
    """
    measured = {row.scenario for row in results.measured}
    return [verdict for scenario, goals in GOALS if scenario in measured for verdict in goals(results)]


def _row(results: Results, scenario: str, contestant: str, *parts: str) -> Measured | None:
    """The first case of a scenario that has all parts in its name; fsync only if one of the parts is fsync."""
    return row_of(results, scenario, contestant, *parts, without="" if SYNCED in parts else SYNCED)


def _produce(results: Results) -> list[Verdict]:
    found = []
    for durability in ((), (SYNCED,)):
        words = ", each fsynced" if durability else ""
        parts = (" 100 B"[1:], "RF 3", "acks=all", *durability)
        ours = _row(results, "produce", "raylog send", *parts)
        for other, least in (("confluent-kafka", 3.0), ("kafka-python", 20.0), ("kafka java tool", 1.5)):
            if other == "kafka-python" and durability:
                continue
            theirs = _row(results, "produce", other, *parts)
            found.append(times(f"produce 100 B, RF 3, acks=all{words}: {least:g} x {other}", ours, theirs, least))
    parts = ("1,000 B", "1 partition", "RF 1", "acks=all")
    batch = _row(results, "produce", "raylog send_batch", *parts)
    java = _row(results, "produce", "kafka java tool", *parts)
    found.append(times("produce by send_batch, 1 KB, RF 1: 2 x kafka java tool", batch, java, 2.0))
    return found


def _transactions(results: Results) -> list[Verdict]:
    plain = _row(results, "transactions", "raylog send", "idempotent")
    ours = _row(results, "transactions", "raylog send", "transactions of")
    theirs = _row(results, "transactions", "confluent-kafka", "transactions of")
    goal = "transactions of 100 ms, 100 B, RF 3"
    return [
        times(f"{goal}: 0.8 x the same producer without them", ours, plain, 0.8),
        times(f"{goal}: 2 x confluent-kafka", ours, theirs, 2.0),
        below(f"{goal}: median of a commit under 15 ms", median_of(ours, "p50_ms"), 15.0, "{:.2f} ms"),
        *[_committed(results, form) for form in ("records", "columns")],
    ]


def _committed(results: Results, form: str) -> Verdict:
    everything, committed = (
        _row(results, "isolation", f"raylog {form}", level) for level in ("read_uncommitted", "read_committed")
    )
    return times(f"read_committed as {form}: 0.95 x read_uncommitted", committed, everything, COMMITTED)


def _consume(results: Results) -> list[Verdict]:
    theirs = _row(results, "consume", "confluent-kafka", "100 B", "page cache")
    found = []
    for form, least in (("records", 3.0), ("columns", 10.0)):
        ours = _row(results, "consume", f"raylog {form}", "100 B", "page cache")
        found.append(times(f"consume 100 B as {form}: {least:g} x confluent-kafka", ours, theirs, least))
    return found


def _latency(results: Results) -> list[Verdict]:
    found = []
    for durability in ((), (SYNCED,)):
        words = ", each fsynced" if durability else ""
        parts = ("1,000/s", "RF 3", *durability)
        ours = _row(results, "latency", "raylog records", *parts)
        theirs = _row(results, "latency", "confluent-kafka", *parts)
        for name, most in (("p50", 1.0), ("p99", 5.0)):
            goal = f"end to end at 1,000/s, RF 3, acks=all{words}: {name}"
            found.append(below(f"{goal} under {most:g} ms", median_of(ours, f"{name}_ms"), most, "{:.2f} ms"))
            found.append(times(f"{goal} under Kafka's", ours, theirs, 1.0, f"{name}_ms"))
    return found


def _small(results: Results) -> list[Verdict]:
    found = []
    for replication in ("RF 1", "RF 3"):
        ours = _row(results, "small", "raylog send", replication)
        rivals = (_row(results, "small", name, replication) for name in ("confluent-kafka", "aiokafka"))
        best = max(
            (rival for rival in rivals if rival is not None),
            key=lambda rival: stats.summary(rival.numbers()).median,
            default=None,
        )
        found.append(times(f"50 unbatched connections, {replication}: at least Kafka's rate", ours, best, 1.0))
    return found


def _failover(results: Results) -> list[Verdict]:
    ours, theirs = (_row(results, "failover", name, "kill -9") for name in ("raylog send", "confluent-kafka"))
    return [times("failover after kill -9 of a leader: 10 x faster than Kafka", ours, theirs, 10.0)]


def _create(results: Results) -> list[Verdict]:
    found = []
    for how in ("cold", "with spares"):
        made = _row(results, "create", "raylog send", how)
        goal = f"topic of 6 partitions, RF 3, created and written to: under {CREATED_S:g} s {how}"
        found.append(below(goal, median_of(made, "seconds"), CREATED_S, "{:.2f} s"))
    return found


def _rebalance(results: Results) -> list[Verdict]:
    found = []
    for part, members, one_more in (
        ("cooperative", "50 cooperative members, 200 partitions", "one more member"),
        ("consumer protocol", "50 members of the consumer protocol", "one more of them"),
    ):
        group = _row(results, "rebalance", "raylog records", part)
        goal = f"{members}: assigned under {ASSIGNED_S:g} s after the last join"
        found.append(below(goal, median_of(group, "join_s"), ASSIGNED_S, "{:.2f} s"))
        goal = f"{one_more}: no partition that stays is unread for {READ_ON_MS:g} ms"
        found.append(below(goal, median_of(group, "gap_ms"), READ_ON_MS, "{:.2f} ms"))
    return found


def _memory(results: Results) -> list[Verdict]:
    used = median_of(_row(results, "memory", "raylog send", "replicas"), "private_mb")
    return [below("private memory per idle replica: under 65 MB", used, 65.0, "{:.2f} MB")]


def _queues(results: Results) -> list[Verdict]:
    ours = _row(results, "queues", "raylog queue", "acknowledged")
    by_key = _row(results, "queues", "raylog queue, order by key", "acknowledged")
    goal = "queue of 100 B, 10 consumers, RF 3"
    return [
        at_least(f"{goal}: {ACKNOWLEDGED:,.0f} acknowledged/s", median_of(ours, "rate"), ACKNOWLEDGED, "{:,.0f} /s"),
        times(f"{goal}: by key 0.5 x the rate without order", by_key, ours, 0.5),
        *(
            times(f"{goal}: at least {name}", ours, _row(results, "queues", name, "acknowledged"), 1.0)
            for name in QUEUEING
        ),
    ]


def _delays(results: Results) -> list[Verdict]:
    late = _row(results, "delays", "raylog send", "lateness")
    at_once = _row(results, "delays", "raylog send", "at once")
    return [
        below("delays, 1,000 due/s, RF 3: p99 of lateness under 50 ms", median_of(late, "p99_ms"), 50.0, "{:.2f} ms"),
        at_least(f"delays: {DUE:,.0f} due/s a shard", median_of(at_once, "rate"), DUE, "{:,.0f} /s"),
        *(goal for name in DELAYING for goal in _delays_beside(results, name, late, at_once)),
    ]


def _delays_beside(
    results: Results, name: str, late: Measured | None, at_once: Measured | None
) -> tuple[Verdict, Verdict]:
    """As soon as, and as many a second as, another server."""
    theirs_late = _row(results, "delays", name, "lateness")
    theirs_at_once = _row(results, "delays", name, "at once")
    return (
        times(f"delays: p99 of lateness under that of {name}", late, theirs_late, 1.0, "p99_ms"),
        times(f"delays: due/s of {name}", at_once, theirs_at_once, 1.0),
    )


def _growth(results: Results) -> list[Verdict]:
    """Each form of the client is compared with itself only; the result is that of the form that drops most."""
    found = []
    for axis, is_data, last in AXES:
        for load, forms in GROWING.items():
            rows = [
                row
                for row in results.measured
                if row.scenario == "growth" and row.case.startswith(load) and ("on disk" in row.case) == is_data
            ]
            is_whole = any(row.case.endswith(last) and row.rounds for row in rows)
            for words, metric in (("rate", "rate"), ("CPU time a record", "cpu_us")):
                worst = min(filter(None, (_falls_to(rows, form, metric) for form in forms)), default=None)
                goal = f"growth, {axis}: {load}, {words} within 20 % of the best"
                text = "not measured" if worst is None else f"{worst[0]:.2f} of the best ({worst[1]})"
                if worst is not None and not is_whole:
                    text = f"not to the end: until {_largest(rows)} {text}"
                found.append(Verdict(goal, text, worst[0] >= FLAT if worst is not None and is_whole else None))
    return found


def _largest(rows: list[Measured]) -> str:
    """The largest case of a run that did not reach the end of the axis; a full run does."""
    sizes = [row.case.rpartition(", ")[2] for row in rows if row.rounds]
    return max(sizes, key=lambda size: int(size.split()[0]))


def _falls_to(rows: list[Measured], contestant: str, metric: str) -> tuple[float, str] | None:
    """The worst case's part of the best one, and which it is; None when there are not two cases to compare."""
    medians = {row.case: row.summary(metric) for row in rows if row.contestant == contestant}
    known = {case: summary.median for case, summary in medians.items() if summary is not None}
    if len(known) < 2:
        return None
    higher = HIGHER_IS_BETTER[metric]
    best = (max if higher else min)(known.values())
    parts = {case: stats.ratio(value, best, higher_is_better=higher) for case, value in known.items()}
    worst = min(parts, key=parts.__getitem__)
    return parts[worst], f"{contestant}, {worst.rpartition(', ')[2]}"


GOALS: tuple[tuple[str, Callable[[Results], list[Verdict]]], ...] = (
    ("produce", _produce),
    ("transactions", _transactions),
    ("consume", _consume),
    ("latency", _latency),
    ("small", _small),
    ("failover", _failover),
    ("create", _create),
    ("rebalance", _rebalance),
    ("memory", _memory),
    ("growth", _growth),
    ("queues", _queues),
    ("delays", _delays),
    *OF_ANALYTICS,
)
"""The goals of each scenario."""
