"""Bugs against the rules R12 to R14: statements and refusals that later logs belie, and logs that lack producers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.core.coordinators.decision import CoordinatorDecision
from raylog.core.replication.leader import Leader
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.log.producer_state import ProducerState
from tests.simulation.planted.bugs import Edit
from tests.simulation.whole.plan import EVERYTHING
from tests.simulation.whole.planted.bugs import Bug


def _bug(
    name: str,
    feature: str,
    rules: tuple[str, ...],
    target: Any,
    attribute: str,
    patch: Callable[[Any], Any],
    seeds: int = 8,
) -> Bug:
    return Bug(name, target, attribute, patch, rules, seeds, EVERYTHING, 1, (feature,))


RULE_BUGS: Final = (
    _bug(
        "a coordinator states what is stored without a row of its own",
        "deposed-coordinators",
        ("W88", "W7"),
        CoordinatorDecision,
        "reply_proved",
        lambda _: CoordinatorDecision.reply,
        40,
    ),
    _bug(
        "a coordinator refuses what it does not know without a row of its own",
        "deposed-coordinators",
        ("W88",),
        CoordinatorDecision,
        "refuse_proved",
        lambda _: CoordinatorDecision.refuse_at_once,
    ),
    _bug(
        "a leader refuses a batch for good before its followers have fetched",
        "repeats",
        ("W89",),
        Leader,
        "judged",
        Edit("if is_settled or error.retriable:", "if True:").of,
    ),
    _bug(
        "a log that begins again does not request its producers",
        "repeats",
        ("W89",),
        PartitionLog,
        "lacks_producers",
        lambda _: property(lambda self: False),
    ),
    _bug(
        "a leader gives a log that begins again no batches of its producers",
        "repeats",
        ("W89",),
        ProducerState,
        "below",
        Edit("if batch.end_offset <= offset", "if batch.end_offset < 0").of,
    ),
)
