"""`raylog secret`: change the cluster's or the clients' secret while the cluster runs."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from raylog.base.errors import DataDirectoryError
from raylog.cli.commands import Commands
from raylog.cli.options import data_dir_option, json_option
from raylog.cli.output import show_done

NEXT = (
    "On a cluster of several nodes, run `raylog start` with the same directory now: it brings the files of the other "
    "nodes up to date."
)

client_option = click.option("--client", is_flag=True, help="The clients' secret instead of the cluster's.")


@click.group(cls=Commands)
def secret() -> None:
    """Change a secret while everything runs: `change` adds a new value, `finish` removes the old one."""


@secret.command()
@data_dir_option
@client_option
@json_option()
def change(data_dir: Path, client: bool, as_json: bool) -> None:
    """Add a new value. From the next connection on brokers accept both, and use the new one themselves."""
    from raylog.rpc.auth.secret_files import NEW_SECRET_BYTES, write_values

    path, values = _values(data_dir, client)
    if len(values) > 1:
        raise click.ClickException(f"{path} holds two values already; run `raylog secret finish` first")
    write_values(path, [secrets.token_bytes(NEW_SECRET_BYTES), *values])
    show_done(
        as_json,
        {"file": str(path), "client": client, "values": len(values) + 1},
        f"{path} holds a new value and the old one. {NEXT}",
        "Give the new one, its first line, to clients that have the old one: replace the files that they were given "
        "(secret_file), restart those that were given the value; then `raylog secret finish`.",
    )


@secret.command()
@data_dir_option
@client_option
@json_option()
def finish(data_dir: Path, client: bool, as_json: bool) -> None:
    """Remove the old value. Connections that were made with it stay until they close."""
    from raylog.rpc.auth.secret_files import write_values

    path, values = _values(data_dir, client)
    if len(values) < 2:
        raise click.ClickException(f"{path} holds one value; there is no old one to remove")
    write_values(path, values[:1])
    facts = {"file": str(path), "client": client, "values": 1}
    show_done(as_json, facts, f"{path} holds the new value alone. {NEXT}")


def _values(data_dir: Path, client: bool) -> tuple[Path, tuple[bytes, ...]]:
    """Return the file of the secret and its values, the newest first. Raises UsageError, DataDirectoryError."""
    from raylog.rpc.auth.secret_files import CLIENT_FILE, CLUSTER_FILE, SecretFileError, make_secrets, read_values

    root = data_dir.absolute()
    if not (root / CLUSTER_FILE).exists():
        raise click.UsageError(f"{root} holds no secret; give the directory that `raylog start` was run with")
    path = root / (CLIENT_FILE if client else CLUSTER_FILE)
    try:
        make_secrets(root)  # for a directory from before clients had a secret of their own
        return path, read_values(path)
    except SecretFileError as error:
        raise DataDirectoryError(str(error)) from None
