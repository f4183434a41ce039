"""A jump of the wall clock: the log line, and the time that the shells use for deletion."""

import logging
from pathlib import Path

import pytest

from raylog.actors.careful_clock import CarefulClock
from raylog.actors.clock import since_boot_ms, wall_ms
from raylog.actors.settings import log_settings, retention_check_ms, topic_settings
from tests.unit.actors.specs import replica_spec

DAY = 24 * 3_600_000


def test_a_jump_is_logged_once_an_hour_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    boot, wall = [1_000], [1_700_000_000_000]
    clock = CarefulClock("t-0", since_boot=lambda: boot[0] * 1_000_000, wall=lambda: wall[0] * 1_000_000)
    right = wall[0]
    with caplog.at_level(logging.WARNING):
        wall[0] += 8 * DAY
        assert clock.deleting_ms() == right
        assert clock.deleting_ms() == right
        assert clock.jump_ms == 8 * DAY
        wall[0] -= 8 * DAY
        assert clock.deleting_ms() == right
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "+691200 s" in caplog.messages[0]
    assert clock.jump_ms == 0


def test_the_clocks_of_this_machine_go_forward() -> None:
    assert since_boot_ms() <= since_boot_ms()
    assert CarefulClock("t-0").deleting_ms() <= wall_ms()


def test_timestamp_limits_are_the_topics_or_clusters_not_for_internal() -> None:
    key = "message.timestamp.after.max.ms"
    assert topic_settings({}, {})[0].message_timestamp_after_max_ms == 3_600_000
    assert topic_settings({}, {})[0].message_timestamp_before_max_ms == 2**63 - 1
    assert topic_settings({}, {f"log.{key}": "7"})[0].message_timestamp_after_max_ms == 7
    assert topic_settings({key: "5"}, {f"log.{key}": "7"})[0].message_timestamp_after_max_ms == 5
    cluster_config = {"log.retention.check.interval.ms": "250"}
    spec = replica_spec(Path(), topic="__consumer_offsets", cluster_config=cluster_config)
    assert log_settings(spec)[0].message_timestamp_after_max_ms == 2**63 - 1
    assert retention_check_ms(spec.cluster_config) == 250
