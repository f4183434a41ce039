"""How long a partition was not used, and the proposal to sleep that is under way."""

from typing import Any

import pytest

from raylog.base.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidUpdateVersion,
    NotController,
    RequestTimedOut,
    StaleBrokerEpoch,
    UnsupportedVersion,
)
from raylog.base.ids import LeaderEpoch, Offset, PartitionEpoch
from raylog.core.replication.events import ProposeSleep, SleepAnswered
from raylog.core.replication.idleness import LINK_BROKEN, REFUSED_PAUSE_MS, REQUEST_HOLDS_MS, Idleness

AFTER_MS, RESEND_MS, RETRY_MS = 60_000, 1_000, 200
PROPOSAL = ProposeSleep(
    cause="c",
    request=7,
    leader_epoch=LeaderEpoch(3),
    partition_epoch=PartitionEpoch(5),
    log_start_offset=Offset(0),
    end_offset=Offset(9),
    last_epoch=LeaderEpoch(2),
)


def proposed(at_ms: int = AFTER_MS) -> Idleness:
    """A leader of an epoch that began at 0 has proposed to sleep."""
    idleness = Idleness(0)
    assert idleness.propose(PROPOSAL, at_ms + RESEND_MS) is PROPOSAL
    return idleness


def answered(idleness: Idleness, error_code: int, now_ms: int = AFTER_MS, **others: Any) -> None:
    event = SleepAnswered(cause="c", now_ms=now_ms, error_code=error_code, **{"request": 7, **others})
    idleness.answered(event, RETRY_MS, AFTER_MS)


def test_an_epoch_begins_as_if_its_partition_had_just_been_used() -> None:
    idleness = Idleness(5_000)
    assert not idleness.is_due(5_000 + AFTER_MS - 1, AFTER_MS)
    assert idleness.is_due(5_000 + AFTER_MS, AFTER_MS)


def test_the_time_when_sleep_is_due_is_known_before() -> None:
    idleness = Idleness(5_000)
    assert idleness.due_ms(AFTER_MS) == 5_000 + AFTER_MS
    assert idleness.due_ms(-1) is None


def test_a_partition_that_never_sleeps_does_so_for_a_stop_of_the_cluster() -> None:
    idleness = Idleness(0)
    idleness.request_sleep(1_000, 0)
    assert idleness.due_ms(-1) is None
    assert not idleness.is_due(1_000, -1)
    idleness.request_sleep(1_000, 0, for_stop=True)
    assert idleness.due_ms(-1) == 0
    assert idleness.is_due(1_000, -1)
    assert not idleness.is_due(1_000 + REQUEST_HOLDS_MS, -1)


def test_a_request_to_sleep_soon_brings_the_time_forward() -> None:
    idleness = Idleness(0)
    idleness.request_sleep(1_000, 5_000)
    due_ms = idleness.due_ms(AFTER_MS)
    assert due_ms == 5_000
    assert idleness.is_due(due_ms, AFTER_MS)
    assert not idleness.is_due(due_ms - 1, AFTER_MS)


def test_a_request_to_sleep_soon_that_ends_before_changes_nothing() -> None:
    idleness = Idleness(0)
    idleness.request_sleep(0, REQUEST_HOLDS_MS + 1)
    assert idleness.due_ms(AFTER_MS) == AFTER_MS


def test_use_begins_the_time_again() -> None:
    idleness = Idleness(0)
    idleness.active_ms = 40_000
    assert not idleness.is_due(40_000 + AFTER_MS - 1, AFTER_MS)


def test_a_partition_that_never_sleeps_is_never_due() -> None:
    assert not Idleness(0).is_due(10**12, -1)


def test_it_is_closed_and_not_due_while_a_proposal_is_under_way() -> None:
    idleness = proposed()
    assert idleness.is_closed
    assert not idleness.is_due(10**12, AFTER_MS)


def test_a_proposal_without_an_answer_is_repeated_as_it_was() -> None:
    idleness = proposed()
    due_ms = AFTER_MS + RESEND_MS
    assert idleness.due_again(due_ms - 1, due_ms + RESEND_MS) is None
    assert idleness.due_again(due_ms, due_ms + RESEND_MS) is PROPOSAL
    assert idleness.due_again(due_ms + 1, 0) is None
    assert Idleness(0).due_again(10**12, 0) is None


@pytest.mark.parametrize("error", [IneligibleReplica, UnsupportedVersion])
def test_a_refusal_opens_the_leader_and_is_followed_by_a_pause(error: type[IneligibleReplica]) -> None:
    idleness = proposed()
    answered(idleness, error.code)
    assert not idleness.is_closed
    assert not idleness.is_due(AFTER_MS + REFUSED_PAUSE_MS - 1, AFTER_MS)
    assert idleness.is_due(AFTER_MS + REFUSED_PAUSE_MS, AFTER_MS)


def test_the_pause_is_no_longer_than_the_time_without_use() -> None:
    idleness = proposed()
    event = SleepAnswered(cause="c", now_ms=AFTER_MS, request=7, error_code=IneligibleReplica.code)
    idleness.answered(event, RETRY_MS, 1_000)
    assert idleness.is_due(AFTER_MS + 1_000, 1_000)
    assert not idleness.is_due(AFTER_MS + 999, 1_000)


@pytest.mark.parametrize(
    "code",
    [
        LINK_BROKEN,
        *(
            error.code
            for error in (RequestTimedOut, NotController, StaleBrokerEpoch, FencedLeaderEpoch, InvalidUpdateVersion)
        ),
    ],
)
def test_an_unknown_outcome_keeps_it_closed_and_is_repeated_soon(code: int) -> None:
    idleness = proposed()
    answered(idleness, code)
    assert idleness.is_closed
    assert idleness.due_again(AFTER_MS + RETRY_MS - 1, 0) is None
    assert idleness.due_again(AFTER_MS + RETRY_MS, 0) is PROPOSAL


def test_an_agreement_keeps_it_closed_until_the_state_ends_the_epoch() -> None:
    idleness = proposed()
    answered(idleness, 0)
    assert idleness.is_closed


def test_the_answer_to_another_proposal_changes_nothing() -> None:
    idleness = proposed()
    answered(idleness, IneligibleReplica.code, request=6)
    assert idleness.is_closed
    fresh = Idleness(0)
    answered(fresh, IneligibleReplica.code)
    assert fresh.active_ms == 0


def test_a_later_state_overtakes_the_proposal_the_present_does_not() -> None:
    idleness = proposed()
    idleness.state_came(PROPOSAL.partition_epoch)
    assert idleness.is_closed
    idleness.state_came(PartitionEpoch(PROPOSAL.partition_epoch + 1))
    assert not idleness.is_closed
