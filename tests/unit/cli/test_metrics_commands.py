"""`raylog metrics`: the Grafana page and the alert rules name only metrics that there are."""

import json
import re

import yaml
from click.testing import CliRunner

from raylog.cli.app import cli
from raylog.cli.cluster.alerts import ALERTS
from raylog.cli.cluster.dashboard import COLUMNS, queries
from raylog.core.metadata.image import MetadataImage
from raylog.core.metrics.changes import PartitionChanges
from raylog.core.metrics.exposition import Family
from raylog.core.metrics.families import (
    BrokerView,
    active_controller,
    broker_families,
    controller_families,
    transaction_families,
)
from raylog.core.metrics.groups import group_families
from raylog.core.metrics.totals import Totals
from raylog.core.metrics.usage import Usage
from tests.unit.style.sources import ROOT

NAME = re.compile(r"\b(?:kafka|raylog)_[a-z_]+")


def names() -> set[str]:
    """The names of all samples that a cluster can show."""
    image, changes = MetadataImage(), PartitionChanges()
    view = BrokerView(
        broker=1,
        image=image,
        replicas={},
        totals=Totals(born_ms=0),
        changes=changes,
        usage=Usage(),
        controller_connected=True,
    )
    families: list[Family] = [
        *broker_families(view),
        *controller_families(image, changes, Usage(), lambda _: True),
        *group_families([], {}),
        *transaction_families({}),
        active_controller(1),
    ]
    suffixes = {"summary": ("", "_sum", "_count"), "histogram": ("_bucket", "_sum", "_count")}
    return {family.name + suffix for family in families for suffix in suffixes.get(family.kind, ("",))}


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli.commands["metrics"], arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_page_queries_existing_metrics() -> None:
    queried = {name for query in queries() for name in NAME.findall(query)}
    assert queried
    assert queried <= names()


def test_the_rules_query_existing_metrics() -> None:
    queried = {name for alert in ALERTS for name in NAME.findall(alert.query)}
    assert queried
    assert queried <= names()


def test_the_page_is_json_whose_panels_do_not_overlap() -> None:
    page = json.loads(run("dashboard", "--title", "Mine"))
    assert page["title"] == "Mine"
    taken: set[tuple[int, int]] = set()
    for panel in page["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS, panel["title"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in page["panels"]}) == len(page["panels"])


def test_the_rules_are_yaml_with_all_alerts() -> None:
    (group,) = yaml.safe_load(run("alerts"))["groups"]
    assert [(rule["alert"], rule["expr"]) for rule in group["rules"]] == [(alert.name, alert.query) for alert in ALERTS]
    assert all(rule["annotations"]["summary"] and rule["annotations"]["action"] for rule in group["rules"])


def test_the_pages_name_existing_metrics_of_kafkas() -> None:
    of_brokers = re.compile(r"\bkafka_(?:controller|server|network|consumergroup|topic)_[a-z_]+[a-z]\b")
    pages = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("operations.md", "kafka.md", "spark.md")]
    named = {name for page in pages for name in of_brokers.findall(page)}
    assert "kafka_controller_asleeppartitionscount" in named
    exist = names()
    assert {name for name in named if not any(each.startswith(name) for each in exist)} == set()
