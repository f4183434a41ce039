"""`raylog half`: half messages without decision, and deciding about them by hand."""

from __future__ import annotations

import click

from raylog.cli.commands import Commands
from raylog.cli.options import Target, cluster_options, json_option
from raylog.cli.output import moment, show_done, show_json, show_table


@click.group(cls=Commands)
def half() -> None:
    """List half messages without decision, commit them or roll them back."""


@half.command("list")
@click.option("--group", help="Only those of this group.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
@json_option()
@cluster_options
def list_(target: Target, group: str | None, limit: int, as_json: bool) -> None:
    """List half messages without decision, the oldest first."""
    with target.admin() as admin:
        found = admin.list_half_messages(group, limit=limit)
    if as_json:
        show_json(
            [
                {
                    "group": row.group,
                    "txid": row.txid,
                    "prepared_ms": row.prepared_ms,
                    "next_check_ms": row.next_check_ms,
                    "checks": row.checks,
                    "is_unresolved": row.is_unresolved,
                    "topics": list(row.topics),
                    "records": row.records,
                }
                for row in found
            ]
        )
    elif found:
        rows = [
            [
                row.group,
                row.txid,
                moment(row.prepared_ms),
                f"{row.checks}, decide by hand" if row.is_unresolved else row.checks,
                row.records,
                " ".join(row.topics),
            ]
            for row in found
        ]
        show_table("", ["group", "txid", "prepared", "checks", "records", "topics"], rows)
    else:
        click.echo("No half message waits for a decision.")


@half.command()
@click.argument("group")
@click.argument("txid")
@json_option()
@cluster_options
def commit(target: Target, group: str, txid: str, as_json: bool) -> None:
    """Make the records of a half message visible."""
    with target.admin() as admin:
        admin.commit_half_message(group, txid)
    show_done(
        as_json,
        {"group": group, "txid": txid, "decision": "commit"},
        f"{txid} of {group} is committed: its records are on their way to their topics.",
    )


@half.command()
@click.argument("group")
@click.argument("txid")
@json_option()
@cluster_options
def rollback(target: Target, group: str, txid: str, as_json: bool) -> None:
    """Drop the records of a half message."""
    with target.admin() as admin:
        admin.rollback_half_message(group, txid)
    show_done(
        as_json,
        {"group": group, "txid": txid, "decision": "rollback"},
        f"{txid} of {group} is rolled back: its records are dropped.",
    )
