"""`raylog features`: the cluster's feature level, which rises after all brokers have been upgraded."""

from __future__ import annotations

import click

from raylog.cli.commands import Commands
from raylog.cli.options import Target, cluster_options, json_option
from raylog.cli.output import show_done, show_json, show_table


@click.group(cls=Commands)
def features() -> None:
    """Show the cluster's feature level, and raise it after an upgrade."""


@features.command()
@json_option()
@cluster_options
def show(target: Target, as_json: bool) -> None:
    """Show the cluster's feature level, and the levels that each broker's release supports."""
    from raylog.client.admin.admin import Admin

    with Admin(**target.client_arguments()) as admin:
        found = admin.describe_features()
    if as_json:
        brokers = {str(broker): list(levels) for broker, levels in found.brokers.items()}
        show_json({"level": found.level, "brokers": brokers})
        return
    click.echo(f"The cluster is at feature level {found.level}.")
    show_table("", ["broker", "lowest", "highest"], [[broker, *levels] for broker, levels in found.brokers.items()])


@features.command()
@click.option("--level", type=int, help="Raise it to this level; default: the highest that every broker knows.")
@json_option()
@cluster_options
def upgrade(target: Target, level: int | None, as_json: bool) -> None:
    """Let the cluster use what the brokers' newer release brings. This cannot be undone."""
    from raylog.client.admin.admin import Admin

    with Admin(**target.client_arguments()) as admin:
        now, before = admin.raise_feature_level(level)
    show_done(
        as_json,
        {"level": now, "before": before},
        f"The cluster is at feature level {now}, raised from {before}."
        if now > before
        else f"The cluster is at feature level {now} already, the highest that every broker knows.",
    )
