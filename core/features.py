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
    1: "0.2.0: the first; everything else",
    2: "0.2.0: partitions sleep: metadata records `PartitionAsleep` and `PartitionsBornAsleep`; topics are compacted",
    3: "0.2.0: transactions: coordinators of kind `transaction`, markers in partitions, pending offsets of groups; "
    "topics with `message.timestamp.type=LogAppendTime` or a `compression.type` of their own",
    4: "0.2.0: time and queues: topics `__scheduled`, `__share_state` and `__undeliverable`; delayed records, queues, "
    "dead letters; Kafka's hash from a group to its coordinator",
    5: "0.2.0: groups of the consumer protocol (KIP-848): their records in `__consumer_offsets`",
    6: "0.2.0: the cluster's settings are altered while it runs: metadata record `ClusterAltered`",
}
"""Every level that was ever given out, and what came with it."""
COMPACTION_LEVEL: Final = 2
"""From this level on a topic may have `cleanup.policy=compact`."""
TRANSACTIONS_LEVEL: Final = 3
"""From this level on producers may have a transactional id."""
REWRITING_LEVEL: Final = 3
"""From this level on a topic may have `message.timestamp.type=LogAppendTime`, and a `compression.type`."""
HASH_LEVEL: Final = 4
"""From this level on the topics of coordinators are created with Kafka's hash (``core/coordinators/hashing.py``)."""
QUEUES_LEVEL: Final = 4
"""From this level on records may be delayed, topics read as queues, and expired records go to dead-letter topics."""
CONSUMER_GROUPS_LEVEL: Final = 5
"""From this level on groups may use the consumer protocol."""
ALTERING_LEVEL: Final = 6
"""From this level on the cluster's settings may be altered while it runs."""
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
"""Range of this release. ``raylog.rpc.version.FEATURE_LEVEL`` is the same number, sent in handshakes."""


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
