"""Bugs planted in a queue's machine: the random workers of ``test_machine.py`` notice each."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from raylog.core.queues.acknowledging import Acknowledging
from raylog.core.queues.book import RecordBook
from raylog.core.queues.decision import QueueDecision
from raylog.core.queues.letters import DeadLetters
from raylog.core.queues.ranges import RangeMap
from tests.property.core.queues.test_machine import Worked, WorkedRetryTopic
from tests.simulation.planted.bugs import Edit

LOOK = settings(
    max_examples=600,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
BUGS = {
    "an acknowledgement is answered before it is stored": (
        Worked,
        QueueDecision,
        "reply",
        "self.after_sync.append(Reply",
        "self.now.append(Reply",
    ),
    "the timer of a lock survives the acknowledgement": (
        Worked,
        Acknowledging,
        "expire",
        "cell.state == ACQUIRED and cell.until_ms <= now_ms",
        "cell.state in (ACQUIRED, ACKNOWLEDGED)",
    ),
    "a member that leaves frees the locks of another": (
        Worked,
        RecordBook,
        "held_by",
        "piece[2].member == member",
        "True",
    ),
    "a record waits for nothing": (Worked, RecordBook, "take_waits", "self._waits[0][0] <= now_ms", "True"),
    "the limit is one too high": (Worked, Acknowledging, "_is_over_limit", "cell.tries >=", "cell.tries >"),
    "ranges are joined whatever their counts": (
        Worked,
        RangeMap,
        "put",
        "if row[1] != merged[-1][1]:",
        "if row[1][0] != merged[-1][1][0]:",
    ),
    "a record is finished before its copy is stored": (
        Worked,
        Acknowledging,
        "_postpone",
        "Cell(ARCHIVING, cell.tries, until_ms=due_ms, cause=Cause(POSTPONED))",
        "DONE",
    ),
    "a copy forgets how often it was handed out": (
        WorkedRetryTopic,
        RecordBook,
        "inherit",
        "cell.tries >= tries",
        "True",
    ),
    "a verdict of another member counts": (Worked, Acknowledging, "apply", "or cell.member != member", ""),
    "a letter that is too large counts as stored": (
        Worked,
        DeadLetters,
        "_too_large",
        "self._held.append(offset)",
        "self.book.put(offset, offset + 1, DEAD)",
    ),
    "a letter that is too large loses its body": (
        Worked,
        DeadLetters,
        "_too_large",
        "if not self.policy.drops_undeliverable:",
        "if False:",
    ),
    "what is held is never tried again": (Worked, DeadLetters, "_try_held", "now_ms >= self._held_until_ms", "False"),
    "the letters beside one that is too large are forgotten": (
        Worked,
        DeadLetters,
        "refused",
        "if letter.offset not in large",
        "if not large and not event.fits",
    ),
    "a batch that is refused is not made smaller": (
        Worked,
        DeadLetters,
        "refused",
        "self._batch_max = event.fits",
        "pass",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(name: str) -> None:
    machine, target, attribute, *texts = BUGS[name]
    changed: Any = Edit(*texts).of(getattr(target, attribute))
    with patch.object(target, attribute, changed), pytest.raises(BaseException) as noticed:
        run_state_machine_as_test(machine, settings=LOOK)
    assert isinstance(noticed.value, (Exception, BaseExceptionGroup)), noticed.value
