"""Half messages: held until they are decided, checked while they are not, and decided once."""

import pytest

from raylog.core.scheduling.envelope import HalfOutcome
from raylog.core.scheduling.halves import HalfPolicy, Unresolved
from raylog.core.scheduling.rows import HalfDecision, HalvesDecided, Verdict
from tests.unit.core.scheduling.desk import Desk, Partition

PAY = ("payments", "t-42")
OTHER = ("oooo", 0)


def stated(verdict: Verdict, name: tuple[str, str] = PAY, check: int = -1) -> HalfDecision:
    return HalfDecision(*name, verdict, check)


def unknown(check: int) -> HalfDecision:
    return stated(Verdict.UNKNOWN, check=check)


def queried(desk: Desk, group: str = PAY[0], lease_ms: int = 50) -> list[str]:
    return [half.id[1] for half in desk.machine.halves.query(group, desk.now_ms, 10, lease_ms)]


def stands(desk: Desk, verdict: Verdict) -> HalfOutcome:
    (outcome,) = desk.standings[desk.decide(stated(verdict))]
    return outcome


def test_a_half_message_is_in_its_targets_when_it_is_committed() -> None:
    desk = Desk(targets={OTHER: Partition()})
    first = desk.prepare(PAY, records=2)
    second = desk.prepare(PAY, to=OTHER)
    desk.run(10_000)
    assert desk.everywhere() == []
    assert stands(desk, Verdict.COMMIT) is HalfOutcome.COMMITTED
    desk.run(2_000)
    assert (desk.got(), desk.got(OTHER)) == (first, second)
    assert not desk.machine.is_busy


def test_one_that_is_rolled_back_is_in_none() -> None:
    desk = Desk()
    desk.prepare(PAY)
    assert stands(desk, Verdict.ROLLBACK) is HalfOutcome.ROLLED_BACK
    desk.run(10_000)
    assert desk.everywhere() == []


def test_the_first_decision_stands() -> None:
    desk = Desk()
    desk.prepare(PAY)
    assert stands(desk, Verdict.ROLLBACK) is HalfOutcome.ROLLED_BACK
    assert stands(desk, Verdict.COMMIT) is HalfOutcome.ROLLED_BACK
    desk.replace_owner()
    assert stands(desk, Verdict.COMMIT) is HalfOutcome.ROLLED_BACK
    assert stands(desk, Verdict.ROLLBACK) is HalfOutcome.ROLLED_BACK
    desk.run(10_000)
    assert desk.everywhere() == []


def test_what_was_never_prepared_is_not_found() -> None:
    assert stands(Desk(), Verdict.COMMIT) is HalfOutcome.NOT_FOUND


def test_a_record_that_comes_after_the_decision_is_dropped() -> None:
    desk = Desk()
    kept = desk.prepare(PAY)
    stands(desk, Verdict.COMMIT)
    desk.prepare(PAY)
    desk.run(1_000)
    assert desk.got() == kept
    assert desk.machine.halves.outcome(PAY) is HalfOutcome.COMMITTED


def test_it_holds_up_no_other_record() -> None:
    desk = Desk()
    desk.prepare(PAY)
    (due,) = desk.schedule(1_100)
    desk.run(200)
    assert desk.everywhere() == [due >> 1 & 0xFFFF]


def test_members_of_its_group_are_queried_in_turn() -> None:
    desk = Desk(policy=HalfPolicy(interval_ms=300))
    desk.prepare(PAY, check_after_ms=100)
    assert queried(desk) == []
    desk.tick(100)
    assert queried(desk, "another") == []
    assert queried(desk) == ["t-42"]
    assert queried(desk) == [], "one member at a time"
    desk.tick(50)
    assert queried(desk) == ["t-42"], "the first has not answered"
    desk.decide(unknown(0))
    desk.decide(unknown(0))
    assert desk.machine.halves.held[PAY].checks == 1, "a repetition does not count"
    desk.tick(299)
    assert queried(desk) == []
    desk.tick(1)
    assert queried(desk) == ["t-42"]


def test_a_question_that_reached_no_member_is_taken_back() -> None:
    desk = Desk()
    desk.prepare(PAY, check_after_ms=0)
    halves = desk.machine.halves
    halves.not_queried(halves.query(PAY[0], desk.now_ms, 1, 10_000))
    assert queried(desk) == ["t-42"]
    assert halves.held[PAY].checks == 0


def check_in_vain(desk: Desk, times: int) -> None:
    for check in range(times):
        desk.tick(100)
        assert queried(desk) == ["t-42"]
        desk.decide(unknown(check))


def test_after_the_last_check_it_stays_held_and_no_member_is_queried() -> None:
    desk = Desk(policy=HalfPolicy(0, limit=2))
    desk.prepare(PAY)
    check_in_vain(desk, 2)
    desk.tick(100_000)
    assert queried(desk) == []
    assert list(desk.machine.halves.worn) == [PAY]
    desk.replace_owner()
    assert list(desk.machine.halves.worn) == [PAY]
    assert queried(desk) == []
    desk.machine.halves.follow(HalfPolicy(0, limit=3))
    assert queried(desk) == ["t-42"], "the limit was raised"
    assert not desk.machine.halves.worn
    assert stands(desk, Verdict.COMMIT) is HalfOutcome.COMMITTED


@pytest.mark.parametrize(
    ("policy", "dead"), [(Unresolved.ROLLBACK, False), (Unresolved.DEAD_LETTER, True)], ids=["rollback", "dead letter"]
)
def test_the_policy_decides_after_the_last_check(policy: Unresolved, dead: bool) -> None:
    desk = Desk(policy=HalfPolicy(0, limit=2, on_unresolved=policy))
    offsets = desk.prepare(PAY, records=2)
    check_in_vain(desk, 2)
    desk.run(100)
    assert desk.got() == []
    assert desk.got(("undeliverable", 0)) == (offsets if dead else [])
    assert stands(desk, Verdict.COMMIT) is HalfOutcome.ROLLED_BACK


def test_a_checkpoint_keeps_half_messages_and_decisions() -> None:
    desk = Desk(policy=HalfPolicy(interval_ms=70))
    desk.prepare(PAY, records=2)
    desk.prepare(("payments", "t-43"))
    desk.tick(100)
    desk.decide(unknown(0))
    desk.decide(stated(Verdict.ROLLBACK, ("payments", "t-43")))
    before = desk.machine.halves
    for _ in range(50):
        desk.schedule(desk.now_ms)
        desk.run(20)
    assert desk.start > 0, "the log was trimmed"
    desk.replace_owner()
    after = desk.machine.halves
    assert after.state() == before.state()
    assert list(after.offsets) == [1, 2]


def test_decisions_of_the_policy_have_rows_below_a_size() -> None:
    desk = Desk(policy=HalfPolicy(limit=1, on_unresolved=Unresolved.ROLLBACK))
    names = [(f"group-{number}", "x" * 60_000) for number in range(20)]
    for name in names:
        desk.prepare(name)
    desk.machine.halves.worn = dict.fromkeys(names)
    desk.tick()
    desk.tick()
    rows = [desk.row_at(at) for at, entry in desk.log if isinstance(entry, tuple)]
    decided = [row.decisions for row in rows if isinstance(row, HalvesDecided)]
    assert sorted((each.group, each.txid) for part in decided for each in part) == sorted(names)
    assert max(map(len, decided)) <= 3


def test_requests_share_a_row_below_a_size() -> None:
    desk = Desk(holds=True)
    desk.tick()
    numbers = [desk.decide(*[HalfDecision("g", f"{number}" * 100_000, Verdict.COMMIT)] * 2) for number in range(8)]
    desk.holds = False
    while desk.held:
        desk.release()
    rows = [desk.row_at(at) for at, entry in desk.log if isinstance(entry, tuple)]
    assert max(len(row.decisions) for row in rows if isinstance(row, HalvesDecided)) <= 2
    assert all(len(desk.standings[number]) == 2 for number in numbers)
