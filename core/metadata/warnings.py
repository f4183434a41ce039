"""Warning messages for operators. Used by liveness and registrations. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from raylog.base.ids import BrokerId, TopicPartition
from raylog.core.partition import PartitionState


def unclean_election(before: PartitionState, after: PartitionState) -> str:
    """Return the warning about a leader from outside the ISR and the eligible replicas."""
    return (
        f"Unclean election: broker {after.leader} leads {after.partition} from epoch {after.leader_epoch} on, from "
        f"outside its ISR {list(before.isr)} and its eligible replicas {list(before.elr)}. Acknowledged records at the "
        "end of the partition may be missing."
    )


def lost_copy(partition: TopicPartition, broker: BrokerId, elr: Sequence[BrokerId]) -> str:
    """Return the warning about a partition whose last ISR member returned without its log."""
    loss = f"{partition} has no leader: broker {broker} held its only in-sync copy and came back without it. "
    if elr:
        return f"{loss}Start a broker that has everything as well ({', '.join(map(str, elr))}), and it leads."
    return (
        f"{loss}Restore that data directory, or go on with what other replicas have: `raylog topic elect "
        f"{partition.topic} --partition {partition.partition} --unclean` (or for good, with "
        "unclean.leader.election.enable=true on the topic)."
    )
