"""`raylog config`: every setting of a topic or of the cluster, and where it comes from; altering the cluster's."""

from __future__ import annotations

from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import click

from raylog.cli.commands import Commands, ManyValues
from raylog.cli.options import Target, cluster_options, json_option, pairs
from raylog.cli.output import show_done, show_json, show_table

if TYPE_CHECKING:
    from raylog.client.admin.admin import Admin
    from raylog.client.admin.descriptions import ConfigEntry

STYLE: Final = {"topic": "bold", "cluster": "bold", "start": "bold", "altered": "bold", "default": ""}
LATER: Final = "at the next start"
"""How a description marks a change that waits for the next start of the cluster."""


class Settings(Commands):
    """The group `config`; it names the commands that change settings when `config set` is tried."""

    elsewhere = MappingProxyType(
        {
            "set": "the cluster's settings change by `raylog config alter --config`, a topic's by "
            "`raylog topic alter NAME --config`."
        }
    )


@click.group(cls=Settings)
def config() -> None:
    """Show the settings of topics and of the cluster, and alter those of the cluster."""


def _admin(target: Target) -> Admin:
    from raylog.client.admin.admin import Admin

    return Admin(**target.client_arguments())


@config.command()
@click.argument("topic", required=False)
@click.option("--set", "only_set", is_flag=True, help="Only settings that do not have their default.")
@json_option("As a JSON list, with the legal values and the meaning.")
@cluster_options
def describe(target: Target, topic: str | None, only_set: bool, as_json: bool) -> None:
    """Show every setting of a topic, or of the cluster when none is named.

    The origin of a topic's setting is `topic` or `cluster`, where a value was set, or `default`; of the cluster's
    `altered` (while it ran), `start` (a start gave it) or `default`. `raylog topic alter --config` changes the settings
    of a topic, `raylog config alter --config` those of the cluster.
    """
    with _admin(target) as admin:
        entries = [entry for entry in admin.describe_configs(topic).values() if not only_set or _is_set(entry)]
    if as_json:
        show_json([asdict(entry) for entry in entries])
        return
    if not entries:
        click.echo("Every setting has its default.")
        return
    of_cluster = topic is None
    show_table(
        f"settings of {'the cluster' if of_cluster else topic}",
        ["key", "value", "origin", "default", *(["a change counts"] if of_cluster else [])],
        [
            [entry.name, entry.value, entry.origin, entry.default, *([_change(entry)] if of_cluster else [])]
            for entry in entries
        ],
        marks=[STYLE.get(entry.origin, "") for entry in entries],
    )


def _is_set(entry: ConfigEntry) -> bool:
    return not entry.is_default or bool(entry.next)


def _change(entry: ConfigEntry) -> str:
    return f"{entry.change}: {entry.next}" if entry.next else entry.change


@config.command(cls=ManyValues)
@click.option("--config", "--add-config", "config", multiple=True, metavar="KEY=VALUE...", help="Keys to set.")
@click.option(
    "--delete-config", multiple=True, metavar="KEY", help="A key whose alteration is to end; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="Check the change, and alter nothing.")
@json_option()
@cluster_options
def alter(
    target: Target, config: tuple[str, ...], delete_config: tuple[str, ...], dry_run: bool, as_json: bool
) -> None:
    """Alter settings of the cluster while it runs: all that are named, or none.

    An altered value wins over one that `raylog start --config` gives, at later starts too. After --delete-config a key
    has the value that a start gave, else its default. The output names what waits for the next start.
    """
    settings = pairs("--config", config)
    if not settings and not delete_config:
        raise click.UsageError("nothing to alter: give --config key=value, or --delete-config key")
    with _admin(target) as admin:
        entries = list(admin.alter_cluster_config(settings, delete_config, validate_only=dry_run).values())
    facts: dict[str, Any] = {"altered": not dry_run, "settings": [asdict(entry) for entry in entries]}
    show_done(as_json, facts, *(_sentence(entry, dry_run) for entry in entries))


def _sentence(entry: ConfigEntry, dry_run: bool) -> str:
    has = "would have" if dry_run else "has"
    if entry.next:
        return f"{entry.name} {has} {entry.next} {LATER} of the cluster; until then it has {entry.value}."
    return f"{entry.name} {has} {entry.value} now ({entry.origin})."
