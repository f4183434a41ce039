"""The scheduler: what is delivered, when, in which order, and what a new leader goes on with."""

from raylog.core.scheduling.events import Append, Deliver, Outcome
from raylog.core.scheduling.keys import key_of
from raylog.core.scheduling.rows import Checkpoint, CheckpointEnd
from tests.unit.core.scheduling.desk import Desk, Partition, offsets, with_settings

OTHER = ("oooo", 0)


def test_a_record_is_delivered_when_it_is_due_and_not_before() -> None:
    desk = Desk()
    desk.schedule(2_000)
    desk.run(999)
    assert desk.got() == []
    desk.run(1)
    assert desk.got() == [1]


def test_records_are_delivered_by_due_time_then_by_offset() -> None:
    desk = Desk()
    late, first, second = offsets(desk.schedule(1_300, 1_100, 1_100))
    desk.run(500)
    assert desk.got() == [first, second, late]


def test_it_is_busy_from_a_record_to_its_arrival_without_a_gap() -> None:
    """A partition that falls asleep between two of these steps has nothing that wakes it for the record."""
    desk = Desk()
    desk.schedule(1_010)
    desk.holds = True
    desk.tick(100)
    steps = 0
    while desk.held:
        assert desk.machine.is_busy, desk.held
        desk.release(1)
        steps += 1
    assert (desk.got(), steps > 1) == ([1], True)
    desk.holds = False
    desk.run(10_000)
    assert not desk.machine.is_busy


def test_what_is_past_due_is_delivered_at_once() -> None:
    desk = Desk()
    (key,) = desk.schedule(5)
    desk.tick()
    assert desk.got() == offsets([key])


def test_more_than_a_round_takes_arrives_in_order() -> None:
    desk = Desk()
    keys = desk.schedule(*range(1_100, 1_150))
    desk.run(1_000)
    assert desk.got() == offsets(keys)


def test_a_new_leader_delivers_what_waits() -> None:
    desk = Desk()
    keys = desk.schedule(1_200, 1_100)
    desk.replace_owner()
    desk.run(500)
    assert desk.got() == offsets([keys[1], keys[0]])


def test_a_committed_round_is_repeated_by_the_next_leader() -> None:
    desk = Desk()
    keys = desk.schedule(1_010, 1_020)
    desk.holds = True
    desk.tick(100)
    desk.release(1)  # the round is committed
    sent = [effect for effect in desk.held if isinstance(effect, Deliver)]
    assert len(sent) == 1
    desk.deliver(sent[0].batch)  # the target has it, and the owner dies before the log says so
    desk.holds = False
    desk.replace_owner()
    desk.run(2_000)
    assert desk.got() == offsets(keys)


def test_a_round_that_was_not_committed_is_decided_again() -> None:
    desk = Desk()
    keys = desk.schedule(1_010, 1_020)
    desk.holds = True
    desk.tick(100)
    desk.holds = False
    desk.replace_owner()
    desk.run(500)
    assert desk.got() == offsets(keys)


def test_the_first_batch_of_a_target_is_noted_before_there_is_a_second() -> None:
    desk = Desk()
    desk.targets["tttt", 0].is_up = False
    desk.schedule(*range(1_001, 1_021))
    desk.run(500)
    lane = desk.machine.lanes["tttt", 0]
    assert len(lane.batches) == 1
    desk.targets["tttt", 0].is_up = True
    desk.run(5_000)
    assert len(desk.got()) == 20


def test_at_most_five_batches_are_on_the_way_to_a_target() -> None:
    desk = Desk()
    desk.schedule(1_001)
    desk.run(200)  # the first is acknowledged
    desk.targets["tttt", 0].is_up = False
    desk.schedule(*[1_300] * 100)
    desk.run(1_000)
    lane = desk.machine.lanes["tttt", 0]
    assert len(lane.batches) == 5
    assert len(lane.waiting) == 80


def test_a_dead_target_delays_no_other() -> None:
    desk = Desk(targets={OTHER: Partition()})
    desk.targets["tttt", 0].is_up = False
    desk.schedule(*range(1_001, 1_101))
    keys = desk.schedule(1_050, 1_060, to=OTHER)
    desk.run(200)
    assert desk.got(OTHER) == offsets(keys)


def test_a_target_that_comes_back_gets_everything_in_order() -> None:
    desk = Desk()
    desk.targets["tttt", 0].is_up = False
    keys = desk.schedule(*range(1_001, 1_051))
    desk.run(300)
    desk.replace_owner()
    desk.run(300)
    desk.targets["tttt", 0].is_up = True
    desk.run(10_000)
    assert desk.got() == offsets(keys)


def test_records_of_a_topic_without_metadata_wait_for_it() -> None:
    desk = Desk()
    desk.unplaced.add(("tttt", 0))
    keys = desk.schedule(1_010, 1_020, 1_030)
    desk.run(500)
    assert desk.got() == []
    desk.replace_owner()
    desk.unplaced.clear()
    desk.run(2_000)
    assert desk.got() == offsets(keys)
    desk.run(2_000)
    assert desk.got() == offsets(keys), "they wait no more"


def test_records_of_a_deleted_topic_become_undeliverable() -> None:
    desk = Desk()
    desk.schedule(1_001)
    desk.run(200)
    keys = desk.schedule(1_300, 1_310)
    desk.targets["tttt", 0].is_deleted = True
    desk.run(2_000)
    assert desk.got(("undeliverable", 0)) == offsets(keys)


def test_a_batch_on_the_way_to_a_deleted_topic_becomes_undeliverable() -> None:
    desk = Desk()
    desk.targets["tttt", 0].is_up = False
    keys = desk.schedule(1_010, 1_020)
    desk.run(300)
    desk.targets["tttt", 0].is_deleted = True
    desk.run(5_000)
    assert desk.got(("undeliverable", 0)) == offsets(keys)


def test_one_record_that_is_refused_takes_no_other_with_it() -> None:
    desk = Desk()
    keys = desk.schedule(1_010, 1_011, 1_012, 1_013)
    bad = offsets(keys)[2]
    desk.targets["tttt", 0].refuses.add(bad)
    desk.run(5_000)
    assert sorted(desk.got()) == [offset for offset in offsets(keys) if offset != bad]
    assert desk.got(("undeliverable", 0)) == [bad]


def test_a_target_that_lost_the_producer_goes_on_in_a_new_epoch() -> None:
    desk = Desk()
    first = desk.schedule(1_001)
    desk.run(200)
    target = desk.targets["tttt", 0]
    target.known.clear()
    target.known.append((90, 91))  # another history, after an unclean election
    second = desk.schedule(1_300, 1_400)
    desk.run(2_000)
    assert desk.got() == offsets([*first, *second])
    assert target.epoch == 1


def test_a_cancelled_record_is_never_delivered() -> None:
    desk = Desk()
    kept, cancelled = desk.schedule(1_100, 1_200)
    request = desk.cancel(cancelled)
    assert desk.answers[request] == ((Outcome.DONE, cancelled),)
    desk.run(1_000)
    assert desk.got() == offsets([kept])
    assert desk.answers[desk.cancel(cancelled)] == ((Outcome.ALREADY_CANCELLED, cancelled),)
    assert desk.answers[desk.cancel(kept)] == ((Outcome.ALREADY_DELIVERED, kept),)


def test_a_cancellation_holds_across_runs_checkpoints_and_leaders() -> None:
    desk = Desk()
    keys = desk.schedule(*range(2_000, 2_040))
    desk.tick()
    assert desk.machine.pending.runs, "some are sealed"
    for key in keys[::2]:
        desk.cancel(key)
    desk.replace_owner()
    desk.run(5_000)
    assert desk.got() == offsets(keys[1::2])


def test_a_cancellation_is_answered_only_when_it_is_committed() -> None:
    desk = Desk()
    (key,) = desk.schedule(1_100)
    desk.holds = True
    request = desk.cancel(key)
    assert request not in desk.answers
    desk.release()
    assert desk.answers[request] == ((Outcome.DONE, key),)


def test_a_record_that_waits_for_a_dead_target_can_be_cancelled() -> None:
    desk = Desk()
    desk.targets["tttt", 0].is_up = False
    keys = desk.schedule(*range(1_001, 1_021))
    desk.run(300)
    waiting = desk.machine.lanes["tttt", 0].waiting[-1]
    assert desk.answers[desk.cancel(waiting)] == ((Outcome.DONE, waiting),)
    desk.targets["tttt", 0].is_up = True
    desk.run(10_000)
    assert desk.got() == [offset for offset in offsets(keys) if [offset] != offsets([waiting])]


def test_a_moved_record_is_due_at_its_new_time_alone() -> None:
    desk = Desk()
    (key,) = desk.schedule(1_100)
    ((outcome, moved),) = desk.answers[desk.move(key, 1_500)]
    assert (outcome, moved) == (Outcome.DONE, key_of(1_500, *offsets([key])))
    desk.run(300)
    assert desk.got() == []
    desk.replace_owner()
    desk.run(300)
    assert desk.got() == offsets([key])


def test_a_record_can_be_moved_back() -> None:
    desk = Desk()
    keys = desk.schedule(*range(3_000, 3_020))
    desk.tick()
    ((_, away),) = desk.answers[desk.move(keys[0], 5_000)]
    ((outcome, back),) = desk.answers[desk.move(away, 3_000)]
    assert outcome is Outcome.DONE
    assert desk.answers[desk.cancel(back)] == ((Outcome.DONE, back),)
    desk.run(9_000)
    assert desk.got() == offsets(keys[1:])


def test_memory_is_sealed_into_runs() -> None:
    desk = with_settings(seal_keys=100)
    keys = desk.schedule(*range(10_000, 11_000))
    for _ in range(20):
        desk.tick()
    assert desk.machine.pending.fresh_count < 200
    desk.run(12_000)
    assert desk.got() == offsets(keys)
    assert not desk.machine.pending.runs


def test_what_is_not_needed_is_deleted_from_the_log() -> None:
    desk = Desk()
    for _ in range(30):
        desk.schedule(desk.now_ms + 5)
        desk.run(100)
    assert desk.start > 60
    assert sum(isinstance(desk._event(*entry), object) for entry in desk.log) > 60


def test_a_checkpoint_is_the_state() -> None:
    desk = Desk()
    desk.targets["tttt", 0].is_up = False
    keys = desk.schedule(*range(1_001, 1_031), *range(5_000, 5_030))
    desk.run(300)
    desk.cancel(keys[-1])
    before = desk.machine.checkpoint()
    desk.replace_owner()
    after = desk.machine.checkpoint()
    assert isinstance(after, Checkpoint)
    assert (after.fresh, after.cut, after.frontier, after.count) == (
        before.fresh,
        before.cut,
        before.frontier,
        before.count,
    )
    assert after.lanes == before.lanes


def test_a_checkpoint_larger_than_a_row_has_several() -> None:
    desk = with_settings(checkpoint_rows=100)
    desk.part_bytes = 300
    desk.targets["tttt", 0].is_up = False
    keys = desk.schedule(*range(1_001, 1_401))
    desk.run(2_000)
    rows = [desk.row_at(at) for at, entry in desk.log if isinstance(entry, tuple)]
    assert any(isinstance(row, CheckpointEnd) and len(row.places) > 10 for row in rows)
    before = desk.machine.checkpoint()
    desk.replace_owner()
    assert desk.machine.checkpoint().lanes == before.lanes
    desk.targets["tttt", 0].is_up = True
    desk.run(20_000)
    assert desk.got() == offsets(keys)


def test_a_checkpoint_of_which_pieces_are_missing_counts_nothing() -> None:
    desk = with_settings(checkpoint_rows=100)
    desk.part_bytes, desk.holds = 300, True
    desk.targets["tttt", 0].is_up = False
    keys = desk.schedule(*range(1_001, 1_401))
    while not any(isinstance(each, Append) and isinstance(each.row, Checkpoint) for each in desk.held):
        desk.release()
        desk.run(10)
    desk.dies_at_piece, desk.holds = 3, False
    desk.release()
    desk.replace_owner()
    assert desk.machine.pending.count + sum(len(lane.waiting) for lane in desk.machine.lanes.values()) >= 395
    desk.targets["tttt", 0].is_up = True
    desk.run(20_000)
    assert desk.got() == offsets(keys)


def test_a_large_checkpoint_is_not_moved_away_from_again_and_again() -> None:
    desk = with_settings(checkpoint_rows=100)
    desk.part_bytes = 100
    desk.targets["tttt", 0].is_up = False
    desk.schedule(*range(1_001, 1_201))
    desk.run(2_000)
    rows = len(desk.log)
    desk.run(20_000)
    assert len(desk.log) - rows < 20


def test_the_number_that_waits_is_known() -> None:
    desk = Desk()
    keys = desk.schedule(*range(2_000, 2_050))
    assert desk.machine.pending.count == 50
    desk.cancel(keys[3], keys[3])
    assert desk.machine.pending.count == 49
    desk.replace_owner()
    assert desk.machine.pending.count == 49
    desk.run(1_020)
    assert desk.machine.pending.count == 50 - len(desk.got()) - 1
