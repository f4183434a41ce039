"""Sessions of replicas that live by the heartbeats of their broker."""

import pytest

from raylog.base.errors import BrokerIdNotRegistered, InvalidUpdateVersion
from raylog.core.controller.events import SendPartitionState
from raylog.protocol.controller import ReplicaNote, SessionHeartbeatRequest
from tests.unit.core.controller.bench import T0, TIMEOUT_MS, Bench, running_topic

TICK_MS = 500


def state(bench: Bench, broker: int, vouched: list[int] | None = None, *notes: tuple[int, int, int]) -> None:
    """A broker's heartbeat."""
    bench.step(
        SessionHeartbeatRequest(vouched=vouched, notes=[ReplicaNote(*note) for note in notes]),
        bench.sessions["broker", broker],
    )


@pytest.fixture
def bench() -> Bench:
    """A topic whose replicas send no heartbeats, because their brokers vouch for them."""
    bench = running_topic()
    for broker in (1, 2, 3):
        bench.silent.add(bench.sessions[T0, broker])
        state(bench, broker, [bench.lives[T0, broker]])
    return bench


def watched(bench: Bench) -> int:
    """How many sessions the controller looks at as time passes."""
    return len(bench.machine._sessions._alone)


def test_replicas_that_their_brokers_vouch_for_need_no_heartbeats(bench: Bench) -> None:
    bench.wait(4 * TIMEOUT_MS)
    assert bench.summary() == (1, 1, (1, 2, 3))
    assert watched(bench) == 3, "the brokers alone"


def test_replicas_that_their_brokers_do_not_name_need_heartbeats() -> None:
    bench = running_topic()
    bench.silent.add(bench.sessions[T0, 1])
    state(bench, 1, [])
    bench.wait(2 * TIMEOUT_MS)
    assert bench.summary() == (2, 2, (2, 3))


def test_a_replica_found_silent_by_its_broker_is_fenced_by_its_last_beat(bench: Bench) -> None:
    bench.wait(1_000)
    state(bench, 1, [], (bench.lives[T0, 1], 1_200, 0))
    bench.wait(TIMEOUT_MS - 1_200 - TICK_MS)
    assert bench.summary() == (1, 1, (1, 2, 3))
    bench.wait(2 * TICK_MS)
    assert bench.summary() == (2, 2, (2, 3))


def test_a_replica_left_out_without_a_note_counts_from_the_last_heartbeat(bench: Bench) -> None:
    state(bench, 1, [])
    bench.wait(TIMEOUT_MS)
    assert bench.summary() == (1, 1, (1, 2, 3))
    bench.wait(TICK_MS)
    assert bench.summary() == (2, 2, (2, 3))


def test_the_death_of_a_broker_fences_no_replica_that_then_speaks(bench: Bench) -> None:
    bench.lose(("broker", 1))
    assert watched(bench) == 3, "two brokers, one replica"
    bench.silent.discard(bench.sessions[T0, 1])
    bench.wait(3 * TIMEOUT_MS)
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_a_broker_that_hangs_fences_no_replica_that_speaks(bench: Bench) -> None:
    bench.silent.add(bench.sessions["broker", 1])
    bench.silent.discard(bench.sessions[T0, 1])
    bench.wait(3 * TIMEOUT_MS)
    assert not bench.image.brokers[1].online  # type: ignore[index]
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_a_replica_that_hangs_with_its_broker_is_fenced_with_it(bench: Bench) -> None:
    bench.silent.add(bench.sessions["broker", 1])
    bench.wait(TIMEOUT_MS + TICK_MS)
    assert not bench.image.brokers[1].online  # type: ignore[index]
    assert bench.summary() == (2, 2, (2, 3))


def test_a_vouched_replica_is_fenced_at_once_when_its_connection_breaks(bench: Bench) -> None:
    bench.lose_replica(1)
    assert bench.summary() == (2, 2, (2, 3))


def test_a_vouched_replica_that_connects_again_needs_no_heartbeats(bench: Bench) -> None:
    bench.back(2)
    bench.silent.add(bench.sessions[T0, 2])
    bench.wait(3 * TIMEOUT_MS)
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_a_broker_is_notified_of_replicas_that_have_no_session(bench: Bench) -> None:
    session, lives = bench.sessions["broker", 1], [bench.lives[T0, 1]]
    assert bench.machine.absent(session) == []
    bench.lose_replica(1)
    assert bench.machine.absent(session) == lives
    bench.back(1)
    assert bench.machine.absent(session) == []
    state(bench, 1, [*lives, 99])
    assert bench.machine.absent(session) == [99]
    state(bench, 1, lives)
    assert bench.machine.absent(session) == []


def test_nothing_is_confirmed_on_a_connection_whose_session_is_over(bench: Bench) -> None:
    """Its end waits for a majority of the voters, and a broker that goes on meanwhile must not rely on it."""
    session = bench.sessions["broker", 1]
    bench.silent.add(session)
    bench.silent.discard(bench.sessions[T0, 1])
    bench.wait(TIMEOUT_MS + TICK_MS)
    bench.step(SessionHeartbeatRequest(), session)
    with pytest.raises(BrokerIdNotRegistered):
        bench.machine.absent(session)
    assert bench.machine.absent(bench.sessions["broker", 3]) == []


def test_the_end_of_a_replica_s_session_shows_in_its_heartbeats() -> None:
    bench = running_topic()
    session = bench.sessions[T0, 2]
    assert bench.machine.absent(session) == []
    bench.silent.add(session)
    bench.wait(TIMEOUT_MS + TICK_MS)
    with pytest.raises(BrokerIdNotRegistered):
        bench.machine.absent(session)


def test_a_new_life_is_not_vouched_for_by_a_statement_about_the_last_one(bench: Bench) -> None:
    bench.replica(2)
    bench.isr(1, [1, 2, 3])
    bench.silent.add(bench.sessions[T0, 2])
    bench.wait(TIMEOUT_MS + 2 * TICK_MS)
    assert bench.summary() == (1, 1, (1, 3))


def test_a_broker_states_nothing_about_replicas_of_others(bench: Bench) -> None:
    state(bench, 1, [])
    state(bench, 2, [bench.lives[T0, 1], bench.lives[T0, 2]])
    bench.wait(TIMEOUT_MS + TICK_MS)
    assert bench.summary() == (2, 2, (2, 3))


def test_the_next_controller_begins_without_statements(bench: Bench) -> None:
    bench.start()
    for broker in (1, 2, 3):
        bench.broker(broker, incarnation=bench.lives["broker", broker])
        bench.back(broker)
    assert watched(bench) == 6


def test_disks_that_hang_are_reported_by_the_broker_of_a_vouched_replica(bench: Bench) -> None:
    life = bench.lives[T0, 1]
    state(bench, 1, None, (life, 0, 700))
    assert bench.machine.hanging_disks() == [["flights-0", 1, 700]]
    state(bench, 1, None, (life, 0, 1_200))
    assert bench.machine.hanging_disks() == [["flights-0", 1, 1_200]]
    state(bench, 1)
    assert bench.machine.hanging_disks() == []


def test_the_disk_of_a_replica_that_speaks_is_reported_by_itself() -> None:
    bench = running_topic()
    session = bench.sessions[T0, 1]
    bench.step(SessionHeartbeatRequest(disk_hanging_ms=900), session)
    assert bench.machine.hanging_disks() == [["flights-0", 1, 900]]
    state(bench, 1, [bench.lives[T0, 1]])
    assert bench.machine.hanging_disks() == []


def test_a_leader_that_missed_an_answer_gets_the_state_with_the_refusal() -> None:
    bench = running_topic()
    known = bench.state().partition_epoch
    bench.isr(1, [1, 2])
    with pytest.raises(InvalidUpdateVersion):
        bench.isr(1, [1, 2, 3], partition_epoch=known)
    sent = [effect for effect in bench.effects if isinstance(effect, SendPartitionState)]
    assert [(effect.session, effect.state) for effect in sent] == [(bench.sessions[T0, 1], bench.state())]
