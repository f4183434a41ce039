"""Bugs planted in the consumers' view of leases: the courses of ``test_leases.py`` notice each."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from raylog.client.queues.leases import LeaseBook
from raylog.core.queues.acknowledging import Acknowledging
from tests.property.client.queues.test_leases import Leases
from tests.simulation.planted.bugs import Edit

LOOK = settings(
    max_examples=400,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
BUGS: dict[str, tuple[Any, str, str, str]] = {
    "a lock counts from when its answer is read": (
        LeaseBook,
        "locks",
        "sent_s + (reply.waited_ms + reply.lock_ms) / 1000",
        "now + reply.lock_ms / 1000",
    ),
    "a refused renewal is not noted": (LeaseBook, "_renewed", "if lease in lost:", "if False:"),
    "a renewal counts in full where the leader has shortened it": (
        LeaseBook,
        "_renewed",
        "shorter.get(lease, lock_ms)",
        "lock_ms",
    ),
    "a renewal counts before it is answered": (LeaseBook, "_renewed", "sent_s + lock_ms", "sent_s + 1.0 + lock_ms"),
    "a verdict on one hand-out counts for the next one with its count": (
        Acknowledging,
        "apply",
        "or verdict.lease not in (0, cell.lease)",
        "",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(name: str) -> None:
    target, attribute, *texts = BUGS[name]
    changed: Any = Edit(*texts).of(getattr(target, attribute))
    with patch.object(target, attribute, changed), pytest.raises((Exception, BaseExceptionGroup)):
        run_state_machine_as_test(Leases, settings=LOOK)
