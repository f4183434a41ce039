"""Metrics of leader roles: a sample for each partition that has the role."""

import pytest

from raylog.base.ids import TopicPartition
from raylog.core.metrics.roles import ROLES, role_families, roles_from_wire

SCHEDULE = TopicPartition("__scheduled", 0)


def test_each_figure_of_a_role_is_a_metric_with_its_partition() -> None:
    families = {family.name: family for family in role_families(2, {SCHEDULE: {"scheduler": {"waiting": 7}}})}
    assert families["raylog_scheduler_waiting"].samples == [
        ("", {"broker": "2", "topic": "__scheduled", "partition": "0"}, 7)
    ]
    assert not families["raylog_scheduler_delivered_total"].samples
    assert len(families) == sum(len(figures) for figures in ROLES.values())


def test_an_earlier_release_reports_none() -> None:
    assert roles_from_wire(None) == {}
    with pytest.raises(ValueError, match="roles"):
        roles_from_wire([1])
