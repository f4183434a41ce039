"""The laws of an operator's changes beside members at work, under any order of both, silence and restarts.

A model keeps what each acknowledged request has to have left: resets are all or none and only as planned, offsets of
topics that are read stay, others are deleted when requested and expire when their time has come, not before.
"""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raylog.base.errors import GroupSubscribedToTopic
from raylog.core.groups import offsets, resets, use
from raylog.core.groups.coordinator import GroupSettings
from raylog.core.groups.use import GroupUse
from raylog.protocol.groups import OffsetResetRequest
from tests.simulation.planted.bugs import Edit
from tests.unit.core.groups.context import Groups
from tests.unit.core.groups.test_resets import kafkas

RETENTION_MS, CHECK_MS = 60_000, 5_000
SETTINGS = GroupSettings(
    initial_rebalance_delay_ms=0, offsets_retention_ms=RETENTION_MS, offsets_retention_check_ms=CHECK_MS
)
TOPICS = ("flights", "planes", "crews")
PLACES = st.tuples(st.sampled_from(TOPICS), st.integers(0, 1))
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """What an operator saw when a reset was planned."""

    generation: int
    before: dict[Place, int]
    after: dict[Place, int]


class OperatorLaws(RuleBasedStateMachine):
    """One member that comes and goes, subscribes to some topics and commits; and an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = Groups(SETTINGS)
        self.member = ""
        self.generation = -1
        self.reads: tuple[str, ...] = ()
        self.held: dict[Place, int] = {}
        self.since_ms: dict[Place, int] = {}
        """When each offset was committed."""
        self.emptied_ms = 0
        self.plan: Plan | None = None

    # ------------------------------------------------------------ a member

    @rule(topics=st.sets(st.sampled_from(TOPICS)))
    def join(self, topics: set[str]) -> None:
        """Join, or join again with another subscription, and become the only member of the next generation."""
        protocols = [("range", kafkas(*sorted(topics)))]
        groups = self.groups
        if not self.member:
            self.member = groups.new_id(protocols=protocols, session_ms=1_000_000)
        request = groups.join(self.member, protocols=protocols, session_ms=1_000_000)
        assert groups.code(request) == 0
        generation = groups.reply(request)[0]
        assert isinstance(generation, int)
        assert groups.code(groups.sync(self.member, generation, {self.member: b"all"})) == 0
        self.generation, self.reads = generation, tuple(topics)

    @rule()
    def leave(self) -> None:
        if self.member:
            self.groups.leave((self.member, None))
            self.member, self.reads, self.emptied_ms = "", (), self.groups.now_ms

    @rule(place=PLACES, offset=st.integers(0, 99))
    def commit(self, place: Place, offset: int) -> None:
        """A commit of the member, or of a consumer outside the group: it counts unless the group is in use."""
        topic, partition = place
        generation = self.generation if self.member else -1
        request = self.groups.commit(
            offset, member_id=self.member, generation=generation, topic_id=topic, topic=topic, partition=partition
        )
        assert self.groups.code(request) == 0
        self._committed({place: offset})

    # ------------------------------------------------------------ an operator

    @rule(rows=st.dictionaries(PLACES, st.integers(0, 99), min_size=1))
    def plan_a_reset(self, rows: dict[Place, int]) -> None:
        self.plan = Plan(self._current_generation(), {place: self.held.get(place, -1) for place in rows}, rows)

    @rule()
    def reset(self) -> None:
        plan = self.plan
        if plan is None:
            return
        rows = [(topic, topic, at, plan.after[topic, at], plan.before[topic, at]) for topic, at in plan.after]
        request = self.groups.send(OffsetResetRequest, generation_id=plan.generation, offsets=rows)
        is_as_planned = plan.generation == self._current_generation() and all(
            self.held.get(place, -1) in (plan.before[place], plan.after[place]) for place in plan.after
        )
        is_done = self.groups.code(request) == 0
        assert is_done == (not self.member and is_as_planned), "a reset succeeds for the group that was planned"
        if is_done:
            self._committed(plan.after)

    @rule(places=st.sets(PLACES, min_size=1))
    def delete_offsets(self, places: set[Place]) -> None:
        wanted = sorted(places)
        request = self.groups.delete_offsets(*((topic, topic, at) for topic, at in wanted))
        if self.groups.code(request) != 0:
            assert not self.member
            assert not self.held
            return
        in_use = GroupSubscribedToTopic.code
        codes = [[topic, at, in_use if self.member and topic in self.reads else 0] for topic, at in wanted]
        assert self.groups.reply(request) == codes, "offsets of topics that are read stay"
        for topic, at, code in codes:
            if code == 0:
                self.held.pop((str(topic), int(str(at))), None)

    @rule()
    def delete_group(self) -> None:
        request = self.groups.delete()
        if self.groups.code(request) == 0:
            assert not self.member, "a group in use is not deleted"
            self.held.clear()

    # ------------------------------------------------------------ time

    @rule(after_ms=st.sampled_from([0, 1_000, 20_000, RETENTION_MS - 1, RETENTION_MS, 2 * RETENTION_MS]))
    def tick(self, after_ms: int) -> None:
        self.groups.tick(after_ms)
        self._expire(CHECK_MS if after_ms < CHECK_MS else 0)

    @rule()
    def restart_coordinator(self) -> None:
        self.groups = self.groups.restarted()

    def _expire(self, late_ms: int) -> None:
        """Forget what has expired: it may be there for as long as the next check is away."""
        now_ms, left = self.groups.now_ms, self._left()
        for place in list(self.held):
            since_ms = self.since_ms[place] if self.member else max(self.since_ms[place], self.emptied_ms)
            is_over = now_ms - since_ms >= RETENTION_MS and not (self.member and place[0] in self.reads)
            if place not in left:
                assert is_over, f"the offset of {place} has vanished"
                del self.held[place]
            elif is_over:
                assert late_ms, f"the offset of {place} is kept"

    # ------------------------------------------------------------ laws

    @invariant()
    def offsets_are_those_of_the_model(self) -> None:
        assert self._left() == self.held

    @invariant()
    def replaying_the_log_gives_an_equal_machine(self) -> None:
        assert self.groups.restarted().machine.hard_state() == self.groups.machine.hard_state()

    def _left(self) -> dict[Place, int]:
        rows = self.groups.reply(self.groups.fetch())
        return {(row[1], row[2]): row[3] for row in rows}  # type: ignore[index]

    def _committed(self, rows: dict[Place, int]) -> None:
        self.held |= rows
        self.since_ms |= dict.fromkeys(rows, self.groups.now_ms)

    def _current_generation(self) -> int:
        request = self.groups.describe()
        if self.groups.code(request) != 0:
            return 0
        found = self.groups.replies[request]
        assert isinstance(found, dict)
        return int(str(found["generation"]))


TestOperatorLaws = OperatorLaws.TestCase
TestOperatorLaws.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# ---------------------------------------------------------------- planted bugs


def _resets_of_groups_in_use() -> OperatorLaws:
    laws = OperatorLaws()
    laws.join({"flights"})
    laws.plan_a_reset({("planes", 0): 1})
    laws.reset()
    return laws


def _resets_of_an_earlier_generation() -> OperatorLaws:
    laws = OperatorLaws()
    laws.commit(("planes", 0), 9)
    laws.plan_a_reset({("planes", 0): 1})
    laws.join({"flights"})
    laws.leave()
    laws.reset()
    return laws


def _resets_over_a_later_commit() -> OperatorLaws:
    laws = OperatorLaws()
    laws.commit(("planes", 0), 9)
    laws.plan_a_reset({("planes", 0): 1, ("flights", 0): 2})
    laws.commit(("planes", 0), 10)
    laws.reset()
    return laws


def _deletes_what_is_read() -> OperatorLaws:
    laws = OperatorLaws()
    laws.join({"flights"})
    laws.commit(("flights", 0), 9)
    laws.delete_offsets({("flights", 0)})
    return laws


def _expires_what_is_read() -> OperatorLaws:
    laws = OperatorLaws()
    laws.join({"flights"})
    laws.commit(("flights", 0), 9)
    laws.tick(2 * RETENTION_MS)
    return laws


def _keeps_what_is_not_read() -> OperatorLaws:
    laws = OperatorLaws()
    laws.join({"flights"})
    laws.commit(("planes", 0), 9)
    laws.tick(2 * RETENTION_MS)
    return laws


def _expires_before_a_group_was_empty_for_long() -> OperatorLaws:
    laws = OperatorLaws()
    laws.join({"flights"})
    laws.commit(("flights", 0), 9)
    laws.tick(RETENTION_MS - 1)
    laws.leave()
    laws.tick(20_000)
    return laws


STORIES = {
    "a group in use is reset": (GroupUse, "active_error", lambda self: None, _resets_of_groups_in_use),
    "the plan's generation is not compared": (
        resets,
        "_outdated",
        lambda store, used, event, rows: None,
        _resets_of_an_earlier_generation,
    ),
    "the plan's offsets are not compared": (
        resets,
        "_outdated",
        lambda store, used, event, rows: None,
        _resets_over_a_later_commit,
    ),
    "offsets that are read are deleted": (
        use,
        "subscribed_topics",
        lambda group: frozenset(),
        _deletes_what_is_read,
    ),
    "offsets that are read expire": (use, "subscribed_topics", lambda group: frozenset(), _expires_what_is_read),
    "offsets of a group with members never expire": (
        use,
        "subscribed_topics",
        lambda group: None,
        _keeps_what_is_not_read,
    ),
    "expiry does not count from when the group was empty": (
        offsets,
        "expired",
        Edit("max(record.committed_ms, since_ms)", "record.committed_ms").of(offsets.expired),
        _expires_before_a_group_was_empty_for_long,
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_the_laws_hold_in_each_story_and_catch_its_planted_bug(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, attribute, substitute, story = STORIES[name]
    laws = story()
    laws.offsets_are_those_of_the_model()
    monkeypatch.setattr(target, attribute, substitute)
    with pytest.raises(AssertionError):
        story().offsets_are_those_of_the_model()
