"""Priorities among the topics of a queue consumer: reads the configuration, and decides which topic is next. Pure.

A log cannot order its records by priority, so each priority is a topic of its own. There is a lane for each topic, in
the order in which the user named them; lanes are served strictly in this order, or in proportion to weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol

from raylog.base.errors import InvalidConfig

STRICT: Final = "strict"
RATIO_MAX: Final = 1_000
"""The largest ratio of two weights: so many messages may come between two of the topic with the lowest weight."""


class Standing(Enum):
    """Whether a lane has records."""

    AT_HAND = "at hand"
    """Some are buffered here."""
    UNKNOWN = "unknown"
    """None is buffered, but a leader that had records has not answered the next fetch yet."""
    NONE = "none"
    """None is buffered, and no leader has one to hand out."""


class Turns(Protocol):
    """Decides which lane is next."""

    @property
    def is_strict(self) -> bool:
        """Whether a lane waits for all lanes before it."""

    def share(self, lane: int, most: int) -> int:
        """How many of `most` records a lane may lock ahead; at least one."""

    def is_ready(self, standings: Sequence[Standing]) -> bool:
        """Whether `next` would return a lane."""

    def next(self, standings: Sequence[Standing]) -> int | None:
        """The lane from which the next message is taken, by the standings of all lanes; None = wait."""


class StrictTurns:
    """The first lane with records is next. A lane waits until all lanes before it are known to have none."""

    is_strict = True

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes

    def share(self, lane: int, most: int) -> int:
        """How many of `most` records a lane may lock ahead: the same for all lanes."""
        return max(1, most // self._lanes)

    def is_ready(self, standings: Sequence[Standing]) -> bool:
        """Whether `next` would return a lane."""
        return self.next(standings) is not None

    def next(self, standings: Sequence[Standing]) -> int | None:
        """The first lane with records at hand, if all before it have none."""
        for lane, standing in enumerate(standings):
            if standing is not Standing.NONE:
                return lane if standing is Standing.AT_HAND else None
        return None


class WeightedTurns:
    """Deficit round robin: lanes with records hand out messages in proportion to their weights.

    In each round a lane gets weight / least weight messages; fractions are carried over. A lane without records at hand
    is skipped: no other lane waits for it, and it saves up no turns.
    """

    is_strict = False

    def __init__(self, weights: Sequence[float]) -> None:
        """`weights`: greater than 0, one for each lane."""
        self._shares = [weight / sum(weights) for weight in weights]
        self._quanta = [weight / min(weights) for weight in weights]
        self._left = [0.0] * len(weights)
        """How many messages each lane may still hand out in its turn."""
        self._at = len(weights) - 1

    def share(self, lane: int, most: int) -> int:
        """How many of `most` records a lane may lock ahead, by its weight."""
        return max(1, int(most * self._shares[lane]))

    def is_ready(self, standings: Sequence[Standing]) -> bool:
        """Whether any lane has records at hand."""
        return Standing.AT_HAND in standings

    def next(self, standings: Sequence[Standing]) -> int | None:
        """The lane whose turn it is, among those with records at hand."""
        if Standing.AT_HAND not in standings:
            return None
        while True:  # ends after one round at most, as each lane gets at least one message in it
            at = self._at
            if standings[at] is not Standing.AT_HAND:
                self._left[at] = 0.0
            elif self._left[at] >= 1:
                self._left[at] -= 1
                return at
            self._at = at = (at + 1) % len(self._quanta)
            self._left[at] += self._quanta[at]


def turns_of(priority: Any, topics: Sequence[str]) -> Turns | None:
    """The `Turns` for a consumer's `priority`; None = no priorities. Raises InvalidConfig for an invalid one."""
    if priority is None:
        return None
    if len(set(topics)) < 2:
        raise InvalidConfig(
            f"priority is between topics, and this consumer has {len(set(topics))}: name two or more, or leave it out."
        )
    if len(set(topics)) < len(topics):
        raise InvalidConfig(f"With priority, name each topic once, not {', '.join(topics)}.")
    if isinstance(priority, str):
        if priority != STRICT:
            raise InvalidConfig(f"priority is 'strict', or the weights of the topics, not {priority!r:.100}.")
        return StrictTurns(len(topics))
    return WeightedTurns(_weights(priority, topics))


def _weights(priority: Any, topics: Sequence[str]) -> list[float]:
    if isinstance(priority, Mapping):
        for topic in priority:
            if topic not in topics:
                raise InvalidConfig(
                    f"priority has a weight for {topic!r:.100}, and the topics are {', '.join(topics)}."
                )
        missing = [topic for topic in topics if topic not in priority]
        if missing:
            raise InvalidConfig(f"priority has no weight for {', '.join(missing)}: give each topic one.")
        given = [priority[topic] for topic in topics]
    elif isinstance(priority, Sequence):
        given = list(priority)
        if len(given) != len(topics):
            raise InvalidConfig(f"priority has {len(given)} weights for {len(topics)} topics: give each topic one.")
    else:
        raise InvalidConfig(f"priority is 'strict', a mapping of topics to weights or a list, not {priority!r:.100}.")
    for topic, weight in zip(topics, given, strict=True):
        is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not is_number or not math.isfinite(weight) or weight <= 0:
            raise InvalidConfig(f"The weight of {topic} has to be a number greater than 0, not {weight!r:.100}.")
    if max(given) > RATIO_MAX * min(given):
        raise InvalidConfig(
            f"The weights {min(given)} and {max(given)} are too far apart: one may be {RATIO_MAX} times another. "
            "For a topic that waits for another one, use 'strict'."
        )
    return [float(weight) for weight in given]
