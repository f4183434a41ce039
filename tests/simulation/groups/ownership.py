"""What a generation may take from cooperative members, by the claims in their joins (KIP-429). Used by the books."""

from __future__ import annotations

from raylog.client.group.embedded_protocol import decode_assignment, decode_subscription
from raylog.client.group.sticky import CooperativeStickyAssignor
from raylog.core.groups.records import GroupChanged
from tests.simulation.groups.topic import TOPIC

COOPERATIVE = CooperativeStickyAssignor.name


def owned_in(metadata: bytes) -> frozenset[int]:
    """The partitions that a member claims to own in a join."""
    if not metadata:
        return frozenset()
    return frozenset(number for topic, number in decode_subscription(metadata).owned if topic == TOPIC)


def superseded(image: GroupChanged, generation: int) -> frozenset[int]:
    """Partitions that a member of this generation got later than in ``generation``.

    A join that was sent twice may arrive once more, in the next round: that round ends without its sender, and may give
    away what it holds, as if it had been dropped. The claim of the newer generation counts from then on.
    """
    found: set[int] = set()
    for member in image.members:
        metadata = member.metadata(image.protocol)
        if metadata and decode_subscription(metadata).generation > generation:
            found |= owned_in(metadata)
    return frozenset(found)


def withheld(image: GroupChanged) -> frozenset[int]:
    """Partitions that a cooperative generation may leave without an owner: a member has to give them back first."""
    if image.protocol != COOPERATIVE:
        return frozenset()
    return frozenset(number for member in image.members for number in owned_in(member.metadata(image.protocol)))


def taken_too_early(image: GroupChanged) -> str | None:
    """Return how a generation gives a partition away that another member still owns, or None."""
    if image.protocol != COOPERATIVE:
        return None
    owners: dict[int, set[str]] = {}
    for member in image.members:
        for number in owned_in(member.metadata(image.protocol)):
            owners.setdefault(number, set()).add(member.member_id)
    for member in image.members:
        for _, number in decode_assignment(member.assignment):
            others = owners.get(number, set())
            if others and member.member_id not in others:
                return f"partition {number} goes to {member.member_id} while {sorted(others)} own it"
    return None
