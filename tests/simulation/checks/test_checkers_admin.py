"""The checkers of deletions and resignations on histories made by hand, and a cluster whose disks fail in turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raylog.base.ids import BrokerId, LeaderEpoch, PartitionEpoch
from raylog.core.partition import PartitionState
from tests.simulation.checks.checkers_admin import DeletedStaysDeleted, ResigningSettles
from tests.simulation.checks.test_checkers import STATE, anomaly
from tests.simulation.partition.simulation import Simulation
from tests.simulation.stories.stage import faults

pytestmark = pytest.mark.sim

HEIR: PartitionState = replace(
    STATE,
    isr=(BrokerId(2),),
    leader=BrokerId(2),
    leader_epoch=LeaderEpoch(4),
    partition_epoch=PartitionEpoch(8),
)


class TestDeletedStaysDeleted:
    @pytest.fixture
    def checker(self) -> DeletedStaysDeleted:
        checker = DeletedStaysDeleted()
        checker.requested(10)
        checker.answered(3, 10, 10, committed=20)
        return checker

    def test_a_later_leader_that_starts_there_or_later_is_fine(self, checker: DeletedStaysDeleted) -> None:
        checker.holds("leader 1", 3, 10)
        checker.holds("leader 2", 4, 12)

    def test_a_later_leader_with_deleted_records_is_noticed(self, checker: DeletedStaysDeleted) -> None:
        with anomaly("I16"):
            checker.holds("leader 2", 4, 9)

    def test_a_zombie_of_an_earlier_epoch_may_have_them_still(self, checker: DeletedStaysDeleted) -> None:
        checker.holds("leader 2", 2, 0)

    def test_a_log_start_beyond_the_requested_one_is_noticed(self, checker: DeletedStaysDeleted) -> None:
        checker.moving(1, 10, committed=20)
        with anomaly("I16"):
            checker.moving(1, 11, committed=20)

    def test_a_log_start_beyond_what_is_committed_is_noticed(self, checker: DeletedStaysDeleted) -> None:
        checker.requested(30)
        with anomaly("I16"):
            checker.moving(1, 21, committed=20)

    def test_an_answer_below_the_requested_offset_is_noticed(self, checker: DeletedStaysDeleted) -> None:
        with anomaly("I16"):
            checker.answered(4, 15, 14, committed=20)


class TestResigningSettles:
    def test_another_leads_and_the_one_that_resigned_is_out_of_the_isr(self) -> None:
        ResigningSettles().resigned(1, 3, STATE, HEIR, now_ms=0)

    def test_a_leader_that_resigned_in_an_earlier_epoch_is_noticed(self) -> None:
        with anomaly("L4"):
            ResigningSettles().resigned(1, 2, STATE, HEIR, now_ms=0)

    def test_a_leader_that_resigned_and_stays_in_the_isr_is_noticed(self) -> None:
        with anomaly("L4"):
            ResigningSettles().resigned(1, 3, STATE, replace(HEIR, isr=STATE.isr), now_ms=0)

    def test_resigning_again_at_once_is_noticed(self) -> None:
        checker = ResigningSettles()
        checker.resigned(1, 3, STATE, HEIR, now_ms=0)
        with anomaly("L4"):
            checker.resigned(1, 3, STATE, HEIR, now_ms=900)

    def test_a_leader_that_had_to_lead_alone_may_resign_again_at_once(self) -> None:
        checker = ResigningSettles()
        checker.resigned(1, 3, STATE, HEIR, now_ms=0)
        checker.elected(replace(STATE, isr=(BrokerId(1),)))
        checker.resigned(1, 3, STATE, HEIR, now_ms=900)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_failing_disks_make_leaders_resign_and_leadership_does_not_flap(seed: int) -> None:
    simulation = Simulation(seed, faults(refuse_rate=0.5, refuse_ms=5000, crash_leader=1.0, chaos_s=20, converge_s=12))
    simulation.run()
    resigned = simulation.checks.resigning.count
    assert resigned > 0
    assert resigned <= 20 / 2, "a disk is given two seconds each time"
    assert simulation.elections <= resigned + 2, "no leader was elected for another reason"
