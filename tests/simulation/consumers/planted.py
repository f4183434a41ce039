"""Planted bugs in groups of the consumer protocol, all caught by the profile ``consumer-groups``."""

from __future__ import annotations

from typing import Any

from raylog.client.group.consumer_membership import ConsumerMembership
from raylog.core.groups import heartbeats
from raylog.core.groups.consumer_group import ConsumerGroup
from raylog.core.groups.consumer_groups import ConsumerGroups
from tests.simulation.planted.bugs import Edit, Planted, nothing

CONSUMER_GROUPS = "consumer-groups"
SEEDS = 60


def _bug(name: str, rules: str, target: Any, attribute: str, *change: Any, seeds: int = SEEDS) -> Planted:
    substitute = Edit(*change) if isinstance(change[0], str) else change[0]
    return Planted(name, CONSUMER_GROUPS, seeds, tuple(rules.split()), target, attribute, substitute)


CONSUMER_BUGS = (
    _bug(
        "a partition goes to its new owner before the old one has confirmed",
        "CL1 machine",
        heartbeats,
        "next_current",
        "owners.get(place, current.member_id) == current.member_id",
        "True",
    ),
    _bug(
        "a heartbeat that does not name what it holds confirms a revocation",
        "CL1",
        heartbeats,
        "_still_holds",
        "owned is None or any",
        "owned is not None and any",
    ),
    _bug(
        "a member that repeats its epoch after a lost answer is fenced",
        "CL4",
        heartbeats,
        "epoch_error",
        "message.member_epoch == current.previous_epoch",
        "False",
    ),
    _bug(
        "a commit counts for a partition that was given up",
        "CL2",
        heartbeats,
        "commit_error",
        "is_in_time = ",
        "is_in_time = is_ours = True or ",
        seeds=400,
    ),
    _bug(
        "a change ends with what is assigned by then",
        "CL1",
        ConsumerMembership,
        "end_change",
        "dict(self.change.partitions)",
        "dict(self.assigned or {})",
    ),
    _bug(
        "what a change takes is not lost with the membership",
        "CL1",
        ConsumerMembership,
        "lose",
        "bool(self._held)",
        "bool(self.owned)",
    ),
    _bug("members that fall silent stay", "CL6", ConsumerGroups, "tick", "session.deadline_ms <= now_ms", "False"),
    _bug(
        "members that do not give up their partitions stay",
        "CL6",
        ConsumerGroups,
        "tick",
        "session.revoke_deadline_ms is not None and session.revoke_deadline_ms <= now_ms",
        "False",
        seeds=120,
    ),
    _bug(
        "the time to give partitions up has no limit after a failover",
        "machine CL6",
        ConsumerGroup,
        "restore",
        "is MemberState.UNREVOKED_PARTITIONS",
        "is MemberState.UNRELEASED_PARTITIONS",
        seeds=300,
    ),
    _bug("a torn step is not mended", "machine CL6", ConsumerGroup, "is_torn", lambda self: False, seeds=700),
    _bug("topics that change do not matter", "CL6", ConsumerGroups, "seen", nothing),
    _bug(
        "the epoch starts again after a failover",
        "CL3 CL5 machine",
        ConsumerGroup,
        "apply",
        "self.image = record",
        "self.image = record if self.sessions else None",
    ),
    _bug("what is held is not restored", "CL5 CL1 machine", ConsumerGroup, "_claim", nothing),
    _bug("an answer without its assignment", "CL6", heartbeats, "answer", "whole or session.sent != assigned", "False"),
    _bug(
        "a member confirms before it has given up",
        "CL1",
        ConsumerMembership,
        "heartbeat_request",
        "owned=grouped({} if is_join else self._held) if reports else None",
        "owned=grouped({} if is_join else self.assigned or self.owned)",
    ),
    _bug(
        "a member keeps what it has lost",
        "CL1 CL2 CL6",
        ConsumerMembership,
        "lose",
        "self.lost = self.lost or bool(self._held)",
        "self.lost = False",
    ),
)
