"""A coordinator's runner: no answer before its rows are stored, no request without an answer, nothing after the end."""

from collections.abc import Sequence

import pytest

from raylog.actors.coordinators.runner import TICK_MS, fence_row
from raylog.actors.groups.runner import GroupCoordinatorRunner
from raylog.base.errors import (
    CoordinatorLoadInProgress,
    InvalidRequest,
    NotCoordinator,
    RecordTooLarge,
)
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.groups.coordinator import GroupCoordinatorMachine, GroupSettings
from tests.unit.actors.coordinators.incarnations import SentRequest

Row = tuple[list[object], list[object] | None]
BATCH_BYTES = 300
"""Room for two offsets."""


class Ports:
    """A stopped clock, and a log in memory that stores on the test's command."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.time_ms = self.due_ms = 0
        self.log: list[Row] = []
        self.proposals = 0
        self.reasons: list[str] = []
        self.largest_row = 1_000_000
        settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.machine = GroupCoordinatorMachine(
            settings=settings, share=EVERY_KEY, new_member_id=lambda client: f"{client}-1"
        )
        self.runner: GroupCoordinatorRunner[SentRequest, Row] = GroupCoordinatorRunner(self.machine, self)

    def now_ms(self) -> int:
        return self.time_ms

    def wall_ms(self) -> int:
        return self.time_ms

    def row(self, key: list[object], value: list[object] | None) -> tuple[Row, int]:
        return (key, value), 100

    def row_bytes_max(self) -> int:
        return self.largest_row

    def tick_at(self, due_ms: int) -> None:
        self.due_ms = due_ms

    def wake_writer(self) -> None:
        pass

    def look_up_topics(self, topics: Sequence[str]) -> None:
        raise AssertionError(f"no group of the other protocol looks up {topics}")

    def propose_sleep(self) -> None:
        self.proposals += 1

    def fatal(self, reason: str) -> None:
        self.reasons.append(reason)

    def send(self, method: str, *args: object) -> SentRequest:
        request = SentRequest(method, list(args))
        self.runner.receive(request)
        return request

    def store(self) -> int:
        """Store one batch; return how many rows it had."""
        rows = self.runner.take_batch(BATCH_BYTES)
        self.log += rows
        if rows:
            self.runner.stored()
        return len(rows)


def commit_args(*partitions: int) -> tuple[object, ...]:
    return ("g", -1, "", [["t" * 32, "orders", number, 7, -1, ""] for number in partitions], None)


@pytest.fixture
def ports() -> Ports:
    ports = Ports()
    ports.runner.serve()
    return ports


def test_a_commit_is_answered_when_its_last_row_is_stored(ports: Ports) -> None:
    request = ports.send("offset_commit", *commit_args(0, 1, 2, 3))
    assert request.answers == []
    assert ports.store() == 3
    assert request.answers == [], "the fourth row is not stored yet"
    assert ports.store() == 1
    assert request.answers == [[["orders", number, 0] for number in range(4)]]


def test_a_read_waits_for_what_it_returns(ports: Ports) -> None:
    first = ports.send("offset_fetch", "g", None)
    assert first.answers == []
    ports.store()
    assert first.answers == [[]]
    ports.send("offset_commit", *commit_args(0))
    read = ports.send("offset_fetch", "g", None)
    assert read.answers == []
    assert ports.store() == 1, "the commit proves as much as a row of its own"
    assert read.answers == [[["t" * 32, "orders", 0, 7, -1, ""]]]


def test_a_deposed_coordinator_returns_no_offset(ports: Ports) -> None:
    ports.send("offset_commit", *commit_args(0))
    ports.store()
    reads = [ports.send("offset_fetch", "g", None), ports.send("describe_group", "g")]
    ports.runner.end()  # the row is refused: a later incarnation has begun
    for request in reads:
        (error,) = request.answers
        assert isinstance(error, NotCoordinator)


def test_rows_under_way_prove_nothing_to_a_later_read(ports: Ports) -> None:
    ports.send("offset_commit", *commit_args(0))
    ports.runner.take_batch(BATCH_BYTES)
    read = ports.send("offset_fetch", "g", None)
    ports.runner.stored()
    assert read.answers == [], "they may have been stored before it came"
    assert ports.store() == 1
    assert len(read.answers) == 1


def test_a_malformed_request_is_refused_and_leaves_nothing(ports: Ports) -> None:
    (error,) = ports.send("heartbeat", "g").answers
    assert isinstance(error, InvalidRequest)
    (error,) = ports.send("make_coffee").answers
    assert isinstance(error, InvalidRequest)
    ports.runner.end()


def test_at_its_end_every_open_request_is_sent_to_the_next_coordinator(ports: Ports) -> None:
    written = ports.send("offset_commit", *commit_args(0))
    parked = ports.send("join_group", "g", "", "i", "client", 10_000, 10_000, "consumer", [["range", b""]])
    ports.runner.end()
    for request in (written, parked, ports.send("list_groups")):
        (error,) = request.answers
        assert isinstance(error, NotCoordinator)


def test_a_request_whose_connection_has_closed_is_dropped(ports: Ports) -> None:
    join = ("join_group", "g", "", "i", "client", 10_000, 10_000, "consumer", [["range", b""]])
    parked = ports.send(*join)
    ports.store()
    second = ports.send("join_group", "g", "", "j", "other", 10_000, 10_000, "consumer", [["range", b""]])
    assert second.answers == [], "the round waits for the first member"
    second.is_deserted = True
    ports.runner.tick()
    assert ports.machine.parked_requests() == []
    assert second.answers == []
    assert len(parked.answers) == 1


def test_a_defect_is_an_answer_and_nothing_is_carried_out_any_more(
    ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = ports.send("offset_commit", *commit_args(0))

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(ports.machine, "_handle", broken)
    (error,) = ports.send("list_groups").answers
    assert isinstance(error, RuntimeError)
    assert "a defect" in ports.reasons[0]
    ports.store()
    assert waiting.answers == []


def test_a_replay_restores_what_was_stored_and_passes_over_fences(ports: Ports) -> None:
    ports.send("offset_commit", *commit_args(0, 1))
    ports.store()
    later = Ports()
    for key, value in [(fence_row(1), None), *ports.log, (fence_row(2), None)]:
        later.runner.replay(key, value)
    (error,) = later.send("offset_fetch", "g", None).answers
    assert isinstance(error, CoordinatorLoadInProgress)
    later.runner.serve()
    assert later.runner.rows_replayed == 2
    reads = [each.send("offset_fetch", "g", None) for each in (ports, later)]
    ports.store()
    later.store()
    assert reads[0].answers == reads[1].answers != []


def test_a_proposal_to_end_waits_for_the_rows_before_it() -> None:
    ports = Ports(GroupSettings(sleep_after_ms=1_000, offsets_retention_ms=500))
    ports.runner.serve()
    ports.send("offset_commit", *commit_args(0))
    ports.store()
    ports.time_ms = 1_000
    ports.runner.tick()
    assert ports.proposals == 0, "the tombstone of the expired offset is not stored"
    (error,) = ports.send("offset_fetch", "g", None).answers
    assert isinstance(error, NotCoordinator)
    ports.store()
    assert ports.proposals == 1
    ports.runner.sleep_refused()
    fetched = ports.send("offset_fetch", "g", None)
    ports.store()
    assert fetched.answers == [[]]


def test_a_request_to_sleep_is_a_proposal_at_the_next_tick() -> None:
    ports = Ports(GroupSettings(sleep_after_ms=1_000))
    ports.runner.serve()
    ports.runner.sleep_requested()
    ports.runner.tick()
    assert ports.proposals == 1


def test_a_row_that_the_log_would_refuse_is_an_answer_to_its_request() -> None:
    ports = Ports(GroupSettings(record_bytes_max=10_000_000))
    ports.runner.serve()
    stored = ports.send("offset_commit", *commit_args(0))
    ports.largest_row = 99
    refused = ports.send("offset_commit", *commit_args(1))
    (error,) = refused.answers
    assert isinstance(error, RecordTooLarge)
    assert not error.retriable
    assert len(ports.reasons) == 1, "what the machine has decided is loaded again without it"
    assert stored.answers == []


def ticks(ports: Ports, until_ms: int) -> list[int]:
    """Tick whenever that was requested, and return the times."""
    found = []
    while ports.due_ms <= until_ms:
        ports.time_ms = ports.due_ms
        ports.runner.tick()
        found.append(ports.time_ms)
        assert ports.due_ms > ports.time_ms
    return found


def test_a_coordinator_that_is_not_used_ticks_for_its_checks_alone(ports: Ports) -> None:
    check_ms = GroupSettings().offsets_retention_check_ms
    assert ticks(ports, 3 * check_ms) == [TICK_MS, check_ms, 2 * check_ms, 3 * check_ms]


def test_what_an_event_makes_due_is_found_soon_and_done_in_time(ports: Ports) -> None:
    ticks(ports, 1_000)
    ports.time_ms = 1_000
    ports.send("join_group", "g", "", None, "reader", 10_000, 60_000, "consumer", [["range", b""]])
    assert ticks(ports, 60_000) == [1_000 + TICK_MS, 11_000]
    assert not ports.machine.census(), "the member id that was handed out is forgotten"


def test_an_old_time_of_day_is_read_again_before_a_request(ports: Ports) -> None:
    ports.time_ms = 5_000
    ports.send("offset_commit", *commit_args(0))
    ports.store()
    assert ports.log[-1][1] is not None
    assert 5_000 in ports.log[-1][1], "the commit has its time"
