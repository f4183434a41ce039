"""A bug of groups whose coordinator assigns; the others are planted in their own world, tests/simulation/groups."""

from __future__ import annotations

from typing import Final

from raylog.core.groups.consumer import heartbeats
from tests.simulation.planted.bugs import Edit
from tests.simulation.whole.plan import CONSUMERS
from tests.simulation.whole.planted.bugs import Bug

CONSUMER_BUGS: Final = (
    Bug(
        "a partition goes to its next owner before the former has given it up",
        heartbeats,
        "next_current",
        Edit("if owners.get(place, current.member_id) == current.member_id", "").of,
        ("W10",),
        20,
        CONSUMERS,
    ),
)
