"""`raylog transaction`: list, describe and abort transactions, and find those that hang."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from raylog.cli.commands import Commands
from raylog.cli.options import Target, cluster_options, json_option
from raylog.cli.output import moment, show_done, show_json, show_table

if TYPE_CHECKING:
    from raylog.client.admin.admin import Admin
    from raylog.client.admin.transactions import HangingTransaction, TransactionDescription


@click.group(cls=Commands)
def transaction() -> None:
    """List, describe and abort transactions."""


def _admin(arguments: dict[str, Any]) -> Admin:
    from raylog.client.admin.admin import Admin

    return Admin(**arguments)


@transaction.command("list")
@click.option("--state", "states", multiple=True, help="Only in this state, such as Ongoing; may be repeated.")
@click.option("--longer-than", "longer_s", type=float, help="Only open for more than so many seconds.")
@json_option()
@cluster_options
def list_(target: Target, states: tuple[str, ...], longer_s: float | None, as_json: bool) -> None:
    """List the transactional ids and the states of their transactions."""
    with _admin(target.client_arguments()) as admin:
        limit_ms = None if longer_s is None else int(longer_s * 1000)
        found = admin.list_transactions(states, longer_than_ms=limit_ms)
    if as_json:
        show_json(
            [
                {"transactional_id": row.transactional_id, "producer_id": row.producer_id, "state": row.state}
                for row in found
            ]
        )
    elif found:
        rows = [[row.transactional_id, row.producer_id, row.state] for row in found]
        show_table("", ["transactional id", "producer id", "state"], rows)
    else:
        click.echo("No such transactions; a producer with a transactional_id makes one.")


@transaction.command()
@click.argument("transactional_id")
@json_option()
@cluster_options
def describe(target: Target, transactional_id: str, as_json: bool) -> None:
    """Show the transaction of a transactional id: its partitions, groups and age."""
    with _admin(target.client_arguments()) as admin:
        found = admin.describe_transactions([transactional_id])[transactional_id]
    if as_json:
        show_json(_plain(found))
        return
    click.echo(
        f"Transactional id {found.transactional_id}: {found.state}, producer {found.producer_id} in epoch "
        f"{found.producer_epoch}, coordinator {found.coordinator}"
    )
    limit = "never times out" if found.timeout_ms is None else f"times out after {found.timeout_ms / 1000:g} s"
    if found.started_ms is not None:
        age_s = max(0.0, time.time() - found.started_ms / 1000)
        click.echo(f"Open since {moment(found.started_ms)}, for {age_s:.1f} s; it {limit}.")
    rows = [["partition", str(where)] for where in found.partitions] + [["group", group] for group in found.groups]
    if rows:
        show_table("", ["kind", "in the transaction"], rows)


def _plain(found: TransactionDescription) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "coordinator": found.coordinator,
        "timeout_ms": found.timeout_ms,
        "started_ms": found.started_ms,
        "partitions": [str(where) for where in found.partitions],
        "groups": list(found.groups),
    }


@transaction.command()
@click.argument("transactional_id", required=False)
@click.option("--topic", help="Of a hanging transaction, which has no transactional id: its topic ...")
@click.option("--partition", type=int, help="... its partition ...")
@click.option("--producer-id", type=int, help="... and its producer, as `raylog transaction hanging` shows them.")
@json_option()
@cluster_options
def abort(
    target: Target,
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    producer_id: int | None,
    as_json: bool,
) -> None:
    """Abort the open transaction of a transactional id and fence its producer, or abort a hanging transaction."""
    place = (topic, partition, producer_id)
    facts = {
        "transactional_id": transactional_id,
        "topic": topic,
        "partition": partition,
        "producer_id": producer_id,
        "aborted": True,
    }
    if (transactional_id is None) == (place == (None, None, None)):
        raise click.UsageError("Name a transactional id, or --topic, --partition and --producer-id: one of the two.")
    if transactional_id is not None:
        with _admin(target.client_arguments()) as admin:
            admin.fence_producers([transactional_id])
        show_done(as_json, facts, f"The producer {transactional_id} was fenced; what it had open is aborted.")
        return
    if topic is None or partition is None or producer_id is None:
        raise click.UsageError("A hanging transaction is named by --topic, --partition and --producer-id together.")
    with _admin(target.client_arguments()) as admin:
        admin.abort_transaction((topic, partition), producer_id)
    show_done(as_json, facts, f"The transaction of producer {producer_id} in {topic}-{partition} was aborted.")


@transaction.command()
@click.option("--topic", "topics", multiple=True, help="Only in this topic; may be repeated.")
@click.option("--longer-than", "longer_s", type=float, help="Only those whose last record is older than these seconds.")
@json_option()
@cluster_options
def hanging(target: Target, topics: tuple[str, ...], longer_s: float | None, as_json: bool) -> None:
    """Find open transactions that no coordinator will end, and show the commands that end them."""
    longer_ms = None if longer_s is None else int(longer_s * 1000)
    with _admin(target.client_arguments()) as admin:
        found = admin.find_hanging_transactions(topics or None, longer_than_ms=longer_ms)
    if as_json:
        show_json([_row(each) for each in found])
    elif found:
        columns = ["topic", "partition", "producer id", "first offset", "last record"]
        show_table("", columns, [[*list(_row(each).values())[:4], _last(each)] for each in found])
        for each in found:
            click.echo(f"End it: {_row(each)['command']}")
    else:
        click.echo("No transaction hangs.")


def _last(each: HangingTransaction) -> str:
    return moment(each.producer.last_timestamp_ms)


def _row(each: HangingTransaction) -> dict[str, Any]:
    where, producer = each.partition, each.producer
    return {
        "topic": where.topic,
        "partition": where.partition,
        "producer_id": producer.producer_id,
        "txn_start_offset": producer.txn_start_offset,
        "last_timestamp_ms": producer.last_timestamp_ms,
        "command": f"raylog transaction abort --topic {where.topic} --partition {where.partition} "
        f"--producer-id {producer.producer_id}",
    }
