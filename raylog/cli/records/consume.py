"""`raylog consume`: records of a topic on standard output, as values, in a format of one's own, or as JSON lines."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from raylog.cli.options import ManyValues, Target, cluster_options, pairs
from raylog.cli.output import json_bytes, json_line

if TYPE_CHECKING:
    from raylog.client.consumer.consumer import Consumer
    from raylog.client.types import Record

POLL_MS = 200
POLL_RECORDS = 5_000
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

Formatter = Callable[["Record"], bytes]


@click.command(cls=ManyValues)
@click.option("--topic", required=True, help="Topic to read.")
@click.option("--group", help="Read as a member of this group, and commit; default: by itself, without commits.")
@click.option("--from-beginning", is_flag=True, help="Without a committed offset begin with the oldest record.")
@click.option("--max-messages", type=click.IntRange(min=1), help="End after so many records.")
@click.option("--timeout-ms", type=click.IntRange(min=1), help="End when no record came for so long.")
@click.option("--partition", type=click.IntRange(min=0), help="Read this partition only.")
@click.option("--offset", help="Where to begin in --partition: a number, `earliest` or `latest`.")
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
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line instead.")
@click.option("--consumer-props", "props", multiple=True, metavar="KEY=VALUE...", help="Any key of a consumer.")
@cluster_options
def consume(
    target: Target,
    topic: str,
    group: str | None,
    from_beginning: bool,
    max_messages: int | None,
    timeout_ms: int | None,
    partition: int | None,
    offset: str | None,
    isolation_level: str | None,
    template: str,
    as_json: bool,
    props: tuple[str, ...],
) -> None:
    """Read a topic, the newest records by default, until Ctrl-C."""
    place = starting_place(partition, offset, group, from_beginning)
    to_bytes = json_record if as_json else compile_format(template)
    config: dict[str, Any] = {"auto.offset.reset": "earliest" if from_beginning else "latest"}
    config |= pairs("--consumer-props", props)
    if group is not None:
        config["group.id"] = group
    if isolation_level is not None:
        config["isolation.level"] = isolation_level

    from raylog.client.consumer.consumer import Consumer

    # A service manager ends a consumer with SIGTERM: it leaves its group then, as at Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    count = 0
    try:
        with Consumer(**target.client_arguments(config)) as consumer:
            _take_up(consumer, topic, partition, place)
            for records in _written(consumer, _polls(consumer, timeout_ms, max_messages), to_bytes):
                count += records
    except KeyboardInterrupt:
        pass  # this is how a person ends it
    finally:
        signal.signal(signal.SIGTERM, before)
    click.echo(f"{count} {'record' if count == 1 else 'records'} read.", err=True)


def starting_place(partition: int | None, offset: str | None, group: str | None, from_beginning: bool) -> int | str:
    """Check the options for the start position; return an offset, `earliest`, `latest` or "" (none given)."""
    if offset is None:
        return "earliest" if partition is not None and from_beginning else ""
    if partition is None:
        raise click.UsageError("--offset needs --partition, because offsets count within a partition")
    if from_beginning:
        raise click.UsageError("--offset and --from-beginning say different things; give one of them")
    if offset in ("earliest", "latest"):
        return offset
    if not offset.isdecimal():
        raise click.UsageError(f"--offset takes a number, `earliest` or `latest`, not {offset!r}")
    return int(offset)


def _take_up(consumer: Consumer, topic: str, partition: int | None, place: int | str) -> None:
    from raylog.core.errors import UnknownTopicOrPartition
    from raylog.core.ids import TopicPartition

    partitions = consumer.partitions_for_topic(topic)  # an unknown topic is an error now, not an endless wait
    if not partitions:
        raise UnknownTopicOrPartition(f"There is no topic {topic!r}.")
    if partition is None:
        consumer.subscribe([topic])
        return
    if partition not in partitions:
        raise UnknownTopicOrPartition(f"{topic} has the partitions 0 to {max(partitions)}, not {partition}.")
    one = TopicPartition(topic, partition)
    consumer.assign([one])
    if place == "earliest":
        consumer.seek_to_beginning(one)
    elif place == "latest":
        consumer.seek_to_end(one)
    elif isinstance(place, int):
        consumer.seek(one, place)


def _polls(consumer: Consumer, timeout_ms: int | None, max_messages: int | None) -> Iterable[list[Record]]:
    """Records as they come, until there were enough of them or none for too long."""
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
    """Write records out; yields how many. Where that ends with an error, a group goes on behind what was flushed."""
    from raylog.core.errors import RaylogError
    from raylog.core.ids import TopicPartition

    ends: dict[TopicPartition, int] = {}
    try:
        for records in polls:
            write_out(sys.stdout.buffer, map(to_bytes, records))
            last = records[-1]
            ends[TopicPartition(last.topic, last.partition)] = last.offset + 1
            yield len(records)
    except BaseException:  # of a pipe, of a format, Ctrl-C: the automatic commit leaves the whole last poll out
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


def json_record(record: Record) -> bytes:
    """One record as a JSON line."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **json_bytes("key", record.key),
        **json_bytes("value", record.value),
        "headers": [{"name": name, **json_bytes("value", value)} for name, value in record.headers],
    }
    return json_line(fields).encode() + b"\n"


def compile_format(template: str) -> Formatter:
    """Turn a template into a function; raises UsageError for a field that does not exist."""
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
