"""`raylog produce`: lines of a file or of standard input become records."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from raylog.base.errors import RecordTooLarge
from raylog.cli.commands import ManyValues
from raylog.cli.options import Target, cluster_options, pairs
from raylog.cli.records.json_lines import Line, read_line

if TYPE_CHECKING:
    from raylog.client.producer.futures import SendFuture

UNCHECKED_MAX = 10_000
"""Most records whose outcome is not checked yet: a failure is noticed at most so many records later."""
REFUSED_KEYS = ("key.serializer", "value.serializer")


@click.command(cls=ManyValues)
@click.option("--topic", help="Topic to write to; with --json also the topics that the lines name.")
@click.option("--file", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Default: stdin.")
@click.option("--json", "as_json", is_flag=True, help="Lines are JSON, as `raylog consume --json` writes them.")
@click.option("--key", help="The key of every record; default: records have no key.")
@click.option("--key-separator", help="The part of a line before it is the key.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Of every record; may be repeated.")
@click.option("--null-marker", help="A value that is this text is null: a tombstone.")
@click.option("--partition", type=click.IntRange(min=0), help="Write to this partition only.")
@click.option("--delay", help="Consumers see the records only after it, such as 500ms, 30m, 1h30m or level:5.")
@click.option(
    "--acks",
    type=click.Choice(["all", "-1", "1", "0"]),
    help="Replicas that must have stored a record.  [default: all]",
)
@click.option("--compression-type", help="none, gzip, snappy, lz4 or zstd.  [default: none]")
@click.option("--producer-props", "props", multiple=True, metavar="KEY=VALUE...", help="Any key of a producer.")
@click.option("--quiet", is_flag=True, help="Say nothing at the end.")
@cluster_options
def produce(
    target: Target,
    topic: str | None,
    path: Path | None,
    as_json: bool,
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    null_marker: str | None,
    partition: int | None,
    delay: str | None,
    acks: str | None,
    compression_type: str | None,
    props: tuple[str, ...],
    quiet: bool,
) -> None:
    """Write lines to a topic, each line one record.

    With --json a line is a record with its key, headers, timestamp and partition. Its offset is ignored; with --delay
    its timestamp too, because a delayed record has the time when it is due. So a topic is copied:
    raylog consume --topic a --from-beginning --json | raylog produce --topic b --json
    """
    _check(topic, as_json, key, key_separator, null_marker, delay)
    config = _producer_keys(props, acks, compression_type)
    given = tuple((name, value.encode()) for name, value in pairs("--header", headers).items()) or None
    stream = sys.stdin.buffer if path is None else path.open("rb")
    with stream:
        if as_json:
            lines = json_lines_of(stream, topic)
        else:
            separator = None if key_separator is None else key_separator.encode()
            marker = None if null_marker is None else null_marker.encode()
            lines = lines_of(stream, None if key is None else key.encode(), separator, marker)
        sent = _send_all(target.client_arguments(config), topic, partition, delay, given, lines)
    if not quiet:
        where = f"in {topic}" if topic is not None else "in their topics"
        done = f"stored {where}" if delay is None else f"stored, and due {where} after {delay}"
        click.echo(f"{sent} {'record' if sent == 1 else 'records'} {done}.", err=True)


def _check(
    topic: str | None,
    as_json: bool,
    key: str | None,
    key_separator: str | None,
    null_marker: str | None,
    delay: str | None,
) -> None:
    """Raise UsageError for options that contradict one another, or are wrong by themselves."""
    if topic is None and not as_json:
        raise click.UsageError("Missing option '--topic'")
    if key_separator == "":
        raise click.UsageError("--key-separator needs at least one character")
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator both say what the key is; give one of them")
    if as_json and (key, key_separator, null_marker) != (None, None, None):
        raise click.UsageError("with --json the lines say what key and value are; leave the other options out")
    if delay is not None:
        from raylog.client.scheduling import delay_ms

        try:
            delay_ms(delay)
        except ValueError as error:
            raise click.UsageError(f"--delay: {error}") from None


def _producer_keys(props: tuple[str, ...], acks: str | None, compression_type: str | None) -> dict[str, Any]:
    config: dict[str, Any] = dict(pairs("--producer-props", props))
    for name in REFUSED_KEYS:
        if name in config or name.replace(".", "_") in config:
            raise click.UsageError(
                f"--producer-props: {name} has no meaning here, because lines are bytes; leave it out"
            )
    if acks is not None:
        config["acks"] = acks
    if compression_type is not None:
        config["compression.type"] = compression_type
    return config


def lines_of(
    stream: BinaryIO, key: bytes | None = None, separator: bytes | None = None, null_marker: bytes | None = None
) -> Iterator[Line]:
    """The record of each line, without its line end. Raises UsageError for a line without the separator."""
    for number, line in enumerate(stream, start=1):
        text = line.rstrip(b"\n").removesuffix(b"\r")
        if separator is not None:
            key, found, text = text.partition(separator)
            if not found:
                raise click.UsageError(
                    f"line {number} has no key separator {separator.decode()!r}; the lines before it were sent"
                )
        yield Line(None if null_marker is not None and text == null_marker else text, key, number=number)


def json_lines_of(stream: BinaryIO, topic: str | None) -> Iterator[Line]:
    """The record of each line of JSON; empty lines are skipped. Raises UsageError for a line that is no record."""
    for number, text in enumerate(stream, start=1):
        if not text.strip():
            continue
        try:
            line = read_line(text)
        except ValueError as error:
            reason = f"is no record as `raylog consume --json` writes it: {error}"
            raise click.UsageError(f"line {number} {reason}; the lines before it were sent") from None
        if topic is None and line.topic is None:
            raise click.UsageError(f"line {number} names no topic; give --topic; the lines before it were sent")
        yield replace(line, number=number)


def _send_all(
    arguments: dict[str, Any],
    topic: str | None,
    partition: int | None,
    delay: str | None,
    headers: tuple[tuple[str, bytes], ...] | None,
    lines: Iterator[Line],
) -> int:
    from raylog.client.producer.producer import Producer

    sent = 0
    unchecked: deque[tuple[int, SendFuture]] = deque()
    with Producer(**arguments) as producer:
        if topic is not None:
            producer.partitions_for(topic)  # an unknown topic is an error, even without any line
        for line in lines:
            with _named(line.number, "sent"):
                future = producer.send(
                    topic or line.topic or "",
                    line.value,
                    line.key,
                    headers=(*(line.headers or ()), *(headers or ())) or None,
                    partition=line.partition if partition is None else partition,
                    timestamp_ms=None if delay is not None else line.timestamp_ms,
                    delay=delay,
                )
            unchecked.append((line.number, future))
            sent += 1
            while unchecked and (unchecked[0][1].done() or len(unchecked) > UNCHECKED_MAX):
                _check_stored(*unchecked.popleft())
        producer.flush()
        for number, future in unchecked:
            _check_stored(number, future)
    return sent


def _check_stored(number: int, future: SendFuture) -> None:
    with _named(number, "stored"):
        future.result()


@contextmanager
def _named(number: int, before: str) -> Iterator[None]:
    """Add to RecordTooLarge which line is too large, and what happened to the lines before it."""
    try:
        yield
    except RecordTooLarge as error:
        message = f"line {number} is too large; the lines before it were {before}: {error.message}"
        raise RecordTooLarge(message, **error.details) from None
