"""Registration, fencing and election of replicas, rule by rule."""

import pytest

from raylog.base.errors import InvalidRequest, StaleBrokerEpoch, UnknownTopicId, UnknownTopicOrPartition
from raylog.base.ids import BrokerId, TopicPartition
from raylog.core.controller.events import CloseSession, SendPartitionState, Tick
from raylog.core.decision import Reply
from raylog.core.metadata.image import MetadataImage
from raylog.core.partition import PartitionState
from raylog.protocol.admin import AlterTopicConfigRequest
from tests.unit.core.controller.bench import (
    GRACE_MS,
    T0,
    TIMEOUT_MS,
    Bench,
    new_topic,
    running_topic,
)

# ---------------------------------------------------------------- registration


@pytest.fixture
def bench() -> Bench:
    return running_topic()


def test_a_registration_returns_the_incarnation_and_a_state_with_it() -> None:
    bench = new_topic()
    incarnation, wire, _, _, _ = bench.replica(1)
    assert isinstance(wire, list)
    state = PartitionState.from_wire(wire)
    assert state == bench.state()
    place = state.place(state.leader)
    assert place is not None
    assert (place.incarnation, place.host, place.port) == (incarnation, "host", 10_001)


def test_a_registration_returns_the_settings_of_now() -> None:
    bench = running_topic(config={"retention.ms": 5})
    set_now = {"retention.ms": "7", "flush.ms": "9"}
    bench.call(AlterTopicConfigRequest(topic="flights", set=set_now, delete=()))
    assert bench.replica(2)[3] == bench.image.topics["flights"].config
    assert set_now.items() <= bench.image.topics["flights"].config.items()


def test_incarnations_rise_with_every_life(bench: Bench) -> None:
    first = bench.lives[T0, 2]
    bench.replica(2)
    assert bench.lives[T0, 2] > first


def test_the_other_replicas_alone_are_notified_of_a_registration() -> None:
    bench = new_topic()
    bench.replica(2)
    bench.replica(1)
    assert set(bench.sent_states()) == {bench.sessions[T0, 2]}
    state = bench.sent_states()[bench.sessions[T0, 2]]
    assert state.leader == 1


def test_a_state_is_addressed_to_the_incarnation_that_registered(bench: Bench) -> None:
    bench.lose_replica(3)
    sent = {found.session: found.incarnation for found in bench.effects if isinstance(found, SendPartitionState)}
    assert sent == {bench.sessions[T0, broker]: bench.lives[T0, broker] for broker in (1, 2)}


def test_the_present_life_is_taken_up_again_without_a_change(bench: Bench) -> None:
    before, epoch = len(bench.log), bench.state().partition_epoch
    bench.back(1)
    assert (len(bench.log), bench.state().partition_epoch) == (before, epoch)


def test_a_second_connection_of_the_same_life_replaces_the_first_one(bench: Bench) -> None:
    old = bench.sessions[T0, 2]
    bench.back(2)
    assert [found.session for found in bench.effects if isinstance(found, CloseSession)] == [old]
    bench.sessions["old"] = old
    bench.lose("old")
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_an_earlier_life_is_refused(bench: Bench) -> None:
    old = bench.lives[T0, 2]
    bench.replica(2)
    with pytest.raises(StaleBrokerEpoch):
        bench.replica(2, incarnation=old)


def test_a_life_that_was_never_granted_is_refused() -> None:
    with pytest.raises(StaleBrokerEpoch):
        new_topic().replica(2, incarnation=77)


def test_a_replica_of_a_deleted_topic_is_refused() -> None:
    with pytest.raises(UnknownTopicId):
        running_topic().replica(1, topic_id="f" * 32)


def test_a_broker_that_holds_no_replica_is_refused(bench: Bench) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        bench.replica(4)
    with pytest.raises(UnknownTopicOrPartition):
        bench.replica(1, TopicPartition("flights", 9))


def test_a_connection_registers_as_one_member_only(bench: Bench) -> None:
    with pytest.raises(InvalidRequest):
        bench.replica(2, session=bench.sessions[T0, 1])


def test_a_registration_without_an_endpoint_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        running_topic().replica(2, port=0)


# ---------------------------------------------------------------- fencing


def test_the_first_online_isr_member_replaces_a_lost_leader(bench: Bench) -> None:
    epoch = bench.state().partition_epoch
    bench.lose_replica(1)
    assert bench.summary() == (2, 2, (2, 3))
    assert bench.state().partition_epoch == epoch + 1


def test_a_lost_follower_leaves_the_isr_and_the_leader_epoch_stays(bench: Bench) -> None:
    bench.lose_replica(2)
    assert bench.summary() == (1, 1, (1, 3))


def test_a_lost_replica_has_port_zero_and_keeps_its_incarnation(bench: Bench) -> None:
    bench.lose_replica(2)
    place = bench.state().places[1]
    assert (place.port, place.host, place.incarnation) == (0, "", bench.lives[T0, 2])


def test_a_lost_replica_outside_the_isr_changes_nothing_but_its_place(bench: Bench) -> None:
    bench.isr(1, [1, 2])
    epoch = bench.state().partition_epoch
    bench.lose_replica(3)
    assert bench.state().partition_epoch == epoch
    assert bench.state().places[2].port == 0


def test_the_last_isr_member_stays_in_the_isr_and_the_leader_is_none(bench: Bench) -> None:
    bench.lose_replica(3)
    bench.lose_replica(2)
    epoch = bench.state().partition_epoch
    bench.lose_replica(1)
    assert bench.summary() == (-1, 1, (1,))
    assert bench.state().partition_epoch == epoch + 1


def test_a_replica_outside_the_isr_never_leads(bench: Bench) -> None:
    bench.isr(1, [1])
    bench.lose_replica(1)
    bench.wait(10_000)
    assert bench.summary() == (-1, 1, (1,))


def test_the_last_isr_member_leads_again_in_a_new_epoch_when_it_returns(bench: Bench) -> None:
    bench.isr(1, [1])
    bench.lose_replica(1)
    bench.replica(1)
    assert bench.summary() == (1, 2, (1,))


def test_the_same_incarnation_returning_last_leads_in_a_new_epoch(bench: Bench) -> None:
    bench.isr(1, [1])
    bench.lose_replica(1)
    bench.back(1)
    assert bench.summary() == (1, 2, (1,))


def test_an_unnoticed_restart_of_a_leader_is_fenced_first(bench: Bench) -> None:
    old = bench.sessions[T0, 1]
    bench.replica(1)
    assert bench.summary() == (2, 2, (2, 3))
    assert old in bench.closed


def test_a_new_life_of_a_lonely_leader_leads_in_a_new_epoch(bench: Bench) -> None:
    bench.isr(1, [1])
    bench.replica(1)
    assert bench.summary() == (1, 2, (1,))


def test_a_new_life_of_a_follower_leaves_the_isr_until_it_has_caught_up(bench: Bench) -> None:
    bench.replica(3)
    assert bench.summary() == (1, 1, (1, 2))
    bench.isr(1, [1, 2, 3])
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_a_silent_replica_is_fenced_after_the_session_timeout(bench: Bench) -> None:
    old = bench.sessions[T0, 1]
    bench.silent.add(old)
    bench.wait(TIMEOUT_MS)
    assert bench.summary()[0] == 1
    bench.wait(500)
    assert bench.summary() == (2, 2, (2, 3))
    assert old in bench.closed


def test_replicas_that_fell_silent_together_are_not_elected_in_between(bench: Bench) -> None:
    bench.silent |= {bench.sessions[T0, 1], bench.sessions[T0, 2]}
    bench.wait(TIMEOUT_MS + 500)
    assert bench.summary() == (3, 2, (3,))


def test_a_pause_of_the_controller_itself_fences_no_replica(bench: Bench) -> None:
    bench.now += 60_000
    bench.step(Tick(cause="test", now_ms=bench.now))
    assert bench.summary() == (1, 1, (1, 2, 3))
    bench.silent |= {bench.sessions[T0, 1]}
    bench.wait(TIMEOUT_MS + 500)
    assert bench.summary() == (2, 2, (2, 3))


def test_a_controller_pause_just_below_the_timeout_fences_no_replica(bench: Bench) -> None:
    bench.now += TIMEOUT_MS // 4
    bench.step(Tick(cause="test", now_ms=bench.now))
    bench.now += TIMEOUT_MS - 100
    bench.step(Tick(cause="test", now_ms=bench.now))
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_a_clock_that_steps_back_does_no_harm(bench: Bench) -> None:
    bench.step(Tick(cause="test", now_ms=0))
    assert bench.summary() == (1, 1, (1, 2, 3))


# ---------------------------------------------------------------- after a restart of the controller


def test_absent_replicas_keep_leadership_and_isr_during_the_grace_period() -> None:
    bench = running_topic().start()
    bench.wait(GRACE_MS - 1)
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_replicas_that_come_back_in_time_see_no_change() -> None:
    bench = running_topic().start()
    epoch = bench.state().partition_epoch
    for broker in (3, 1, 2):
        bench.back(broker)
    bench.wait(GRACE_MS * 2)
    assert bench.summary() == (1, 1, (1, 2, 3))
    assert bench.state().partition_epoch == epoch


def test_replicas_that_stay_away_are_fenced_after_the_grace_period() -> None:
    bench = running_topic().start()
    bench.back(2)
    bench.wait(GRACE_MS)
    assert bench.summary() == (2, 2, (2,))


def test_no_replica_leads_after_the_grace_period_when_none_came() -> None:
    bench = running_topic().start()
    bench.wait(GRACE_MS)
    assert bench.summary()[0] == -1
    bench.replica(3)
    assert bench.summary()[0] == 3


def test_a_new_leader_incarnation_is_elected_in_the_grace_period() -> None:
    bench = running_topic().start()
    bench.back(2)
    bench.replica(1)
    assert bench.summary() == (1, 2, (1, 2, 3))


@pytest.mark.parametrize("order", [(1, 2, 3), (1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2), (3, 2, 1)])
def test_a_full_restart_works_in_any_order(order: tuple[int, ...]) -> None:
    bench = running_topic().start()
    for broker in order:
        bench.replica(broker)
    leader, epoch, isr = bench.summary()
    assert (leader, epoch) == (1, 2)
    assert leader in isr
    bench.wait(GRACE_MS * 2)
    assert bench.summary() == (leader, epoch, isr)


def test_an_online_member_replaces_a_leader_lost_in_the_grace_period() -> None:
    bench = running_topic().start()
    bench.back(1)
    bench.back(3)
    bench.lose_replica(1)
    assert bench.summary() == (3, 2, (2, 3))


def test_the_first_to_return_replaces_a_leader_lost_among_awaited_ones() -> None:
    bench = running_topic().start()
    bench.back(1)
    bench.lose_replica(1)
    assert bench.summary() == (-1, 1, (1, 2, 3))
    bench.back(2)
    assert bench.summary() == (2, 2, (2, 3))


# ---------------------------------------------------------------- lost logs


def warning_of(bench: Bench) -> str:
    return next(found.warning for found in bench.effects if isinstance(found, Reply))


def test_a_leader_without_its_log_does_not_lead_again(bench: Bench) -> None:
    bench.lose_replica(1)
    bench.replica(1, log_lost=True)
    assert bench.summary() == (2, 2, (2, 3))


def test_a_member_without_its_log_leaves_the_isr_to_absent_members() -> None:
    bench = running_topic().start()
    bench.replica(1, log_lost=True)
    assert bench.summary() == (-1, 1, (2, 3))
    bench.back(3)
    assert bench.summary() == (3, 2, (2, 3))


def test_the_only_member_without_its_log_is_warned_and_does_not_lead(bench: Bench) -> None:
    bench.isr(1, [1])
    bench.lose_replica(1)
    bench.replica(1, log_lost=True)
    assert bench.summary() == (-1, 1, (1,))
    assert "unclean.leader.election.enable" in warning_of(bench)


def test_a_lost_log_outlives_the_next_incarnation_and_controller(bench: Bench) -> None:
    bench.isr(1, [1])
    bench.replica(1, log_lost=True)
    bench.replica(1)
    assert bench.summary() == (-1, 1, (1,))
    bench.start()
    bench.replica(1)
    bench.wait(GRACE_MS * 2)
    assert bench.summary() == (-1, 1, (1,))


def test_a_replica_outside_the_isr_may_lose_its_log_without_a_word(bench: Bench) -> None:
    bench.isr(1, [1, 2])
    bench.replica(3, log_lost=True)
    assert warning_of(bench) == ""
    bench.isr(1, [1, 2, 3])
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_a_replica_that_never_ran_has_no_log_to_lose() -> None:
    bench = new_topic()
    bench.replica(1, log_lost=True)
    assert bench.summary() == (1, 1, (1, 2, 3))


def only_member_on(log_id: str) -> Bench:
    bench = running_topic()
    bench.isr(1, [1])
    bench.replica(1, log_id=log_id)
    assert bench.summary()[0] == 1
    return bench


def test_a_new_log_is_noticed_when_its_creator_did_not_report_it() -> None:
    bench = only_member_on("first")
    bench.replica(1, log_id="second", log_lost=False)
    assert bench.summary() == (-1, 2, (1,))
    assert "unclean.leader.election.enable" in warning_of(bench)


def test_an_unanswered_registration_may_report_the_new_log_again() -> None:
    bench = only_member_on("first")
    bench.replica(1, log_id="first", log_lost=True)
    assert bench.summary() == (1, 3, (1,))
    assert warning_of(bench) == ""


def test_the_log_of_a_replica_is_known_to_the_next_controller_too() -> None:
    bench = only_member_on("first").start()
    bench.replica(1, log_id="second")
    assert bench.summary()[0] == -1
    bench.start()
    assert bench.image.log_ids[T0, BrokerId(1)] == "second"
    assert bench.image.lost_logs == {(T0, BrokerId(1)): "first"}


def test_a_lost_log_that_is_there_again_leads_again() -> None:
    bench = only_member_on("first")
    bench.replica(1, log_id="second", log_lost=True)
    bench.replica(1, log_id="second")
    assert bench.summary() == (-1, 2, (1,))
    bench.replica(1, log_id="first")
    assert bench.summary() == (1, 3, (1,))
    assert not bench.image.lost_logs


def test_a_snapshot_of_the_image_keeps_the_identities_of_logs() -> None:
    bench = only_member_on("first")
    bench.replica(1, log_id="second")
    image = bench.image
    assert MetadataImage.restore(image.version, image.to_records()) == image


def test_a_broker_on_another_directory_has_lost_the_logs_of_its_replicas(bench: Bench) -> None:
    bench.isr(1, [1])
    bench.lose_replica(1)
    bench.lose(("broker", 1))
    bench.broker(1, directory="new-disk")
    bench.replica(1)
    assert bench.summary() == (-1, 1, (1,))


# ---------------------------------------------------------------- unclean election


def test_an_unclean_election_happens_only_where_the_topic_allows_it() -> None:
    bench = running_topic(config={"unclean.leader.election.enable": True})
    bench.isr(1, [1])
    bench.lose_replica(1)
    assert bench.summary() == (2, 2, (2,))


def test_an_unclean_election_waits_for_isr_members_that_may_still_come() -> None:
    bench = running_topic(config={"unclean.leader.election.enable": "true"})
    bench.isr(1, [1, 2])
    bench.start()
    bench.replica(3)
    bench.back(1)
    bench.lose_replica(1)
    assert bench.summary()[0] == -1
    bench.wait(GRACE_MS)
    assert bench.summary() == (3, 2, (3,))
