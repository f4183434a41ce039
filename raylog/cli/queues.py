"""`raylog queue`: the groups that work on topics as queues, which of their records are locked or wait, and resets."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from raylog.cli.commands import Commands
from raylog.cli.options import Target, cluster_options, json_option
from raylog.cli.output import show_done, show_each, show_json, show_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raylog.client.admin.admin import Admin
    from raylog.client.admin.queues import QueueDescription


@click.group(cls=Commands)
def queue() -> None:
    """List, describe, look into and reset queues."""


def _admin(arguments: dict[str, Any]) -> Admin:
    from raylog.client.admin.admin import Admin

    return Admin(**arguments)


@queue.command("list")
@json_option()
@cluster_options
def list_(target: Target, as_json: bool) -> None:
    """List the groups that work on topics as queues."""
    with _admin(target.client_arguments()) as admin:
        found = admin.list_queues()
    if as_json:
        show_json([dataclasses.asdict(row) for row in found])
    elif found:
        rows = [[row.group_id, row.topic, len(row.partitions), _settings(row.settings)] for row in found]
        show_table("", ["group", "topic", "partitions", "settings"], rows)
    else:
        click.echo("No queues yet; a QueueConsumer with a group_id makes one.")


@queue.command()
@click.argument("group")
@click.option("--topic", help="Only this topic.")
@json_option()
@cluster_options
def describe(target: Target, group: str, topic: str | None, as_json: bool) -> None:
    """Show the backlog of a queue, what is locked or waits, its members and its dead letters."""
    with _admin(target.client_arguments()) as admin:
        found = admin.describe_queue(group, topic)
    if as_json:
        show_json([dataclasses.asdict(row) for row in found])
        return
    rows = [
        [
            f"{row.topic}-{row.partition}",
            row.start,
            row.backlog,
            row.available,
            row.acquired,
            row.waiting,
            row.archiving,
            len(row.members),
        ]
        for row in found
    ]
    head = ["partition", "start", "backlog", "not begun", "locked", "waiting", "dead letters under way", "members"]
    show_table(f"Queue of group {group}: {_settings(found[0].settings)}", head, rows)
    for line in _troubles(found):
        click.echo(line)


def _troubles(found: Sequence[QueueDescription]) -> Iterator[str]:
    """A sentence for everything that holds up a queue or its dead letters."""

    def total(name: str) -> int:
        return sum(row.counters.get(name, 0) for row in found)

    if failures := total("dead_letter_failures"):
        yield f"Its dead-letter topic was not there {failures} times; they wait until it is."
    for row in found:
        if row.is_full and row.oldest is not None:
            oldest = row.oldest
            until = "" if oldest.left_ms is None else f" for another {oldest.left_ms / 1000:.0f} s"
            yield (
                f"{row.topic}-{row.partition} is full (queue.window.max): no further record is handed out before "
                f"others are finished. The first of them, {oldest.first}, is {oldest.state}{until}."
            )
        if row.held:
            topic = row.dead_letter_topic or "__undeliverable"
            yield (
                f"{row.held} dead letters of {row.topic}-{row.partition} are too large for {topic} and wait: raise its "
                "max.message.bytes; errors.deadletterqueue.on.failure=drop sends them without their bodies."
            )
    if bodiless := total("dead_letters_without_body"):
        yield f"{bodiless} dead letters have no body: each says why in its header __dlq.errors.message."
    if undeliverable := total("dead_letters_undeliverable"):
        yield f"{undeliverable} dead letters were refused by their topic, and are in __undeliverable."


@queue.command()
@click.argument("group")
@click.option("--topic", help="Only this topic.")
@click.option("--partition", type=click.IntRange(0), help="Only this partition.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="From this offset on.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Rows of a partition.")
@json_option()
@cluster_options
def peek(
    target: Target, group: str, topic: str | None, partition: int | None, first: int, limit: int, as_json: bool
) -> None:
    """Show which records are locked, by which members, and which wait; nothing is changed."""
    with _admin(target.client_arguments()) as admin:
        found = admin.peek_queue(group, topic, partition=partition, first=first, limit=limit)
    if as_json:
        show_json([dataclasses.asdict(row) for row in found])
        return
    if not found:
        click.echo("Everything that was handed out is finished.")
        return
    rows = [
        [
            f"{row.topic}-{row.partition}",
            row.first if row.end == row.first + 1 else f"{row.first} to {row.end - 1}",
            row.state,
            row.delivery_count,
            "" if row.left_ms is None else f"{row.left_ms / 1000:.1f} s",
            row.member_id or row.message,
        ]
        for row in found
    ]
    show_table("", ["partition", "offsets", "state", "handed out", "left", "member or reason"], rows)


@queue.command()
@click.argument("group")
@click.argument("topic")
@click.option("--to", "to", required=True, help="earliest, latest, an offset, or a time in milliseconds since 1970.")
@json_option("As a JSON list.")
@cluster_options
def reset(target: Target, group: str, topic: str, to: str, as_json: bool) -> None:
    """Let a queue without members continue at another offset."""
    with _admin(target.client_arguments()) as admin:
        moved = admin.reset_queue(group, topic, to=int(to) if to.isdigit() else to)
    show_each(
        as_json,
        (
            (
                {"group": group, "topic": place.topic, "partition": place.partition, "offset": offset},
                f"{place} goes on at offset {offset}.",
            )
            for place, offset in sorted(moved.items())
        ),
    )


@queue.command()
@click.argument("group")
@click.option("--topic", help="Only this topic.")
@json_option()
@cluster_options
def delete(target: Target, group: str, topic: str | None, as_json: bool) -> None:
    """Delete the state of a queue without members; members that come later begin from scratch."""
    target.require_own()
    with _admin(target.client_arguments()) as admin:
        admin.delete_queue(group, topic)
    show_done(as_json, {"group": group, "topic": topic, "deleted": True}, f"The queue of group {group} is forgotten.")


def _settings(settings: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(settings.items())) or "as its topic has it"
