"""The numbers of `raylog perf`, counted and printed as Kafka's perf tools do. Pure: times are arguments.

A MB is 2**20 bytes. Latencies are added per run: consecutive records of one batch are acknowledged at the same moment,
so a run has one end time, and a send time for each record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from raylog.cli.output import json_line

MB = 1 << 20
REPORT_INTERVAL_S = 5.0
SAMPLES_MAX = 500_000
PERCENTILES = ((0.5, "50th"), (0.95, "95th"), (0.99, "99th"), (0.999, "99.9th"))

Print = Callable[[str], object]


class Latencies:
    """Count, bytes, sum and maximum of all records, and an even sample of latencies for the percentiles.

    Times are in seconds of the caller's clock; printed latencies are in milliseconds.
    """

    def __init__(
        self,
        expected: int,
        began_s: float,
        print_line: Print,
        *,
        name: str = "",
        digits: int = 0,
        as_json: bool = False,
    ) -> None:
        """`expected`: the number of records, which decides how many of them are sampled; `digits`: of percentiles."""
        self._as_json = as_json
        self._began_s = began_s
        self._print = print_line
        self._name = name
        self._digits = digits
        self._every = max(1, -(-expected // SAMPLES_MAX))
        self._skip = 0
        self._samples: list[float] = []
        self.count = 0
        self.bytes = 0
        self._sum_s = 0.0
        self._max_s = 0.0
        self.prints_windows = True
        self._new_window(began_s)

    def _new_window(self, now_s: float) -> None:
        self._window_began_s = now_s
        self._window_count = 0
        self._window_bytes = 0
        self._window_sum_s = 0.0
        self._window_max_s = 0.0

    def add_run(self, sent_s: Sequence[float], done_s: float, size: int) -> None:
        """Add records of `size` bytes in all, sent (or due) at these ascending times, and all stored at `done_s`."""
        count = len(sent_s)
        if not count:
            return
        total_s = count * done_s - sum(sent_s)
        longest_s = done_s - sent_s[0]
        self.count += count
        self.bytes += size
        self._sum_s += total_s
        self._max_s = max(self._max_s, longest_s)
        self._window_count += count
        self._window_bytes += size
        self._window_sum_s += total_s
        self._window_max_s = max(self._window_max_s, longest_s)
        self._samples += [done_s - item for item in sent_s[self._skip :: self._every]]
        self._skip = (self._skip - count) % self._every
        if done_s - self._window_began_s >= REPORT_INTERVAL_S:
            if self.prints_windows:
                self._print_window(done_s)
            self._new_window(done_s)

    def _print_window(self, now_s: float) -> None:
        elapsed_s = now_s - self._window_began_s
        if self._as_json:
            numbers = (self._window_count, self._window_bytes, self._window_sum_s, self._window_max_s)
            self._print(json_line({"row": "window", **_figures(elapsed_s, *numbers)}))
            return
        self._print(
            f"{self._window_count} records sent, {self._window_count / elapsed_s:.1f} records/sec "
            f"({self._window_bytes / elapsed_s / MB:.2f} MB/sec), "
            f"{self._window_sum_s / self._window_count * 1000:.1f} ms avg latency, "
            f"{self._window_max_s * 1000:.1f} ms max latency."
        )

    def print_total(self, now_s: float) -> None:
        """Print the summary; without a stored record it has no latencies."""
        elapsed_s = max(now_s - self._began_s, 1e-9)
        if self._as_json:
            figures = _figures(elapsed_s, self.count, self.bytes, self._sum_s, self._max_s)
            shares = zip((label for _, label in PERCENTILES), self.percentiles_ms(), strict=True) if self.count else ()
            row = self._name.strip().replace(" ", "_") or "total"
            self._print(json_line({"row": row, **figures, "latency_ms": dict(shares)}))
            return
        line = f"{self.count}{self._name} records sent, {self.count / elapsed_s:f} records/sec "
        line += f"({self.bytes / elapsed_s / MB:.2f} MB/sec)"
        if not self.count:
            self._print(f"{line}.")
            return
        line += f", {self._sum_s / self.count * 1000:.2f} ms avg latency, {self._max_s * 1000:.2f} ms max latency"
        for value, (_, label) in zip(self.percentiles_ms(), PERCENTILES, strict=True):
            line += f", {value:.{self._digits}f} ms {label}"
        self._print(f"{line}.")

    def percentiles_ms(self) -> list[float]:
        """The latencies at the shares of `PERCENTILES`, from the sample, in milliseconds."""
        ordered = sorted(self._samples)
        last = len(ordered) - 1
        return [ordered[min(int(share * len(ordered)), last)] * 1000 for share, _ in PERCENTILES]


def _figures(elapsed_s: float, count: int, size: int, sum_s: float, max_s: float) -> dict[str, object]:
    return {
        "records": count,
        "bytes": size,
        "elapsed_s": elapsed_s,
        "records_per_s": count / elapsed_s,
        "mb_per_s": size / elapsed_s / MB,
        "latency_avg_ms": sum_s / count * 1000 if count else None,
        "latency_max_ms": max_s * 1000 if count else None,
    }


CONSUMER_HEADER = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
    "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)
CONSUMER_DETAIL_HEADER = CONSUMER_HEADER.replace("start.time, end.time", "time, threadId")


def consumer_time(ms: float) -> str:
    """A moment (ms since 1970) in local time, as Kafka's tool writes it: milliseconds after a colon."""
    whole = datetime.fromtimestamp(ms // 1000)
    return f"{whole:%Y-%m-%d %H:%M:%S}:{int(ms) % 1000:03d}"


def consumer_total(start_ms: float, end_ms: float, size: int, count: int, join_ms: float) -> str:
    """The line that `perf consume` prints at its end."""
    elapsed_s = max(end_ms - start_ms, 1) / 1000
    fetch_ms = max(end_ms - start_ms - join_ms, 0)
    return (
        f"{consumer_time(start_ms)}, {consumer_time(end_ms)}, {size / MB:.4f}, {size / MB / elapsed_s:.4f}, "
        f"{count}, {count / elapsed_s:.4f}, {_rates(size, count, join_ms, fetch_ms)}"
    )


def consumer_detail(
    end_ms: float, elapsed_ms: float, size: int, count: int, new: tuple[int, int], join_ms: float
) -> str:
    """A line of `perf consume --show-detailed-stats`; `new` is bytes and records of the interval."""
    elapsed_s = max(elapsed_ms, 1) / 1000
    new_size, new_count = new
    return (
        f"{consumer_time(end_ms)}, 0, {size / MB:.4f}, {new_size / MB / elapsed_s:.4f}, {count}, "
        f"{new_count / elapsed_s:.4f}, {_rates(new_size, new_count, join_ms, max(elapsed_ms - join_ms, 0))}"
    )


def consumer_row(
    row: str, start_ms: float, end_ms: float, size: int, count: int, new: tuple[int, int], join_ms: float
) -> str:
    """The same as a line of JSON: totals, and the rates of what is `new` (bytes, records) since `start_ms`."""
    elapsed_s, fetch_s = max(end_ms - start_ms, 1) / 1000, max(end_ms - start_ms - join_ms, 0) / 1000
    return json_line(
        {
            "row": row,
            "start_ms": int(start_ms),
            "end_ms": int(end_ms),
            "bytes": size,
            "records": count,
            "mb_per_s": new[0] / MB / elapsed_s,
            "records_per_s": new[1] / elapsed_s,
            "rebalance_ms": join_ms,
            "fetch_ms": fetch_s * 1000,
            "fetch_mb_per_s": new[0] / MB / fetch_s if fetch_s else None,
            "fetch_records_per_s": new[1] / fetch_s if fetch_s else None,
        }
    )


def _rates(size: int, count: int, join_ms: float, fetch_ms: float) -> str:
    fetch_s = fetch_ms / 1000
    rates = (size / MB / fetch_s, count / fetch_s) if fetch_s > 0 else (0.0, 0.0)
    return f"{join_ms:.0f}, {fetch_ms:.0f}, {rates[0]:.4f}, {rates[1]:.4f}"


def metric_lines(group: str, client_id: str, metrics: Mapping[str, float]) -> list[str]:
    """The lines of `--print-metrics`: names in one column, values in the other."""
    names = {name: f"{group}:{name}:{{client-id={client_id}}}" for name in sorted(metrics)}
    width = max(map(len, names.values()), default=0)
    lines = ["", f"{'Metric Name':<{width}}   Value"]
    return lines + [f"{shown:<{width}} : {metrics[name]:.3f}" for name, shown in names.items()]


def metrics_row(client_id: str, metrics: Mapping[str, float]) -> str:
    """The same as a line of JSON; null = not known yet."""
    found = {name: value if math.isfinite(value) else None for name, value in sorted(metrics.items())}
    return json_line({"row": "metrics", "client_id": client_id, "metrics": found})
