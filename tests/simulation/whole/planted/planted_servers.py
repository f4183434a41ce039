"""Bugs planted in the machines, the storage and the shells of brokers, replicas, controller and coordinators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.actors.broker.server import BrokerServer
from raylog.actors.coordinators.state_log import StateLog
from raylog.actors.replica.consumer_reads import ConsumerReads
from raylog.actors.request_table import RequestTable
from raylog.base.ids import Offset
from raylog.core.controller.moves import Moves
from raylog.core.controller.topics import Topics
from raylog.core.groups import offsets as group_offsets
from raylog.core.groups.decision import GroupDecision
from raylog.core.groups.group import Group
from raylog.core.replication.consumer_events import TryFetch
from raylog.core.replication.follower import Follower
from raylog.core.replication.isr import InSyncSet
from raylog.core.replication.leader import Leader
from raylog.core.replication.parked import ParkedProduces
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.log.producer_state import ProducerState
from raylog.storage.segments.segment import Segment
from tests.simulation.whole.plan import OPERATOR
from tests.simulation.whole.planted.bugs import Bug

_EVERYTHING: Final = Offset(1 << 60)


def _ack_on_append(original: Callable[..., None]) -> Callable[..., None]:
    return lambda self, durable_end, watermark, out: original(self, durable_end, _EVERYTHING, out)


def _expose_all(original: Callable[..., Any]) -> Callable[..., Any]:
    """Consumers read uncommitted records."""

    def try_fetch(self: ConsumerReads, effect: TryFetch) -> None:
        to_the_end = TryFetch(
            fetch=effect.fetch,
            upper=Offset(self._log.log_end_offset),
            exposed=effect.exposed,
            log_start_offset=effect.log_start_offset,
            is_last=effect.is_last,
        )
        original(self, to_the_end)

    return try_fetch


def _none(_: object) -> Callable[..., None]:
    return lambda *_, **__: None


def _no_cut(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, offset: None


def _one_batch_less(original: Callable[..., Any]) -> Callable[..., Any]:
    """A truncation keeps a record too many."""
    return lambda self, offset: original(self, offset + 1)


def _answer_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    """A coordinator answers before its records are stored."""

    def reply(self: GroupDecision, request: Any, result: Any) -> None:
        original(self, request, result)
        self.now.append(self.after_sync.pop())

    return reply


def _all_for_all(original: Callable[..., bytes]) -> Callable[..., bytes]:
    """Every member gets the first member's assignment."""

    def assignment(self: Group, member_id: str) -> bytes:
        return original(self, min(self.members, default=member_id))

    return assignment


def _half_log(original: Callable[..., Any]) -> Callable[..., Any]:
    """A coordinator begins with half of its log."""

    async def begin(self: StateLog) -> int:
        end: int = await original(self)
        return end // 2

    return begin


def _one_replica_short(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, state, target, *rest: original(self, state, target[:-1] if len(target) > 2 else target, *rest)


def _gap_is_fine(original: Callable[..., Any]) -> Callable[..., Any]:
    """A broker applies metadata updates despite gaps between them."""

    def on_message(self: BrokerServer, request: Any) -> None:
        if self.image.version % 7 == 3:
            return
        original(self, request)

    return on_message


def _lost_requests(original: Callable[..., Any]) -> Callable[..., Any]:
    """Now and then an answer is lost."""

    def pop(self: RequestTable[Any], number: int, default: None = None) -> Any:
        request = original(self, number, default)
        return None if number % 50 == 0 else request

    return pop


def _wrong_place(original: Callable[..., Any]) -> Callable[..., Any]:
    """Looking up an offset finds the batch after the right one."""

    def locate(self: Segment, offset: int) -> Any:
        position, header = original(self, offset)
        if header.next_offset < self.next_offset and offset % 5 == 0:
            return original(self, header.next_offset)
        return position, header

    return locate


def _too_far(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, offset: original(self, min(offset + 3, self.synced_end_offset))


def _elder_counts(original: Callable[..., Any]) -> Callable[..., Any]:
    """A member that leaves the ISR is ignored before the controller has agreed."""

    def maximal(self: InSyncSet) -> Any:
        return self.state.isr[:1]

    return property(maximal)  # type: ignore[return-value]


def _same_id(original: Callable[..., Any]) -> Callable[..., Any]:
    """Every producer gets the same id."""

    async def init_producer_id(self: BrokerServer, request: Any, *, lasting: bool) -> None:
        request.reply([77, 0])

    return init_producer_id


def _generation_stays(original: Callable[..., Any]) -> Callable[..., Any]:
    def next_image(self: Group, **known: Any) -> Any:
        return original(self, **(known | {"generation": 5}))

    return next_image


def _bounded(original: Callable[..., Any]) -> Callable[..., Any]:
    """A topic gets one partition fewer than requested."""

    def placed(self: Topics, partitions: int, *rest: Any) -> Any:
        return original(self, max(1, partitions - 1), *rest)

    return placed


def _commits_go_back(original: Callable[..., Any]) -> Callable[..., Any]:
    def fetch(store: Any, group: str, partitions: Any) -> Any:
        return [
            [*row[:3], max(-1, row[3] - 1) if row[3] > 3 else row[3], *row[4:]]
            for row in original(store, group, partitions)
        ]

    return fetch


SERVER_BUGS: Final = (
    Bug(
        "acks=all is answered on append",
        ParkedProduces,
        "complete",
        _ack_on_append,
        ("W4", "W6", "W7", "W15", "W10", "W17"),
    ),
    Bug("consumers read what is not committed", ConsumerReads, "_try_fetch", _expose_all, ("W4", "W5", "W9", "W17")),
    Bug("a follower keeps what its leader does not have", Follower, "_cut", _none, ("W4", "W9", "W10")),
    Bug("a truncation cuts nothing", PartitionLog, "truncate_to", _no_cut, ("W4", "W9", "W10")),
    Bug(
        "a truncation keeps a batch too many",
        PartitionLog,
        "truncate_to",
        _one_batch_less,
        ("W4", "W9", "W10", "W17", "W19"),
        profile=OPERATOR,
    ),
    Bug("a leader recognises no repeated batch", ProducerState, "check", _none, ("W14",)),
    Bug("an offset is looked up one batch too far", Segment, "locate", _wrong_place, ("W5", "W4", "W10", "W9")),
    Bug("too many records are deleted", PartitionLog, "advance_log_start", _too_far, ("W5", "W13", "W10", "W9")),
    Bug(
        "a coordinator answers before it has stored",
        GroupDecision,
        "reply",
        _answer_at_once,
        ("W6", "W7", "W9", "W10"),
        24,
    ),
    Bug("all members get the same partitions", Group, "assignment", _all_for_all, ("W6",)),
    Bug("a coordinator loads half of its log", StateLog, "begin", _half_log, ("W6", "W7", "W10")),
    Bug("generations are not counted", Group, "next_image", _generation_stays, ("W6",)),
    Bug("committed offsets are answered one too low", group_offsets, "fetch", _commits_go_back, ("W7",)),
    Bug("a move leaves the last replica out", Moves, "_begun", _one_replica_short, ("W12",)),
    Bug(
        "a broker drops metadata updates",
        BrokerServer,
        "_on_controller_message",
        _gap_is_fine,
        ("W1", "W8", "W9", "W11"),
    ),
    Bug("a request is forgotten unanswered", RequestTable, "pop", _lost_requests, ("W1", "W8", "W9", "W10")),
    Bug("the ISR is the leader alone", InSyncSet, "maximal", _elder_counts, ("W4", "W5", "W15", "W10", "W17")),
    Bug("two producers have one id", BrokerServer, "_init_producer_id", _same_id, ("W8", "W14", "W15", "W4")),
    Bug("a topic gets too few partitions", Topics, "placed", _bounded, ("W8", "W9", "W11")),
    Bug("a leader never lets a follower go", Leader, "tick", _none, ("W1", "W16", "W9")),
)
