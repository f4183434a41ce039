"""`raylog logs`: the logs of the cluster's processes on this machine, by the names of their actors."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from raylog.cli.commands import PlainCommand
from raylog.cli.options import json_option
from raylog.cli.output import counted, json_line, moment, show_json, show_table, size

LATEST: Final = Path("ray") / "session_latest"


@dataclass(frozen=True, slots=True)
class Log:
    """The log of one process of an actor."""

    actor: str
    process: int
    file: Path
    bytes: int
    changed_ms: int


@click.command(cls=PlainCommand)
@click.argument("name", required=False)
@click.option("--broker", type=int, help="Only of this broker, and of its replicas.")
@click.option("--partition", metavar="TOPIC-N", help="Only of the replicas of this partition, such as flights-0.")
@click.option("--lines", type=click.IntRange(min=1), default=100, show_default=True, help="The last lines of each.")
@click.option(
    "--ray-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder of a session of Ray; default: the latest on this machine.",
)
@json_option("As a JSON list; of lines one JSON object a line.")
def logs(
    name: str | None, broker: int | None, partition: str | None, lines: int, ray_dir: Path | None, as_json: bool
) -> None:
    """List the logs of controller, brokers, coordinators and replicas here, or show the last lines of some.

    NAME is a part of an actor's name: `raylog logs controller`. Logs of ended processes are included. Logs of other
    machines are on those machines.
    """
    folder = (ray_dir or _latest()) / "logs"
    found = [log for log in find(folder) if _is_wanted(log.actor, name, broker, partition)]
    if name is None and broker is None and partition is None:
        _show_list(folder, found, as_json)
        return
    if not found:
        raise click.ClickException(f"no such process has a log in {folder}; `raylog logs` lists those that have")
    for log in found:
        if not as_json:
            click.echo(f"==> {log.actor}, process {log.process}: {log.file}")
        for line in last_lines(log.file, lines):
            click.echo(json_line({"actor": log.actor, "process": log.process, "line": line}) if as_json else line)


def _latest() -> Path:
    return Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / LATEST


def find(folder: Path) -> list[Log]:
    """The logs of named actors in Ray's log folder, sorted by name; of each actor, the latest change comes last."""
    from raylog.actors.logs import NAMED

    found = []
    for link in (folder / NAMED).glob("*.*"):
        actor, _, process = link.name.rpartition(".")
        try:
            file = link.resolve(strict=True)
            stat = file.stat()
        except OSError:
            continue  # it was removed since
        if process.isdecimal():
            found.append(Log(actor, int(process), file, stat.st_size, int(stat.st_mtime * 1000)))
    return sorted(found, key=lambda log: (log.actor, log.changed_ms))


def _is_wanted(actor: str, name: str | None, broker: int | None, partition: str | None) -> bool:
    return (
        (name is None or name in actor)
        and (broker is None or actor == f"broker-{broker}" or f":broker-{broker}:" in actor)
        and (partition is None or actor.startswith(f"replica:{partition}:"))
    )


def _show_list(folder: Path, found: list[Log], as_json: bool) -> None:
    if as_json:
        show_json(
            [
                {
                    "actor": log.actor,
                    "process": log.process,
                    "file": str(log.file),
                    "bytes": log.bytes,
                    "changed_ms": log.changed_ms,
                }
                for log in found
            ]
        )
    elif found:
        rows = [[log.actor, log.process, size(log.bytes), moment(log.changed_ms), log.file.name] for log in found]
        show_table(f"{counted(len(found), 'log')} in {folder}", ["actor", "process", "size", "last line", "file"], rows)
    else:
        click.echo(f"No process of Raylog has a log in {folder}; --ray-dir names the folder of another session of Ray.")


def last_lines(file: Path, count: int) -> list[str]:
    """The last `count` lines of a log, without the lines that Ray writes at its head for itself."""
    with file.open(encoding="utf-8", errors="replace") as opened:
        lines = (line.rstrip("\n") for line in opened)
        return list(deque((line for line in lines if not line.startswith((":job_id:", ":actor_name:"))), count))
