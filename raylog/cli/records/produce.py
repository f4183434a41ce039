"""`raylog produce`: lines of a file or of standard input become records."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from raylog.cli.options import ManyValues, Target, cluster_options, pairs

if TYPE_CHECKING:
    from raylog.client.producer.producer import SendFuture

UNCHECKED_MAX = 10_000
"""Records in flight with an unchecked outcome; a failure is noticed at most so many records later."""


@click.command(cls=ManyValues)
@click.option("--topic", required=True, help="Topic to write to.")
@click.option("--file", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Default: stdin.")
@click.option("--key-separator", help="The part of a line before it is the key; default: records have no key.")
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
    topic: str,
    path: Path | None,
    key_separator: str | None,
    partition: int | None,
    delay: str | None,
    acks: str | None,
    compression_type: str | None,
    props: tuple[str, ...],
    quiet: bool,
) -> None:
    """Write lines to a topic, each line one record."""
    if key_separator == "":
        raise click.UsageError("--key-separator needs at least one character")
    config: dict[str, Any] = dict(pairs("--producer-props", props))
    if acks is not None:
        config["acks"] = acks
    if compression_type is not None:
        config["compression.type"] = compression_type
    separator = None if key_separator is None else key_separator.encode()
    stream = sys.stdin.buffer if path is None else path.open("rb")
    with stream:
        sent = _send_all(target.client_arguments(config), topic, partition, delay, records_of(stream, separator))
    if not quiet:
        done = f"stored in {topic}" if delay is None else f"stored, and due in {topic} after {delay}"
        click.echo(f"{sent} {'record' if sent == 1 else 'records'} {done}.", err=True)


def records_of(stream: BinaryIO, separator: bytes | None) -> Iterator[tuple[bytes | None, bytes]]:
    """Key and value of each line, without its line end. Raises UsageError for a line without the separator."""
    for number, line in enumerate(stream, start=1):
        text = line.rstrip(b"\n").removesuffix(b"\r")
        if separator is None:
            yield None, text
            continue
        key, found, value = text.partition(separator)
        if not found:
            raise click.UsageError(
                f"line {number} has no key separator {separator.decode()!r}; the lines before it were sent"
            )
        yield key, value


def _send_all(
    arguments: dict[str, Any],
    topic: str,
    partition: int | None,
    delay: str | None,
    records: Iterator[tuple[bytes | None, bytes]],
) -> int:
    from raylog.client.producer.producer import Producer

    sent = 0
    unchecked: deque[SendFuture] = deque()
    with Producer(**arguments) as producer:
        for key, value in records:
            unchecked.append(producer.send(topic, value, key, partition=partition, delay=delay))
            sent += 1
            while unchecked and (unchecked[0].done() or len(unchecked) > UNCHECKED_MAX):
                unchecked.popleft().result()
        producer.flush()
        for future in unchecked:
            future.result()
    return sent
