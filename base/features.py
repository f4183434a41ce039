"""The feature level: limits a cluster of mixed releases to features that all of them know (similar to KIP-584).

A release raises the level when it adds something that an earlier release cannot skip: a record type, a method, a
format. Each broker registers the range of levels that its software knows. The cluster has one level, in the metadata;
an administrator raises it when all brokers know the next one. From then on the features of that level are used, so a
broker that does not know the cluster's level is refused. Pure; used by the controller and by brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

LEVELS: Final[Mapping[int, str]] = {
    1: "1.0.0: the first; everything",
}
"""Every level that was ever given out, and what came with it."""
FIRST_LEVEL: Final = 1
"""The level of a cluster whose metadata has no level, and of a broker that registers without one."""


class LevelRange(NamedTuple):
    """The levels that some software knows, both ends included."""

    lowest: int = FIRST_LEVEL
    highest: int = FIRST_LEVEL

    def knows(self, level: int) -> bool:
        """Return whether software with this range can be part of a cluster at that level."""
        return self.lowest <= level <= self.highest

    def __str__(self) -> str:
        """Return the range as a sentence has it: ``2``, or ``1 to 6``."""
        return str(self.lowest) if self.lowest == self.highest else f"{self.lowest} to {self.highest}"


FIRST: Final = LevelRange()
"""Range of software that reports no levels."""
SUPPORTED: Final = LevelRange(FIRST_LEVEL, max(LEVELS))
"""Range of this release. ``raylog.rpc.auth.handshake.FEATURE_LEVEL`` is the same number, sent in handshakes."""


def misfit(whose: str, known: LevelRange, level: int) -> str:
    """Return the message for software that does not know the cluster's level, and what to do about it.

    ``whose``: the subject of the sentence, such as a broker's name.
    """
    if level > known.highest:
        return (
            f"{whose} runs a release of Raylog that knows feature level {known}, and this cluster is at level {level}: "
            "install a newer release there."
        )
    return (
        f"{whose} runs a release of Raylog that needs feature level {known.lowest} at least, and this cluster is at "
        f"level {level}: raise it with `raylog features upgrade` under the release before, then install this one."
    )
