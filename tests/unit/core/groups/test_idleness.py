"""When a coordinator proposes to end: without members, unused for long enough, with nothing left to do."""

from dataclasses import replace

import pytest

from raylog.base.errors import GroupIdNotFound, NotCoordinator
from raylog.core.coordinators.idleness import REFUSED_PAUSE_MS, Idleness
from raylog.core.groups.events import SleepRefused, SleepRequested
from raylog.core.groups.settings import GroupSettings
from tests.unit.core.groups.context import SESSION_MS, Groups

AFTER_MS = 60_000
SLEEPS = GroupSettings(sleep_after_ms=AFTER_MS)


def sleeping(**settings: int) -> Groups:
    return Groups(replace(SLEEPS, **settings))


def refuse(groups: Groups) -> None:
    groups.notice(SleepRefused)


def request_sleep(groups: Groups) -> None:
    groups.notice(SleepRequested)
    groups.tick()


# ---------------------------------------------------------------- the clock


def test_it_is_due_so_long_after_the_last_use() -> None:
    idleness = Idleness(AFTER_MS)
    idleness.used(1_000)
    assert not idleness.is_due(1_000 + AFTER_MS - 1)
    assert idleness.is_due(1_000 + AFTER_MS)
    idleness.used(5_000)
    assert not idleness.is_due(1_000 + AFTER_MS)


def test_it_is_never_due_where_it_must_not_sleep() -> None:
    idleness = Idleness(-1)
    idleness.request_sleep()
    assert not idleness.is_due(10**12)


def test_it_is_due_once_and_again_after_a_refusal_and_a_pause() -> None:
    idleness = Idleness(AFTER_MS)
    idleness.propose()
    assert not idleness.is_due(AFTER_MS)
    idleness.refused(AFTER_MS)
    assert not idleness.is_due(AFTER_MS + REFUSED_PAUSE_MS - 1)
    assert idleness.is_due(AFTER_MS + REFUSED_PAUSE_MS)


def test_a_request_to_sleep_is_over_with_the_next_use() -> None:
    idleness = Idleness(AFTER_MS)
    idleness.request_sleep()
    assert idleness.is_due(1)
    idleness.used(1)
    assert not idleness.is_due(2)


# ---------------------------------------------------------------- the machine


def test_a_coordinator_that_was_not_used_proposes_to_end_once() -> None:
    groups = sleeping()
    groups.tick(AFTER_MS - 1)
    assert groups.proposals == 0, "a coordinator counts as used when it has loaded its groups"
    groups.tick(1)
    groups.tick(AFTER_MS)
    assert groups.proposals == 1


def test_a_coordinator_never_ends_by_itself_without_a_time_for_it(groups: Groups) -> None:
    groups.tick(10**9)
    request_sleep(groups)
    assert groups.proposals == 0


def test_a_group_with_members_keeps_its_coordinator() -> None:
    groups = sleeping()
    (member,) = groups.stable(1)
    for _ in range(AFTER_MS // SESSION_MS * 4):
        groups.tick(SESSION_MS // 2)
        groups.heartbeat(member, 1)
    request_sleep(groups)
    assert groups.proposals == 0
    groups.leave((member, None))
    groups.tick(AFTER_MS)
    assert groups.proposals == 1


def test_a_member_id_that_was_given_out_keeps_the_coordinator() -> None:
    groups = sleeping(sleep_after_ms=1_000)
    groups.new_id()
    groups.tick(2_000)
    assert groups.proposals == 0
    groups.tick(SESSION_MS)
    assert groups.proposals == 1, "the id was not used in time"


def test_a_commit_and_a_read_count_as_use_and_a_list_does_not() -> None:
    groups = sleeping()
    groups.tick(AFTER_MS - 1)
    groups.commit(7)
    groups.tick(AFTER_MS - 1)
    groups.fetch()
    groups.tick(AFTER_MS - 1)
    assert groups.proposals == 0
    groups.list_groups()
    groups.tick(1)
    assert groups.proposals == 1


def test_after_the_proposal_requests_are_refused_until_it_is_too() -> None:
    groups = sleeping()
    groups.tick(AFTER_MS)
    for request in (groups.commit(7), groups.fetch(), groups.list_groups()):
        assert isinstance(groups.refusals[request], NotCoordinator)
    assert groups.log == []
    refuse(groups)
    assert groups.code(groups.commit(7)) == 0
    groups.tick(AFTER_MS)
    assert groups.proposals == 2


def test_expired_offsets_are_deleted_before_the_coordinator_ends() -> None:
    groups = sleeping(offsets_retention_ms=AFTER_MS, offsets_retention_check_ms=10**9)
    groups.commit(7)
    groups.tick(AFTER_MS)
    assert groups.proposals == 1
    assert groups.log[-1][1] is None, "its tombstone is stored before the proposal leaves"
    after = groups.restarted()
    assert isinstance(after.refusals[after.describe()], GroupIdNotFound)


def test_offsets_that_expire_meanwhile_are_deleted_by_the_next_life() -> None:
    groups = sleeping(offsets_retention_ms=10 * AFTER_MS, offsets_retention_check_ms=10**9)
    groups.commit(7)
    groups.tick(AFTER_MS)
    assert groups.proposals == 1
    after = groups.restarted(20 * AFTER_MS)
    after.tick(AFTER_MS)
    assert after.proposals == 1
    assert after.log[-1][1] is None


@pytest.mark.parametrize("is_used", [True, False])
def test_a_cluster_that_stops_ends_coordinators_that_are_not_in_use(is_used: bool) -> None:
    groups = sleeping()
    if is_used:
        groups.stable(1)
    request_sleep(groups)
    assert groups.proposals == (0 if is_used else 1)
