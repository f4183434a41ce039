"""`raylog group`: list, describe and delete consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from raylog.cli.options import Commands, Target, cluster_options
from raylog.cli.output import show_json, show_table
from raylog.core.ids import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raylog.client.admin.admin import Admin
    from raylog.client.admin.descriptions import GroupDescription, MemberDescription
    from raylog.client.admin.lag import PartitionLag


@click.group(cls=Commands)
def group() -> None:
    """List, describe and delete consumer groups."""


def _admin(arguments: dict[str, Any]) -> Admin:
    from raylog.client.admin.admin import Admin

    return Admin(**arguments)


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@cluster_options
def list_(target: Target, as_json: bool) -> None:
    """List the groups and their states."""
    with _admin(target.client_arguments()) as admin:
        groups = admin.list_groups()
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
    else:
        click.echo("No groups yet; a consumer with a group_id makes one.")


def _epochs(member: MemberDescription) -> dict[str, object]:
    return {
        "epoch": member.member_epoch,
        "state": member.member_state,
        "topics": list(member.topics),
        "revoking": [str(each) for each in member.revoking],
        "target": [str(each) for each in member.target],
    }


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
        show_json(
            {
                "group": found.group_id,
                "state": found.state,
                "protocol": found.protocol,
                "generation": found.generation,
                "type": found.group_type,
                **({"target_epoch": found.target_epoch} if found.group_type == "consumer" else {}),
                "members": [
                    {
                        "member_id": member.member_id,
                        "client_id": member.client_id,
                        "instance_id": member.instance_id,
                        "assignment": [str(each) for each in member.assignment],
                        **(_epochs(member) if found.group_type == "consumer" else {}),
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
        )
        return
    count = len(found.members)
    if found.group_type == "consumer":
        generation = f"consumer protocol, epoch {found.generation}, target epoch {found.target_epoch}"
    else:
        generation = f"generation {found.generation}"
    click.echo(f"Group {found.group_id}: {found.state}, {generation}, {count} {'member' if count == 1 else 'members'}")
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
    """Delete the offsets that a group without members has committed for a topic."""
    with _admin(target.client_arguments()) as admin:
        held = {each.partition for each in admin.describe_group(name).offsets if each.topic == topic}
        wanted = sorted(held & set(partitions) if partitions else held)
        admin.delete_offsets(name, [(topic, number) for number in wanted])
        click.echo(f"Group {name} has no committed offsets for {len(wanted)} partitions of {topic} any more.")


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
