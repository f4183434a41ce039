"""`raylog start` and `raylog stop`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raylog.cli.commands import ManyValues, PlainCommand
from raylog.cli.options import ENV_SECRET, address_option, data_dir_option, json_option, pairs
from raylog.cli.output import say, show_done, show_step
from raylog.cli.own_cluster import ENV_BOOTSTRAP, require_own
from raylog.cli.status import broker_state, metrics_facts, metrics_lines
from raylog.launch.plaintext import ENV_ALLOW_PLAINTEXT

if TYPE_CHECKING:
    from raylog.cli.ray_node import OwnRay
    from raylog.launch.cluster import Cluster

WATCH_S = 1.0
NAMED_MAX = 10


@click.command(cls=ManyValues)
@data_dir_option
@click.option("--brokers", type=click.IntRange(min=1), help="Brokers on this machine; default: as many as there were.")
@click.option("--config", "config", multiple=True, metavar="KEY=VALUE...", help="Cluster keys, with Kafka's names.")
@click.option("--broker", type=int, help="Bring back this one broker of a running cluster, after stop --broker.")
@click.option(
    "--join", is_flag=True, help="Wait for nodes that hold a cluster and join it; never create one (lost head)."
)
@click.option("--dashboard", is_flag=True, help="Start Ray with its dashboard, where Raylog starts Ray.")
@click.option("--foreground", is_flag=True, help="Stay, and stop the cluster at Ctrl-C or SIGTERM.")
@click.option("--timeout-s", type=click.FloatRange(min=1), default=120.0, show_default=True, help="Time to serve.")
@click.option(
    "--allow-plaintext",
    is_flag=True,
    envvar=ENV_ALLOW_PLAINTEXT,
    help="Let brokers of several nodes listen without TLS, on a network that is trusted.",
)
@json_option("As JSON; with --foreground one JSON object a step.")
@address_option
def start(
    data_dir: Path,
    brokers: int | None,
    config: tuple[str, ...],
    broker: int | None,
    join: bool,
    dashboard: bool,
    foreground: bool,
    timeout_s: float,
    allow_plaintext: bool,
    as_json: bool,
    address: str | None,
) -> None:
    """Start a cluster on this machine, or bring one back from its data directory.

    Joins the Ray cluster of this machine. When there is none (or with --address local), a Ray node is started first,
    which `raylog stop` ends again. On a Ray cluster whose nodes offer the resource `raylog`, each of them gets one
    broker.
    """
    settings = pairs("--config", config)
    root = data_dir.absolute()
    if broker is not None:
        if brokers is not None or settings or foreground or join:
            raise click.UsageError("--broker N brings one broker back; it goes with no other setting of a start")
        _start_broker(root, broker, timeout_s, address, as_json)
        return
    from raylog.actors.logs import log_format
    from raylog.core.configuration.config import validate_cluster_config

    validate_cluster_config(settings)
    log_format()
    cluster, own = _bring_up(root, brokers, settings, address, timeout_s, join, allow_plaintext, dashboard)
    facts = _facts(cluster, root, own)
    if foreground and as_json:
        show_step(as_json, {"state": "running", **facts}, "")
    else:
        show_done(as_json, facts, *_addresses(facts))
    if foreground:
        ended = _wait_for_signal(own)
        cluster.stop(progress=say)
        _shut_down(own, root)
        if ended:
            raise click.ClickException("Ray ended while the cluster was running; the data directory has its log")
        show_step(as_json, {"state": "stopped"}, "Stopped.")


def _start_broker(root: Path, broker: int, timeout_s: float, address: str | None, as_json: bool) -> None:
    from raylog.cli import ray_node
    from raylog.launch import cluster as clusters

    ray_node.join(address, root)
    running = clusters.connect()
    running.start_broker(broker, timeout_s, progress=say)
    behind = [
        f"{topic}-{partition['partition']}"
        for topic, partitions in sorted(running.status()["topics"].items())
        for partition in partitions
        if broker in partition["replicas"] and broker not in partition["isr"]
    ]
    sentence = f"Broker {broker} runs." + (f" Still catching up: {_few(behind)}." if behind else "")
    show_done(as_json, {"broker": broker, "catching_up": behind}, sentence)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED_MAX]) + (f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else "")


def _bring_up(
    root: Path,
    brokers: int | None,
    settings: dict[str, str],
    address: str | None,
    timeout_s: float,
    join: bool,
    allow_plaintext: bool,
    dashboard: bool = False,
) -> tuple[Cluster, OwnRay | None]:
    from raylog.cli import ray_node
    from raylog.launch import cluster as clusters

    found = ray_node.find(address, root)
    is_new = not root.exists()
    root.mkdir(parents=True, exist_ok=True)
    own = ray_node.recorded(root)
    started_here = found is None
    if found is None:
        reason = "--address local" if address == "local" else "No Ray runs here"
        click.echo(f"{reason}: starting one ...", err=True)
        own = ray_node.start_node(root, dashboard=dashboard)
        found = own.address
    if own is not None and own.address != found:
        own = None  # --address names another Ray cluster
    try:
        ray_node.join(found, root)
        running = clusters.start(
            root,
            brokers=brokers,
            config=settings,
            timeout_s=timeout_s,
            join=join,
            allow_plaintext=allow_plaintext,
            progress=say,
        )
        return running, own
    except BaseException:  # including an interrupt: a Ray node that was started for a cluster must not stay without it
        if started_here and own is not None:
            _shut_down(own, root)
        if is_new:
            with suppress(OSError):  # it holds something by now
                root.rmdir()
        raise


def _facts(cluster: Cluster, root: Path, own: OwnRay | None) -> dict[str, Any]:
    """The addresses of a cluster that has started, for JSON. Warns of settings and variables that do not fit it."""
    import ray

    from raylog.rpc.auth.secret_files import CLIENT_FILE

    status = cluster.status()
    if cluster.ignored_config:
        from raylog.launch.running_config import what_was_ignored

        started = cluster.was_started_here
        click.echo(what_was_ignored(cluster.ignored_config, status["config"], was_started=started), err=True)
    bootstrap = ",".join(f"{broker['host']}:{broker['port']}" for broker in status["brokers"] if broker["online"])
    known = os.environ.get(ENV_BOOTSTRAP, "")
    if known and not set(known.split(",")) & set(bootstrap.split(",")):
        click.echo(f"{ENV_BOOTSTRAP} is {known} in this shell, which is none of these brokers.", err=True)
    return {
        "data_dir": str(root),
        "brokers": [
            {"broker": each["broker"], "host": each["host"], "port": each["port"], "state": broker_state(each)}
            for each in status["brokers"]
        ],
        "ray": ray.get_runtime_context().gcs_address,
        "ray_pid": None if own is None else own.pid,
        "metrics": metrics_facts(),
        "bootstrap": bootstrap,
        "secret_file": str(root / CLIENT_FILE),
    }


def _addresses(facts: dict[str, Any]) -> list[str]:
    """The same addresses as lines for a person, with the variables to set in a shell."""
    pid = facts["ray_pid"]
    lines = [f"Raylog runs, with its data in {facts['data_dir']}."]
    lines += [
        f"  broker {each['broker']}: {each['host']}:{each['port']} ({each['state']})" for each in facts["brokers"]
    ]
    lines.append(f"  Ray: {facts['ray']}" + ("" if pid is None else f" (process {pid}, ended by `raylog stop`)"))
    lines += [f"  {line}" for line in metrics_lines(facts["metrics"])]
    if pid is not None and os.environ.get("RAY_AUTH_MODE") == "token":
        lines.append("  Ray's own tools need its token: set RAY_AUTH_MODE=token, then `ray status`.")
    return [
        *lines,
        "Inside Ray, raylog.Producer() and raylog.Consumer() find it by themselves. Anywhere else:",
        f"  export {ENV_BOOTSTRAP}={facts['bootstrap']}",
        f'  export {ENV_SECRET}="$(head -n 1 {facts["secret_file"]})"',
    ]


def _wait_for_signal(own: OwnRay | None) -> bool:
    """Wait for SIGINT or SIGTERM; returns True when the Ray node started here ended instead."""
    requested = threading.Event()

    def request_stop(number: int, frame: Any) -> None:
        requested.set()

    before = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    click.echo("Running in the foreground; Ctrl-C stops it.", err=True)
    try:
        while not requested.wait(WATCH_S):
            if own is not None and not own.is_running():
                return True
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return False


def _shut_down(own: OwnRay | None, root: Path) -> None:
    """Leave Ray, and end the Ray node if Raylog started it."""
    import ray

    from raylog.cli import ray_node

    ray.shutdown()
    if own is not None:
        ray_node.stop_node(own, root)


@click.command(cls=PlainCommand)
@data_dir_option
@click.option("--broker", type=int, help="Stop this broker alone; its leaders move to other replicas first.")
@click.option("--force", is_flag=True, help="Stop the broker even if no other replica can lead its partitions.")
@click.option("--timeout-s", type=click.FloatRange(min=1), default=60.0, show_default=True, help="Time to end.")
@click.option("--keep-ray", is_flag=True, help="Leave Ray running even when `raylog start` started it.")
@click.option("--nodes", is_flag=True, help="End Ray on all other machines as well; to be followed by `ray down`.")
@json_option()
@address_option
def stop(
    data_dir: Path,
    broker: int | None,
    force: bool,
    timeout_s: float,
    keep_ray: bool,
    nodes: bool,
    as_json: bool,
    address: str | None,
) -> None:
    """Stop the cluster, or one broker of it; the data stays, and `raylog start` brings it back.

    Ray is ended too if `raylog start` has started it for this data directory, but not with --broker.
    """
    if nodes and (broker is not None or keep_ray):
        raise click.UsageError("--nodes ends Ray on the other machines; it goes with neither --broker nor --keep-ray")
    if broker is not None:
        _stop_broker(data_dir.absolute(), broker, force, timeout_s, address, as_json)
        return
    if force:
        raise click.UsageError("--force goes with --broker; a cluster stops without it")
    from raylog.base.errors import NoClusterFound
    from raylog.cli import ray_node
    from raylog.launch import cluster as clusters
    from raylog.launch.controller_calls import running_folder

    root = data_dir.absolute()
    joined = ray_node.join(address, root)
    require_own(address, root)
    running = running_folder() or str(root)
    own = ray_node.recorded(root)
    if keep_ray or (own is not None and own.address != joined):
        own = None
    facts: dict[str, Any] = {"stopped": False, "data_dir": running, "ray_pid": None, "machines_ended": None}

    def report(sentence: str) -> None:
        if not as_json:
            click.echo(sentence)

    try:
        clusters.connect().stop(timeout_s, progress=say)
    except NoClusterFound:
        if own is None and not nodes:
            raise
        click.echo("No Raylog cluster runs in this Ray.", err=True)
    else:
        facts["stopped"] = True
        report(f"Raylog has stopped; its data stays in {running}.")
    finally:  # end the Ray node even if an actor does not stop: the actor recovers its log at the next start
        if nodes:
            facts["machines_ended"] = _end_other_nodes(timeout_s)
            report(f"Ray has ended on {', '.join(facts['machines_ended']) or 'no other machine'}.")
        _shut_down(own, root)
    if own is not None:
        facts["ray_pid"] = own.pid
        report(f"Ray (process {own.pid}) has ended.")
    show_done(as_json, facts)


def _end_other_nodes(timeout_s: float) -> list[str]:
    """End Ray on the other machines, report those that remain, and return those that have ended."""
    from raylog.launch.other_nodes import end_other_nodes

    found = end_other_nodes(timeout_s)
    if found.remaining:
        click.echo(
            f"These machines did not answer: {', '.join(found.remaining)}. Run `ray stop` there, should Ray still run.",
            err=True,
        )
    return list(found.ended)


def _stop_broker(root: Path, broker: int, force: bool, timeout_s: float, address: str | None, as_json: bool) -> None:
    from raylog.cli import ray_node
    from raylog.launch import cluster as clusters

    ray_node.join(address, root)
    require_own(address, root)
    stopped = clusters.connect().stop_broker(broker, force=force, timeout_s=timeout_s, progress=say)
    leaders = "1 leader" if stopped.leaders_moved == 1 else f"{stopped.leaders_moved} leaders"
    lines = [f"Broker {broker} has stopped ({leaders} moved); `raylog start --broker {broker}` brings it back."]
    if stopped.leaderless:
        lines.append(f"Without a leader until then: {_few(stopped.leaderless)}.")
    if stopped.below_minimum:
        lines.append(f"Refusing writes with acks=all until then: {_few(stopped.below_minimum)}.")
    facts = {
        "broker": broker,
        "leaders_moved": stopped.leaders_moved,
        "leaderless": list(stopped.leaderless),
        "below_minimum": list(stopped.below_minimum),
    }
    show_done(as_json, facts, *lines)
