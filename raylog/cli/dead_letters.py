"""`raylog dlq`: dead letters: where and why they are, how to send them on, and how to remove them."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from raylog.cli.commands import Commands
from raylog.cli.options import Target, cluster_options, json_option, pairs
from raylog.cli.output import json_bytes, moment, show_done, show_json, show_table, shown_key

if TYPE_CHECKING:
    from raylog.client.admin.admin import Admin
    from raylog.client.admin.queues import Redrive
    from raylog.client.types import Record

NOT_DONE = 1
"""Exit code when a redrive had ended before it could be cancelled, or was cancelled during --wait."""
POLL_S = 0.5
READ_S = 10.0


@click.group(cls=Commands)
def dlq() -> None:
    """List, show, send on and remove dead letters."""


def _admin(arguments: dict[str, Any]) -> Admin:
    from raylog.client.admin.admin import Admin

    return Admin(**arguments)


@dlq.command("list")
@json_option()
@cluster_options
def list_(target: Target, as_json: bool) -> None:
    """List the topics of dead letters, and how many each holds."""
    with _admin(target.client_arguments()) as admin:
        found = admin.dead_letter_topics()
    if as_json:
        show_json([{"topic": row.topic, "records": row.records, "sources": list(row.sources)} for row in found])
    elif found:
        show_table(
            "", ["topic", "records", "of"], [[row.topic, row.records, ", ".join(row.sources) or "-"] for row in found]
        )
    else:
        click.echo("No topic of dead letters exists; `dead.letter.topic` of a topic names one.")


@dlq.command()
@click.argument("topic")
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="The newest, so many of each partition."
)
@json_option()
@cluster_options
def show(target: Target, topic: str, limit: int, as_json: bool) -> None:
    """Show the newest dead letters of a topic, and why each is one."""
    from raylog.core.dead_letters import cause_of, hops_of

    records = _newest(target, topic, limit)
    causes = [(record, cause_of(record.headers)) for record in records]
    if as_json:
        show_json(
            [
                {
                    "partition": record.partition,
                    "offset": record.offset,
                    "timestamp_ms": record.timestamp_ms,
                    **json_bytes("key", record.key),
                    **json_bytes("value", record.value),
                    "hops": hops_of(record.headers),
                    "reason": None if cause is None else cause.reason.value,
                    "topic": None if cause is None else cause.topic,
                    "message": None if cause is None else cause.message,
                    "group": None if cause is None else cause.group,
                }
                for record, cause in causes
            ]
        )
        return
    rows = [
        [
            f"{record.partition}:{record.offset}",
            moment(record.timestamp_ms),
            "" if cause is None else cause.reason.value,
            "" if cause is None else f"{cause.topic}-{cause.partition}:{cause.offset}",
            "" if cause is None else cause.group,
            shown_key(record.key),
            "" if cause is None else cause.message,
        ]
        for record, cause in causes
    ]
    if rows:
        show_table("", ["at", "time", "reason", "from", "group", "key", "message"], rows)
    else:
        click.echo(f"{topic} holds no record.")


def _newest(target: Target, topic: str, limit: int) -> list[Record]:
    from raylog.base.errors import UnknownTopicOrPartition
    from raylog.base.ids import TopicPartition
    from raylog.client.consumer.consumer import Consumer

    found: list[Record] = []
    with Consumer(**target.client_arguments({"auto.offset.reset": "earliest"})) as consumer:
        partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
        if not partitions:
            raise UnknownTopicOrPartition(f"There is no topic {topic!r}.")
        consumer.assign(partitions)
        starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        for at in partitions:
            consumer.seek(at, max(starts[at], ends[at] - limit))
        deadline_s = time.monotonic() + READ_S
        while any(consumer.position(at) < ends[at] for at in partitions) and time.monotonic() < deadline_s:
            for records in consumer.poll(timeout_ms=200).values():
                found += records
    return found


@dlq.command()
@click.argument("topic")
@click.option("--to", help="Where to; default: each to the topic where it was.")
@click.option(
    "--where",
    multiple=True,
    metavar="NAME=VALUE",
    help="Only those with this reason, topic, partition, group, key, message or header:<name>; may be repeated.",
)
@click.option("--rate", type=click.IntRange(0), default=0, help="Records a second of each partition; 0: no limit.")
@click.option(
    "--from-start", is_flag=True, help="From the first on, including those that an earlier redrive was done with."
)
@click.option("--wait", is_flag=True, help="Until it has ended.")
@json_option("As JSON: how far it is, with --wait at its end.")
@cluster_options
def redrive(
    target: Target,
    topic: str,
    to: str | None,
    where: tuple[str, ...],
    rate: int,
    from_start: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """Send on the dead letters that a topic has now."""
    filters = {name: str(value) for name, value in pairs("--where", where).items()}
    with _admin(target.client_arguments()) as admin:
        number = admin.redrive(topic, to, where=filters, rate=rate, from_start=from_start)
        if not as_json:
            click.echo(
                f"Redrive {number} of {topic} runs; `raylog dlq redrives` shows it, `raylog dlq cancel {number}` ends "
                "it."
            )
        if not wait:
            if as_json:
                show_json(_as_json(admin.describe_redrive(number)))
            return
        while not (found := admin.describe_redrive(number)).has_ended:
            time.sleep(POLL_S)
    show_done(as_json, _as_json(found), f"It is {found.state}: {found.sent} were sent on, {found.left} are left.")
    if found.state != "done":
        sys.exit(NOT_DONE)


@dlq.command()
@click.argument("topic", required=False)
@json_option()
@cluster_options
def redrives(target: Target, topic: str | None, as_json: bool) -> None:
    """List the redrives that run, and those of the last seven days."""
    with _admin(target.client_arguments()) as admin:
        found = admin.list_redrives(topic)
    if as_json:
        show_json([_as_json(row) for row in found])
    elif found:
        rows = [
            [
                row.number,
                row.topic,
                row.to or "its origin",
                row.state,
                row.sent,
                row.left,
                moment(row.started_ms),
                "" if row.ended_ms is None else moment(row.ended_ms),
            ]
            for row in found
        ]
        show_table("", ["number", "of", "to", "state", "sent", "left", "started", "ended"], rows)
    else:
        click.echo("There was no redrive in the last seven days.")


def _as_json(row: Redrive) -> dict[str, object]:
    return {
        "number": row.number,
        "topic": row.topic,
        "to": row.to,
        "where": dict(row.where),
        "rate": row.rate,
        "state": row.state,
        "sent": row.sent,
        "left": row.left,
        "started_ms": row.started_ms,
        "ended_ms": row.ended_ms,
        "partitions": [
            {
                "partition": each.partition,
                "start": each.start,
                "position": each.position,
                "end": each.end,
                "sent": each.sent,
            }
            for each in row.partitions
        ],
    }


@dlq.command()
@click.argument("number", type=click.IntRange(1))
@json_option()
@cluster_options
def cancel(target: Target, number: int, as_json: bool) -> None:
    """End a redrive; what it has sent stays where it is."""
    with _admin(target.client_arguments()) as admin:
        ends = admin.cancel_redrive(number)
    show_done(as_json, {"number": number, "cancelled": ends}, *([f"Redrive {number} ends."] if ends else []))
    if ends:
        return
    click.echo(f"Redrive {number} had ended before.", err=True)
    sys.exit(NOT_DONE)


@dlq.command()
@click.argument("topic")
@click.option("--yes", is_flag=True, help="Skip the confirmation prompt.")
@json_option()
@cluster_options
def purge(target: Target, topic: str, yes: bool, as_json: bool) -> None:
    """Delete all dead letters of a topic, for good."""
    target.require_own()
    with _admin(target.client_arguments()) as admin:
        partitions = len(admin.describe_topic(topic).partitions)
        if not yes:
            click.confirm(f"Delete all records of {topic}?", abort=True, err=True)
        begins = admin.delete_records({(topic, number): -1 for number in range(partitions)})
    rows = [{"partition": each.partition, "low_watermark": offset} for each, offset in sorted(begins.items())]
    show_done(as_json, {"topic": topic, "partitions": rows}, f"{topic} is empty.")
