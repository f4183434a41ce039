"""`raylog token`: make a token for a job or another cluster, and show what a token grants."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raylog.cli.commands import Commands
from raylog.cli.options import ENV_TOKEN, Target, cluster_options, json_option
from raylog.cli.output import moment, show_done, show_json, show_table

if TYPE_CHECKING:
    from raylog.client.admin.tokens import TokenDescription

STDIN = "-"
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _duration(context: click.Context, option: click.Parameter, text: str) -> float:
    """Parse a time with its unit ("90s", "12h") into seconds. Raises BadParameter."""
    unit_s = UNITS_S.get(text.strip()[-1:])
    number = text.strip()[:-1]
    if unit_s is None or not number.isdecimal() or not int(number):
        raise click.BadParameter(f"{text!r} is not a time with its unit, such as 90s, 30m, 12h or 7d", context, option)
    return float(int(number) * unit_s)


@click.group(cls=Commands)
def token() -> None:
    """Make and show tokens: credentials for some topics and a limited time."""


@token.command()
@click.option("--read", "reads", multiple=True, metavar="TOPIC", help="Read this topic; may be repeated.")
@click.option("--write", "writes", multiple=True, metavar="TOPIC", help="Write to this topic; may be repeated.")
@click.option(
    "--transactional-id-prefix",
    metavar="PREFIX",
    help="Run transactions whose ids begin so, and commit offsets of the group with exactly that name.",
)
@click.option("--group", metavar="GROUP", help="Take part in this consumer group, or work off its queues.")
@click.option(
    "--lifetime", callback=_duration, default="12h", show_default=True, help="How long it holds: 90s, 12h, 7d."
)
@json_option("As JSON, with what it grants.")
@cluster_options
def create(
    target: Target,
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    transactional_id_prefix: str | None,
    group: str | None,
    lifetime: float,
    as_json: bool,
) -> None:
    """Print a token in one line: for `token=` of a client, RAYLOG_TOKEN, or the option raylog.token of Spark.

    It is computed from the secret and stored nowhere. A single token cannot be revoked: `raylog secret change --client`
    and `finish` end all tokens.
    """
    from raylog.client.admin.admin import Admin
    from raylog.client.admin.tokens import describe_token

    with Admin(**target.client_arguments()) as admin:
        line = admin.create_token(
            read=reads,
            write=writes,
            transactional_id_prefix=transactional_id_prefix,
            group=group,
            lifetime_s=lifetime,
        )
    show_done(as_json, {"token": line, **_granted(describe_token(line))} if as_json else {}, line)


def _granted(found: TokenDescription) -> dict[str, object]:
    return {
        "expires_s": found.expires_s,
        "read": list(found.read),
        "write": list(found.write),
        "transactional_id_prefix": found.transactional_id_prefix,
        "group": found.group,
    }


@token.command()
@click.argument("text", metavar="[TOKEN]", default="")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"File with the token; otherwise the variable {ENV_TOKEN}.",
)
@json_option()
def show(text: str, token_file: Path | None, as_json: bool) -> None:
    """Show what a token grants, and until when. Only its cluster can check whether its key is right.

    With TOKEN "-" the token is read from standard input: `ps` and the shell's history show arguments.
    """
    from raylog.client.admin.tokens import describe_token

    if text == STDIN:
        text = sys.stdin.read()
    text = text or (token_file.read_text(encoding="utf-8") if token_file else os.environ.get(ENV_TOKEN, ""))
    if not text:
        raise click.UsageError(f"give a token on the standard input (-), --token-file, or set {ENV_TOKEN}")
    found = describe_token(text)
    left_s = found.expires_s - time.time()
    if as_json:
        show_json(_granted(found))
        return
    state = f"for {_time(left_s)} more" if left_s > 0 else "it has EXPIRED"
    click.echo(f"Valid until {moment(found.expires_s * 1000)}, {state}.")
    rows = [
        *(["read", topic] for topic in found.read),
        *(["write", topic] for topic in found.write),
        *([] if found.transactional_id_prefix is None else [["transactions", f"{found.transactional_id_prefix}*"]]),
        *([] if found.group is None else [["group", found.group]]),
    ]
    show_table("", ["right", "on"], rows)


def _time(seconds: float) -> str:
    for unit in ("d", "h", "m"):
        if seconds >= 2 * UNITS_S[unit]:
            return f"{seconds / UNITS_S[unit]:.0f} {unit}"
    return f"{seconds:.0f} s"
