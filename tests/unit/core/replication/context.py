"""A replica machine with a vocabulary for tests: states of the controller, requests of clients and followers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from raylog.base.ids import (
    NO_EPOCH,
    NO_LEADER,
    BrokerId,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicPartition,
)
from raylog.core.outbox import Outbox
from raylog.core.partition import PartitionState, ReplicaPlace
from raylog.core.received import Received
from raylog.core.replication.events import (
    Effect,
    Event,
    FetchAnswered,
    FollowerAppended,
    IsrChangeAnswered,
    LeaderAppended,
    LeaderRequest,
    ProposeIsr,
    ResetLog,
    SendFetch,
    StateReceived,
    Synced,
    Tick,
    TruncateLog,
)
from raylog.core.replication.log import LogCut
from raylog.core.replication.replica import LogSummary, ReplicaMachine, ReplicationSettings
from raylog.protocol.replica import (
    READ_UNCOMMITTED,
    DeleteRecordsRequest,
    FetchRequest,
    ListOffsetsRequest,
    ProduceRequest,
    ReplicaFetchRequest,
)

PARTITION = TopicPartition("orders", 0)
ME, SECOND, THIRD = BrokerId(1), BrokerId(2), BrokerId(3)
EffectT = TypeVar("EffectT")


def partition_state(
    *,
    leader: int = ME,
    leader_epoch: int = 1,
    partition_epoch: int = 1,
    isr: tuple[int, ...] = (ME, SECOND, THIRD),
    replicas: tuple[int, ...] = (ME, SECOND, THIRD),
    incarnations: dict[int, int] | None = None,
    down: tuple[int, ...] = (),
    elr: tuple[int, ...] = (),
) -> PartitionState:
    """Return a state; each replica's incarnation is ten times its number by default."""
    lives = {broker: broker * 10 for broker in replicas} | (incarnations or {})
    return PartitionState(
        topic_id="t1",
        partition=PARTITION,
        replicas=tuple(BrokerId(b) for b in replicas),
        isr=tuple(BrokerId(b) for b in isr),
        elr=tuple(BrokerId(b) for b in elr),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(leader_epoch),
        partition_epoch=PartitionEpoch(partition_epoch),
        places=tuple(
            ReplicaPlace(
                broker=BrokerId(b), incarnation=Incarnation(lives[b]), host="h", port=0 if b in down else 9000 + b
            )
            for b in replicas
        ),
    )


class Context:
    """One machine under test; every step validates the whole machine afterwards."""

    def __init__(
        self,
        *,
        min_insync_replicas: int = 2,
        log_end: int = 0,
        log_start: int = 0,
        epochs: tuple[tuple[int, int], ...] = (),
        kept: int = 0,
    ) -> None:
        """Start broker 1, incarnation 10, on a log that is durable to its end; ``kept`` is an earlier watermark."""
        self.now_ms = 1_000
        self.last_request = 100
        self.machine = ReplicaMachine(
            partition=PARTITION,
            broker=ME,
            incarnation=Incarnation(10),
            settings=ReplicationSettings(min_insync_replicas=min_insync_replicas),
            log=LogSummary(
                log_start_offset=Offset(log_start),
                log_end_offset=Offset(log_end),
                durable_end_offset=Offset(log_end),
                epochs=tuple((LeaderEpoch(e), Offset(s)) for e, s in epochs),
                high_watermark=Offset(kept),
            ),
        )

    def step(self, event: Event) -> Outbox[Effect]:
        """Feed one event and check the machine. A cut is carried out at once, exactly where it is wanted."""
        out = self.machine.step(event)
        self.machine.validate()
        for effect in [each for each in out.now if isinstance(each, TruncateLog | ResetLog)]:
            self.now_ms, before = max(self.now_ms, event.now_ms), self.machine._log
            to = effect.to if isinstance(effect, TruncateLog) else effect.start_offset
            is_reset = isinstance(effect, ResetLog)
            out.extend(self.cut(to if is_reset else before.start, to))
        return out

    def notice(self, kind: Callable[..., Event], **fields: Any) -> Outbox[Effect]:
        """Feed an event that happens now."""
        return self.step(kind(cause="test", now_ms=self.now_ms, **fields))

    def send(self, message: LeaderRequest) -> Outbox[Effect]:
        """A request comes; its number is the last one."""
        self.last_request += 1
        return self.notice(Received, message=message, request=self.last_request)

    def cut(self, start: int, end: int, *, done: bool = True) -> Outbox[Effect]:
        """The log states what it is after a cut."""
        log = self.machine._log
        kept = [(epoch, first) for epoch, first in log.epochs.entries if first < end and start < end]
        summary = LogSummary(
            log_start_offset=Offset(start),
            log_end_offset=Offset(end),
            durable_end_offset=Offset(max(start, min(end, log.durable_end))),
            epochs=tuple(kept),
        )
        return self.notice(LogCut, log=summary, done=done)

    def notified(self, state: PartitionState, incarnation: int = 10) -> Outbox[Effect]:
        """The controller sends a state."""
        return self.notice(StateReceived, incarnation=Incarnation(incarnation), state=state)

    def produce_requested(self, *, acks: int = -1, epoch: int = -1, deadline_in_ms: int = 1_000) -> Outbox[Effect]:
        """A client sends a produce request."""
        return self.send(ProduceRequest("t1", 0, epoch, acks, deadline_in_ms))

    def produced(
        self,
        count: int = 10,
        *,
        acks: int = -1,
        synced: bool = True,
        durable: bool = False,
        deadline_in_ms: int = 1_000,
    ) -> Outbox[Effect]:
        """A client appends ``count`` records, which become durable here (at once if ``durable``), or not."""
        out = self.produce_requested(acks=acks, deadline_in_ms=deadline_in_ms)
        first = self.machine.log_end_offset
        out.extend(self.appended(first, first + count, durable=durable))
        if synced and not durable:
            out.extend(self.synced())
        return out

    def appended(self, first: int, end: int, **other: bool) -> Outbox[Effect]:
        """The records of the last request are in the log, or were before (``duplicate``)."""
        return self.notice(
            LeaderAppended, request=self.last_request, first_offset=Offset(first), end_offset=Offset(end), **other
        )

    def consumer_fetched(
        self, offset: int, *, wait_ms: int = 500, epoch: int = -1, level: int = READ_UNCOMMITTED
    ) -> Outbox[Effect]:
        """A consumer fetches from ``offset``."""
        return self.send(FetchRequest("t1", 0, epoch, offset, 1, 1, wait_ms, level))

    def looked_up(self, timestamp: int, *, level: int = READ_UNCOMMITTED) -> Outbox[Effect]:
        """A consumer requests the offset of a time."""
        return self.send(ListOffsetsRequest("t1", 0, -1, timestamp, level))

    def deletion_requested(self, before: int, *, epoch: int = -1, deadline_in_ms: int = 1_000) -> Outbox[Effect]:
        """A client sends DeleteRecords."""
        return self.send(DeleteRecordsRequest("t1", 0, epoch, before, deadline_in_ms))

    def synced(self, to: int | None = None) -> Outbox[Effect]:
        """Everything (up to ``to``) is durable."""
        end = self.machine.log_end_offset if to is None else Offset(to)
        return self.notice(Synced, end_offset=end)

    def fetched_by(
        self,
        follower: int,
        offset: int,
        *,
        epoch: int = 1,
        last_epoch: int | None = None,
        incarnation: int | None = None,
        wait_ms: int = 500,
        log_start_offset: int = 0,
        disk_failing: bool = False,
    ) -> Outbox[Effect]:
        """A follower fetches from ``offset``."""
        life = follower * 10 if incarnation is None else incarnation
        last = (epoch if offset else NO_EPOCH) if last_epoch is None else last_epoch
        return self.send(
            ReplicaFetchRequest(
                "t1", 0, epoch, follower, life, offset, last, 1, wait_ms, log_start_offset, int(disk_failing)
            )
        )

    def answered(
        self,
        fetch: SendFetch,
        *,
        end: int | None = None,
        watermark: int = 0,
        epoch: int | None = None,
        diverging: tuple[int, int] | None = None,
    ) -> Outbox[Effect]:
        """The leader answers a fetch of this replica."""
        return self.notice(
            FetchAnswered,
            request=fetch.request,
            leader_epoch=fetch.leader_epoch if epoch is None else LeaderEpoch(epoch),
            high_watermark=Offset(watermark),
            log_start_offset=Offset(0),
            end_offset=fetch.fetch_offset if end is None else Offset(end),
            diverging=None if diverging is None else (LeaderEpoch(diverging[0]), Offset(diverging[1])),
        )

    def copied(self, fetch: SendFetch, end: int, *, epoch: int, watermark: int = 0, synced: bool = True) -> SendFetch:
        """The leader's answer brings records up to ``end``; returns the next fetch."""
        start = self.machine.log_end_offset
        self.answered(fetch, end=end, watermark=watermark)
        epochs = ((LeaderEpoch(epoch), start),)
        out = self.notice(FollowerAppended, request=fetch.request, end_offset=Offset(end), epochs=epochs)
        if synced:
            self.synced()
        return only(SendFetch, out.after_sync)

    def ticked(self, ms: int = 0) -> Outbox[Effect]:
        """Time passes."""
        self.now_ms += ms
        return self.notice(Tick)

    def isr_answered(
        self, proposal: ProposeIsr, error_code: int = 0, state: PartitionState | None = None
    ) -> Outbox[Effect]:
        """The controller answers a proposal."""
        return self.notice(IsrChangeAnswered, request=proposal.request, error_code=error_code, state=state)

    def granted(self, proposal: ProposeIsr) -> Outbox[Effect]:
        """The controller accepts a proposal."""
        held = self.machine.state
        assert held is not None
        state = replace(
            held,
            isr=tuple(broker for broker, _ in proposal.isr),
            partition_epoch=PartitionEpoch(held.partition_epoch + 1),
        )
        return self.isr_answered(proposal, 0, state)


def some(kind: type[EffectT], effects: list[Effect]) -> list[EffectT]:
    """Return the effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def only(kind: type[EffectT], effects: list[Effect]) -> EffectT:
    """Return the one effect of that kind."""
    found = some(kind, effects)
    assert len(found) == 1, effects
    return found[0]


__all__ = ["ME", "NO_LEADER", "PARTITION", "SECOND", "THIRD", "Context", "only", "partition_state", "some"]
