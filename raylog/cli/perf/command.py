"""`raylog perf produce` and `raylog perf consume`, with the arguments and the output of Kafka's perf tools."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raylog.cli.commands import Commands, ManyValues
from raylog.cli.options import Target, cluster_options, json_option, pairs, read_properties
from raylog.cli.output import say
from raylog.cli.perf import stats as perf_stats

if TYPE_CHECKING:
    from raylog.cli.perf.load import Load
    from raylog.client.consumer.consumer import Consumer
    from raylog.client.types import Record

POLL_MS = 100
POLL_RECORDS = 10_000
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(cls=Commands)
def perf() -> None:
    """Measure how fast this cluster is, with the arguments and the output of Kafka's tools."""


@perf.command("produce", cls=ManyValues)
@click.option("--topic", required=True, help="Topic to write to.")
@click.option("--num-records", type=click.IntRange(min=1), required=True, help="How many records to send.")
@click.option("--record-size", type=click.IntRange(min=1), help="Bytes of each record.")
@click.option("--payload-file", type=EXISTING_FILE, help="Take the records from this file, at random.")
@click.option("--payload-delimiter", default="\\n", show_default=True, help="What parts the records in that file.")
@click.option("--payload-monotonic", is_flag=True, help="The records are 0, 1, 2, ...")
@click.option("--throughput", type=float, required=True, help="Records a second; -1: as fast as it goes.")
@click.option("--producer-props", "props", multiple=True, metavar="KEY=VALUE...", help="Keys of the producer.")
@click.option("--producer-config", "--producer.config", "config_file", type=EXISTING_FILE, help="File of such keys.")
@click.option("--print-metrics", is_flag=True, help="Print the producer's metrics at the end.")
@click.option("--warmup-records", type=click.IntRange(min=0), default=0, help="Leave so many out of a second summary.")
@click.option(
    "--latency-digits",
    type=click.IntRange(0, 3),
    default=0,
    show_default=True,
    help="Decimals of the percentiles; Kafka's tool has none.",
)
@json_option("One JSON object a row.")
@cluster_options
def perf_produce(
    target: Target,
    topic: str,
    num_records: int,
    record_size: int | None,
    payload_file: Path | None,
    payload_delimiter: str,
    payload_monotonic: bool,
    throughput: float,
    props: tuple[str, ...],
    config_file: Path | None,
    print_metrics: bool,
    warmup_records: int,
    latency_digits: int,
    as_json: bool,
) -> None:
    """Send records and print throughput and latency, as kafka-producer-perf-test does.

    With --throughput, the latency of a record counts from the moment when it was due, not when it was sent.
    """
    if throughput == 0:
        raise click.UsageError("--throughput is a number of records a second, or -1 for no limit, not 0")
    if warmup_records >= num_records:
        raise click.UsageError("--warmup-records must be fewer than --num-records")
    remark = say if as_json else click.echo
    payloads = chosen_payloads(record_size, payload_file, payload_delimiter, payload_monotonic, remark)
    config = merged("--producer-props", props, config_file, "perf-producer-client")
    from raylog.cli.perf.load import Load, clock
    from raylog.client.producer.producer import Producer

    with Producer(**target.client_arguments(config)) as producer:
        producer.partitions_for(topic)  # finding the topic is no part of any record's latency
        if warmup_records:
            remark(
                f"Warmup first {warmup_records} records. "
                "Steady state results will print after the complete test summary."
            )
        stats = perf_stats.Latencies(num_records, clock(), click.echo, digits=latency_digits, as_json=as_json)
        load = Load(producer, topic, throughput, stats)
        load.send(payloads, warmup_records)
        if warmup_records:
            expected = num_records - warmup_records
            load.steady_stats = perf_stats.Latencies(
                expected, clock(), click.echo, name=" steady state", digits=latency_digits, as_json=as_json
            )
            stats.prints_windows = False
        load.send(payloads, num_records - warmup_records)
        load.finish()
        ended_s = clock()
        stats.print_total(ended_s)
        if load.steady_stats is not None:
            load.steady_stats.print_total(ended_s)
        if print_metrics and as_json:
            click.echo(perf_stats.metrics_row(config["client.id"], producer.metrics()))
        elif print_metrics:
            for line in perf_stats.metric_lines("producer-metrics", config["client.id"], producer.metrics()):
                click.echo(line)
    _complain_of_failures(load)


def _complain_of_failures(load: Load) -> None:
    if load.failed:
        raise click.ClickException(f"{load.failed} records were not stored; the first error was: {load.first_error}")


def chosen_payloads(
    size: int | None, path: Path | None, delimiter: str, monotonic: bool, remark: Callable[[str], object]
) -> Iterator[bytes]:
    """The payloads that the options select. Raises UsageError unless exactly one of the three options is given."""
    from raylog.cli.perf.load import counting_payloads, file_payloads, random_payloads

    if (size is not None) + (path is not None) + monotonic != 1:
        raise click.UsageError("give exactly one of --record-size, --payload-file and --payload-monotonic")
    if path is not None:
        separator = delimiter.encode().replace(b"\\n", b"\n").replace(b"\\t", b"\t")
        if not separator:
            raise click.UsageError("--payload-delimiter needs at least one character")
        return file_payloads(path, separator, remark)
    return counting_payloads() if size is None else random_payloads(size)


def merged(option: str, props: tuple[str, ...], config_file: Path | None, client_id: str) -> dict[str, Any]:
    """The client's configuration. Keys of the command line win over the file's; Java's serializers are left out."""
    config: dict[str, Any] = {"client.id": client_id}
    config |= read_properties(config_file) if config_file is not None else {}
    config |= pairs(option, props)
    # Kafka's own files name Java classes that turn objects into bytes; here payloads are bytes already.
    for name in ("key.serializer", "value.serializer", "key.deserializer", "value.deserializer"):
        if "." in str(config.get(name, "")):
            del config[name]
    return config


@perf.command("consume", cls=ManyValues)
@click.option("--topic", required=True, help="Topic to read.")
@click.option("--messages", "--num-records", "messages", type=click.IntRange(min=1), required=True, help="How many.")
@click.option("--group", help="Group to read in.  [default: perf-consumer-<number>]")
@click.option("--from-latest", is_flag=True, help="Without a committed offset begin behind the newest record.")
@click.option("--fetch-size", type=click.IntRange(min=1), default=1 << 20, show_default=True, help="Bytes of a fetch.")
@click.option("--timeout", type=click.IntRange(min=1), default=10_000, show_default=True, help="Longest pause, in ms.")
@click.option("--reporting-interval", type=click.IntRange(min=1), default=5_000, show_default=True, help="In ms.")
@click.option("--show-detailed-stats", is_flag=True, help="A line per reporting interval instead of one at the end.")
@click.option("--hide-header", is_flag=True, help="Leave the header out.")
@click.option("--consumer-props", "props", multiple=True, metavar="KEY=VALUE...", help="Keys of the consumer.")
@click.option("--consumer-config", "--consumer.config", "config_file", type=EXISTING_FILE, help="File of such keys.")
@json_option("One JSON object a row.")
@cluster_options
def perf_consume(
    target: Target,
    topic: str,
    messages: int,
    group: str | None,
    from_latest: bool,
    fetch_size: int,
    timeout: int,
    reporting_interval: int,
    show_detailed_stats: bool,
    hide_header: bool,
    props: tuple[str, ...],
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Read records and print throughput, as kafka-consumer-perf-test does."""
    config = merged("--consumer-props", props, config_file, "perf-consumer-client")
    config |= {"group.id": group or config.get("group.id") or f"perf-consumer-{os.getpid()}"}
    config.setdefault("max.partition.fetch.bytes", fetch_size)
    config.setdefault("auto.offset.reset", "latest" if from_latest else "earliest")
    polled = int(config.pop("max.poll.records", POLL_RECORDS))
    from raylog.client.consumer.consumer import Consumer

    if not hide_header and not as_json:
        click.echo(perf_stats.CONSUMER_DETAIL_HEADER if show_detailed_stats else perf_stats.CONSUMER_HEADER)
    interval_ms = reporting_interval if show_detailed_stats else None
    with Consumer(**target.client_arguments(config)) as consumer:
        consumer.partitions_for_topic(topic)
        reading = Reading(consumer, topic, click.echo, as_json=as_json)
        reading.read(messages, polled, timeout, interval_ms)
    if as_json:
        span, new = (reading.start_ms, reading.end_ms), (reading.bytes, reading.count)
        click.echo(perf_stats.consumer_row("total", *span, *new, new, reading.join_total_ms))
    elif not show_detailed_stats:
        click.echo(
            perf_stats.consumer_total(
                reading.start_ms, reading.end_ms, reading.bytes, reading.count, reading.join_total_ms
            )
        )
    if reading.count < messages:
        raise click.ClickException(
            f"{reading.count} of {messages} records came before there was none for {timeout} ms; raise --timeout, or "
            "request fewer"
        )


class Reading:
    """Polls a topic and counts records, bytes, and the time without partitions (while joining or rebalancing)."""

    def __init__(
        self, consumer: Consumer, topic: str, print_line: Callable[[str], object], *, as_json: bool = False
    ) -> None:
        self._as_json = as_json
        self._consumer = consumer
        self._print = print_line
        self.count = self.bytes = 0
        self.start_ms = self.end_ms = self._join_began_ms = time.time() * 1000
        self.join_total_ms = self._join_new_ms = 0.0
        self._has_partitions = False
        consumer.subscribe([topic], on_assigned=self._assigned, on_revoked=self._revoked)

    def _assigned(self, partitions: list[Any]) -> None:
        if not self._has_partitions:
            joined_ms = time.time() * 1000 - self._join_began_ms
            self.join_total_ms += joined_ms
            self._join_new_ms += joined_ms
        self._has_partitions = bool(partitions)

    def _revoked(self, _: list[Any]) -> None:
        self._has_partitions = False
        self._join_began_ms = time.time() * 1000

    def read(self, messages: int, polled: int, timeout_ms: int, interval_ms: int | None) -> None:
        """Poll until there are `messages` records, or none came for `timeout_ms`; at most `polled` records at once.

        `interval_ms`: print a line so often; None = never.
        """
        last_ms = reported_ms = self.start_ms
        reported = (0, 0)
        while self.count < messages and self.end_ms - last_ms <= timeout_ms:
            found = self._consumer.poll(timeout_ms=POLL_MS, max_records=polled)
            self.end_ms = time.time() * 1000
            if found:
                last_ms = self.end_ms
            for records in found.values():
                self.count += len(records)
                self.bytes += bytes_of(records)
            elapsed_ms = self.end_ms - reported_ms
            if interval_ms is not None and elapsed_ms >= interval_ms:
                new = (self.bytes - reported[0], self.count - reported[1])
                totals = (self.bytes, self.count, new, self._join_new_ms)
                self._print(
                    perf_stats.consumer_row("interval", reported_ms, self.end_ms, *totals)
                    if self._as_json
                    else perf_stats.consumer_detail(self.end_ms, elapsed_ms, *totals)
                )
                self._join_new_ms, reported_ms, reported = 0.0, self.end_ms, (self.bytes, self.count)


def bytes_of(records: list[Record]) -> int:
    """Bytes of keys and values together; null counts nothing."""
    return sum(
        sum(map(len, filter(None, map(attrgetter(name), records))))  # faster than a Python statement per record
        for name in ("key", "value")
    )
