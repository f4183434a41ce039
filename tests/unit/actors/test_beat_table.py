"""The table of beats, in real shared memory: a broker on one side, replicas on the other."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.actors.beats import beat_memory
from raylog.actors.beats.beat_memory import PAGES_BYTES, SharedPages, open_pages, pages_name, remove_abandoned
from raylog.actors.beats.beat_table import (
    HEADER_WORDS,
    LEFT_AFTER_MS,
    SLOT_WORDS,
    USED_MS,
    BeatSlot,
    BeatTable,
    claim,
    key_of,
)
from raylog.actors.broker.vouching import Vouching
from raylog.actors.replica.beating import SEARCH_MS, Beating
from raylog.core.vouching import NO_LIFE, Cover, Pace
from raylog.protocol.controller import ReplicaNote, SessionHeartbeatReply, SessionHeartbeatRequest

NAME = pages_name("d" * 32, Path("/data"))
PACE = Pace.of(500, 2_500)
EPOCH = 3


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beat_memory, "FOLDER", tmp_path)


@pytest.fixture
def pages() -> Iterator[SharedPages]:
    made = open_pages(NAME, make=True)
    assert made is not None
    yield made
    made.close()


def claimed(pages: SharedPages, partition: int, life: int, now_ms: int = 0) -> BeatSlot:
    slot = claim(pages, key_of("t", partition), life, now_ms)
    assert slot is not None
    return slot


# ---------------------------------------------------------------- the table


def test_a_broker_reads_what_replicas_write_in_another_mapping(pages: SharedPages) -> None:
    table = BeatTable(pages)
    other = open_pages(NAME, make=False)
    assert other is not None
    slot = claim(other, key_of("t", 0), 5, 1_000)
    assert slot is not None
    assert slot.beat(1_500, 70)
    assert table.beats() == [(0, 5, 1_500, 70, NO_LIFE)]
    del slot
    other.close()


def test_each_replica_has_a_slot_of_its_own_and_keeps_it_over_its_lives(pages: SharedPages) -> None:
    table = BeatTable(pages)
    first, _ = claimed(pages, 0, 5), claimed(pages, 1, 6)
    claimed(pages, 0, 7)
    assert [(beat.slot, beat.incarnation) for beat in table.beats()] == [(0, 7), (SLOT_WORDS, 6)]
    assert not first.beat(2_000, 0), "the earlier life has lost it"


def test_a_mark_is_for_one_incarnation(pages: SharedPages) -> None:
    table = BeatTable(pages)
    table.begin(EPOCH)
    slot = claimed(pages, 0, 5)
    table.mark(0, 4)
    assert slot.cover().vouched == NO_LIFE
    table.mark(0, 5)
    table.confirm(900)
    assert slot.cover() == Cover(EPOCH, 900, 5)
    assert claimed(pages, 0, 6).cover().vouched == NO_LIFE


def test_a_new_session_of_the_broker_begins_without_marks(pages: SharedPages) -> None:
    table = BeatTable(pages)
    table.begin(EPOCH)
    slot = claimed(pages, 0, 5)
    table.mark(0, 5)
    table.confirm(900)
    table.begin(EPOCH + 1)
    assert slot.cover() == Cover(EPOCH + 1, 0, NO_LIFE)


def test_the_next_process_of_a_broker_finds_the_beats(pages: SharedPages) -> None:
    BeatTable(pages)
    claimed(pages, 0, 5, 1_000)
    assert [beat.incarnation for beat in BeatTable(pages).beats()] == [5]


def test_a_slot_that_was_given_up_or_left_is_used_again(pages: SharedPages) -> None:
    table = BeatTable(pages)
    claimed(pages, 0, 5, 1_000).release()
    left = claimed(pages, 1, 6, 1_000)
    assert left.beat(1_000, 0)
    claimed(pages, 2, 7, 2_000 + LEFT_AFTER_MS)
    assert [(beat.slot, beat.incarnation) for beat in table.beats()] == [(0, 7)]
    assert not left.beat(9_000, 0)


def test_a_full_table_and_one_of_another_layout_have_no_slot(pages: SharedPages) -> None:
    assert claim(pages, key_of("t", 0), 5, 0) is None
    BeatTable(pages)
    room = (PAGES_BYTES // 8 - HEADER_WORDS) // SLOT_WORDS
    assert all(claim(pages, key_of("t", number), number, 0) for number in range(room))
    assert claim(pages, key_of("t", room), room, 0) is None
    assert claim(pages, key_of("t", 0), 0, 0) is not None


def test_a_slot_is_looked_for_by_one_process_at_a_time(pages: SharedPages) -> None:
    BeatTable(pages)
    other = open_pages(NAME, make=False)
    assert other is not None
    assert other.try_lock()
    assert claim(pages, key_of("t", 0), 5, 0) is None
    other.unlock()
    assert claim(pages, key_of("t", 0), 5, 0) is not None
    other.close()


# ---------------------------------------------------------------- the memory


def test_there_is_no_memory_where_a_file_is_not_as_it_should_be(tmp_path: Path) -> None:
    assert open_pages(NAME, make=False) is None
    (tmp_path / "elsewhere").write_bytes(bytes(PAGES_BYTES))
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    assert open_pages(NAME, make=True) is None
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).write_bytes(b"short")
    assert open_pages(NAME, make=False) is None


def test_two_copies_of_a_directory_share_no_memory() -> None:
    assert pages_name("d" * 32, Path("/data")) != pages_name("d" * 32, Path("/copy"))


def test_what_a_killed_cluster_left_is_removed(pages: SharedPages, tmp_path: Path) -> None:
    BeatTable(pages).used(1_000)
    (tmp_path / "another-file").write_bytes(b"")
    remove_abandoned(1_000 + beat_memory.ABANDONED_MS, USED_MS)
    assert pages.is_current()
    remove_abandoned(1_001 + beat_memory.ABANDONED_MS, USED_MS)
    assert not pages.is_current()
    assert os.listdir(tmp_path) == ["another-file"]


# ---------------------------------------------------------------- both sides


class Sides:
    """A broker and a replica, by one clock."""

    def __init__(self) -> None:
        self.now_ms = 100_000
        self.broker = Vouching(lambda: self.now_ms, open_pages)
        self.broker.open(NAME)
        self.replica = Beating("t", 0, PACE)
        self.replica.name = NAME

    def begin(self, *, epoch: int = EPOCH) -> None:
        self.broker.begin(epoch, PACE)

    def confirm(self, report: SessionHeartbeatRequest, *absent: int) -> None:
        self.broker.confirmed(report, SessionHeartbeatReply(absent))

    def beats(self) -> bool:
        return self.replica.beat(self.now_ms, 0)


@pytest.fixture
def sides() -> Iterator[Sides]:
    made = Sides()
    yield made
    made.replica.close()
    made.broker.close()


def test_a_replica_rests_once_the_controller_has_confirmed_it(sides: Sides) -> None:
    sides.begin()
    sides.replica.registered(5, EPOCH)
    assert not sides.beats()
    report = sides.broker.report()
    assert (report.vouched, report.notes) == ([5], [])
    assert not sides.beats(), "sent, and not confirmed"
    sides.confirm(report)
    assert sides.beats()
    assert sides.broker.report().vouched is None, "nothing has changed"


def test_a_replica_that_is_left_out_sends_its_own_heartbeats_at_once(sides: Sides) -> None:
    test_a_replica_rests_once_the_controller_has_confirmed_it(sides)
    sides.now_ms += PACE.silent_after_ms + 1
    report = sides.broker.report()
    assert (report.vouched, list(report.notes)) == ([], [ReplicaNote(5, PACE.silent_after_ms + 1, 0)])
    assert not sides.beats()
    sides.confirm(report)
    assert not sides.beats(), "the controller has confirmed that it is left out"
    sides.confirm(sides.broker.report())
    assert sides.beats()


def test_a_replica_without_a_session_sends_heartbeats_and_so_notices(sides: Sides) -> None:
    test_a_replica_rests_once_the_controller_has_confirmed_it(sides)
    sides.confirm(sides.broker.report(), 5)
    assert not sides.beats()
    sides.confirm(sides.broker.report(), 5)
    assert not sides.beats()
    sides.confirm(sides.broker.report())
    assert sides.beats()


def test_a_replica_sends_its_own_heartbeats_soon_after_its_broker_died(sides: Sides) -> None:
    test_a_replica_rests_once_the_controller_has_confirmed_it(sides)
    sides.now_ms += PACE.trusted_ms
    assert sides.beats()
    sides.now_ms += 1
    assert not sides.beats()


def test_the_next_process_of_a_broker_vouches_for_the_same_replicas(sides: Sides) -> None:
    test_a_replica_rests_once_the_controller_has_confirmed_it(sides)
    sides.broker = Vouching(lambda: sides.now_ms, open_pages)
    sides.broker.open(NAME)
    sides.begin()
    assert not sides.beats()
    sides.confirm(sides.broker.report())
    assert sides.beats()


def test_a_replica_finds_the_table_that_its_broker_made_after_a_stop(sides: Sides) -> None:
    test_a_replica_rests_once_the_controller_has_confirmed_it(sides)
    sides.broker.close()
    sides.broker.open(NAME)
    sides.begin()
    sides.now_ms += PACE.trusted_ms + SEARCH_MS
    assert not sides.beats(), "in the table before; now it looks for another"
    sides.confirm(sides.broker.report())
    assert sides.beats()


def test_a_replica_relies_on_the_controller_that_it_is_registered_with(sides: Sides) -> None:
    sides.begin(epoch=EPOCH + 1)
    sides.replica.registered(5, EPOCH)
    sides.beats()
    sides.confirm(sides.broker.report())
    assert not sides.beats()


def test_without_shared_memory_replicas_send_their_own(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    sides.broker.close()
    monkeypatch.setattr(beat_memory, "FOLDER", Path("/missing"))
    sides.broker.open(NAME)
    sides.begin()
    sides.replica.registered(5, EPOCH)
    assert not sides.beats()
    assert sides.broker.report().vouched is None
