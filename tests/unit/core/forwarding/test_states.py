"""The states of forwarders and the redrives: what is stored, which owner may store, and how the next leader goes on."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.base.errors import ForwarderFenced, InvalidRequest, RaylogError, RecordTooLarge, RedriveRunning
from raylog.core.coordinators.events import AppendRecords, StoreProof
from raylog.core.decision import Refuse, Reply
from raylog.core.forwarding.redrives import CANCELLED, CANCELLING, DONE, KEPT_MS, RUNNING, Frontier, Outcome
from raylog.core.forwarding.states import (
    Event,
    ForwarderStates,
    ListRedrives,
    LookUpTopic,
    PartitionRedriven,
    RedriveEnded,
    RunRedrive,
    StopRedrive,
    TopicLookedUp,
    state_name,
)
from raylog.core.received import Received
from raylog.protocol.forwarding import (
    CancelRedriveRequest,
    ListRedrivesRequest,
    LoadForwarderRequest,
    SaveForwarderRequest,
    StartRedriveRequest,
)

DAY_MS = 1_800_000_000_000
TIME: Any = {"cause": "test", "now_ms": 0}


class States:
    """A machine, the rows that it has written, and what it did in its last step."""

    def __init__(self, rows: list[Any] | None = None, *, record_bytes_max: int = 10_000) -> None:
        self.machine = ForwarderStates(record_bytes_max)
        self.rows: list[Any] = list(rows or ())
        self.effects: list[Any] = []
        self._requests = 0
        for row in self.rows:
            self.machine.replay(*row)
        self._take(self.machine.loaded(0, wall_ms=DAY_MS))

    def _take(self, outbox: Any) -> None:
        self.effects = [*outbox.now, *outbox.after_sync]
        for effect in self.effects:
            if isinstance(effect, AppendRecords):
                self.rows += effect.records

    def feed(self, event: Event) -> None:
        self._take(self.machine.step(event))

    def send(self, kind: Any, **fields: Any) -> Any:
        """Send a request; returns its answer, or None if it waits."""
        self.feed(Received(message=self._message(kind, **fields), request=self._number(), **TIME))
        return self.answer()

    def _message(self, kind: Any, **fields: Any) -> Any:
        return kind(topic_id="f", partition=0, current_leader_epoch=0, **fields)

    def _number(self) -> int:
        self._requests += 1
        return self._requests

    def answer(self) -> Any:
        for effect in self.effects:
            if isinstance(effect, Reply):
                return effect.result
            if isinstance(effect, Refuse):
                return effect.error
        return None

    def of(self, kind: type[Any]) -> list[Any]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def load(self, epoch: int, name: str = "ttl:t:0") -> Any:
        return self.send(LoadForwarderRequest, forwarder=name, owner_epoch=epoch)

    def save(self, epoch: int, progress: bytes, name: str = "ttl:t:0") -> Any:
        return self.send(SaveForwarderRequest, forwarder=name, owner_epoch=epoch, progress=progress)

    def start(self, *bounds: tuple[int, int], wall_ms: int = DAY_MS, **fields: Any) -> Any:
        """Start a redrive of a topic with these offsets; returns the answer."""
        named = {"topic": "dlq", "to": "", "where": {}, "rate": 0, "from_start": False, **fields}
        refused = self.send(StartRedriveRequest, **named)
        if refused is not None:
            return refused
        assert self.of(LookUpTopic) == [LookUpTopic(cause="test", topic=named["topic"], to=named["to"])]
        self.feed(TopicLookedUp(**TIME, topic=named["topic"], topic_id="id", bounds=bounds, wall_ms=wall_ms))
        return self.answer()

    def redriven(self, number: int, partition: int, position: int, sent: int, skipped: int = -1) -> None:
        outcome = Outcome(position, sent, skipped)
        self.feed(PartitionRedriven(**TIME, redrive=number, partition=partition, outcome=outcome, wall_ms=DAY_MS + 5))

    def listed(self, topic: str = "", progress: Any = None, holding: frozenset[int] = frozenset()) -> list[Any]:
        message = self._message(ListRedrivesRequest, topic=topic)
        known: Any = {"progress": progress or {}, "holding": holding}
        self.feed(ListRedrives(message=message, request=self._number(), **TIME, **known))
        [rows] = self.answer()
        return list(rows)

    def successor(self) -> States:
        return States(self.rows)


def test_a_state_is_stored_before_its_answer_and_read_by_the_next_leader() -> None:
    states = States()
    assert states.load(3) == [b""]
    assert states.save(3, b"note") == []
    assert isinstance(states.effects[0], AppendRecords)
    after = states.successor()
    assert after.load(3) == [b"note"]
    assert after.of(StoreProof), "it states what is stored, and stores nothing"
    assert after.load(4) == [b"note"]
    assert not after.of(StoreProof)


def test_an_earlier_owner_is_refused_and_a_row_proves_it() -> None:
    states = States()
    states.load(3)
    states.load(4)
    for answer in (states.load(3), states.save(3, b"late")):
        assert isinstance(answer, ForwarderFenced)
        assert states.of(StoreProof)
    assert isinstance(states.successor().save(3, b"late"), ForwarderFenced)
    assert states.successor().load(4) == [b""]


def test_a_state_that_is_too_large_is_refused_and_changes_nothing() -> None:
    states = States(record_bytes_max=100)
    states.save(3, b"note")
    assert isinstance(states.save(3, b"x" * 100), RecordTooLarge)
    assert states.load(3) == [b"note"]


def test_a_row_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError):
        States([(["later", "x"], [1])])


def test_a_redrive_ends_with_what_it_has_sent_in_one_batch() -> None:
    states = States()
    assert states.start((0, 10), (5, 7)) == [1]
    assert [each.redrive.number for each in states.of(RunRedrive)] == [1]
    states.save(0, b"note", state_name(1, 0))
    states.redriven(1, 0, position=10, sent=10)
    assert states.listed()[0][5] == RUNNING
    states.redriven(1, 1, position=7, sent=1, skipped=5)
    assert [each.redrive.state for each in states.of(RedriveEnded)] == [DONE]
    assert len(states.of(AppendRecords)) == 1
    after = states.successor()
    assert after.machine.frontiers == {"id": Frontier("id", (10, 7), (-1, 5))}
    assert after.machine.states == {}
    assert after.of(RunRedrive) == []
    assert after.start((0, 12), (5, 9)) == [2]
    assert [(span.start, span.end) for span in after.machine.redrives[2].spans] == [(10, 12), (5, 9)]


def test_a_redrive_with_filters_leaves_the_next_one_where_it_was() -> None:
    states = States()
    states.start((0, 10), where={"reason": "expired"})
    states.redriven(1, 0, position=10, sent=3)
    assert states.machine.frontiers == {}


def test_a_redrive_of_no_partition_ends_at_once() -> None:
    states = States()
    assert states.start() == [1]
    assert [each.redrive.state for each in states.of(RedriveEnded)] == [DONE]


def test_of_one_topic_one_redrive_runs_at_a_time() -> None:
    states = States()
    fields: Any = {"topic": "dlq", "to": "", "where": {}, "rate": 0, "from_start": False}
    assert states.send(StartRedriveRequest, **fields) is None
    assert isinstance(states.send(StartRedriveRequest, **fields), RedriveRunning)
    states.feed(TopicLookedUp(**TIME, topic="dlq", topic_id="id", bounds=[(0, 10)], wall_ms=DAY_MS))
    assert isinstance(states.start((0, 10)), RedriveRunning)
    assert isinstance(states.successor().start((0, 10)), RedriveRunning)
    assert states.start((0, 10), topic="other") == [2]


def test_a_topic_that_cannot_be_looked_up_starts_nothing() -> None:
    states = States()
    fields: Any = {"topic": "dlq", "to": "", "where": {}, "rate": 0, "from_start": False}
    states.send(StartRedriveRequest, **fields)
    error = InvalidRequest("no such topic")
    states.feed(TopicLookedUp(**TIME, topic="dlq", error=error))
    assert states.answer() is error
    assert states.listed() == []
    assert states.start((0, 10)) == [1], "and it can be tried again"


@pytest.mark.parametrize(
    "fields",
    [
        {"rate": -1},
        {"where": {"colour": "red"}},
        {"where": {"reason": "y" * 20_000}},
        {"topic": "__scheduled"},
        {"to": "__scheduled"},
        {"to": "dlq"},
    ],
)
def test_a_redrive_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    answer = States().start((0, 10), **fields)
    assert isinstance(answer, RaylogError), answer


def test_a_redrive_goes_on_at_the_next_leader_with_what_was_cancelled() -> None:
    states = States()
    states.start((0, 10), (0, 10))
    assert [each.redrive.state for each in states.successor().of(RunRedrive)] == [RUNNING]
    assert states.send(CancelRedriveRequest, redrive=1) == ["CANCELLED"]
    assert states.of(StopRedrive)
    after = states.successor()
    assert [each.redrive.state for each in after.of(RunRedrive)] == [CANCELLING]
    after.redriven(1, 0, position=4, sent=4)
    after.redriven(1, 1, position=0, sent=0)
    assert after.machine.redrives[1].state == CANCELLED
    assert after.send(CancelRedriveRequest, redrive=1) == ["ALREADY_ENDED"]
    assert after.send(CancelRedriveRequest, redrive=7) == ["NOT_FOUND"]
    assert after.of(StoreProof)
    after.redriven(1, 0, position=4, sent=4)
    assert after.effects == [], "it was repeated"


def test_the_list_has_the_progress_of_what_runs() -> None:
    states = States()
    states.start((0, 10), (2, 8))
    states.redriven(1, 0, position=10, sent=9)
    row = states.listed(progress={(1, 0): (3, 3), (1, 1): (5, 2)}, holding=frozenset({1}))[0]
    assert row[5] == "holding"
    assert row[8] == [[0, 0, 10, 10, 9], [1, 2, 5, 8, 2]]
    assert states.listed("other") == []


def test_redrives_that_ended_long_ago_are_deleted_with_the_next_one() -> None:
    states = States()
    for topic in ("a", "b", "c"):
        states.start(topic=topic)
    assert states.start(topic="d", wall_ms=DAY_MS + KEPT_MS + 6) == [4]
    assert sorted(states.machine.redrives) == [4]
    assert states.successor().start(topic="e", wall_ms=DAY_MS) == [5]


def test_the_rows_are_as_they_were_stored_first() -> None:
    """Golden rows: later releases have to read them."""
    states = States()
    states.save(3, b"note")
    states.start((0, 10), to="flights", where={"reason": "expired"}, rate=5)
    redrive = ["dlq", "id", "flights", {"reason": "expired"}, 5, RUNNING, DAY_MS, -1, ([0, 10, 0, 0],), False, ()]
    assert states.rows == [(["state", "ttl:t:0"], [3, b"note"]), (["redrive", 1], redrive)]
    longer = States([(["state", "s"], [3, b"note", "later"]), (["redrive", 1], [*redrive, "later"])])
    assert longer.load(3, "s") == [b"note"]
    assert longer.machine.redrives[1].sent_below_of(0) == 0


@pytest.mark.parametrize("row", [(["state"], None), (["state", "s"], None), (["state", "s"], [])])
def test_a_tombstone_needs_its_whole_key_and_a_row_its_fields(row: Any) -> None:
    if row == (["state", "s"], None):
        assert States([(["state", "s"], [3, b"note"]), row]).machine.states == {}
        return
    with pytest.raises(ValueError):
        States([row])
