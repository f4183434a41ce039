"""`raylog group`: list, describe and delete consumer groups, and move their offsets."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from raylog.base.ids import TopicPartition
from raylog.cli.commands import Commands
from raylog.cli.groups.description import Section, plain, progress, show
from raylog.cli.options import Target, cluster_options, confirm, json_option, read_moment, yes_option
from raylog.cli.output import counted, show_done, show_each, show_json, show_table
from raylog.core.groups.states import STATES_BY_TYPE, GroupType, named_states, named_types

if TYPE_CHECKING:
    from raylog.client.admin.admin import Admin
    from raylog.client.admin.reset_plan import PlannedOffset, ResetPlan


TYPES: Final = [each.value for each in GroupType]
STATES: Final = list(dict.fromkeys(state for each in STATES_BY_TYPE.values() for state in each))
NOT_DONE: Final = 1
"""Exit code when some members were not removed."""


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
    metavar="STATE",
    multiple=True,
    help=f"Only groups in this state, one of {', '.join(STATES)}; may be repeated.",
)
@click.option(
    "--type",
    "types",
    metavar="TYPE",
    multiple=True,
    help=f"Only groups of this protocol, {' or '.join(TYPES)}; may be repeated.",
)
@json_option()
@cluster_options
def list_(target: Target, states: tuple[str, ...], types: tuple[str, ...], as_json: bool) -> None:
    """List the groups, their states, and the protocols that their members use."""
    try:
        named_states(states, named_types(types))
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None
    with _admin(target.client_arguments()) as admin:
        groups = admin.list_groups(states or None, types=types or None)
    if as_json:
        show_json(
            [
                {
                    "group": group.group_id,
                    "state": group.state,
                    "protocol_type": group.protocol_type,
                    "type": group.group_type,
                }
                for group in groups
            ]
        )
    elif groups:
        show_table(
            "", ["group", "state", "type"], [[group.group_id, group.state, group.group_type] for group in groups]
        )
    elif states or types:
        click.echo(f"No group is {' and '.join(' or '.join(each) for each in (states, types) if each)}.")
    else:
        click.echo("No groups yet; a consumer with a group_id makes one.")


@group.command()
@click.argument("name")
@click.option("--state", is_flag=True, help="Only its state and epochs.")
@click.option("--members", is_flag=True, help="Only its members.")
@click.option("--offsets", is_flag=True, help="Only its offsets and lag.")
@json_option("As JSON: everything.")
@cluster_options
def describe(target: Target, name: str, state: bool, members: bool, offsets: bool, as_json: bool) -> None:
    """Show state, members, committed offsets and lag of a group, or the parts that are chosen.

    Members of the consumer protocol are shown with their epochs and their target assignment. The lag is shown in
    records, and in seconds since the timestamp of the oldest record that the group has not read.
    """
    chosen = [each for each, is_chosen in zip(Section, (state, members, offsets), strict=True) if is_chosen]
    sections = chosen or list(Section)
    with _admin(target.client_arguments()) as admin:
        found = admin.describe_group(name)
        rows = progress(found, admin.group_lag(found)) if as_json or Section.OFFSETS in sections else []
    if as_json:
        show_json(plain(found, rows))
    else:
        show(found, rows, sections)


@group.command(name="delete-offsets")
@click.argument("name")
@click.argument("topic")
@click.option("--partition", "partitions", type=int, multiple=True, help="Only of this partition; may be repeated.")
@json_option()
@cluster_options
def delete_offsets(target: Target, name: str, topic: str, partitions: tuple[int, ...], as_json: bool) -> None:
    """Delete the offsets that a group has committed for a topic. No member may be subscribed to it."""
    target.require_own()
    with _admin(target.client_arguments()) as admin:
        found = admin.describe_group(name)
        places = [*found.offsets, *(each.partition for each in found.deleted_offsets)]
        held = {each.partition for each in places if each.topic == topic}
        wanted = sorted(held & set(partitions) if partitions else held)
        admin.delete_offsets(name, [(topic, number) for number in wanted])
    show_done(
        as_json,
        {"group": name, "topic": topic, "partitions": wanted},
        f"Group {name} has no committed offsets for {counted(len(wanted), 'partition')} of {topic} any more.",
    )


@group.command(name="reset-offsets")
@click.argument("name")
@click.option("--to", metavar="WHERE", help="earliest, latest, or an offset.")
@click.option(
    "--time",
    callback=read_moment,
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
@click.option("--execute", is_flag=True, help="Do it; without this option the command only shows what would change.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing: the default.")
@json_option()
@cluster_options
def reset_offsets(
    target: Target,
    name: str,
    to: str | None,
    time: datetime | int | None,
    by: int | None,
    topics: tuple[str, ...],
    execute: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move the committed offsets of a group without members: all that are named, or none.

    As with Kafka's tool, without --execute the command shows what would change, and changes nothing.
    """
    if execute and dry_run:
        raise click.UsageError("--execute and --dry-run say different things; give one of them")
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
        plan = admin.reset_offsets(name, to=where, time=time, by=by, partitions=topics or None, dry_run=not execute)
    _show_plan(plan, as_json=as_json)


def _show_plan(plan: ResetPlan, *, as_json: bool) -> None:
    rows = [_planned_row(each) for each in plan.offsets]
    if as_json:
        left_out = [str(each) for each in plan.left_out]
        members = list(plan.members)
        show_json({"group": plan.group_id, "done": plan.is_done, "offsets": rows, "members": members, "gone": left_out})
        return
    if rows:
        show_table("", [*rows[0]], [["-" if cell is None else cell for cell in row.values()] for row in rows])
    for each in plan.left_out:
        click.echo(f"{each} is left out: its topic was deleted. `raylog group delete-offsets` removes its offset.")
    if plan.is_done:
        click.echo(f"Group {plan.group_id} continues there.")
    elif not rows:
        click.echo(f"Group {plan.group_id} has no offsets to move; --topic names partitions that it has not read yet.")
    else:
        click.echo("Nothing was changed; the same command with --execute does it.")
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
@json_option("As a JSON list.")
@cluster_options
def remove_members(
    target: Target, name: str, members: tuple[str, ...], instances: tuple[str, ...], all_members: bool, as_json: bool
) -> None:
    """Remove members that a dead process left behind; a consumer that still runs joins again."""
    if all_members == bool(members or instances):
        raise click.UsageError("Name members, or instances with --instance, or give --all.")
    with _admin(target.client_arguments()) as admin:
        results = admin.remove_members(name, members, instances=instances, all_members=all_members)
    show_each(
        as_json,
        (
            (
                {
                    "group": name,
                    "member": member,
                    "removed": error is None,
                    "error": "" if error is None else type(error).__name__,
                    "message": "" if error is None else error.message,
                },
                f"{member} was removed from group {name}." if error is None else f"{member}: {error.message}",
            )
            for member, error in results.items()
        ),
    )
    if not results and not as_json:
        click.echo(f"Group {name} has no members.")
    if any(error is not None for error in results.values()):
        sys.exit(NOT_DONE)


@group.command(name="set-offset")
@click.argument("name")
@click.argument("topic")
@click.option("--partition", type=click.IntRange(min=0), required=True, help="The partition.")
@click.option("--offset", type=click.IntRange(min=0), required=True, help="Of the record that the group reads next.")
@json_option()
@cluster_options
def set_offset(target: Target, name: str, topic: str, partition: int, offset: int, as_json: bool) -> None:
    """Commit an offset for a group without members. An offset that a transaction has pending there is dropped."""
    with _admin(target.client_arguments()) as admin:
        admin.alter_group_offsets(name, {TopicPartition(topic, partition): offset})
    show_done(
        as_json,
        {"group": name, "topic": topic, "partition": partition, "offset": offset},
        f"Group {name} continues with offset {offset} of {topic}-{partition}.",
    )


@group.command()
@click.argument("names", nargs=-1, required=True)
@yes_option
@json_option("As a JSON list.")
@cluster_options
def delete(target: Target, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete groups without members, with their committed offsets."""
    target.require_own()
    confirm(f"Delete {', '.join(names)} with all committed offsets?", yes)
    with _admin(target.client_arguments()) as admin:
        show_each(as_json, (_deleted(admin, name) for name in names))


def _deleted(admin: Admin, name: str) -> tuple[dict[str, object], str]:
    admin.delete_group(name)
    return {"group": name, "deleted": True}, f"Group {name} deleted."
