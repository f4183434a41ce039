"""What `raylog group describe` shows of a group: its state, its members and its offsets, as tables or as JSON.

Kafka's tool has `--state`, `--members` and `--offsets` for the same three sections.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import click

from raylog.cli.output import show_table
from raylog.core.groups.states import AWAY_EPOCH, GroupType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from raylog.base.ids import TopicPartition
    from raylog.client.admin.descriptions import GroupDescription, MemberDescription
    from raylog.client.admin.lag import PartitionLag


class Section(Enum):
    """A part of a description; the value is the name of the option that chooses it."""

    STATE = "state"
    MEMBERS = "members"
    OFFSETS = "offsets"


OFFSET_COLUMNS: Final = ["topic", "partition", "committed", "end", "lag", "lag (s)", "member"]


def _epochs(member: MemberDescription) -> dict[str, object]:
    return {
        "epoch": member.member_epoch,
        "state": member.member_state,
        "topics": list(member.topics),
        "revoking": [str(each) for each in member.revoking],
        "target": [str(each) for each in member.target],
    }


def plain(found: GroupDescription, rows: list[dict[str, Any]]) -> dict[str, object]:
    """The whole description for JSON, with the rows of `progress`."""
    return {
        "group": found.group_id,
        "state": found.state,
        "protocol": found.protocol,
        "protocol_type": found.protocol_type,
        "type": found.group_type,
        "generation": found.generation,
        **({"target_epoch": found.target_epoch} if _has_epochs(found) else {}),
        "coordinator": found.coordinator,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "instance_id": member.instance_id,
                "assignment": [str(each) for each in member.assignment],
                **(_epochs(member) if _has_epochs(found) else {}),
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
        "deleted_offsets": [
            {
                "topic": each.partition.topic,
                "topic_id": each.topic_id,
                "partition": each.partition.partition,
                "committed": each.offset,
            }
            for each in found.deleted_offsets
        ],
    }


def _has_epochs(found: GroupDescription) -> bool:
    return found.group_type == GroupType.CONSUMER.value


def show(found: GroupDescription, rows: list[dict[str, Any]], sections: Collection[Section]) -> None:
    """Print these sections, with the rows of `progress`."""
    if Section.STATE in sections:
        _show_state(found)
    if Section.MEMBERS in sections and found.members:
        _show_members(found)
    elif Section.MEMBERS in sections and Section.STATE not in sections:
        click.echo(f"Group {found.group_id} has no members.")
    if Section.OFFSETS in sections:
        _show_offsets(found, rows)


def _show_state(found: GroupDescription) -> None:
    count = len(found.members)
    if _has_epochs(found):
        generation = f"consumer protocol, epoch {found.generation}, target epoch {found.target_epoch}"
    else:
        generation = f"classic protocol, generation {found.generation}"
    click.echo(
        f"Group {found.group_id}: {found.state}, {generation}, {count} {'member' if count == 1 else 'members'}"
        + (f", {found.protocol}" if found.protocol else "")
        + (f", coordinator at {found.coordinator}" if found.coordinator else "")
    )


def _show_members(found: GroupDescription) -> None:
    has_epochs = _has_epochs(found)
    columns = ["member", "client", "host", "instance", "partitions"]
    rows = [
        [each.member_id, each.client_id, each.client_host or "-", each.instance_id or "-", _places(each.assignment)]
        for each in found.members
    ]
    if has_epochs:
        columns += ["epoch", "state", "target epoch", "target"]
        for row, each in zip(rows, found.members, strict=True):
            row += [_epoch(each), each.member_state, str(found.target_epoch), _places(each.target)]
    show_table("", columns, rows)
    for each in found.members:
        if each.revoking:
            click.echo(f"{each.member_id} has to give up {_places(each.revoking)}.")


def _epoch(member: MemberDescription) -> str:
    return "away" if member.member_epoch == AWAY_EPOCH else str(member.member_epoch)


def _show_offsets(found: GroupDescription, rows: list[dict[str, Any]]) -> None:
    if rows:
        show_table("", OFFSET_COLUMNS, [["-" if cell is None else cell for cell in row.values()] for row in rows])
    if found.deleted_offsets:
        places = _places({each.partition for each in found.deleted_offsets})
        click.echo(f"Offsets of deleted topics, which no consumer reads from: {places}")
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


def _places(partitions: Iterable[TopicPartition]) -> str:
    """Partitions as `topic:0,2`, the form in which options take them."""
    numbers: dict[str, list[str]] = {}
    for each in sorted(partitions):
        numbers.setdefault(each.topic, []).append(str(each.partition))
    return " ".join(f"{topic}:{','.join(some)}" for topic, some in numbers.items()) or "-"


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
