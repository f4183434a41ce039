"""A forwarder sends each record of its source once, in order, when it is due; whatever its targets do."""

import pytest

from raylog.actors.forwarding.progress import decode_progress, encode_progress
from raylog.core.forwarding import events as ev
from raylog.core.forwarding.machine import PIECES_MAX, ForwarderSettings, Stage
from raylog.core.forwarding.progress import Again, Progress, RouteState
from tests.unit.core.forwarding.desk import PRODUCER, Desk, size_of


@pytest.fixture
def desk() -> Desk:
    made = Desk()
    made.add_topic("jobs")
    return made


def test_records_arrive_in_order(desk: Desk) -> None:
    for _ in range(12):
        desk.add_piece(3, "jobs")
    desk.begin()
    desk.settle()
    assert desk.holds("jobs") == list(range(36))
    assert desk.machine.is_undecided


def test_later_records_are_waited_for(desk: Desk) -> None:
    desk.begin()
    desk.settle()
    desk.add_piece(2, "jobs")
    desk.settle()
    assert desk.holds("jobs") == [0, 1]


def test_nothing_goes_before_it_is_due(desk: Desk) -> None:
    desk.add_piece(2, "jobs", due_ms=desk.now_ms + 500)
    desk.add_piece(1, "jobs", due_ms=desk.now_ms + 700)
    desk.begin()
    desk.pass_time(499)
    assert desk.holds("jobs") == []
    assert desk.machine.next_ms() == desk.now_ms + 1
    desk.pass_time(1)
    assert desk.holds("jobs") == [0, 1]
    desk.pass_time(200)
    assert desk.holds("jobs") == [0, 1, 2]


def test_a_turn_costs_one_stored_note(desk: Desk) -> None:
    for _ in range(3 * PIECES_MAX):
        desk.add_piece(1, "jobs")
    desk.begin()
    desk.settle()
    assert desk.saves == 3 + 1  # the last says that all is done


def test_records_that_stay_cost_no_stored_note(desk: Desk) -> None:
    for _ in range(50):
        desk.add_piece(10)
    desk.begin()
    desk.settle()
    assert desk.saves == 0
    assert desk.machine.progress.position == 500


def test_what_a_group_has_acknowledged_is_left_out(desk: Desk) -> None:
    desk.acknowledged = 3
    for _ in range(4):
        desk.add_piece(2, "jobs")
    desk.begin()
    desk.settle()
    assert desk.holds("jobs") == [3, 4, 5, 6, 7]


def test_a_successor_sends_the_same_although_the_group_goes_on(desk: Desk) -> None:
    desk.targets["jobs"].is_reachable = False
    desk.add_piece(4, "jobs")
    desk.begin()
    desk.settle()
    desk.acknowledged = 4
    desk.targets["jobs"].is_reachable = True
    desk.begin()
    desk.settle()
    assert desk.holds("jobs") == [0, 1, 2, 3]


def test_records_whose_topic_does_not_exist_are_undeliverable(desk: Desk) -> None:
    desk.add_piece(4, "jobs", "nowhere")
    desk.begin()
    desk.settle()
    assert desk.holds("jobs") == [0, 2]
    assert desk.holds("dead") == [1, 3]


def test_a_topic_that_is_created_later_is_found(desk: Desk) -> None:
    desk.add_piece(1, "later")
    desk.begin()
    desk.settle()
    target = desk.add_topic("later")
    desk.add_piece(1, "later")
    desk.settle()
    assert target.records == [1]
    assert desk.holds("dead") == [0]


def test_a_topic_that_is_deleted_meanwhile_loses_nothing_more(desk: Desk) -> None:
    desk.add_piece(2, "jobs")
    desk.begin()
    desk.settle()
    desk.delete_topic("jobs")
    desk.add_piece(2, "jobs")
    desk.settle()
    assert desk.holds("dead") == [2, 3]
    again = desk.add_topic("jobs", "jobs again")
    desk.add_piece(2, "jobs")
    desk.settle()
    assert again.records == [4, 5]


def test_a_topic_that_was_created_again_gets_what_the_earlier_one_did_not(desk: Desk) -> None:
    desk.add_piece(2, "jobs")
    desk.begin()
    desk.settle()
    desk.delete_topic("jobs")
    again = desk.add_topic("jobs", "jobs again")
    for _ in range(3):
        desk.add_piece(2, "jobs")
    desk.settle()
    assert again.records == [2, 3, 4, 5, 6, 7]
    assert not desk.holds("dead")


def test_what_a_target_refuses_is_undeliverable_and_the_rest_arrives(desk: Desk) -> None:
    desk.targets["jobs"].refuses = frozenset({3})
    for _ in range(5):
        desk.add_piece(2, "jobs")
    desk.begin()
    desk.settle()
    assert desk.holds("jobs") == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert desk.holds("dead") == [3]


def test_a_target_with_a_small_limit_gets_all_that_fits_alone(desk: Desk) -> None:
    desk.targets["jobs"].limit = 12  # a piece is 100 bytes and more, each record at most 13
    for _ in range(5):
        desk.add_piece(16, "jobs")
    desk.begin()
    desk.settle()
    large = [offset for offset in range(80) if size_of(offset) > 12]
    assert desk.holds("jobs") == [offset for offset in range(80) if offset not in large]
    assert desk.holds("dead") == large


def test_what_is_too_large_everywhere_leaves_its_body_where_it_is(desk: Desk) -> None:
    desk.targets["jobs"].limit = desk.targets["dead"].limit = 10
    desk.add_piece(16, "jobs")
    desk.begin()
    desk.settle()
    large = [offset for offset in range(16) if size_of(offset) > 10]
    assert desk.holds("dead") == large
    assert desk.targets["dead"].bare == set(large)
    assert desk.machine.is_undecided


@pytest.mark.parametrize("replaced_after", range(40))
def test_a_successor_goes_on_with_what_is_left_of_a_refused_parcel(desk: Desk, replaced_after: int) -> None:
    desk.targets["jobs"].limit = 15
    for _ in range(5):
        desk.add_piece(8, "jobs")
    desk.begin()
    for _ in range(replaced_after):
        if desk.todo:
            desk.work()
    desk.begin()
    desk.settle()
    assert desk.holds("jobs") == list(range(40))


def test_a_target_that_forgot_the_producer_gets_the_rest_in_a_new_epoch(desk: Desk) -> None:
    desk.add_piece(2, "jobs")
    desk.begin()
    desk.settle()
    # An unclean election: the partition knows an older state of the producer.
    entry = desk.targets["jobs"].producers.producers[PRODUCER]
    entry.batches[-1] = entry.batches[-1]._replace(first_sequence=8, last_sequence=9)
    desk.add_piece(2, "jobs")
    desk.settle()
    assert desk.holds("jobs") == [0, 1, 2, 3]
    assert desk.machine.progress.routes == (RouteState("jobs", 0, "jobs", 0, 1, 2),)


def test_a_target_that_is_away_is_tried_again(desk: Desk) -> None:
    desk.targets["jobs"].is_reachable = False
    desk.add_piece(2, "jobs")
    desk.begin()
    desk.pass_time(60_000)
    assert desk.machine.is_holding
    desk.targets["jobs"].is_reachable = True
    desk.pass_time(5_000)
    assert desk.holds("jobs") == [0, 1]
    assert not desk.machine.is_holding


def test_records_that_retention_took_are_passed_by(desk: Desk) -> None:
    for _ in range(4):
        desk.add_piece(2, "jobs")
    desk.log_start = 4
    desk.begin()
    desk.settle()
    assert desk.holds("jobs") == [4, 5, 6, 7]


def test_a_decision_of_which_retention_took_a_part_is_made_again(desk: Desk) -> None:
    desk.targets["jobs"].is_reachable = False
    for _ in range(4):
        desk.add_piece(2, "jobs")
    desk.begin()
    desk.settle()
    desk.log_start, desk.targets["jobs"].is_reachable = 4, True
    desk.begin()
    desk.settle()
    assert desk.holds("jobs") == [4, 5, 6, 7]


def test_it_ends_at_its_end() -> None:
    desk = Desk(ForwarderSettings(end=5))
    desk.add_topic("jobs")
    for _ in range(5):
        desk.add_piece(1, "jobs")
    desk.add_piece(3, "jobs")
    desk.begin()
    desk.settle()
    assert desk.holds("jobs") == [0, 1, 2, 3, 4]
    assert desk.ended == ev.Ended(was_stopped=False)
    assert desk.progress.position == desk.progress.decided_end == 5


def test_it_ends_where_there_is_nothing() -> None:
    desk = Desk(ForwarderSettings(end=0))
    desk.begin()
    desk.settle()
    assert desk.ended == ev.Ended(was_stopped=False)


def test_a_rate_is_kept() -> None:
    desk = Desk(ForwarderSettings(rate=10))
    desk.add_topic("jobs")
    for _ in range(10):
        desk.add_piece(2, "jobs")
    desk.begin()
    desk.pass_time(999)
    assert len(desk.holds("jobs")) == 10
    desk.pass_time(1_000)
    assert len(desk.holds("jobs")) == 20


def test_a_stop_comes_after_what_is_decided(desk: Desk) -> None:
    for _ in range(3 * PIECES_MAX):
        desk.add_piece(1, "jobs")
    desk.begin()
    while desk.machine.stage is not Stage.SENDING:
        desk.work()
    desk.feed(ev.StopRequested(now_ms=desk.now_ms))
    desk.settle()
    assert desk.holds("jobs") == list(range(PIECES_MAX))
    assert desk.ended == ev.Ended(was_stopped=True)
    assert desk.progress.position == PIECES_MAX


def test_a_stop_does_not_wait_for_a_target_that_is_away(desk: Desk) -> None:
    desk.targets["jobs"].is_reachable = False
    desk.add_piece(1, "jobs")
    desk.begin()
    desk.settle()
    desk.feed(ev.StopRequested(now_ms=desk.now_ms))
    desk.settle()
    assert desk.ended == ev.Ended(was_stopped=True)


def test_progress_survives_its_wire_form() -> None:
    progress = Progress(
        producer_id=9,
        position=3,
        decided_end=8,
        skip_below=4,
        routes=(RouteState("a", 1, "id", 0, 2, 77),),
        lost=(("b", 0),),
        again=(Again("a", 1, 3, 5, is_refused=True, is_bare=True),),
        sent=12,
        rule="jobs",
    )
    assert decode_progress(encode_progress(progress)) == progress


def test_a_successor_decides_by_the_rule_of_the_decision(desk: Desk) -> None:
    desk.targets["jobs"].is_reachable = False
    desk.rule = "before"
    desk.add_piece(1, "jobs")
    desk.begin()
    desk.settle()
    desk.rule = "after"
    desk.begin()
    desk.settle()
    desk.targets["jobs"].is_reachable = True
    desk.pass_time(5_000)
    desk.add_piece(1, "jobs")
    desk.settle()
    assert [rule for rule in desk.rules if rule] == ["before"]
    assert desk.progress.rule == "after"
