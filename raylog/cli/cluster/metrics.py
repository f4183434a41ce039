"""`raylog metrics`: configuration for Grafana and Prometheus, to show a cluster and to raise alerts."""

from __future__ import annotations

import click

from raylog.cli.commands import Commands


@click.group(cls=Commands)
def metrics() -> None:
    """Print a Grafana page and Prometheus alert rules for clusters.

    The figures themselves are on port 9404 of each node (metrics.port), at /metrics.
    """


@metrics.command()
@click.option("--title", default="Raylog", show_default=True, help="What the page is called.")
def dashboard(title: str) -> None:
    """Print a Grafana page as JSON: import it, and choose the Prometheus that scrapes the cluster."""
    import json

    from raylog.dashboard import dashboard as page

    click.echo(json.dumps(page(title), indent=2))


@metrics.command()
def alerts() -> None:
    """Print alert rules for Prometheus, a file for its rule_files. They expect the job name "raylog"."""
    from raylog.alerts import alert_rules

    click.echo(alert_rules(), nl=False)
