"""`raylog group`: list, describe and delete consumer groups, and move their offsets."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from raylog.cli.options import Commands, Target, cluster_options
from raylog.cli.output import show_json, show_table
from raylog.core.groups.states import GroupState
from raylog.core.ids import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from raylog.client.admin.admin import Admin
    from raylog.client.admin.descriptions import GroupDescription
    from raylog.client.admin.lag import PartitionLag
    from raylog.client.admin.reset_plan import PlannedOffset, ResetPlan


STATES: Final = [each.value for each in GroupState if each is not GroupState.DEAD]
NOT_DONE: Final = 1
"""Exit code where some members were not removed."""


def _moment(ctx: click.Context, param: click.Parameter, text: str | None) -> datetime | int | None:
    """A time: in milliseconds since 1970, or ISO 8601 with a zone."""
    if text is None or text.isdecimal():
        return None if text is None else int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        example = "2026-03-01T12:00:00+01:00"
        reason = f"{text!r} is no time such as {example}, nor milliseconds since 1970"
        raise click.BadParameter(reason, ctx, param) from None
    if found.tzinfo is None:
        raise click.BadParameter(f"{text!r} has no zone; add one, such as Z or +01:00", ctx, param)
    return found


@click.group(cls=Commands)
def group() -> None:
    """List, describe and delete consumer groups, and move their offsets."""


def _admin(arguments: dict[str, Any]) -> Admin:
    from raylog.client.admin.admin import Admin

    return Admin(**arguments)


@group.command("list")
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    help="Only groups in this state; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@cluster_options
def list_(target: Target, states: tuple[str, ...], as_json: bool) -> None:
    """List the groups and their states."""
    with _admin(target.client_arguments()) as admin:
        groups = admin.list_groups(states or None)
    if as_json:
        show_json(
            [{"group": group.group_id, "state": group.state, "protocol_type": group.protocol_type} for group in groups]
        )
    elif groups:
        show_table("", ["group", "state"], [[group.group_id, group.state] for group in groups])
    elif states:
        click.echo(f"No group is {' or '.join(states)}.")
    else:
        click.echo("No groups yet; a consumer with a group_id makes one.")


@group.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@cluster_options
def describe(target: Target, name: str, as_json: bool) -> None:
    """Show members, committed offsets and lag of a group.

    The lag is shown in records, and in seconds since the oldest record that the group has not read was made.
    """
    with _admin(target.client_arguments()) as admin:
        found = admin.describe_group(name)
        lags = admin.group_lag(found)
    rows = progress(found, lags)
    if as_json:
        show_json(_described(found, rows))
    else:
        _show_group(found, rows)


def _described(found: GroupDescription, rows: list[dict[str, Any]]) -> dict[str, object]:
    return {
        "group": found.group_id,
        "state": found.state,
        "protocol": found.protocol,
        "generation": found.generation,
        "coordinator": found.coordinator,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "instance_id": member.instance_id,
                "assignment": [str(each) for each in member.assignment],
            }
            for member in found.members
        ],
        "partitions": rows,
        "pending_offsets": [
            {
                "topic": pending.partition.topic,
                "partition": pending.partition.partition,
                "offset": pending.offset,
                "producer_id": pending.producer_id,
                "producer_epoch": pending.producer_epoch,
            }
            for pending in found.pending_offsets
        ],
    }


def _show_group(found: GroupDescription, rows: list[dict[str, Any]]) -> None:
    count = len(found.members)
    click.echo(
        f"Group {found.group_id}: {found.state}, generation {found.generation}, "
        f"{count} {'member' if count == 1 else 'members'}"
        + (f", {found.protocol}" if found.protocol else "")
        + (f", coordinator at {found.coordinator}" if found.coordinator else "")
    )
    if found.members:
        show_table(
            "",
            ["member", "client", "host", "instance", "partitions"],
            [
                [
                    each.member_id,
                    each.client_id,
                    each.client_host or "-",
                    each.instance_id or "-",
                    _places(each.assignment),
                ]
                for each in found.members
            ],
        )
    if rows:
        show_table("", COLUMNS, [[_cell(row[name]) for name in row] for row in rows])
    for pending in found.pending_offsets:
        click.echo(
            f"Offset {pending.offset} of {pending.partition} is pending: it takes effect when the transaction of "
            f"producer id {pending.producer_id} (epoch {pending.producer_epoch}) commits."
        )
    if found.pending_offsets:
        place = found.pending_offsets[0].partition
        click.echo(
            "A producer id that `raylog transaction list` does not show will not commit. Then stop the group's "
            f"members, and end it with a commit: raylog group set-offset {found.group_id} {place.topic} "
            f"--partition {place.partition} --offset N"
        )


COLUMNS = ["topic", "partition", "committed", "end", "lag", "lag (s)", "member"]


def _places(partitions: Iterable[TopicPartition]) -> str:
    """Partitions as `topic:0,2`, the form in which commands take them."""
    numbers: dict[str, list[str]] = {}
    for each in sorted(partitions):
        numbers.setdefault(each.topic, []).append(str(each.partition))
    return " ".join(f"{topic}:{','.join(some)}" for topic, some in numbers.items()) or "-"


def _cell(value: object) -> object:
    return "-" if value is None else value


def progress(found: GroupDescription, lags: Mapping[TopicPartition, PartitionLag]) -> list[dict[str, Any]]:
    """A row for each partition that the group has read or is reading; `lag_seconds`: see `PartitionLag`."""
    owners = {item: member.client_id for member in found.members for item in member.assignment}
    return [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "committed": lag.committed,
            "end": lag.end,
            "lag": lag.records,
            "lag_seconds": lag.seconds,
            "member": owners.get(partition),
        }
        for partition, lag in sorted(lags.items())
    ]


@group.command(name="delete-offsets")
@click.argument("name")
@click.argument("topic")
@click.option("--partition", "partitions", type=int, multiple=True, help="Only of this partition; may be repeated.")
@cluster_options
def delete_offsets(target: Target, name: str, topic: str, partitions: tuple[int, ...]) -> None:
    """Delete the offsets that a group has committed for a topic; no member may subscribe to it."""
    with _admin(target.client_arguments()) as admin:
        held = {each.partition for each in admin.describe_group(name).offsets if each.topic == topic}
        wanted = sorted(held & set(partitions) if partitions else held)
        admin.delete_offsets(name, [(topic, number) for number in wanted])
        click.echo(f"Group {name} has no committed offsets for {len(wanted)} partitions of {topic} any more.")


@group.command(name="reset-offsets")
@click.argument("name")
@click.option("--to", metavar="WHERE", help="earliest, latest, or an offset.")
@click.option(
    "--time",
    callback=_moment,
    metavar="TIME",
    help="The first record that is not older: with a zone, or in ms since 1970.",
)
@click.option("--by", type=int, help="So many records on; back if negative.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,2]",
    help="A topic, or partitions of it; may be repeated. Default: all that the group has committed.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@cluster_options
def reset_offsets(
    target: Target,
    name: str,
    to: str | None,
    time: datetime | int | None,
    by: int | None,
    topics: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move the offsets of a group without members: all that are named, or none."""
    from raylog.client.admin.reset_plan import Target as Place
    from raylog.client.admin.reset_plan import named_partitions

    where: Any = int(to) if to is not None and to.isdecimal() else to
    try:
        Place.of(where, time, by)
        named_partitions(topics)
    except TypeError:
        raise click.UsageError("Give one of --to, --time and --by.") from None
    except ValueError as wrong:
        raise click.UsageError(str(wrong).replace("`to`", "--to").replace("`time`", "--time")) from None
    with _admin(target.client_arguments()) as admin:
        plan = admin.reset_offsets(name, to=where, time=time, by=by, partitions=topics or None, dry_run=dry_run)
    _show_plan(plan, as_json=as_json)


def _show_plan(plan: ResetPlan, *, as_json: bool) -> None:
    rows = [_planned_row(each) for each in plan.offsets]
    if as_json:
        left_out = [str(each) for each in plan.left_out]
        members = list(plan.members)
        show_json({"group": plan.group_id, "done": plan.is_done, "offsets": rows, "members": members, "gone": left_out})
        return
    if rows:
        show_table("", [*rows[0]], [[_cell(value) for value in row.values()] for row in rows])
    for each in plan.left_out:
        click.echo(f"{each} is left out: its topic was deleted. `raylog group delete-offsets` removes its offset.")
    if plan.is_done:
        click.echo(f"Group {plan.group_id} continues there.")
    elif not rows:
        click.echo(f"Group {plan.group_id} has no offsets to move; --topic names partitions that it has not read yet.")
    else:
        click.echo("Nothing was changed; the same command without --dry-run does it.")
        if plan.members:
            click.echo(f"The group is in use, by {', '.join(plan.members)}: stop these consumers first.")


def _planned_row(each: PlannedOffset) -> dict[str, object]:
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "committed": each.before,
        "new": each.after,
        "start": each.start,
        "end": each.end,
        "why": None if each.clamp is None else each.clamp.value,
    }


@group.command(name="remove-members")
@click.argument("name")
@click.argument("members", nargs=-1)
@click.option("--instance", "instances", multiple=True, help="A static member's group.instance.id; may be repeated.")
@click.option("--all", "all_members", is_flag=True, help="Every member.")
@cluster_options
def remove_members(
    target: Target, name: str, members: tuple[str, ...], instances: tuple[str, ...], all_members: bool
) -> None:
    """Remove members that a dead process left behind; a consumer that still runs joins again."""
    if all_members == bool(members or instances):
        raise click.UsageError("Name members, or instances with --instance, or give --all.")
    with _admin(target.client_arguments()) as admin:
        results = admin.remove_members(name, members, instances=instances, all_members=all_members)
    for member, error in results.items():
        click.echo(f"{member} was removed from group {name}." if error is None else f"{member}: {error.message}")
    if not results:
        click.echo(f"Group {name} has no members.")
    if any(error is not None for error in results.values()):
        sys.exit(NOT_DONE)


@group.command(name="set-offset")
@click.argument("name")
@click.argument("topic")
@click.option("--partition", type=click.IntRange(min=0), required=True, help="The partition.")
@click.option("--offset", type=click.IntRange(min=0), required=True, help="Of the record that the group reads next.")
@cluster_options
def set_offset(target: Target, name: str, topic: str, partition: int, offset: int) -> None:
    """Commit an offset for a group without members; what a transaction has pending there is dropped."""
    with _admin(target.client_arguments()) as admin:
        admin.alter_group_offsets(name, {TopicPartition(topic, partition): offset})
        click.echo(f"Group {name} continues with offset {offset} of {topic}-{partition}.")


@group.command()
@click.argument("names", nargs=-1, required=True)
@cluster_options
def delete(target: Target, names: tuple[str, ...]) -> None:
    """Delete groups without members, with their committed offsets."""
    with _admin(target.client_arguments()) as admin:
        for name in names:
            admin.delete_group(name)
            click.echo(f"Group {name} deleted.")
