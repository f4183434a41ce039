"""`raylog status`: brokers, topics, leaders, in-sync replicas, and what is wrong with them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raylog.cli.commands import PlainCommand
from raylog.cli.options import Target, cluster_options, json_option
from raylog.cli.output import counted, show_json, show_table, size

if TYPE_CHECKING:
    from raylog.client.admin.descriptions import PartitionInfo

BROKER_STYLE = {"online": "", "stopped": "yellow", "offline": "bold red"}
STYLE = {"ok": "", "asleep": "dim", "under-replicated": "red", "offline": "bold red"}
PAGES_TIMEOUT_S = 5.0
DISK_FULL_BYTES = 1 << 20
"""A disk counts as full when it has no room for a batch of the default size, as for /readyz."""
ROWS_MAX = 200
"""Most partitions in the table; for a larger cluster it shows only those that are offline or under-replicated."""


@click.command(cls=PlainCommand)
@json_option("The whole state as JSON.")
@cluster_options
@click.pass_context
def status(ctx: click.Context, target: Target, as_json: bool) -> None:
    """Show brokers, topics, leaders and in-sync replicas.

    The exit code is 1 when a broker is offline that was not stopped on purpose, when a partition has no leader, when a
    log is damaged and not copied again yet, or when the disk of a broker on this machine is full.
    """
    found = judged(_fetch_status(target))
    found["full_disks"] = full_disks(target.data_dir)
    pages = None if target.bootstrap else metrics_facts()
    if as_json:
        show_json({**found, "metrics": pages})
    else:
        _draw(found)
        for line in [] if pages is None else metrics_lines(pages):
            click.echo(line)
    if found["offline_brokers"] or found["offline_partitions"] or found["damaged_partitions"]:
        ctx.exit(1)
    if found["full_disks"]:
        ctx.exit(1)


def full_disks(data_dir: Path) -> list[list[Any]]:
    """Folder, free and total bytes of each broker on this machine whose disk is full."""
    found = []
    for folder in sorted(data_dir.glob("broker*")):
        try:
            usage = shutil.disk_usage(folder)
        except OSError:
            continue  # it was removed since
        if usage.free < DISK_FULL_BYTES:
            found.append([str(folder), usage.free, usage.total])
    return found


def metrics_facts() -> dict[str, list[str]]:
    """Where the nodes serve their metrics, and the addresses of which another program has the port."""
    from raylog.launch.replica_reports import metrics_pages

    served, taken = metrics_pages(PAGES_TIMEOUT_S)
    return {"served": [f"http://{place}/metrics" for place in served], "taken": taken}


def metrics_lines(pages: dict[str, list[str]]) -> list[str]:
    """Lines that say where Prometheus finds the metrics, or why there are none."""
    lines = [f"Metrics: {place}" for place in pages["served"]]
    lines += [
        f"Metrics: none at {place}, because another program has this port; `raylog start --config metrics.port=...` on "
        "a stopped cluster chooses another one."
        for place in pages["taken"]
    ]
    return lines or ["Metrics: none (metrics.port=0)."]


def _fetch_status(target: Target) -> dict[str, Any]:
    if target.bootstrap:
        from raylog.client.admin.admin import Admin

        with Admin(**target.client_arguments()) as admin:
            topics = admin.describe_topics(admin.list_topics(internal=True))
            return {
                **admin.describe_cluster().details,
                "topics": {
                    name: [plain_partition(partition) for partition in item.partitions] for name, item in topics.items()
                },
            }
    from raylog.launch.cluster import connect

    target.join_ray()
    return connect().status()


def plain_partition(one: PartitionInfo) -> dict[str, Any]:
    """A partition in the form of the controller's status, which is also that of JSON."""
    return {
        "partition": one.partition,
        "leader": one.leader,
        "leader_epoch": one.leader_epoch,
        "replicas": list(one.replicas),
        "isr": list(one.isr),
        "elr": list(one.elr),
        "unclean_leader_epoch": one.unclean_leader_epoch,
        "asleep": one.is_asleep,
    }


def judged(status: dict[str, Any]) -> dict[str, Any]:
    """The status, with lists of the brokers and partitions that are not as they should be."""
    partitions = [(f"{topic}-{item['partition']}", item) for topic, all_ in status["topics"].items() for item in all_]
    return {
        **status,
        "offline_brokers": [broker["broker"] for broker in status["brokers"] if broker_state(broker) == "offline"],
        "stopped_brokers": [broker["broker"] for broker in status["brokers"] if broker_state(broker) == "stopped"],
        "unclean_partitions": [
            [name, partition["unclean_leader_epoch"]]
            for name, partition in partitions
            if partition.get("unclean_leader_epoch")
        ],
        "offline_partitions": [name for name, partition in partitions if condition(partition) == "offline"],
        "damaged_partitions": [name for name, _, _, is_mended in status.get("damaged_logs", ()) if not is_mended],
        "under_replicated_partitions": [
            name for name, partition in partitions if condition(partition) == "under-replicated"
        ],
    }


def broker_state(broker: dict[str, Any]) -> str:
    """State of a broker: "stopped" after a deliberate stop, even while some of its actors still run."""
    if broker.get("stopped"):
        return "stopped"
    return "online" if broker["online"] else "offline"


def condition(partition: dict[str, Any]) -> str:
    """State of a partition: offline without a leader, under-replicated when a replica is out of sync, or asleep."""
    if partition["leader"] < 0:
        return "offline"
    if len(partition["isr"]) < len(partition["replicas"]):
        return "under-replicated"
    return "asleep" if partition.get("asleep") else "ok"


def _draw(found: dict[str, Any]) -> None:
    brokers = found["brokers"]
    counts = {broker: (awake, dozing, asleep) for broker, awake, dozing, asleep in found.get("replica_counts", ())}
    show_table(
        f"Cluster {found['cluster_id']}",
        ["broker", "address", "state", *(("awake", "dozing", "asleep") if counts else ())],
        [
            [
                broker["broker"],
                f"{broker['host']}:{broker['port']}",
                broker_state(broker),
                *(counts.get(broker["broker"], ("-", "-", "-")) if counts else ()),
            ]
            for broker in brokers
        ],
        marks=[BROKER_STYLE[broker_state(broker)] for broker in brokers],
    )
    if "metadata_voters" in found:
        click.echo(voters_line(found["metadata_voters"]))
    rows = [(topic, partition) for topic, partitions in sorted(found["topics"].items()) for partition in partitions]
    if not rows:
        click.echo("\nNo topics yet; make one with `raylog topic create`.")
        return
    asleep = sum(bool(row.get("asleep")) for _, row in rows)
    title = f"{counted(len(found['topics']), 'topic')}, {counted(len(rows), 'partition')}, {asleep:,} asleep"
    if len(rows) > ROWS_MAX:
        rows = [(topic, row) for topic, row in rows if condition(row) in ("offline", "under-replicated")][:ROWS_MAX]
        title += f"; {len(rows)} that are not as they should be (--json names all)"
    click.echo()
    show_table(
        title,
        ["topic", "partition", "leader", "epoch", "replicas", "in sync", "state"],
        [
            [
                topic,
                row["partition"],
                row["leader"] if row["leader"] >= 0 else "none",
                row["leader_epoch"],
                listed(row["replicas"]),
                listed(row["isr"]),
                condition(row),
            ]
            for topic, row in rows
        ],
        marks=[STYLE[condition(row)] for _, row in rows],
    )
    _draw_remarks(found)


def _draw_remarks(found: dict[str, Any]) -> None:
    """Print a line for everything that is not as it should be."""
    for name, key in (("offline", "offline_partitions"), ("under-replicated", "under_replicated_partitions")):
        if found[key]:
            click.echo(
                f"{len(found[key])} {name}: {', '.join(found[key][:10])}{' ...' if len(found[key]) > 10 else ''}"
            )
    warn_of_unclean(found["unclean_partitions"])
    for name, broker, ms in found.get("hanging_disks", []):
        click.echo(f"{name} on broker {broker}: the disk has not finished a sync for {ms / 1000:.0f} s.")
    for folder, free, total in found.get("full_disks", []):
        click.echo(
            f"The disk of {folder} is full ({size(free)} of {size(total)} are free): records are refused. Free some "
            "space, lower retention, or add a broker."
        )
    for name, broker, damage, is_mended in found.get("damaged_logs", []):
        outcome = "was damaged, and is whole again" if is_mended else "is damaged"
        click.echo(f"{name} on broker {broker}: the log {outcome}: {damage}")


def voters_line(voters: dict[str, Any]) -> str:
    """Which brokers keep the metadata log, and whether more could."""
    held, most = voters["voters"], voters["max"]
    line = f"Metadata log: on brokers {listed(held)}"
    if len(held) >= most:
        return f"{line}."
    return f"{line}; metadata.voters.max is {most}, and brokers join the voters once {len(held) + 2} of them run."


def warn_of_unclean(partitions: list[list[Any]]) -> None:
    """Print which partitions had an unclean election, after which acknowledged records may be missing."""
    for name, epoch in partitions[:10]:
        click.echo(f"{name}: leader epoch {epoch} began with an unclean election; acknowledged records may be missing.")
    if len(partitions) > 10:
        click.echo(f"... and {len(partitions) - 10} more partitions with unclean elections (--json names all).")


def listed(numbers: list[int]) -> str:
    """Broker ids, separated by commas."""
    return ",".join(str(number) for number in numbers) or "none"
