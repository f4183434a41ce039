"""Markers reach every participant, whatever refuses them at first; and what cannot be reached delays nothing else."""

import asyncio
from typing import Any, cast

import pytest
from msgspec.structs import replace

from raylog.actors.routes import Route, Routes
from raylog.actors.transactions import markers
from raylog.actors.transactions.markers import MarkerSender
from raylog.base.errors import (
    GroupIdNotFound,
    InvalidProducerEpoch,
    LeaderNotAvailable,
    NotCoordinator,
    NotLeaderOrFollower,
    RaylogError,
    RequestTimedOut,
    TransactionCoordinatorFenced,
)
from raylog.core.transactions.events import EndTxn
from raylog.core.transactions.records import ProducerIdentity
from raylog.core.transactions.waiting import Participant
from raylog.protocol.groups import EndTxnOffsetsRequest
from raylog.protocol.replica import WriteTxnMarkersRequest
from raylog.protocol.transactions import TxnPartition
from tests.waiting import eventually

ORDERS = TxnPartition("o" * 32, "orders", 0)
BILLS = TxnPartition("b" * 32, "bills", 3)
DELETED = TxnPartition("d" * 32, "deleted", 0)
EPOCH = 9


class Participants:
    """Leaders and group coordinators in this process, in place of routes to them; and what was sent to them."""

    def __init__(self) -> None:
        self.answers: list[BaseException | None] = []
        """What the next requests are answered with; None, and what comes after these, is a success."""
        self.sent: list[tuple[str, object]] = []
        self.forgotten: list[Participant] = []
        self.unreachable: set[Participant] = set()

    async def leader(self, partition: TxnPartition) -> Route | None:
        return None if partition == DELETED else self._route(partition)

    async def group_coordinator(self, group: str) -> Route:
        return self._route(group)

    def _route(self, participant: Participant) -> Route:
        if participant in self.unreachable:
            raise LeaderNotAvailable()
        return Route(cast(Any, self), 4, lambda: self.forgotten.append(participant))

    async def call(self, method: str, request: object, *, timeout_s: float) -> None:
        self.sent.append((method, request))
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer


class Stage:
    """A sender with its participants."""

    def __init__(self) -> None:
        self.participants = Participants()
        self.written: list[Participant] = []
        self.fenced: list[str] = []
        self.sender = MarkerSender(
            cast(Routes, self.participants),
            name="transaction coordinator 0",
            on_written=lambda _, participant: self.written.append(participant),
            on_fenced=self.fenced.append,
        )

    def send(self, *participants: Participant, committed: bool = True) -> None:
        effect = EndTxn(
            cause="end",
            transactional_id="etl",
            writer=ProducerIdentity(5, 1),
            marker_epoch=2,
            committed=committed,
            partitions=[found for found in participants if isinstance(found, TxnPartition)],
            groups=[found for found in participants if isinstance(found, str)],
        )
        self.sender.send(effect, EPOCH)


def remote(error: RaylogError) -> RaylogError:
    error.is_remote = True
    return error


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "RETRY_FIRST_S", 0.0)
    monkeypatch.setattr(markers, "RETRY_LAST_S", 0.0)


async def test_each_participant_gets_the_outcome_with_both_epochs() -> None:
    stage = Stage()
    stage.send(ORDERS, "workers", committed=False)
    await eventually(lambda: len(stage.written) == 2)
    assert set(stage.written) == {ORDERS, "workers"}
    requests = [request for _, request in stage.participants.sent]
    assert WriteTxnMarkersRequest("o" * 32, 0, 4, 5, 2, EPOCH, False, markers.MARKER_TIMEOUT_MS) in requests
    assert EndTxnOffsetsRequest("workers", 5, 2, EPOCH, False) in requests
    await stage.sender.stop()


@pytest.mark.parametrize(
    "trouble",
    [
        remote(NotLeaderOrFollower()),
        remote(NotCoordinator()),
        RequestTimedOut(),
        ConnectionResetError(),
        InvalidProducerEpoch("raised here"),
        remote(RaylogError("a defect over there")),
    ],
)
async def test_a_participant_that_fails_is_looked_up_and_sent_to_again(trouble: Exception) -> None:
    stage = Stage()
    stage.participants.answers = [trouble, trouble]
    stage.send(ORDERS)
    await eventually(lambda: bool(stage.written))
    assert len(stage.participants.sent) == 3
    if not isinstance(trouble, InvalidProducerEpoch):
        assert stage.participants.forgotten == [ORDERS, ORDERS]
    assert stage.sender.counters == {"markers_repeated": 2, "markers_written": 1}
    await stage.sender.stop()


async def test_what_has_no_transaction_to_end_any_more_counts_as_ended() -> None:
    stage = Stage()
    stage.participants.answers = [remote(InvalidProducerEpoch())]
    stage.send(ORDERS)
    await eventually(lambda: stage.written == [ORDERS])
    stage.participants.answers = [remote(GroupIdNotFound())]
    stage.send("deleted group")
    await eventually(lambda: len(stage.written) == 2)
    stage.send(DELETED)
    await eventually(lambda: len(stage.written) == 3)
    assert len(stage.participants.sent) == 2
    await stage.sender.stop()


async def test_a_participant_without_a_leader_delays_no_other() -> None:
    stage = Stage()
    stage.participants.unreachable.add(BILLS)
    stage.send(BILLS, ORDERS)
    await eventually(lambda: stage.written == [ORDERS])
    stage.participants.unreachable.clear()
    await eventually(lambda: stage.written == [ORDERS, BILLS])
    await stage.sender.stop()


async def test_only_so_many_requests_are_under_way_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "UNDER_WAY_MAX", 2)
    stage = Stage()
    most = under_way = 0
    goes_on = asyncio.Event()

    async def call(method: str, request: object, *, timeout_s: float) -> None:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        await goes_on.wait()
        under_way -= 1

    monkeypatch.setattr(stage.participants, "call", call)
    stage.send(*(replace(ORDERS, partition=number) for number in range(7)))
    await eventually(lambda: under_way == 2)
    goes_on.set()
    await eventually(lambda: len(stage.written) == 7)
    assert most == 2
    await stage.sender.stop()


async def test_participants_that_hang_delay_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their connections are open, and their processes paused."""
    monkeypatch.setattr(markers, "UNDER_WAY_MAX", 2)
    monkeypatch.setattr(markers, "IN_ROOM_S", 0.01)
    stage = Stage()
    hung = [replace(BILLS, partition=number) for number in range(9)]

    async def call(method: str, request: WriteTxnMarkersRequest, *, timeout_s: float) -> None:
        if request.topic_id == BILLS.topic_id:
            await asyncio.Event().wait()

    monkeypatch.setattr(stage.participants, "call", call)
    stage.send(*hung)
    stage.send(ORDERS)
    await eventually(lambda: stage.written == [ORDERS])
    await stage.sender.stop()
    assert not [task for task in asyncio.all_tasks() if "marker" in task.get_name() and not task.cancelling()]


async def test_a_coordinator_that_was_replaced_sends_no_more() -> None:
    stage = Stage()
    stage.participants.answers = [remote(TransactionCoordinatorFenced())]
    stage.send(ORDERS)
    await eventually(lambda: bool(stage.fenced))
    assert stage.written == []
    await stage.sender.stop()


async def test_after_the_end_of_a_load_nothing_is_reported() -> None:
    stage = Stage()
    stage.participants.unreachable.add(ORDERS)
    stage.send(ORDERS)
    await eventually(lambda: stage.sender.counters["markers_repeated"] > 0)
    stage.participants.unreachable.clear()
    stage.sender.abandon()
    await stage.sender.stop()
    assert stage.written == []
