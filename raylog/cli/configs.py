"""`raylog config`: every setting of a topic or of the cluster, with the value that counts and where it comes from."""

from __future__ import annotations

from dataclasses import asdict
from types import MappingProxyType
from typing import Final

import click

from raylog.cli.commands import Commands
from raylog.cli.options import Target, cluster_options, json_option
from raylog.cli.output import show_json, show_table

STYLE: Final = {"topic": "bold", "cluster": "bold", "default": ""}


class Settings(Commands):
    """The group; settings are changed elsewhere."""

    elsewhere = MappingProxyType(
        dict.fromkeys(
            ("alter", "set"),
            "a topic's settings change while it is used, by `raylog topic alter NAME --config`; the cluster's, which "
            "are the defaults of its topics, by `raylog stop` and `raylog start --config`.",
        )
    )


@click.group(cls=Settings)
def config() -> None:
    """Show the settings of topics and of the cluster."""


@config.command()
@click.argument("topic", required=False)
@click.option("--set", "only_set", is_flag=True, help="Only settings that do not have their default.")
@json_option("As a JSON list, with the legal values and the meaning.")
@cluster_options
def describe(target: Target, topic: str | None, only_set: bool, as_json: bool) -> None:
    """Show every setting of a topic, or of the cluster when none is named.

    The origin is `topic` or `cluster`, where a value was set, or `default`. A topic's settings are changed with
    `raylog topic alter --config`, those of the cluster when it starts.
    """
    from raylog.client.admin.admin import Admin

    with Admin(**target.client_arguments()) as admin:
        entries = [entry for entry in admin.describe_configs(topic).values() if not (only_set and entry.is_default)]
    if as_json:
        show_json([asdict(entry) for entry in entries])
        return
    if not entries:
        click.echo("Every setting has its default.")
        return
    show_table(
        f"settings of {'the cluster' if topic is None else topic}",
        ["key", "value", "origin", "default"],
        [[entry.name, entry.value, entry.origin, entry.default] for entry in entries],
        marks=[STYLE.get(entry.origin, "") for entry in entries],
    )
