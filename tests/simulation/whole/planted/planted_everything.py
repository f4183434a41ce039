"""Bugs that show where features meet: a topic that is created again while clients of all kinds use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.client.consumer.committed_offsets import CommittedOffsets
from raylog.client.consumer.fetcher import Fetcher
from tests.simulation.planted.bugs import Edit
from tests.simulation.whole.plan import EVERYTHING
from tests.simulation.whole.planted.bugs import Bug

RENEWED: Final = ("topic-created-again", "consumer-protocol")


def _bug(
    name: str,
    target: Any,
    attribute: str,
    patch: Callable[[Any], Any],
    rules: tuple[str, ...],
    features: tuple[str, ...],
    *,
    seeds: int = 8,
    first: int = 1,
) -> Bug:
    return Bug(name, target, attribute, patch, rules, seeds, EVERYTHING, first, features)


EVERYTHING_BUGS: Final = (
    _bug(
        "an offset is committed for whichever topic has the name",
        CommittedOffsets,
        "_commit",
        Edit('if offsets[each].topic_id not in ("", topic_id)', "if not topic_id").of,
        ("W9", "W70"),
        RENEWED,
    ),
    _bug(
        "a reader goes on at its position in a topic that was created again",
        Fetcher,
        "_fetch",
        Edit("elif state.topic_id != info.topic_id:", "elif False:").of,
        ("W9", "W70"),
        RENEWED,
    ),
)
