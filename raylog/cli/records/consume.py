"""`raylog consume`: records of a topic on standard output, as values, in a format of the user, or as JSON lines."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from raylog.cli.commands import ManyValues
from raylog.cli.options import Target, cluster_options, json_option, pairs, read_moment
from raylog.cli.records.json_lines import write_line
from raylog.cli.records.starting import Place, place_of

if TYPE_CHECKING:
    from raylog.client.consumer.consumer import Consumer
    from raylog.client.types import Record

ENDS = (signal.SIGTERM, signal.SIGHUP)
"""Signals at which the consumer commits and leaves its group, as at Ctrl-C: the end of its service or its terminal."""
POLL_MS = 200
POLL_RECORDS = 5_000
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

REFUSED_KEYS = ("key.deserializer", "value.deserializer")

Formatter = Callable[["Record"], bytes]


@click.command(cls=ManyValues)
@click.option("--topic", "topics", multiple=True, help="Topic to read; may be repeated.")
@click.option("--pattern", help="Read all topics whose whole names match this regular expression.")
@click.option("--group", help="Read as a member of this group, and commit; default: by itself, without commits.")
@click.option("--from-beginning", is_flag=True, help="Without a committed offset begin with the oldest record.")
@click.option("--max-messages", type=click.IntRange(min=1), help="End after so many records.")
@click.option("--timeout-ms", type=click.IntRange(min=1), help="End when no record came for so long.")
@click.option("--partition", type=click.IntRange(min=0), help="Read this partition only.")
@click.option(
    "--offset",
    help="Where to begin: `earliest`, `latest`, -10 for the last ten records of each partition, or a number in "
    "--partition.",
)
@click.option(
    "--from-time",
    callback=read_moment,
    metavar="TIME",
    help="Begin with the first records that are not older: with a zone, or in ms since 1970.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    help="read_committed: no record of a transaction before it is committed, and none that is aborted.",
)
@click.option(
    "--format",
    "template",
    default="%v\\n",
    show_default=True,
    help="%k key, %v value, %o offset, %p partition, %t topic, %T timestamp (ms), %h headers, %% a percent sign; "
    "\\n and \\t.",
)
@json_option("One JSON object a line instead.")
@click.option("--consumer-props", "props", multiple=True, metavar="KEY=VALUE...", help="Any key of a consumer.")
@cluster_options
def consume(
    target: Target,
    topics: tuple[str, ...],
    pattern: str | None,
    group: str | None,
    from_beginning: bool,
    max_messages: int | None,
    timeout_ms: int | None,
    partition: int | None,
    offset: str | None,
    from_time: datetime | int | None,
    isolation_level: str | None,
    template: str,
    as_json: bool,
    props: tuple[str, ...],
) -> None:
    """Read topics, the newest records by default, until Ctrl-C.

    raylog consume --topic orders --offset -10 shows the last ten records of each partition, and follows.
    """
    _check_topics(topics, pattern, partition)
    place = place_of(partition, offset, from_time, group, from_beginning)
    to_bytes = write_line if as_json else compile_format(template)
    config: dict[str, Any] = {"auto.offset.reset": "earliest" if from_beginning else "latest"}
    config |= pairs("--consumer-props", props)
    _check_keys(config)
    if group is not None:
        config["group.id"] = group
    if isolation_level is not None:
        config["isolation.level"] = isolation_level

    from raylog.client.consumer.consumer import Consumer

    before = {number: signal.getsignal(number) for number in ENDS}
    for number in ENDS:
        if before[number] is not signal.SIG_IGN:  # nohup has SIGHUP ignored, which stays so
            signal.signal(number, signal.default_int_handler)
    count = 0
    try:
        with Consumer(**target.client_arguments(config)) as consumer:
            _take_up(consumer, topics, pattern, partition, place)
            for records in _written(consumer, _polls(consumer, timeout_ms, max_messages), to_bytes):
                count += records
    except KeyboardInterrupt:
        pass  # this is how a person ends it
    finally:
        for number in ENDS:
            signal.signal(number, before[number])
    click.echo(f"{count} {'record' if count == 1 else 'records'} read.", err=True)


def _check_topics(topics: tuple[str, ...], pattern: str | None, partition: int | None) -> None:
    if bool(topics) == (pattern is not None):
        raise click.UsageError("Missing option '--topic', or --pattern" if not topics else "give --topic or --pattern")
    if partition is not None and (pattern is not None or len(topics) > 1):
        raise click.UsageError("--partition is of one topic; give one --topic")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise click.UsageError(f"--pattern: {pattern!r} is no regular expression: {error}") from None


def _check_keys(config: dict[str, str]) -> None:
    for name in REFUSED_KEYS:
        if name in config or name.replace(".", "_") in config:
            raise click.UsageError(
                f"--consumer-props: {name} has no meaning here, because bytes are written as they are; leave it out"
            )


def _take_up(
    consumer: Consumer, topics: tuple[str, ...], pattern: str | None, partition: int | None, place: Place | None
) -> None:
    """Subscribe; with a place or a partition, assign the partitions and seek to the place instead.

    Raises UnknownTopicOrPartition.
    """
    from raylog.base.errors import UnknownTopicOrPartition
    from raylog.base.ids import TopicPartition

    if pattern is not None and place is None:
        consumer.subscribe(pattern=pattern)
        return
    names = topics if pattern is None else sorted(name for name in consumer.topics() if re.fullmatch(pattern, name))
    found: dict[str, set[int]] = {}
    for name in names:
        found[name] = consumer.partitions_for_topic(name) or set()  # an unknown topic is an error, not an endless wait
        if not found[name]:
            raise UnknownTopicOrPartition(f"There is no topic {name!r}.")
        if partition is not None and partition not in found[name]:
            raise UnknownTopicOrPartition(f"{name} has the partitions 0 to {max(found[name])}, not {partition}.")
    if not names:
        raise UnknownTopicOrPartition(f"No topic matches {pattern!r}.")
    if partition is None and place is None:
        consumer.subscribe(names)
        return
    chosen = [
        TopicPartition(name, number)
        for name, numbers in found.items()
        for number in (sorted(numbers) if partition is None else [partition])
    ]
    consumer.assign(chosen)
    if place is not None:
        place.go_to(consumer, chosen)


def _polls(consumer: Consumer, timeout_ms: int | None, max_messages: int | None) -> Iterable[list[Record]]:
    """Records as they come, until there are `max_messages`, or none has come for `timeout_ms` (None = no limit)."""
    left = max_messages
    last_s = time.monotonic()
    while left is None or left > 0:
        found = consumer.poll(timeout_ms=POLL_MS, max_records=min(left or POLL_RECORDS, POLL_RECORDS))
        for records in found.values():
            yield records
            if left is not None:
                left -= len(records)
        if found:
            last_s = time.monotonic()
        elif timeout_ms is not None and (time.monotonic() - last_s) * 1000 >= timeout_ms:
            return


def _written(consumer: Consumer, polls: Iterable[list[Record]], to_bytes: Formatter) -> Iterator[int]:
    """Write records; yields how many. After an error, a group continues behind the last flushed record."""
    from raylog.base.errors import RaylogError
    from raylog.base.ids import TopicPartition

    ends: dict[TopicPartition, int] = {}
    try:
        for records in polls:
            write_out(sys.stdout.buffer, map(to_bytes, records))
            last = records[-1]
            ends[TopicPartition(last.topic, last.partition)] = last.offset + 1
            yield len(records)
    except BaseException:  # a closed pipe, a format, Ctrl-C: the automatic commit would leave out the whole last poll
        if ends and consumer.config.group_id and consumer.config.enable_auto_commit:
            try:
                consumer.commit(ends)
            except RaylogError as error:
                click.echo(f"raylog: what was read last is not committed: {error}", err=True)
        raise


def write_out(stream: BinaryIO, lines: Iterable[bytes]) -> None:
    """Write and flush, so that a reader behind a pipe sees a record when it is there."""
    stream.write(b"".join(lines))
    stream.flush()


def compile_format(template: str) -> Formatter:
    """Turn a template into a function from a record to bytes. Raises UsageError for an unknown field."""
    parts: list[Formatter] = []
    literal = b""
    at = 0
    while at < len(template):
        sign, letter = template[at], template[at + 1 : at + 2]
        if sign == "%" and letter != "%":
            if letter not in FIELDS:
                known = " ".join(f"%{name}" for name in FIELDS)
                raise click.UsageError(f"--format knows {known} and %%, not %{letter}")
            parts += [_constant(literal), FIELDS[letter]]
            literal = b""
        elif sign == "%" or (sign == "\\" and letter in ESCAPES):
            literal += b"%" if sign == "%" else ESCAPES[letter]
        else:
            literal += sign.encode()
            at -= 1
        at += 2
    parts.append(_constant(literal))
    return lambda record: b"".join([part(record) for part in parts])


def _constant(data: bytes) -> Formatter:
    return lambda _: data


def _headers(record: Record) -> bytes:
    return b",".join(name.encode() + b"=" + (b"null" if value is None else value) for name, value in record.headers)


FIELDS: dict[str, Formatter] = {
    "k": lambda record: b"null" if record.key is None else record.key,
    "v": lambda record: b"null" if record.value is None else record.value,
    "o": lambda record: b"%d" % record.offset,
    "p": lambda record: b"%d" % record.partition,
    "t": lambda record: record.topic.encode(),
    "T": lambda record: b"%d" % record.timestamp_ms,
    "h": _headers,
}
