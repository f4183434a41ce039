"""`raylog metrics`: configuration for Grafana and Prometheus, to show a cluster and to raise alerts."""

from __future__ import annotations

import click

from raylog.cli.commands import Commands
from raylog.cli.options import json_option
from raylog.cli.output import show_json


@click.group(cls=Commands)
def metrics() -> None:
    """Print a Grafana page and Prometheus alert rules for clusters.

    The metrics themselves are at port 9404 of each node (metrics.port), path /metrics.
    """


@metrics.command()
@click.option("--title", default="Raylog", show_default=True, help="What the page is called.")
@json_option("It is JSON anyway.")
def dashboard(title: str, as_json: bool) -> None:
    """Print a Grafana page as JSON: import it, and choose the Prometheus that scrapes the cluster."""
    from raylog.cli.cluster.dashboard import dashboard as page

    show_json(page(title))


@metrics.command()
@json_option("As JSON, which Prometheus reads as well.")
def alerts(as_json: bool) -> None:
    """Print alert rules for Prometheus, a file for its rule_files. They expect the job name "raylog"."""
    from raylog.cli.cluster.alerts import alert_rules, rule_file

    if as_json:
        show_json(rule_file())
    else:
        click.echo(alert_rules(), nl=False)
