"""`raylog topic`: create, list, describe, alter and delete topics, elect their leaders, delete early records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from raylog.cli.commands import Commands, ManyValues
from raylog.cli.options import Target, cluster_options, confirm, json_option, pairs, yes_option
from raylog.cli.output import counted, say, show_done, show_each, show_json, show_table
from raylog.cli.status import STYLE, condition, listed, plain_partition, warn_of_unclean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raylog.base.errors import RaylogError, StillStarting
    from raylog.base.ids import TopicPartition
    from raylog.client.admin.admin import Admin
    from raylog.client.admin.descriptions import TopicDescription


LEADERS_WAIT_S: Final = 30.0
"""How long commands wait for the leaders of new partitions."""


@click.group(cls=Commands)
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


def _counts(late: StillStarting) -> tuple[int, int]:
    """The number of partitions, and how many of them still start."""
    led, count = late.details["led"], late.details["partitions"]
    return int(str(count)), int(str(count)) - int(str(led))


def _starting(late: StillStarting) -> str:
    count, left = _counts(late)
    led = count - left
    return f"{count:,} partitions, of which {led:,} have a leader. The others still start; follow with `raylog status`."


def _admin(target: Target) -> Admin:
    from raylog.client.admin.admin import Admin

    return Admin(**target.client_arguments())


@topic.command(cls=ManyValues)
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), help="Default: the cluster's num.partitions.")
@click.option("--replication-factor", type=click.IntRange(min=1), help="Default: default.replication.factor.")
@click.option(
    "--config", multiple=True, metavar="KEY=VALUE...", help="Keys of the topic, such as retention.ms=3600000."
)
@click.option("--if-not-exists", is_flag=True, help="Do nothing when the topic exists.")
@json_option()
@cluster_options
def create(
    target: Target,
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    config: tuple[str, ...],
    if_not_exists: bool,
    as_json: bool,
) -> None:
    """Create a topic, and wait half a minute at most until each of its partitions has a leader.

    If some need longer, the topic exists all the same: the command shows how many still start, and succeeds.
    """
    settings = pairs("--config", config)
    from raylog.base.errors import StillStarting, TopicAlreadyExists

    with _admin(target) as admin:
        try:
            made = admin.create_topic(
                name, partitions, replication_factor, settings, timeout_s=LEADERS_WAIT_S, progress=say
            )
        except StillStarting as late:
            count, left = _counts(late)
            facts = _created(name, True, count, still_starting=left)
            show_done(as_json, facts, f"Topic {name} created: {_starting(late)}")
            return
        except TopicAlreadyExists:
            if not if_not_exists:
                raise
            show_done(as_json, _created(name, False, None), f"Topic {name} exists already.")
            return
        alone = _alone(admin, made) if replication_factor is None else ""
    count = len(made.partitions)
    is_asleep = all(partition.is_asleep for partition in made.partitions)
    asleep = ", asleep until used" if is_asleep else ""
    show_done(
        as_json,
        _created(name, True, count, replication_factor=made.replication_factor, asleep=is_asleep),
        f"Topic {name} created: {counted(count, 'partition')}, replication factor {made.replication_factor}{asleep}.",
    )
    if alone:
        say(alone)


def _created(
    name: str,
    created: bool,
    partitions: int | None,
    *,
    replication_factor: int | None = None,
    asleep: bool | None = None,
    still_starting: int = 0,
) -> dict[str, object]:
    """What `topic create` has done, for JSON; null = not known."""
    return {
        "topic": name,
        "created": created,
        "partitions": partitions,
        "replication_factor": replication_factor,
        "asleep": asleep,
        "still_starting": still_starting,
    }


def _alone(admin: Admin, made: TopicDescription) -> str:
    """A warning for a topic with one copy of each record, where more brokers could keep more; otherwise empty."""
    from raylog.base.errors import RaylogError

    try:
        brokers = len(admin.describe_cluster().brokers)
    except RaylogError:
        return ""  # without that right: the topic is there all the same
    if made.replication_factor > 1 or brokers < 2:
        return ""
    return (
        f"There is one copy of each record, and none can be read while its broker is away: --replication-factor "
        f"{min(3, brokers)} keeps more (`default.replication.factor` is the default)."
    )


@topic.command("list")
@click.option("--internal", is_flag=True, help="Raylog's own topics as well.")
@json_option("As a JSON list.")
@cluster_options
def list_(target: Target, internal: bool, as_json: bool) -> None:
    """List the topics, one name a line."""
    with _admin(target) as admin:
        names = admin.list_topics(internal=internal)
    if as_json:
        show_json(names)
        return
    for name in names:
        click.echo(name)


@topic.command()
@click.argument("names", nargs=-1)
@json_option()
@cluster_options
def describe(target: Target, names: tuple[str, ...], as_json: bool) -> None:
    """Show partitions, leaders, replicas and configuration of the topics named, or of all."""
    with _admin(target) as admin:
        described = admin.describe_topics(names or None)
    if as_json:
        show_json({name: as_plain(item) for name, item in described.items()})
        return
    if not described:
        click.echo("No topics yet; make one with `raylog topic create`.")
    for name, item in described.items():
        partitions = [plain_partition(partition) for partition in item.partitions]
        eligible = ["eligible"] if any(each["elr"] for each in partitions) else []
        settings = ", ".join(f"{key}={value}" for key, value in sorted(item.config.items())) or "all defaults"
        show_table(
            f"{name}  (id {item.topic_id}, replication factor {item.replication_factor}; {settings})",
            ["partition", "leader", "epoch", "replicas", "in sync", *eligible, "state"],
            [
                [
                    each["partition"],
                    each["leader"] if each["leader"] >= 0 else "none",
                    each["leader_epoch"],
                    listed(each["replicas"]),
                    listed(each["isr"]),
                    *([listed(each["elr"])] if eligible else []),
                    condition(each),
                ]
                for each in partitions
            ],
            marks=[STYLE[condition(each)] for each in partitions],
        )
        warn_of_unclean(
            [
                [f"{name}-{each['partition']}", each["unclean_leader_epoch"]]
                for each in partitions
                if each["unclean_leader_epoch"]
            ]
        )


@topic.command()
@click.argument("names", nargs=-1)
@json_option("As a JSON list.")
@cluster_options
def offsets(target: Target, names: tuple[str, ...], as_json: bool) -> None:
    """Show where the log of each partition begins and ends, of the topics named, or of all.

    The end is the high watermark. Records are the offsets in between: a compacted topic has fewer, and markers of
    transactions count as records.
    """
    rows = _offsets(target, names)
    if as_json:
        show_json(rows)
    elif rows:
        show_table("", list(rows[0]), [list(row.values()) for row in rows])
        total = sum(int(row["records"]) for row in rows)
        click.echo(f"{counted(len({row['topic'] for row in rows}), 'topic')}, {counted(total, 'record')}.")
    else:
        click.echo("No topics yet; make one with `raylog topic create`.")


def _offsets(target: Target, names: tuple[str, ...]) -> list[dict[str, Any]]:
    from raylog.base.errors import UnknownTopicOrPartition
    from raylog.base.ids import TopicPartition
    from raylog.client.consumer.consumer import Consumer

    with Consumer(**target.client_arguments()) as consumer:
        places: list[TopicPartition] = []
        for name in names or sorted(consumer.topics()):
            numbers = consumer.partitions_for_topic(name)
            if not numbers:
                raise UnknownTopicOrPartition(f"There is no topic {name!r}.")
            places += [TopicPartition(name, number) for number in sorted(numbers)]
        starts, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
    return [
        {
            "topic": each.topic,
            "partition": each.partition,
            "start": starts[each],
            "end": ends[each],
            "records": ends[each] - starts[each],
        }
        for each in places
    ]


def as_plain(described: TopicDescription) -> dict[str, Any]:
    """A topic's description, for JSON."""
    return {
        "topic_id": described.topic_id,
        "internal": described.internal,
        "replication_factor": described.replication_factor,
        "config": described.config,
        "partitions": [plain_partition(partition) for partition in described.partitions],
    }


@topic.command(cls=ManyValues)
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), help="Give the topic so many partitions, in all.")
@click.option("--config", multiple=True, metavar="KEY=VALUE...", help="Keys to set.")
@click.option("--delete-config", multiple=True, metavar="KEY", help="A key to give its default back; may be repeated.")
@json_option()
@cluster_options
def alter(
    target: Target,
    name: str,
    partitions: int | None,
    config: tuple[str, ...],
    delete_config: tuple[str, ...],
    as_json: bool,
) -> None:
    """Change the configuration of a topic, or give it more partitions.

    Records stay in their partitions. New records with the same key may go to another partition from then on.
    """
    settings = pairs("--config", config)
    if not settings and not delete_config and partitions is None:
        raise click.UsageError("nothing to change: give --partitions N, --config key=value, or --delete-config key")
    from raylog.base.errors import StillStarting

    starting, left = "", 0
    with _admin(target) as admin:
        if partitions is not None:
            try:
                admin.create_partitions(name, partitions, timeout_s=LEADERS_WAIT_S, progress=say)
            except StillStarting as late:
                starting, left = f" It has {_starting(late)}", _counts(late)[1]
        if settings or delete_config:
            admin.alter_topic_config(name, settings, delete_config)
    facts = {
        "topic": name,
        "partitions": partitions,
        "still_starting": left,
        "config": settings,
        "deleted_config": list(delete_config),
    }
    show_done(as_json, facts, f"Topic {name} altered.{starting}")


@topic.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--if-exists", is_flag=True, help="Do nothing for a topic that does not exist.")
@yes_option
@json_option("As a JSON list.")
@cluster_options
def delete(target: Target, names: tuple[str, ...], if_exists: bool, yes: bool, as_json: bool) -> None:
    """Delete topics with all their records."""
    confirm(f"Delete {', '.join(names)} with all records?", yes)
    target.require_own()
    with _admin(target) as admin:
        show_each(as_json, _deletions(admin, names, if_exists))


def _deletions(admin: Admin, names: tuple[str, ...], if_exists: bool) -> Iterator[tuple[dict[str, object], str]]:
    from raylog.base.errors import UnknownTopicOrPartition

    for name in names:
        try:
            admin.delete_topic(name)
        except UnknownTopicOrPartition:
            if not if_exists:
                raise
            yield {"topic": name, "deleted": False}, f"There is no topic {name}."
        else:
            yield {"topic": name, "deleted": True}, f"Topic {name} deleted."


@topic.command()
@click.argument("name")
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this one; repeatable.")
@json_option()
@cluster_options
def wake(target: Target, name: str, partitions: tuple[int, ...], as_json: bool) -> None:
    """Wake partitions that sleep, so that the first record or read finds their replicas running.

    They sleep again after `replica.sleep.after.ms` without use.
    """
    with _admin(target) as admin:
        slept = admin.wake_partitions(name, partitions or None)
    facts = {"topic": name, "woken": slept}
    show_done(as_json, facts, f"Topic {name}: {counted(slept, 'partition')} slept and wake now.")


@topic.command("delete-records")
@click.argument("name")
@click.option("--partition", type=click.IntRange(min=0), required=True, help="The partition.")
@click.option(
    "--before",
    type=click.IntRange(min=-1),
    required=True,
    metavar="OFFSET",
    help="Delete the records below this offset; -1 deletes all that are committed.",
)
@click.option("--timeout", default=30.0, show_default=True, help="Seconds to wait for every replica.")
@json_option()
@yes_option
@cluster_options
def delete_records(
    target: Target, name: str, partition: int, before: int, timeout: float, as_json: bool, yes: bool
) -> None:
    """Delete the records at the beginning of a partition. They cannot be brought back."""
    target.require_own()
    confirm(f"Delete {'all records' if before < 0 else f'the records below {before}'} of {name}-{partition}?", yes)
    with _admin(target) as admin:
        low_watermarks = admin.delete_records({(name, partition): before}, timeout_s=timeout)
    for low_watermark in low_watermarks.values():
        if as_json:
            show_json({"topic": name, "partition": partition, "low_watermark": low_watermark})
        else:
            click.echo(f"{name}-{partition} begins at offset {low_watermark} on every replica.")


@topic.command(cls=ManyValues)
@click.argument("name", required=False)
@click.option("--partition", "partitions", type=int, multiple=True, help="A partition of the topic; default: all.")
@click.option("--all", "everything", is_flag=True, help="All partitions of all topics.")
@click.option(
    "--unclean", is_flag=True, help="Let any replica lead a partition that has no leader; records may be lost."
)
@json_option("As a JSON list.")
@cluster_options
def elect(
    target: Target, name: str | None, partitions: tuple[int, ...], everything: bool, unclean: bool, as_json: bool
) -> None:
    """Make the preferred replica, the first in each partition's list of replicas, the leader.

    With --unclean and --partition, let any live replica lead a partition that no in-sync replica can lead. The exit
    code is 1 when a leader that should have been elected could not be.
    """
    if everything == (name is not None) or (everything and (partitions or unclean)):
        raise click.UsageError("name a topic, or give --all alone")
    if unclean and not partitions:
        raise click.UsageError("--unclean may lose records: name the partitions with --partition")
    with _admin(target) as admin:
        wanted = None
        if name is not None:
            wanted = [(name, number) for number in partitions]
            wanted = wanted or [(name, partition.partition) for partition in admin.describe_topic(name).partitions]
        results = admin.elect_leaders(wanted, unclean=unclean)
        described = admin.describe_topics(sorted({partition.topic for partition in results}))
    _show_elections(results, described, as_json)


def _show_elections(
    results: dict[TopicPartition, RaylogError | None], described: dict[str, TopicDescription], as_json: bool
) -> None:
    from raylog.base.errors import ElectionNotNeeded

    rows = []
    for partition, error in results.items():
        info = described[partition.topic].partitions[partition.partition]
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "leader": info.leader,
                "leader_epoch": info.leader_epoch,
                "error": "" if error is None else type(error).__name__,
                "message": "" if error is None else error.message,
            }
        )
    if as_json:
        show_json(rows)
    else:
        for row in rows:
            click.echo(row["message"] or f"{row['topic']}-{row['partition']} is led by broker {row['leader']} now.")
        if not rows:
            click.echo("Every partition is led by its preferred replica.")
    if any(error is not None and not isinstance(error, ElectionNotNeeded) for error in results.values()):
        raise click.exceptions.Exit(1)
