"""`raylog schedule`: list, cancel and move the delayed records that wait."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from raylog.cli.commands import Commands
from raylog.cli.options import Target, cluster_options, json_option
from raylog.cli.output import json_bytes, moment, show_done, show_json, show_table, shown_key

if TYPE_CHECKING:
    from raylog.client.admin.schedules import MovedRecord, Scheduled

NOT_DONE = 1
"""Exit code where a record could not be cancelled or moved."""


@click.group(cls=Commands)
def schedule() -> None:
    """List, cancel and move delayed records."""


@schedule.command("list")
@click.option("--topic", help="Only records on their way to this topic.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many records.")
@json_option()
@cluster_options
def list_(target: Target, topic: str | None, limit: int, as_json: bool) -> None:
    """List the delayed records that wait, ordered by the time when they are due."""
    with target.admin() as admin:
        found = admin.list_scheduled(topic, limit=limit)
        if topic is not None and not found:
            admin.describe_topic(topic)  # an unknown topic is an error
    if as_json:
        show_json([_as_json(row) for row in found])
    elif found:
        _show(found)
    else:
        click.echo("No delayed record waits; `raylog produce --delay 30m` or send(..., delay=) makes one.")


def _show(found: list[Scheduled]) -> None:
    rows = [
        [
            row.handle,
            row.topic,
            "by key" if row.partition is None else row.partition,
            moment(row.due_ms),
            shown_key(row.key),
            row.schedule_id or "-",
        ]
        for row in found
    ]
    show_table("", ["handle", "topic", "partition", "due", "key", "id"], rows)


def _as_json(row: Scheduled) -> dict[str, object]:
    return {
        "handle": row.handle,
        "topic": row.topic,
        "partition": row.partition,
        "due_ms": row.due_ms,
        "sent_ms": row.sent_ms,
        **json_bytes("key", row.key),
        "value_bytes": row.value_bytes,
        "schedule_id": row.schedule_id,
    }


@schedule.command()
@click.option("--topic", help="Only the scheduler of this topic's records.")
@click.option("--id", "schedule_id", help="What waits for --topic under this schedule id.")
@json_option()
@cluster_options
def describe(target: Target, topic: str | None, schedule_id: str | None, as_json: bool) -> None:
    """Show how many records wait, how late they come, and which targets take none; or a record by its schedule id."""
    if schedule_id is not None:
        if topic is None:
            raise click.UsageError("A schedule id is one of a topic: give --topic, too.")
        with target.admin() as admin:
            waiting = admin.find_scheduled(topic, schedule_id)
        if waiting is None:
            _end("NOT_FOUND", "", {"topic": topic, "schedule_id": schedule_id}, as_json)
        elif as_json:
            show_json(_as_json(waiting))
        else:
            _show([waiting])
        return
    with target.admin() as admin:
        found = admin.describe_scheduled(topic)
    if as_json:
        show_json(
            [
                {
                    "partition": row.partition,
                    "clock_ms": row.clock_ms,
                    "waiting": row.waiting,
                    "next_due_ms": row.next_due_ms,
                    "delivered": row.delivered,
                    "cancelled": row.cancelled,
                    "runs": row.runs,
                    "lateness_p99_ms": row.lateness_p99_ms,
                    "clock_step_ms": row.clock_step_ms,
                    "parked": [
                        {"topic": name, "partition": number, "waiting": count}
                        for (name, number), count in row.parked.items()
                    ],
                }
                for row in found
            ]
        )
        return
    if not found:
        click.echo("No record was ever delayed in this cluster.")
    for row in found:
        due = "none waits" if row.next_due_ms is None else f"the next is due {moment(row.next_due_ms)}"
        click.echo(
            f"__scheduled-{row.partition}: {row.waiting} wait, {due}; {row.delivered} delivered and {row.cancelled} "
            f"cancelled since its leader began, 99 % within {row.lateness_p99_ms} ms."
        )
        for (name, number), count in row.parked.items():
            click.echo(f"  {count} wait for {name}-{number}, which takes none at the moment.")
        if row.clock_step_ms:
            click.echo(
                f"  The clock of its machine was set by {row.clock_step_ms / 1000:+.0f} s, which is not followed; set "
                "it right, or move the leadership to another broker."
            )


def _one_record(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name a record; the command gets them in ``named``, as keyword arguments for `Admin`."""

    @wraps(command)
    def named(handle: str | None, topic: str | None, schedule_id: str | None, **options: Any) -> None:
        if (handle is None) == (schedule_id is None) or (topic is None) != (schedule_id is None):
            raise click.UsageError("A record is named by its handle, or by --topic and --id: give one of both.")
        command(named={"handle": handle, "topic": topic, "schedule_id": schedule_id}, **options)

    with_id = click.option("--id", "schedule_id", help="The schedule id under which the record was sent to --topic.")
    with_topic = click.option("--topic", help="The topic of the record with --id.")
    return click.argument("handle", required=False)(with_topic(with_id(named)))


@schedule.command()
@_one_record
@json_option()
@cluster_options
def cancel(target: Target, named: dict[str, Any], as_json: bool) -> None:
    """Cancel a delayed record, so that it is not delivered."""
    with target.admin() as admin:
        outcome = admin.cancel_scheduled(**named)
    _end(outcome, f"{named['handle'] or named['schedule_id']} is cancelled: it is not delivered.", named, as_json)


@schedule.command()
@_one_record
@click.option("--delay", required=True, help="From now on, such as 30m, 1h30m or level:5.")
@json_option()
@cluster_options
def move(target: Target, named: dict[str, Any], delay: str, as_json: bool) -> None:
    """Move a delayed record to another time."""
    with target.admin() as admin:
        moved = admin.reschedule(**named, delay=delay)
    _show_moved(moved, named, as_json)


@schedule.command("deliver-now")
@_one_record
@json_option()
@cluster_options
def deliver_now(target: Target, named: dict[str, Any], as_json: bool) -> None:
    """Deliver a delayed record at once."""
    with target.admin() as admin:
        moved = admin.deliver_now(**named)
    _show_moved(moved, named, as_json)


def _show_moved(moved: MovedRecord, named: dict[str, Any], as_json: bool) -> None:
    sentence = f"It is due {moment(moved.due_ms)}; its handle is {moved.handle} now."
    facts = {**named, "handle": moved.handle or named["handle"], "due_ms": moved.due_ms if moved.due_ms >= 0 else None}
    _end(moved.outcome, sentence, facts, as_json)


def _end(outcome: str, done: str, facts: dict[str, Any], as_json: bool) -> None:
    sentences = {
        "ALREADY_DELIVERED": "It was due before: it is in its topic, or on the way there.",
        "ALREADY_CANCELLED": "It was cancelled or moved before; `raylog schedule list` shows what waits.",
        "NOT_FOUND": "No record waits or waited under this handle or id; `raylog schedule list` shows what waits.",
    }
    is_done = outcome not in sentences
    show_done(as_json, {"outcome": str(outcome), **facts}, *([done] if is_done else []))
    if not is_done:
        click.echo(sentences[outcome], err=True)
        sys.exit(NOT_DONE)
