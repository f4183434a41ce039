"""Bugs of groups whose coordinator assigns, in the whole world; more are planted in tests/simulation/consumers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.client.group.consumer_membership import ConsumerMembership
from raylog.core.groups import heartbeats
from raylog.core.groups.consumer_group import ConsumerGroup
from raylog.core.groups.consumer_groups import ConsumerGroups
from tests.simulation.planted.bugs import Edit
from tests.simulation.whole.plan import EVERYTHING
from tests.simulation.whole.planted.bugs import Bug


def _returns(result: object) -> Callable[[Any], Callable[..., Any]]:
    def patch(_: Any) -> Callable[..., Any]:
        return lambda *_, **__: result

    return patch


def _bug(name: str, target: Any, attribute: str, patch: Callable[[Any], Any], rules: tuple[str, ...]) -> Bug:
    return Bug(name, target, attribute, patch, rules, 20, EVERYTHING, 1, ("consumer-protocol",))


CONSUMER_BUGS: Final = (
    _bug(
        "a partition goes to its next owner before the former has given it up",
        heartbeats,
        "next_current",
        Edit("if owners.get(place, current.member_id) == current.member_id", "").of,
        ("W10",),
    ),
    _bug(
        "a group of the consumer protocol keeps members that are silent",
        ConsumerGroups,
        "tick",
        Edit("session.deadline_ms <= now_ms", "False").of,
        ("W9", "W1"),
    ),
    _bug(
        "a heartbeat is answered without its assignment",
        heartbeats,
        "answer",
        Edit("whole or session.sent != assigned", "False").of,
        ("W9", "W1"),
    ),
    _bug(
        "a coordinator does not restore what is held",
        ConsumerGroup,
        "_claim",
        _returns(None),
        ("W10",),
    ),
    _bug("topics that are looked up stay unknown", ConsumerGroups, "seen", _returns(None), ("W9", "W1")),
    _bug(
        "a member never confirms what it was assigned",
        ConsumerMembership,
        "heartbeat_request",
        Edit("reports = says_all or (self._owes_report and self.is_in_force)", "reports = is_join").of,
        ("W9", "W1"),
    ),
    _bug(
        "the epoch of a group starts again after a failover",
        ConsumerGroup,
        "apply",
        Edit("self.image = record", "self.image = record if self.sessions else None").of,
        ("W10", "W9"),
    ),
)
