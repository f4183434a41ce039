"""The metrics: names, help texts, and their computation from metadata, counters and figures. Pure.

Names are those that dashboards for Kafka know (JMX exporter and kafka_exporter); metrics without a name in Kafka begin
with ``raylog_``. Every sample carries the broker's id, because the page of a node may hold several brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from raylog.base.errors import from_code
from raylog.base.ids import NO_LEADER, BrokerId, TopicPartition
from raylog.core.configuration.config import majority
from raylog.core.metadata.image import MetadataImage, TopicImage
from raylog.core.metrics.changes import PartitionChanges
from raylog.core.metrics.cleaning import CleanerFigures, cleaner_families
from raylog.core.metrics.exposition import Family, Kind
from raylog.core.metrics.roles import role_families
from raylog.core.metrics.scrubbing import ScrubFigures, scrub_families
from raylog.core.metrics.totals import Totals
from raylog.core.metrics.usage import Usage
from raylog.core.partition import PartitionState
from raylog.protocol.transactions import TransactionMetricsReply

TOPIC_COUNTERS: Final = (
    ("messagesin", "records_in", "Records that producers appended."),
    ("bytesin", "bytes_in", "Bytes of batches that producers appended."),
    ("bytesout", "bytes_out", "Bytes that consumers were given, those included that they read from the files."),
    ("totalproducerequests", "batches_in", "Batches that producers appended."),
    ("totalfetchrequests", "fetches", "Answers to consumers' fetches."),
    ("replicationbytesin", "replication_bytes_in", "Bytes that followers fetched and appended here."),
    ("replicationbytesout", "replication_bytes_out", "Bytes that followers were given."),
    ("failedproducerequests", "failed_produce", "Produce requests that were answered with an error."),
    ("failedfetchrequests", "failed_fetch", "Consumers' fetches that were answered with an error."),
)
"""Part of the name, counter, help."""
TRANSACTION_COUNTERS: Final = (
    ("begun", "raylog_transactions_begun_total", "Transactions that began."),
    ("committed", "raylog_transactions_committed_total", "Transactions that were committed."),
    ("aborted", "raylog_transactions_aborted_total", "Transactions that were aborted, for any reason."),
    ("timed_out", "raylog_transactions_timed_out_total", "Transactions that were aborted because of their timeout."),
    (
        "expired",
        "raylog_transactional_ids_expired_total",
        "Transactional ids that were forgotten, being unused.",
    ),
    (
        "claims_refused",
        "raylog_transaction_claims_refused_total",
        "First batches of transactions that were refused: none was open, or it did not have the partition.",
    ),
    ("markers_written", "raylog_transaction_markers_total", "Outcomes that a partition or a group has received."),
    ("markers_repeated", "raylog_transaction_marker_retries_total", "Outcomes that had to be sent again."),
)
"""Counter, name, help."""
REQUESTS: Final = (("Produce", "produce"), ("FetchConsumer", "fetch"))
USAGE: Final[tuple[tuple[str, Kind, str, str], ...]] = (
    ("resident_memory_bytes", "gauge", "raylog_process_resident_memory_bytes", "Resident memory of processes."),
    ("cpu_seconds", "counter", "raylog_process_cpu_seconds_total", "CPU time of processes, user and system."),
    ("open_fds", "gauge", "raylog_process_open_fds", "Open file descriptors of processes."),
    ("connections", "gauge", "raylog_connections", "Authenticated connections that processes have accepted."),
    ("unsent_bytes", "gauge", "raylog_unsent_bytes", "Bytes of answers that peers have not taken yet."),
)
"""Figure, kind, name, help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFigures:
    """Answer of one replica at the last read."""

    role: str
    size_bytes: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    usage: Usage = field(default_factory=Usage)
    cleaner: CleanerFigures | None = None
    """None = its topic is not compacted."""
    scrub: ScrubFigures | None = None
    """None = its log is not scrubbed."""
    roles: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Figures of what it does as a leader beside replication, by kinds of roles."""
    damage: str = ""
    """What is wrong with its log and not mended yet; empty = nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """Inputs of a broker's metrics. ``replicas`` has None for one that did not answer."""

    broker: int
    image: MetadataImage
    replicas: Mapping[TopicPartition, ReplicaFigures | None]
    totals: Totals
    changes: PartitionChanges
    usage: Usage
    controller_connected: bool
    dozing: int = 0
    """How many of the replicas are stopped until something comes in."""
    disk: tuple[int, int] | None = None
    """Free and total bytes of the data directory's file system."""
    set_aside: int = 0
    """Damaged logs that lie set aside in the data directory."""
    per_partition: bool = True
    """Whether each partition has figures of its own."""
    now_ms: int = 0
    """Milliseconds since 1970."""


def min_insync(topic: TopicImage, state: PartitionState) -> int:
    """Return how many replicas of a partition have to be in sync for a write with ``acks=all``."""
    own = topic.config.get("min.insync.replicas", "")
    return int(own) if own else majority(state.replication_factor)


def broker_families(view: BrokerView) -> list[Family]:
    """Return the metrics of one broker and its replicas."""
    return [
        *_replica_manager(view),
        *_topics(view),
        *_latencies(view),
        *_logs(view),
        *_cleaners(view),
        *_scrubs(view),
        *role_families(view.broker, {place: each.roles for place, each in view.replicas.items() if each is not None}),
        *_processes(view),
        *_broker_itself(view),
    ]


def _replica_manager(view: BrokerView) -> Iterator[Family]:
    broker, label = BrokerId(view.broker), str(view.broker)
    partitions = leaders = under_replicated = under_min = at_min = offline = adding = 0
    for topic in view.image.topics.values():
        for state in topic.partitions:
            if broker in state.replicas:
                partitions += 1
                place = state.place(broker)
                offline += state.asleep is None and (place is None or place.port == 0)
                adding += broker in state.adding
            if state.leader == broker:
                least = min_insync(topic, state)
                leaders += 1
                under_replicated += len(state.isr) < len(state.replicas)
                under_min += len(state.isr) < least
                at_min += len(state.isr) == least
    changes = view.changes
    rows: tuple[tuple[str, Kind, int, str], ...] = (
        ("partitioncount", "gauge", partitions, "Partitions of which this broker has a replica."),
        ("leadercount", "gauge", leaders, "Partitions that this broker leads."),
        ("offlinereplicacount", "gauge", offline, "Replicas of this broker that do not run."),
        ("underreplicatedpartitions", "gauge", under_replicated, "Led partitions with replicas out of sync."),
        ("underminisrpartitioncount", "gauge", under_min, "Led partitions whose ISR is below min.insync.replicas."),
        ("atminisrpartitioncount", "gauge", at_min, "Led partitions whose ISR is just min.insync.replicas."),
        ("reassigningpartitions", "gauge", adding, "Replicas that a reassignment brings to this broker."),
        ("isrshrinks_total", "counter", changes.isr_shrinks, "Times that the ISR of a led partition shrank."),
        ("isrexpands_total", "counter", changes.isr_expands, "Times that the ISR of a led partition grew."),
    )
    for name, kind, value, text in rows:
        yield Family(f"kafka_server_replicamanager_{name}", kind, text, [("", {"broker": label}, value)])


def _topics(view: BrokerView) -> Iterator[Family]:
    label = str(view.broker)
    for part, counter, text in TOPIC_COUNTERS:
        family = Family(f"kafka_server_brokertopicmetrics_{part}_total", "counter", text)
        for topic, counters in sorted(view.totals.counters.items()):
            family.add(counters.get(counter, 0), broker=label, topic=topic)
        yield family


def _latencies(view: BrokerView) -> Iterator[Family]:
    label, totals = str(view.broker), view.totals
    summary = Family(
        "kafka_network_requestmetrics_totaltimems",
        "summary",
        "Milliseconds from a request to its answer; quantiles of the last five minutes. A fetch waits for records.",
    )
    exact = Family("raylog_request_duration_seconds", "histogram", "Time from a request to its answer.")
    for request, name in REQUESTS:
        all_time = totals.latency(name)
        summary.add_summary(totals.recent(name), all_time, broker=label, request=request)
        exact.add_histogram(all_time, broker=label, request=request)
    flushes = totals.latency("flush")
    flush = Family(
        "kafka_log_logflushstats_logflushrateandtimems",
        "summary",
        "Milliseconds that a sync to disk takes; quantiles of the last five minutes.",
    )
    flush.add_summary(totals.recent("flush"), flushes, broker=label)
    exact_flush = Family("raylog_log_flush_duration_seconds", "histogram", "Time that a sync to disk takes.")
    exact_flush.add_histogram(flushes, broker=label)
    yield from (summary, exact, flush, exact_flush)


def _logs(view: BrokerView) -> Iterator[Family]:
    label = str(view.broker)
    size = Family("kafka_log_log_size", "gauge", "Bytes of a replica's log.")
    start = Family("kafka_log_log_logstartoffset", "gauge", "First offset of a replica's log.")
    end = Family("kafka_log_log_logendoffset", "gauge", "Offset that the next record of a replica's log gets.")
    mark = Family("raylog_log_high_watermark", "gauge", "Offset below which a replica knows everything committed.")
    total = Family("raylog_topic_size_bytes", "gauge", "Bytes of a topic's replicas on this broker.")
    roles = Family("raylog_replicas", "gauge", "Replicas by what they do; unreachable ones did not answer.")
    current = Family("kafka_topic_partition_current_offset", "gauge", "High watermark of a partition, at its leader.")
    oldest = Family("kafka_topic_partition_oldest_offset", "gauge", "First offset of a partition, at its leader.")
    by_topic: dict[str, int] = {}
    by_role = dict.fromkeys(("leader", "follower", "idle", "starting", "unreachable", "asleep"), 0)
    for partition, figures in sorted(view.replicas.items()):
        role = "unreachable" if figures is None else figures.role
        by_role[role] = by_role.get(role, 0) + 1
        if figures is None:
            continue
        by_topic[partition.topic] = by_topic.get(partition.topic, 0) + figures.size_bytes
        if view.per_partition:
            labels = {"broker": label, "topic": partition.topic, "partition": str(partition.partition)}
            size.samples.append(("", labels, figures.size_bytes))
            start.samples.append(("", labels, figures.log_start_offset))
            end.samples.append(("", labels, figures.log_end_offset))
            mark.samples.append(("", labels, figures.high_watermark))
            if role == "leader":
                current.samples.append(("", labels, figures.high_watermark))
                oldest.samples.append(("", labels, figures.log_start_offset))
    for state in view.image.partitions():
        log = state.asleep
        if log is None or view.broker not in state.replicas:
            continue
        by_role["asleep"] += 1
        name = state.partition.topic
        by_topic[name] = by_topic.get(name, 0) + log.size_bytes
        if view.per_partition and log.end_offset:  # 10,000 partitions that were never used need no lines
            labels = {"broker": label, "topic": name, "partition": str(state.partition.partition)}
            size.samples.append(("", labels, log.size_bytes))
            start.samples.append(("", labels, log.log_start_offset))
            end.samples.append(("", labels, log.end_offset))
            mark.samples.append(("", labels, log.end_offset))
            if state.leader == view.broker:
                current.samples.append(("", labels, log.end_offset))
                oldest.samples.append(("", labels, log.log_start_offset))
    for topic, count in by_topic.items():
        total.add(count, broker=label, topic=topic)
    for role, count in by_role.items():
        roles.add(count, broker=label, role=role)
    dozing = Family("raylog_replicas_dozing", "gauge", "Replicas at rest whose processes are stopped; each has a role.")
    dozing.add(view.dozing, broker=label)
    yield from (size, start, end, mark, current, oldest, total, roles, dozing)


def _cleaners(view: BrokerView) -> list[Family]:
    logs = {
        partition: figures.cleaner
        for partition, figures in view.replicas.items()
        if figures is not None and figures.cleaner is not None
    }
    return cleaner_families(view.broker, view.totals, logs, view.now_ms, per_partition=view.per_partition)


def _scrubs(view: BrokerView) -> list[Family]:
    logs = {
        partition: figures.scrub
        for partition, figures in view.replicas.items()
        if figures is not None and figures.scrub is not None
    }
    return scrub_families(view.broker, view.totals, logs, per_partition=view.per_partition)


def _processes(view: BrokerView) -> Iterator[Family]:
    label = str(view.broker)
    yield from process_families(view.usage, process="broker", broker=label)
    replicas = [
        (
            {
                "process": "replica",
                "broker": label,
                "topic": partition.topic,
                "partition": str(partition.partition),
            },
            item.usage,
        )
        for partition, item in sorted(view.replicas.items())
        if item is not None
    ]
    for figure, kind, name, text in USAGE:
        family = Family(name, kind, text)
        if view.per_partition:
            for labels, usage in replicas:
                if figure in usage.figures:
                    family.samples.append(("", labels, usage.figures[figure]))
        elif kind == "gauge" and replicas:
            family.add(sum(usage.figures.get(figure, 0) for _, usage in replicas), process="replica", broker=label)
        yield family
    yield _errors(view.totals.refusals, process="replica", broker=label)


def unreadable_family(coordinator: str, rows: int) -> Family:
    """Return how many rows of its log a coordinator passed over, because they cannot be read."""
    family = Family("raylog_coordinator_unreadable_rows", "gauge", "Rows of its log that a coordinator cannot read.")
    family.add(rows, coordinator=coordinator)
    return family


def process_families(usage: Usage, /, **labels: str) -> list[Family]:
    """Return the metrics of one process: resource usage and errors."""
    families = []
    for figure, kind, name, text in USAGE:
        family = Family(name, kind, text)
        if figure in usage.figures:
            family.add(usage.figures[figure], **labels)
        families.append(family)
    return [*families, _errors(usage.refusals, **labels)]


def _errors(refusals: Mapping[tuple[str, int], int], /, **labels: str) -> Family:
    family = Family("raylog_request_errors_total", "counter", "Requests that were answered with an error.")
    for (method, code), count in sorted(refusals.items()):
        family.add(count, method=method, error=type(from_code(code)).__name__, **labels)
    return family


def _broker_itself(view: BrokerView) -> Iterator[Family]:
    label = str(view.broker)
    connected = Family("raylog_controller_connected", "gauge", "1 while the broker is registered with the controller.")
    connected.add(int(view.controller_connected), broker=label)
    version = Family("raylog_metadata_version", "gauge", "Records of the metadata log that the broker has applied.")
    version.add(view.image.version, broker=label)
    free = Family("raylog_disk_free_bytes", "gauge", "Bytes that may still be written to the data directory's disk.")
    size = Family("raylog_disk_size_bytes", "gauge", "Size of the data directory's disk.")
    if view.disk is not None:
        free.add(view.disk[0], broker=label)
        size.add(view.disk[1], broker=label)
    damaged = sum(bool(figures is not None and figures.damage) for figures in view.replicas.values())
    yield Family(
        "raylog_damaged_replicas",
        "gauge",
        "Replicas of this broker with damage in their log that is not mended yet.",
        [("", {"broker": label}, damaged)],
    )
    yield Family(
        "raylog_damaged_logs_set_aside",
        "gauge",
        "Damaged logs kept in the data directory's folder .damaged, until an operator removes them.",
        [("", {"broker": label}, view.set_aside)],
    )
    yield from (connected, version, free, size)


def controller_families(
    image: MetadataImage, changes: PartitionChanges, usage: Usage, is_online: Callable[[BrokerId], bool]
) -> list[Family]:
    """Return the metrics of the controller; ``is_online`` returns whether a broker is connected to it."""
    states = list(image.partitions())
    online = sum(is_online(broker) for broker in image.brokers)
    away = sum(state.leader not in (NO_LEADER, state.target[0]) for state in states if state.target)
    rows: tuple[tuple[str, Kind, int, str], ...] = (
        ("kafkacontroller_globaltopiccount", "gauge", len(image.topics), "Topics of the cluster."),
        ("kafkacontroller_globalpartitioncount", "gauge", len(states), "Partitions of the cluster."),
        (
            "kafkacontroller_offlinepartitionscount",
            "gauge",
            sum(image.leader_of(state) == NO_LEADER for state in states),
            "Partitions without a leader.",
        ),
        (
            "asleeppartitionscount",
            "gauge",
            sum(state.asleep is not None for state in states),
            "Partitions that sleep: their replicas have no processes.",
        ),
        ("kafkacontroller_preferredreplicaimbalancecount", "gauge", away, "Partitions led by another than the first."),
        ("kafkacontroller_activebrokercount", "gauge", online, "Brokers that are connected to the controller."),
        ("kafkacontroller_fencedbrokercount", "gauge", len(image.brokers) - online, "Known brokers that are not."),
        ("controllerstats_leaderelections_total", "counter", changes.elections, "Leaders elected."),
        (
            "controllerstats_uncleanleaderelections_total",
            "counter",
            changes.unclean_elections,
            "Leaders elected outside ISR and ELR, which may lack acknowledged records.",
        ),
    )
    families = [Family(f"kafka_controller_{name}", kind, text, [("", {}, value)]) for name, kind, value, text in rows]
    epoch = Family("raylog_controller_epoch", "gauge", "Epoch of the controller.", [("", {}, image.controller_epoch)])
    voters = Family("raylog_metadata_voters", "gauge", "Brokers that keep a copy of the metadata log.")
    voters.add(len(image.voters))
    return [*families, epoch, voters, *process_families(usage, process="controller")]


def transaction_families(coordinators: Mapping[str, TransactionMetricsReply]) -> list[Family]:
    """Return the metrics of some transaction coordinators, by their names."""
    states = Family("raylog_transactional_ids", "gauge", "Transactional ids in a state.")
    oldest = Family("raylog_transaction_longest_open_seconds", "gauge", "Age of the oldest open transaction; 0 = none.")
    counted = {counter: Family(name, "counter", text) for counter, name, text in TRANSACTION_COUNTERS}
    for coordinator, figures in coordinators.items():
        for state, number in sorted(figures.states.items()):
            states.add(number, coordinator=coordinator, state=state)
        oldest.add(max(0, figures.longest_open_ms) / 1000, coordinator=coordinator)
        for counter, family in counted.items():
            family.add(figures.counters.get(counter, 0), coordinator=coordinator)
    return [states, oldest, *counted.values()]


def active_controller(count: int) -> Family:
    """Return the count of controllers that a node's page has; it is 1 over all nodes."""
    name = "kafka_controller_kafkacontroller_activecontrollercount"
    return Family(name, "gauge", "1 on the node where the controller runs and answers.", [("", {}, count)])
