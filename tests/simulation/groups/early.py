"""A member of an earlier release, which knows no other form of the embedded protocol than its msgpack lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from raylog.client.group import early_protocol
from raylog.client.group.assignor import PartitionAssignor, Subscription
from raylog.client.group.assignors import assign
from raylog.client.group.early_protocol import is_early
from raylog.client.group.membership import Membership
from raylog.protocol.groups import JoinGroupMember, SyncGroupAssignment, SyncGroupRequest
from tests.simulation.world import Violation

FIRST_VERSION = 1


class EarlyMembership(Membership):
    """Reads and writes what that release did."""

    def _subscription(self, assignor: PartitionAssignor, topics: tuple[str, ...]) -> bytes:
        wire = early_protocol.encode_subscription(Subscription(topics=topics, owned=self.owned))
        return _as_first(wire)

    def subscriptions(self, members: Sequence[JoinGroupMember]) -> dict[str, Subscription]:
        """It takes what it cannot read for a member without topics."""
        found = super().subscriptions([row for row in members if is_early(row.metadata)])
        return {row.member_id: found.get(row.member_id, Subscription(topics=())) for row in members}

    def sync_request(
        self, subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]
    ) -> SyncGroupRequest:
        """It answers all members in its own form."""
        rows: list[SyncGroupAssignment] = []
        if subscriptions:
            given = assign(self.assignors, self.protocol, subscriptions, partition_counts)
            forms = {each: _as_first(early_protocol.encode_assignment(given[each])) for each in given}
            rows = [SyncGroupAssignment(each, form) for each, form in forms.items()]
        return SyncGroupRequest(self.group, self.generation, self.member_id, self.instance_id, rows)

    def _learn_form(self, assignment: bytes) -> None:
        if assignment and not is_early(assignment):
            raise Violation("I15", f"a member of an earlier release gets an assignment it cannot read: {assignment!r}")


def _as_first(wire: bytes) -> bytes:
    _, *rest = msgspec.msgpack.decode(wire)
    return msgspec.msgpack.encode([FIRST_VERSION, *rest])
