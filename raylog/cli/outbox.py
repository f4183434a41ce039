"""`raylog outbox`: make an outbox in a database, relay it, and look at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from raylog.cli.commands import Commands
from raylog.cli.options import Target, cluster_options, json_option, pairs
from raylog.cli.output import json_bytes, show_done, show_json, show_step, show_table, text_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from raylog.outbox.administration import OutboxStatus


@click.group(cls=Commands)
def outbox() -> None:
    """Bring events that commit with a database transaction into their topics, each once.

    URL names the database as SQLAlchemy does: postgresql+psycopg://user@host/bank, mysql+pymysql://user@host/bank,
    sqlite:///bank.db. The variable RAYLOG_OUTBOX_URL may be set instead, to keep a password out of the process list.
    """


def _url(function: Any) -> Any:
    return click.argument("url", envvar="RAYLOG_OUTBOX_URL")(function)


def _engine(url: str) -> Engine:
    """Make the engine. Raises UsageError if the extra or the database's driver is missing, or the URL is malformed."""
    try:
        from sqlalchemy.exc import ArgumentError

        from raylog.outbox.engines import make_engine
    except ModuleNotFoundError as error:
        raise click.UsageError(f"{error.name} is not installed: pip install 'raylog[outbox]'") from None
    try:
        return make_engine(url)
    except ArgumentError:
        raise click.UsageError("the URL is none that SQLAlchemy can read; for example sqlite:///bank.db") from None
    except ModuleNotFoundError as error:
        raise click.UsageError(f"the driver {error.name} is not installed: pip install it, or name another") from None


@outbox.command()
@_url
@click.option("--shards", default=1, show_default=True, help="How many relays may work side by side; fixed for good.")
@json_option()
def init(url: str, shards: int, as_json: bool) -> None:
    """Create the missing tables of the outbox and the inbox."""
    engine = _engine(url)
    from raylog.outbox.tables import init as make_tables

    make_tables(engine, shards=shards)
    show_done(as_json, {"shards": shards}, f"The outbox is there, with {shards} shard{'s' if shards > 1 else ''}.")


@outbox.command()
@_url
@click.option("--name", "producer_name", required=True, help="Name of this outbox for good, such as the service's.")
@click.option("--shard", "shards", type=int, multiple=True, help="Only this shard; may be repeated.")
@click.option("--producer-props", "props", multiple=True, metavar="KEY=VALUE", help="Configuration of the producer.")
@click.option("--rebind", is_flag=True, help="The outbox has moved to another name or cluster for good.")
@json_option("One JSON object a step.")
@cluster_options
def run(
    target: Target,
    url: str,
    producer_name: str,
    shards: tuple[int, ...],
    props: tuple[str, ...],
    rebind: bool,
    as_json: bool,
) -> None:
    """Relay until interrupted. A second relay, on any machine, takes over when the first one has ended."""
    engine = _engine(url)
    import signal

    from raylog.outbox.relay import OutboxRelay

    arguments = target.client_arguments(pairs("--producer-props", props))
    relay = OutboxRelay(
        engine,
        producer_name,
        shards=shards or None,
        rebind=rebind,
        on_failed=lambda sentence: click.echo(sentence, err=True),
        **arguments,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: relay.stop())
    named = {"outbox": producer_name, "owner": relay.owner}
    sentence = f"Relaying the outbox {producer_name!r} as {relay.owner}; Ctrl-C ends it."
    show_step(as_json, {"state": "relaying", **named, "finished": 0}, sentence)
    relay.run()
    finished = relay.counters["finished"]
    show_step(as_json, {"state": "ended", **named, "finished": finished}, f"Ended; {finished} events were relayed.")


@outbox.command()
@_url
@json_option()
@click.option("--check", "check_s", type=float, help="Exit with 1 if an event has failed, or waits for longer (s).")
def status(url: str, as_json: bool, check_s: float | None) -> None:
    """Show how many events wait, which relays work, where each shard continues, and which events have failed."""
    engine = _engine(url)
    from raylog.outbox.administration import status as describe

    found = describe(engine)
    if as_json:
        show_json(_plain(found))
    else:
        _show(found)
    age_s = (found.oldest_ms or 0) / 1000
    if check_s is not None and (found.failed or age_s > check_s):
        raise SystemExit(1)


@outbox.command()
@_url
@click.argument("row_ids", type=int, nargs=-1, metavar="[ID]...")
@json_option()
def retry(url: str, row_ids: tuple[int, ...], as_json: bool) -> None:
    """Send failed events again, all or those named, once their topic accepts them."""
    engine = _engine(url)
    from raylog.outbox.administration import retry as again

    count = again(engine, row_ids or None)
    show_done(as_json, {"retried": count}, f"{count} events are sent again.")


@outbox.command()
@_url
@click.argument("row_ids", type=int, nargs=-1, required=True, metavar="ID...")
@json_option()
def discard(url: str, row_ids: tuple[int, ...], as_json: bool) -> None:
    """Delete failed events for good, so that later events of their keys continue."""
    engine = _engine(url)
    from raylog.outbox.administration import discard as delete

    count = delete(engine, row_ids)
    show_done(as_json, {"deleted": count}, f"{count} events were deleted.")


def _show(found: OutboxStatus) -> None:
    counts = ", ".join(f"{count} {state}" for state, count in sorted(found.counts.items())) or "no events"
    name = found.settings.get("producer_name")
    click.echo(f"Outbox {name!r}: {counts}." if name else f"Outbox, never relayed: {counts}.")
    if found.delayed:
        click.echo(f"{found.delayed} of the unfinished are not due yet.")
    if found.oldest_ms is not None:
        click.echo(f"The oldest event that is due waits for {found.oldest_ms / 1000:.1f} s.")
    rows = [
        [each.shard, each.owner or "-", f"{each.lease_left_ms / 1000:.1f} s" if each.owner else "-", each.fence]
        for each in found.shards
    ]
    show_table("", ["shard", "relay", "lease left", "fence"], rows)
    if found.lanes:
        places = [
            [each.shard, each.topic, each.partition, each.producer_id, each.producer_epoch, each.next_sequence]
            for each in found.lanes
        ]
        show_table("", ["shard", "topic", "partition", "producer id", "epoch", "next sequence"], places)
    for event in found.failed:
        key = "" if event.key is None else f" of key {text_of(event.key):.60}, which holds up {event.waiting} others,"
        click.echo(f"Event {event.row_id} ({event.txid}){key} for {event.topic} has failed: {event.reason}")


def _plain(found: OutboxStatus) -> dict[str, Any]:
    from dataclasses import asdict

    plain = asdict(found)
    for row in plain["failed"]:
        row.update(json_bytes("key", row.pop("key")))
    return plain
