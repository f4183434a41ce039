"""`raylog.data.read`: topics as a Ray `Dataset`, bounded or following. May touch: the network, and the Ray session."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal

import ray
import ray.data
from ray.data import DataContext, Datasource
from ray.util.annotations import RayDeprecationWarning

from raylog.base.errors import InvalidConfig, did_you_mean
from raylog.client.config import ConsumerConfig
from raylog.client.ranges.offsets import OffsetSpec, split_ranges
from raylog.client.ranges.planning import RangesWanted, plan_read
from raylog.client.ranges.reading import RangeReading
from raylog.client.reading.range_fetcher import PartitionRange
from raylog.data.arguments import address_of, check_remote, checked_topics, consumer_of, positive
from raylog.data.attempts import REPETITIONS
from raylog.data.columns import chosen
from raylog.data.datasource import RaylogDatasource
from raylog.data.following import BLOCK_BYTES_MAX, AtOnce, FollowingDatasource, FollowingTask
from raylog.data.joining import join_ray
from raylog.data.offsets import check_order, end_of, start_of

TRIGGERS = ("once", "continuous")
RECORDS_OF_TASK_MIN = 100_000
"""A task gets at least so many records: Ray takes longer to start a task than to read fewer."""
RECORDS_OF_TASK_MAX = 2_000_000
"""A task gets at most so many records, because a lost task is repeated from its beginning."""
TASKS_PER_CPU = 4
"""Several, so that the last tasks of a read end at about the same time."""
FOLLOWING_CPUS = 0.25
"""Default CPUs of a task of a continuous read: it waits most of the time, and the operators behind it need CPUs."""
FOLLOWING_BUFFER_BYTES = 16 << 20
"""Most bytes that a task of a continuous read fetches ahead; `consumer_config` may lower it."""
CONTINUOUS_TOKEN_S = 30 * 86_400.0
ONCE_TOKEN_S = 43_200.0
"""Default lifetimes of the tasks' token: tasks of a dataset that is executed later are refused."""

PartitionOffsets = Mapping[str, Mapping[int, "int | str"]]


def read(
    topics: str | Sequence[str],
    *,
    bootstrap_servers: str | Sequence[str] | None = None,
    trigger: Literal["once", "continuous"] = "once",
    start_offset: int | datetime | Literal["earliest"] | PartitionOffsets = "earliest",
    end_offset: int | datetime | Literal["latest"] | PartitionOffsets = "latest",
    columns: Sequence[str] | None = None,
    include_headers: bool = True,
    isolation_level: Literal["read_committed", "read_uncommitted"] | None = None,
    fail_on_data_loss: bool = True,
    consumer_config: Mapping[str, Any] | None = None,
    secret: str | bytes | None = None,
    token: str | None = None,
    token_lifetime_s: float | None = None,
    override_num_blocks: int | None = None,
    timeout_ms: int | None = None,
    concurrency: int | None = None,
    num_cpus: float | None = None,
    **remote_args: Any,
) -> ray.data.Dataset:
    """Read topics as a dataset with the columns of `ray.data.read_kafka` (`raylog.data.columns.SCHEMA`).

    `trigger="once"` reads the records between two offsets, which are fixed now, so each execution reads the same ones.
    `"continuous"` follows the topics until the iteration is left, `end_offset` is reached or `timeout_ms` is over.
    Iterate over it with `batch_size=None, prefetch_batches=0`: otherwise a batch waits for the records that follow it.

    `bootstrap_servers` with `secret` or `token` names the cluster; by default it is found through Ray. Tasks get a
    token for `token_lifetime_s` (12 hours; continuous: 30 days). `start_offset`, `end_offset` (exclusive): an offset
    that is no longer, or not yet, in the log means the edge of the log; datetimes are UTC unless they have a zone;
    partitions that a mapping leaves out are read from or to the edge. `isolation_level`: read_committed, unless
    `consumer_config` has another. `fail_on_data_loss=False` skips records that are removed while they are read.
    `override_num_blocks`: the number of tasks. `timeout_ms`: a task ends with what it has by then. `remote_args`: the
    further arguments of `read_kafka`.

    Raises InvalidConfig, UnknownTopicOrPartition, NoClusterFound, ConnectionFailed, AuthenticationFailed.
    """
    if trigger not in TRIGGERS:
        raise InvalidConfig(did_you_mean("value of trigger", str(trigger), TRIGGERS))
    check_remote(remote_args, read.__kwdefaults__ or ())
    follows = trigger == "continuous"
    consumer = consumer_of(consumer_config, isolation_level)
    plan = _Plan(chosen(columns, include_headers), consumer, fail_on_data_loss, _seconds(timeout_ms))
    tasks = positive("override_num_blocks", override_num_blocks)
    bootstrap, credentials = address_of(bootstrap_servers, secret, token)
    wanted = replace(
        _wanted(checked_topics(topics), start_of(start_offset), end_of(end_offset), follows),
        bootstrap=bootstrap,
        secret=credentials,
        token_lifetime_s=token_lifetime_s or (CONTINUOUS_TOKEN_S if follows else ONCE_TOKEN_S),
        consumer=consumer,
    )
    join_ray(bootstrap)
    options = {"concurrency": concurrency, "num_cpus": num_cpus, **remote_args}
    return (plan.followed if follows else plan.bounded)(plan_read(wanted), tasks, options)


def _wanted(topics: tuple[str, ...], start: OffsetSpec, end: OffsetSpec, follows: bool) -> RangesWanted:
    """What to read, without the cluster's address. Offsets outside the log mean its edges, as in `read_kafka`."""
    check_order(start, end)
    if follows and end.is_time:
        raise InvalidConfig(
            "end_offset of a continuous read cannot be a time: timestamps need not ascend, so no record shows that the "
            "time has come. Give offsets, or timeout_ms."
        )
    return RangesWanted(
        topics=topics,
        start=start,
        end=end,
        latest_without_match=True,
        fail_on_data_loss=False,
        may_lie_ahead=True,
        refuses_start_behind_end=True,
        follows=follows,
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """Makes a dataset from ranges."""

    names: tuple[str, ...]
    consumer: ConsumerConfig
    fail_on_data_loss: bool
    timeout_s: float | None

    def bounded(
        self, ranges: Sequence[PartitionRange], tasks: int | None, options: Mapping[str, Any]
    ) -> ray.data.Dataset:
        """A bounded dataset: one read operator for each node with leaders, as Ray places all tasks of one alike."""
        cut = _cut(ranges, tasks, _cpus())
        reading = RangeReading(
            fail_on_data_loss=self.fail_on_data_loss,
            isolation_level=self.consumer.isolation_level,
            check_crcs=self.consumer.check_crcs,
            short_circuit_reads=self.consumer.short_circuit_reads,
        )
        by_nodes = by_node(cut, _nodes() if _may_place(options) else ()) or {"": []}
        counts = [len(found) for found in by_nodes.values()]
        if tasks is not None:
            counts = shares(counts, tasks)
        datasets: list[ray.data.Dataset] = []
        for (node, found), share in zip(by_nodes.items(), counts, strict=True):
            groups = in_groups(found, share) or [[]]
            source = RaylogDatasource(groups, self.names, reading, self.timeout_s)
            # As many blocks as tasks: Ray would cut the blocks of a task into smaller ones to have more.
            placed = {**options, **_placement(node), "override_num_blocks": len(groups)}
            datasets.append(_dataset(source, REPETITIONS, placed))
        return _united(datasets)

    def followed(
        self, ranges: Sequence[PartitionRange], tasks: int | None, options: Mapping[str, Any]
    ) -> ray.data.Dataset:
        """A continuous dataset: one read operator for each node with leaders, as above; all tasks run at once."""
        cpus = _cpus()
        share = FOLLOWING_CPUS if options["num_cpus"] is None else options["num_cpus"]
        count = min(tasks or max(1, int(cpus)), len(ranges))
        if count * share > cpus:
            raise InvalidConfig(
                f"A continuous read in {count} tasks of {share:g} CPUs needs {count * share:g}, and this Ray has "
                f"{cpus:g}: partitions of tasks that cannot run would never be read. Lower override_num_blocks or "
                "num_cpus."
            )
        settings = replace(
            self.consumer,
            auto_offset_reset="none" if self.fail_on_data_loss else "earliest",
            enable_auto_commit=False,
            fetch_max_bytes=min(self.consumer.fetch_max_bytes, FOLLOWING_BUFFER_BYTES),
        )
        by_nodes = by_node(ranges, _nodes() if _may_place(options) else ())
        if count < len(by_nodes) or not by_nodes:
            by_nodes = {"": list(ranges)}
        counts = shares([len(found) for found in by_nodes.values()], count)
        context = DataContext.get_current().copy()
        context.target_max_block_size = AtOnce(BLOCK_BYTES_MAX)
        with DataContext.current(context):
            datasets: list[ray.data.Dataset] = []
            for (node, found), number in zip(by_nodes.items(), counts, strict=True):
                groups = [
                    FollowingTask(tuple(item), settings, self.names, self.timeout_s)
                    for item in shared_out(found, number)
                ]
                placed = {**options, "num_cpus": share, **_placement(node), "override_num_blocks": max(1, len(groups))}
                source = FollowingDatasource(groups)
                datasets.append(_dataset(source, 0, placed))
            return _united(datasets)


def _united(datasets: Sequence[ray.data.Dataset]) -> ray.data.Dataset:
    return datasets[0].union(*datasets[1:]) if len(datasets) > 1 else datasets[0]


def _cut(ranges: Sequence[PartitionRange], blocks: int | None, cpus: float) -> list[PartitionRange]:
    """Cut the ranges into at least `blocks` pieces; None: into as many as keep the CPUs busy."""
    records = sum(item.end - item.start for item in ranges)
    wanted = blocks or min(int(cpus * TASKS_PER_CPU), records // RECORDS_OF_TASK_MIN)
    pieces = split_ranges(
        [(item.start, item.end) for item in ranges],
        min_partitions=wanted,
        max_records=None if blocks else RECORDS_OF_TASK_MAX,
    )
    return [replace(ranges[index], start=start, end=end) for index, start, end in pieces]


def _seconds(timeout_ms: Any) -> float | None:
    checked = positive("timeout_ms", timeout_ms)
    return None if checked is None else checked / 1000


def _cpus() -> float:
    return float(ray.cluster_resources().get("CPU", 1.0))  # type: ignore[no-untyped-call]


def _nodes() -> set[str]:
    """Ray's ids of its live nodes with CPUs."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return {node["NodeID"] for node in nodes if node["Alive"] and node["Resources"].get("CPU", 0) > 0}


def _may_place(options: Mapping[str, Any]) -> bool:
    """Whether the caller has left the choice of nodes to this module."""
    return not any(options.get(name) is not None for name in ("label_selector", "fallback_strategy", "ray_remote_args"))


def _dataset(source: Datasource, repetitions: int, options: Mapping[str, Any]) -> ray.data.Dataset:
    """The dataset of a source; Ray repeats a task at most `repetitions` times when its worker is lost.

    By default Ray repeats without a limit, even if no attempt succeeds. `ray_remote_args` is its only way to set one;
    Ray warns that it is deprecated, and removes it in 2.64.
    """
    given = {"max_retries": repetitions, **(options.get("ray_remote_args") or {})}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RayDeprecationWarning)
        found: ray.data.Dataset = ray.data.read_datasource(source, **{**options, "ray_remote_args": given})
    return found


def _placement(node: str) -> dict[str, Any]:
    """Ray options that run tasks on this node if it has room, and anywhere otherwise; "" = anywhere."""
    if not node:
        return {}
    return {"label_selector": {"ray.io/node-id": node}, "fallback_strategy": [{"label_selector": {}}]}


def by_node(ranges: Sequence[PartitionRange], nodes: Collection[str]) -> dict[str, list[PartitionRange]]:
    """The ranges by the id of the Ray node that runs their leader; "" where that is none of `nodes`.

    On the leader's node a task reads the log files itself. With fewer than two nodes there is no choice, and all ranges
    are under "".
    """
    if len(nodes) < 2:
        return {"": list(ranges)} if ranges else {}
    found: dict[str, list[PartitionRange]] = {}
    for item in ranges:
        found.setdefault(item.node_id if item.node_id in nodes else "", []).append(item)
    return found


def shared_out(ranges: Sequence[PartitionRange], tasks: int) -> list[list[PartitionRange]]:
    """Deal the ranges out to at most so many tasks; each task gets at least one."""
    return [list(ranges[first::tasks]) for first in range(min(tasks, len(ranges)))]


def shares(numbers: Sequence[int], total: int) -> list[int]:
    """Divide a total in proportion to these numbers; each share is at least 1, even if their sum then exceeds it."""
    left = sum(numbers)
    found = []
    for index, number in enumerate(numbers):
        others = len(numbers) - index - 1
        found.append(max(1, min(round(total * number / max(1, left)), total - others)))
        total, left = total - found[-1], left - number
    return found


def in_groups(ranges: Sequence[PartitionRange], groups: int) -> list[list[PartitionRange]]:
    """Divide the ranges into at most so many groups of neighbours, of nearly equal size."""
    count = min(groups, len(ranges))
    cuts = [len(ranges) * step // count for step in range(count + 1)] if count else []
    return [list(ranges[first:end]) for first, end in pairwise(cuts)]
