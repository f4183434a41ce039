"""`raylog topic reassign` and `raylog balance`: move partitions to other brokers, by a plan, and show the progress."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raylog.cli.commands import PlainCommand
from raylog.cli.options import Target, cluster_options, json_option
from raylog.cli.output import show_json, show_step, show_table, size
from raylog.cli.topics import topic

if TYPE_CHECKING:
    from raylog.client.admin.admin import Admin
    from raylog.client.admin.cluster import Move, PartitionReassignment

LOOK_S = 0.5
SAY_S = 5.0
Changes = dict[tuple[str, int], list[int] | None]

throttle_option = click.option(
    "--throttle",
    type=click.IntRange(min=1),
    metavar="BYTES_PER_S",
    help="How fast each broker fetches what it gets; kept for later moves. Default: as it is, at first without limit.",
)
timeout_option = click.option(
    "--timeout-s", type=click.FloatRange(min=1), default=86_400.0, show_default=True, help="How long to wait at most."
)


@topic.command()
@click.argument("name", required=False)
@click.option("--partition", "partitions", type=int, multiple=True, help="A partition of the topic; may be repeated.")
@click.option("--replicas", metavar="BROKER,...", help="Its brokers from now on, the preferred leader in front.")
@click.option(
    "--plan",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='A file {"partitions": [{"topic": ..., "partition": ..., "replicas": [...]}]}; see `raylog balance --json`.',
)
@click.option("--cancel", is_flag=True, help="Take back the moves of these partitions; of all, if none is named.")
@click.option("--list", "listing", is_flag=True, help="Show the partitions on the move, and how far they have come.")
@click.option("--wait", is_flag=True, help="Return when the moves are complete.")
@json_option("With --list as a JSON list, otherwise one JSON object a step.")
@throttle_option
@timeout_option
@cluster_options
def reassign(
    target: Target,
    name: str | None,
    partitions: tuple[int, ...],
    replicas: str | None,
    plan: Path | None,
    cancel: bool,
    listing: bool,
    wait: bool,
    as_json: bool,
    throttle: int | None,
    timeout_s: float,
) -> None:
    """Move partitions to other brokers, change their number of replicas, or the order of their leaders.

    A partition is complete on its new brokers when all of them are in sync; until then it stays on the old ones too.
    """
    if partitions and name is None:
        raise click.UsageError("--partition needs the topic it belongs to")
    if sum((replicas is not None, plan is not None and not cancel, cancel, listing)) > 1:
        raise click.UsageError("give one of --replicas, --plan, --cancel and --list")
    from raylog.client.admin.admin import Admin

    with Admin(**target.client_arguments()) as admin:
        if listing:
            _show_moving(admin, as_json)
            return
        changes = _changes(admin, name, partitions, replicas, plan, cancel)
        if not changes and throttle is None:
            if not cancel:
                raise click.UsageError("nothing to do: give --replicas, --plan, --cancel, --list or --throttle")
            show_step(as_json, _step("none"), "No partition is on the move.")
            return
        admin.alter_partition_reassignments(changes, throttle=throttle)
        moved = f"{len(changes)} {'partition' if len(changes) == 1 else 'partitions'}"
        if cancel:
            state, sentence = "cancelled", f"Cancelled the moves of {moved}."
        elif changes:
            state, sentence = "moving", f"{moved} on the move; `raylog topic reassign --list` shows their progress."
        else:
            state, sentence = "throttled", f"Brokers fetch what they get at {throttle} bytes a second now."
        show_step(as_json, _step(state, len(changes), throttle=throttle), sentence)
        if wait:
            _wait(admin, changes, timeout_s, as_json)


def _step(
    state: str, partitions: int = 0, *, there: int = 0, slowest: float | None = None, throttle: int | None = None
) -> dict[str, Any]:
    """The progress of moves for JSON. `slowest` None: not known; `throttle` None: unchanged."""
    return {"state": state, "partitions": partitions, "there": there, "slowest": slowest, "throttle": throttle}


def _changes(
    admin: Admin,
    name: str | None,
    partitions: tuple[int, ...],
    replicas: str | None,
    plan: Path | None,
    cancel: bool,
) -> Changes:
    """The changes that the command line's arguments request; None as value: cancel the move."""
    if plan is not None:
        wanted = read_plan(plan)
        return dict.fromkeys(wanted, None) if cancel else {key: list(brokers) for key, brokers in wanted.items()}
    if cancel:
        if name is not None and partitions:
            return {(name, number): None for number in partitions}
        moving = admin.list_partition_reassignments()
        return {(move.topic, move.partition): None for move in moving if name in (None, move.topic)}
    if replicas is None:
        return {}
    if name is None or not partitions:
        raise click.UsageError("--replicas needs a topic and --partition")
    brokers = _brokers(replicas)
    return {(name, number): list(brokers) for number in partitions}


def _brokers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise click.UsageError(f"--replicas takes broker ids such as 2,3,1, not {text!r}") from None


def read_plan(path: Path) -> dict[tuple[str, int], list[int]]:
    """Read a plan: the replicas by topic and partition. Raises UsageError, with the reason, for an invalid plan."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        rows = rows["partitions"] if isinstance(rows, dict) else rows
        found: dict[tuple[str, int], list[int]] = {}
        for row in rows:
            key = str(row["topic"]), int(row["partition"])
            if key in found:
                raise click.UsageError(f"{path} names {key[0]}-{key[1]} twice")
            found[key] = [int(broker) for broker in row["replicas"]]
    except (ValueError, KeyError, TypeError) as error:
        raise click.UsageError(
            f'{path} is no plan ({error!r}): it has {{"partitions": [{{"topic": "t", "partition": 0, "replicas": '
            "[1, 2, 3]}]}"
        ) from None
    return found


def _show_moving(admin: Admin, as_json: bool) -> None:
    moving = admin.list_partition_reassignments(sizes=True)
    if as_json:
        show_json([_plain(move) for move in moving.values()])
        return
    if not moving:
        click.echo("No partition is on the move.")
        return
    show_table(
        f"{len(moving)} on the move",
        ["topic", "partition", "to", "adding", "removing", "in sync", "copied"],
        [
            [
                move.partition.topic,
                move.partition.partition,
                _ids(move.target),
                _ids(move.adding),
                _ids(move.removing),
                _ids(move.isr),
                _copied(move),
            ]
            for move in moving.values()
        ],
    )


def _plain(one: PartitionReassignment) -> dict[str, Any]:
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "replicas": list(one.replicas),
        "target": list(one.target),
        "adding": list(one.adding),
        "removing": list(one.removing),
        "isr": list(one.isr),
        "leader": one.leader,
        "sizes": {str(broker): held for broker, held in sorted(one.sizes.items())},
        "progress": one.progress,
    }


def _copied(one: PartitionReassignment) -> str:
    progress = one.progress
    if progress is None:
        return "not known"
    whole = one.sizes.get(one.leader)
    return f"{progress:.0%}" + (f" of {size(whole)}" if whole is not None else "")


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(str(broker) for broker in brokers) or "-"


def _wait(admin: Admin, partitions: Collection[tuple[str, int]], timeout_s: float, as_json: bool = False) -> None:
    """Wait until these partitions are on their brokers, and print the progress. Raises RequestTimedOut."""
    from raylog.base.errors import RequestTimedOut

    deadline_s = time.monotonic() + timeout_s
    say_at_s, left_before = time.monotonic() + SAY_S, len(partitions)
    while True:
        moving = admin.list_partition_reassignments(sizes=time.monotonic() >= say_at_s)
        left = [move for move in moving.values() if tuple(move.partition) in partitions]
        if not left:
            facts = _step("done", len(partitions), there=len(partitions))
            show_step(as_json, facts, "Done: every partition is on its brokers.")
            return
        if time.monotonic() >= deadline_s:
            raise RequestTimedOut(
                f"{len(left)} partitions are still on the move after {timeout_s:g} s; they go on. Look with `raylog "
                "topic reassign --list`."
            )
        if time.monotonic() >= say_at_s or len(left) < left_before:
            known = [rest.progress for rest in left if rest.progress is not None and rest.sizes]
            slowest = f", the slowest at {min(known):.0%}" if known else ""
            there, count = len(partitions) - len(left), len(partitions)
            show_step(
                as_json,
                _step("moving", count, there=there, slowest=min(known, default=None)),
                f"{there} of {count} partitions are there{slowest}.",
            )
            say_at_s, left_before = time.monotonic() + SAY_S, len(left)
        time.sleep(LOOK_S)


@click.command(cls=PlainCommand)
@click.option("--yes", is_flag=True, help="Skip the confirmation prompt.")
@json_option("Print the plan as JSON and do nothing, unless --yes is given.")
@click.option("--no-wait", is_flag=True, help="Return when the moves have begun.")
@throttle_option
@timeout_option
@cluster_options
def balance(target: Target, yes: bool, as_json: bool, no_wait: bool, throttle: int | None, timeout_s: float) -> None:
    """Spread replicas and leaders evenly over brokers and nodes.

    Shows its plan first. As few replicas as possible move. Brokers that are offline or stopped keep their replicas and
    get no others.
    """
    from raylog.client.admin.admin import Admin

    with Admin(**target.client_arguments()) as admin:
        plan = admin.plan_balance()
        if as_json:
            show_json({"version": 1, "partitions": [_move_plain(move) for move in plan]})
        elif not plan:
            click.echo("The cluster is balanced; there is nothing to move.")
        else:
            _show_plan(plan)
        if not plan or (as_json and not yes):
            return
        if not yes:
            click.confirm("Do it?", abort=True, err=True)
        wanted = {(move.partition.topic, move.partition.partition): list(move.after) for move in plan}
        admin.alter_partition_reassignments(wanted, throttle=throttle)
        if no_wait:
            if not as_json:
                click.echo(f"{len(plan)} partitions on the move; `raylog topic reassign --list` shows their progress.")
            return
        if as_json:
            admin.wait_for_reassignments(wanted, timeout_s=timeout_s)
        else:
            _wait(admin, wanted, timeout_s)
        # The controller would elect by itself after minutes. A preferred replica that leads already stays the leader.
        admin.elect_leaders([move.partition for move in plan])


def _show_plan(plan: Sequence[Move]) -> None:
    show_table(
        f"Plan: {sum(move.copies for move in plan)} replicas to copy, "
        f"{sum(move.before[0] != move.after[0] for move in plan)} preferred leaders to change",
        ["topic", "partition", "from", "to", "copy"],
        [
            [
                move.partition.topic,
                move.partition.partition,
                _ids(move.before),
                _ids(move.after),
                "-" if not move.copies else "not known" if move.size_bytes < 0 else size(move.size_bytes),
            ]
            for move in plan
        ],
    )


def _move_plain(move: Move) -> dict[str, Any]:
    return {
        "topic": move.partition.topic,
        "partition": move.partition.partition,
        "from": list(move.before),
        "replicas": list(move.after),
        "copies": move.copies,
        "size_bytes": None if move.size_bytes < 0 else move.size_bytes,
    }
