"""Groups of both protocols as a list shows them: their states, and what filters leave of them (KIP-518, KIP-848)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from raylog.core.groups.states import STATES_BY_TYPE, GroupType, named_states, named_types
from tests.unit.core.groups.context import GROUP, Groups
from tests.unit.core.groups.test_consumer_groups import TOPIC, Member, seen


def listed(groups: Groups, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[tuple[object, ...]]:
    """Name, state and type of each group."""
    rows = cast("list[tuple[str, str, str, str]]", groups.reply(groups.list_groups(states=states, types=types)))
    return [(name, state, kind) for name, _, state, kind in rows]


def test_a_list_shows_each_state_of_the_consumer_protocol(groups: Groups) -> None:
    seen(groups, 4)
    first = Member(groups, "m1")
    first.beat()
    first.beat(subscribed_topics=())
    assert listed(groups) == [(GROUP, "Assigning", "consumer")], "it changed topics amid the pause between two targets"
    first.beat(subscribed_topics=(TOPIC,))
    groups.tick(200)
    first.beat(owned=[])
    assert listed(groups) == [(GROUP, "Stable", "consumer")]
    groups.now_ms += 200
    second = Member(groups, "m2")
    second.beat()
    assert listed(groups) == [(GROUP, "Reconciling", "consumer")], "the first one has to give up two partitions"
    assert listed(groups, states=["reconciling"]) == listed(groups)
    assert listed(groups, states=["Stable", "Empty"]) == []
    first.beat(epoch=-1)
    second.beat(epoch=-1)
    assert listed(groups) == [(GROUP, "Empty", "consumer")]


def test_a_list_has_the_groups_of_the_types_and_states_that_are_named(groups: Groups) -> None:
    groups.stable()
    groups.commit(5, group_id="idle")
    Member(groups, "m1").beat(group_id="modern")
    seen(groups, 0)
    every = {(GROUP, "Stable", "classic"), ("idle", "Empty", "classic"), ("modern", "Stable", "consumer")}
    assert set(listed(groups)) == every
    assert listed(groups, types=["Consumer"]) == [("modern", "Stable", "consumer")]
    assert set(listed(groups, types=["classic"])) == every - {("modern", "Stable", "consumer")}
    assert set(listed(groups, states=["stable"])) == every - {("idle", "Empty", "classic")}
    assert listed(groups, states=["stable"], types=["classic"]) == [(GROUP, "Stable", "classic")]
    assert listed(groups, types=["share"]) == [], "a name of a later release selects nothing"


def test_an_unknown_name_is_refused_with_the_valid_ones() -> None:
    assert named_types(["CLASSIC", "consumer"]) == (GroupType.CLASSIC, GroupType.CONSUMER)
    assert named_types("consumer") == (GroupType.CONSUMER,)
    assert named_states(["assigning", "EMPTY"]) == ("Assigning", "Empty")
    with pytest.raises(ValueError, match="no group type 'share'; valid are classic, consumer"):
        named_types(["share"])
    with pytest.raises(ValueError, match=r"'Dead'; valid are Empty, PreparingRebalance, .*, Assigning, Reconciling"):
        named_states(["Dead"])
    with pytest.raises(ValueError, match="'PreparingRebalance'; valid are Empty, Assigning, Reconciling, Stable"):
        named_states(["PreparingRebalance"], [GroupType.CONSUMER])
    assert set(STATES_BY_TYPE) == set(GroupType)
