"""Raylog's client sees what Kafka's clients see, in each small program of `tests/conformance`.

What those saw was kept by `make conformance CONFORMANCE_ARGS=--note`, which runs them on a Kafka.
"""

import json
from collections.abc import Iterator

import pytest

import raylog
from tests.conformance.__main__ import SEEN, outcome
from tests.conformance.differences import DIFFERENCES
from tests.conformance.programs import PROGRAMS
from tests.conformance.raylog_kit import RaylogKit
from tests.unit.style.sources import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def kit(shared_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RaylogKit]:
    with raylog.start(tmp_path_factory.mktemp("data")):
        yield RaylogKit()


def test_what_kafkas_clients_saw_is_kept_for_every_program() -> None:
    assert set(json.loads(SEEN.read_text())) == set(PROGRAMS)
    assert set(DIFFERENCES) <= set(PROGRAMS)


def test_every_difference_is_in_the_page_for_kafka_users() -> None:
    page = (ROOT / "docs" / "kafka.md").read_text()
    assert [reason for reason in DIFFERENCES.values() if reason not in page] == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_sees_what_it_sees_on_kafka(kit: RaylogKit, name: str) -> None:
    seen = json.loads(SEEN.read_text())[name].values()
    found = outcome(kit, PROGRAMS[name])
    assert (found in seen) != (name in DIFFERENCES), f"{found} on Raylog, {list(seen)} on Kafka"
