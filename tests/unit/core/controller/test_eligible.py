"""Eligible leader replicas and unclean elections: which replicas may lead when the ISR is too small or offline."""

import pytest

from raylog.base.errors import InvalidUpdateVersion
from raylog.core.controller.events import Warn
from raylog.core.decision import Reply
from raylog.core.metadata.image import MetadataImage
from raylog.core.partition import PartitionState
from raylog.protocol.admin import AlterTopicConfigRequest
from raylog.protocol.message import Setting
from tests.unit.core.controller.bench import GRACE_MS, Bench, running_topic

TWO: dict[str, object] = {"min.insync.replicas": 2}


def alter(bench: Bench, **changed: Setting) -> None:
    settings = {name.replace("_", "."): value for name, value in changed.items()}
    bench.call(AlterTopicConfigRequest(topic="flights", set=settings, delete=()))


def warnings(bench: Bench) -> list[str]:
    return [effect.warning for effect in bench.effects if isinstance(effect, Warn)]


@pytest.fixture
def bench() -> Bench:
    return running_topic(config=TWO)


def test_a_replica_that_leaves_a_large_enough_isr_is_not_eligible(bench: Bench) -> None:
    bench.lose_replica(3)
    assert (bench.state().isr, bench.state().elr) == ((1, 2), ())


def test_a_replica_that_leaves_an_isr_below_the_minimum_stays_eligible(bench: Bench) -> None:
    bench.lose_replica(3)
    bench.lose_replica(2)
    assert (bench.state().isr, bench.state().elr) == ((1,), (2,)), "3 went when records could still be committed"


def test_the_leaders_own_proposal_makes_eligible_too(bench: Bench) -> None:
    [wire] = bench.isr(1, [1])
    assert isinstance(wire, list)
    assert PartitionState.from_wire(wire).elr == (2, 3)


def test_no_replica_is_eligible_once_the_isr_is_large_enough_again(bench: Bench) -> None:
    bench.isr(1, [1])
    bench.isr(1, [1, 3])
    assert bench.state().elr == ()


def test_a_sole_eligible_leader_stays_so_until_the_isr_is_large_enough(bench: Bench) -> None:
    """ADR 0025: the leader is about to expose records that an eligible replica may lack."""
    bench.isr(1, [1])
    epoch = bench.state().partition_epoch
    [wire] = bench.isr(1, [1], drops_eligible=True)
    assert isinstance(wire, list)
    dropped = PartitionState.from_wire(wire)
    assert (dropped.isr, dropped.elr, dropped.partition_epoch) == ((1,), (), epoch + 1)
    bench.lose_replica(1)
    assert bench.summary() == (-1, 1, (1,)), "2 and 3 run, and neither may lead"
    assert bench.state().elr == ()


def test_to_be_the_only_one_is_compared_and_set_as_every_proposal(bench: Bench) -> None:
    bench.isr(1, [1])
    with pytest.raises(InvalidUpdateVersion):
        bench.isr(1, [1], drops_eligible=True, partition_epoch=bench.state().partition_epoch - 1)
    assert bench.state().elr == (2, 3)


def test_an_eligible_replica_leads_cleanly_when_no_isr_member_is_there(bench: Bench) -> None:
    bench.isr(1, [1])
    bench.lose_replica(1)
    assert bench.summary() == (2, 2, (2,))
    assert bench.state().elr == (1, 3), "the leader that went has everything as well"
    assert bench.state().unclean_leader_epoch == 0
    assert warnings(bench) == []


def test_isr_members_come_before_eligible_replicas() -> None:
    bench = running_topic(config={"min.insync.replicas": 3})
    bench.isr(1, [1, 3])
    assert bench.state().elr == (2,)
    bench.lose_replica(1)
    assert bench.summary() == (3, 2, (3,))


def test_an_eligible_replica_that_comes_back_leads(bench: Bench) -> None:
    for broker in (3, 2, 1):
        bench.lose_replica(broker)
    assert bench.summary() == (-1, 1, (1,))
    bench.replica(3)
    assert bench.summary()[0] == -1, "3 left before the others, and may lack what they committed"
    bench.replica(2)
    assert bench.summary() == (2, 2, (2,))


def test_an_eligible_replica_that_lost_its_log_does_not_lead(bench: Bench) -> None:
    bench.lose_replica(3)
    bench.lose_replica(2)
    bench.lose_replica(1)
    bench.replica(2, log_lost=True)
    assert bench.summary() == (-1, 1, (1,))
    assert bench.state().elr == ()
    bench.replica(1)
    assert bench.summary() == (1, 2, (1,))


def test_an_eligible_replica_that_crashed_before_its_sync_does_not_lead(bench: Bench) -> None:
    for broker in (3, 2, 1):
        bench.lose_replica(broker)
    bench.replica(2, unsynced_lost=True)
    assert (bench.summary(), bench.state().elr) == ((-1, 1, (1,)), ())


def test_the_last_isr_member_without_its_log_yields_to_an_eligible_one(bench: Bench) -> None:
    bench.isr(1, [1])
    bench.lose_replica(2)
    bench.lose_replica(3)
    bench.lose_replica(1)
    bench.replica(1, log_lost=True)
    [warning] = [effect.warning for effect in bench.effects if isinstance(effect, Reply)]
    assert "Start a broker that has everything as well (2, 3)" in warning
    assert bench.summary() == (-1, 1, (1,))
    bench.replica(2)
    assert bench.summary() == (2, 2, (2,))
    assert bench.state().elr == (3,), "1 has nothing to lead with"
    assert bench.image.lost_logs == {}


def test_an_isr_member_is_waited_for_after_the_controllers_start(bench: Bench) -> None:
    bench.isr(1, [1])
    bench.start()
    bench.back(2)
    assert bench.summary()[0] == 1, "its leader may still come back"
    bench.wait(GRACE_MS)
    assert bench.summary() == (2, 2, (2,))


def test_a_changed_minimum_does_not_make_replicas_eligible(bench: Bench) -> None:
    bench.isr(1, [1])
    alter(bench, min_insync_replicas=1)
    assert bench.state().elr == (), "from here on one replica commits alone"
    alter(bench, min_insync_replicas=3)
    assert bench.state().elr == ()


def test_the_eligible_replicas_survive_the_snapshot(bench: Bench) -> None:
    bench.isr(1, [1])
    again = MetadataImage.restore(bench.image.version, bench.image.to_records())
    assert again.partition(bench.state().partition) == bench.state()


# ---------------------------------------------------------------- unclean elections


def unclean() -> Bench:
    """Broker 3 leads without the records that broker 1 had committed alone."""
    bench = running_topic(config={"unclean.leader.election.enable": True})
    bench.isr(1, [1])
    bench.lose_replica(2)
    bench.lose_replica(1)
    return bench


def test_an_unclean_election_is_marked_with_its_epoch_and_reported() -> None:
    bench = unclean()
    assert bench.summary() == (3, 2, (3,))
    assert bench.state().unclean_leader_epoch == 2
    [warning] = warnings(bench)
    assert "Unclean election: broker 3 leads flights-0 from epoch 2" in warning


def test_the_mark_of_an_unclean_election_stays() -> None:
    bench = unclean()
    bench.replica(1)
    bench.isr(3, [1, 3])
    bench.lose_replica(3)
    assert bench.summary() == (1, 3, (1,))
    assert bench.state().unclean_leader_epoch == 2
    described = bench.described()
    assert described["unclean_partitions"] == [["flights-0", 2]]


def test_an_unclean_election_clears_the_eligible_replicas() -> None:
    bench = running_topic(config={**TWO, "unclean.leader.election.enable": True})
    bench.lose_replica(3)
    for broker in (2, 1):
        bench.lose_replica(broker)
    bench.replica(3)
    assert bench.summary() == (3, 2, (3,))
    assert bench.state().elr == ()
