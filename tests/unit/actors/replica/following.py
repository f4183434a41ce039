"""A shipped runner with a real log that follows another real log, in a world whose clocks a test sets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.replica.ports import Keeper, ReplicaPorts, ReplicaRequest, Sync
from raylog.actors.replica.runner import ReplicaRunner
from raylog.actors.settings import FlushPolicy
from raylog.base.ids import BrokerId, Incarnation, LeaderEpoch, PartitionEpoch, TopicPartition
from raylog.core.partition import PartitionState, ReplicaPlace
from raylog.core.replication import events as ev
from raylog.core.replication.replica import ReplicationSettings
from raylog.protocol import replica as wire
from raylog.storage.batch.header import end_offset
from raylog.storage.log.config import LogConfig
from raylog.storage.log.partition_log import PartitionLog

ME, OTHER = 2, 1
STARTED_MS = 1_800_000_000_000


class Clocks:
    """All three, by the milliseconds that have passed, and how far the wall clock is off."""

    def __init__(self) -> None:
        self.passed_ms = 0
        self.off_ms = 0

    def monotonic_ns(self) -> int:
        return self.passed_ms * 1_000_000

    def since_boot_ns(self) -> int:
        return self.passed_ms * 1_000_000

    def wall_ns(self) -> int:
        return self.wall_ms() * 1_000_000

    def wall_ms(self) -> int:
        return STARTED_MS + self.passed_ms + self.off_ms


class Request:
    """A request that keeps its answer or error."""

    is_deserted = is_behind = False

    def __init__(self, payload: bytes = b"") -> None:
        self.payload = bytearray(payload)
        self.began_ns, self.append_ms = 0, -1
        self.opened_for: object = None
        self.answer: Any = None
        self.error: BaseException | None = None

    def reply(self, args: Any = None, payload: bytes = b"") -> None:
        self.answer = args

    def fail(self, error: BaseException) -> None:
        self.error = error


class Following:
    """Broker 2's replica of a partition that broker 1 leads, or led."""

    def __init__(
        self,
        folder: Path,
        config: LogConfig,
        clocks: Clocks,
        *,
        needed_from: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.clocks = clocks
        self.log = opened(folder / "t-0", config, clocks)
        self.fetches: list[ev.SendFetch] = []
        self.fatal: list[str] = []
        self.runner = ReplicaRunner(
            TopicPartition("t", 0),
            self.log,
            clock=clocks,
            sync=cast(Sync, SimpleNamespace(kick=_nothing, busy_since_ms=None, exclusive=nullcontext())),
            keeper=cast(Keeper, SimpleNamespace(offset=0, tick=_nothing, lower=_nothing)),
            ports=ReplicaPorts(
                send_fetch=self.fetches.append,
                propose_isr=_nothing,
                propose_sleep=_nothing,
                resign=_nothing,
                rebuild=_nothing,
                verify=lambda question: self.runner.transaction_confirmed(question.request, None),
                role_changed=_nothing,
                soon=_nothing,
                fatal=self.fatal.append,
                needed_from=needed_from,
            ),
            flush=FlushPolicy(messages=1 << 60, ms=1_000),
            counters=ReplicaCounters(),
        )
        self.runner.begin(ME, Incarnation(12), ReplicationSettings(min_insync_replicas=1))

    def state(self, leader: int, epoch: int, *, isr: tuple[int, ...] = (OTHER, ME)) -> None:
        """The controller sends a state; its partition epoch is the leader epoch."""
        places = tuple(
            ReplicaPlace(broker=BrokerId(each), incarnation=Incarnation(10 + each), host="h", port=9000 + each)
            for each in (OTHER, ME)
        )
        self.runner.state_received(
            12,
            PartitionState(
                topic_id="id",
                partition=TopicPartition("t", 0),
                replicas=(BrokerId(OTHER), BrokerId(ME)),
                isr=tuple(BrokerId(each) for each in isr),
                leader=BrokerId(leader),
                leader_epoch=LeaderEpoch(epoch),
                partition_epoch=PartitionEpoch(epoch),
                places=places,
            ),
        )

    def replicate(self, leader: PartitionLog, epoch: int = 1, *, most_bytes: int = 1 << 20) -> None:
        """The leader answers fetches until this log is as long as its own, or stands still."""
        before = -1
        while before < self.log.log_end_offset < leader.log_end_offset:
            before = self.log.log_end_offset
            self.answer(leader, epoch, most_bytes=most_bytes)

    def answer(self, leader: PartitionLog, epoch: int = 1, *, most_bytes: int = 1 << 20, held_from: int = -1) -> None:
        """The leader answers the last fetch."""
        fetch, end = self.fetches[-1], leader.log_end_offset
        records = leader.read(fetch.fetch_offset, most_bytes, end)
        reply = wire.ReplicaFetchReply(epoch, end, leader.log_start_offset, None, held_from)
        self.runner.fetch_answered(fetch.request, reply, records, end_offset(records, fetch.fetch_offset))

    def part(self, epoch: int, end: int, of_epoch: int) -> None:
        """The leader answers the last fetch with where the histories part."""
        fetch = self.fetches[-1]
        reply = wire.ReplicaFetchReply(epoch, end, 0, wire.EpochEnd(of_epoch, end))
        self.runner.fetch_answered(fetch.request, reply, b"", fetch.fetch_offset)

    def produce(self, payload: bytes) -> Request:
        """A producer's batch; the request has the answer."""
        request = Request(payload)
        self.runner.receive(cast(ReplicaRequest, request), wire.ProduceRequest("id", 0, -1, 1, 1_000, "ledger"))
        return request

    def pass_time(self, ms: int, *, tick_ms: int) -> None:
        """Let time pass, with ticks."""
        for _ in range(ms // tick_ms):
            self.clocks.passed_ms += tick_ms
            self.runner.tick()


def opened(folder: Path, config: LogConfig, clocks: Clocks) -> PartitionLog:
    """A log of the topic."""
    return PartitionLog.open(folder, config, topic_id="id", topic="t", partition=0, now_ms=clocks.wall_ms())


def _nothing(*_: object) -> None:
    """Where nothing is looked at."""
