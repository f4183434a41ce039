"""A broker that answers in place of the leaders of the partitions that sleep on it.

It answers from the metadata alone: a sleeping partition's log does not change, and its end is the high watermark. A
fetch at the end waits here. A request that needs the log makes the broker wake the partition, and is refused with
NotLeaderOrFollower once a replica leads: the client repeats it there (a produce with the same sequence is harmless).
Two never answer for one partition: its wake raises the leader epoch, and a broker that has lost the controller for
``stale_after_ms`` answers nothing. Fed by ``raylog.actors.broker.sleepers`` and the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from heapq import heappop, heappush
from typing import Final, assert_never

from raylog.base.errors import (
    FencedLeaderEpoch,
    NotController,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RaylogError,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raylog.base.ids import EARLIEST, LATEST, NO_EPOCH, NO_LEADER, BrokerId, Offset, TopicPartition
from raylog.core.configuration.config import TopicConfig
from raylog.core.decision import RequestId
from raylog.core.metadata.image import MetadataImage
from raylog.core.outbox import Outbox
from raylog.core.partition import PartitionState, SleepPoint
from raylog.core.sleeping.events import (
    AnswerEpochEnd,
    AnswerFetch,
    AnswerOffset,
    Effect,
    EpochEndReceived,
    Event,
    FetchReceived,
    LinkChanged,
    ListOffsetsReceived,
    MetadataChanged,
    RefuseRequest,
    Request,
    RequestDropped,
    Tick,
    WakePartition,
    WakeRefused,
    WriteReceived,
)

WAKE_WAIT_MS: Final = 5_000
"""How long a request waits for a partition to wake; then it is refused, and its client looks for the leader again."""
WAKE_AGAIN_MS: Final = 1_000
"""Pause before the request to wake a partition is repeated to the controller, while clients' requests wait for it."""
CHORE_PAUSE_MS: Final = 1_000
"""Pause between two wakes of partitions from which retention has to remove records."""
_NONE: Final = Offset(-1)


class SleepersMachine:
    """Answers for the sleeping partitions that one broker leads.

    Invariant: each request is answered once, at its deadline or WAKE_WAIT_MS after it came at the latest.
    """

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        broker: Callable[[], BrokerId],
        *,
        stale_after_ms: Callable[[], int],
        retention_check_ms: Callable[[], int],
    ) -> None:
        """The arguments are read when they are needed, since they may change.

        ``image``: the broker's newest metadata; ``broker``: its id; ``stale_after_ms``: how long it may be without the
        controller; ``retention_check_ms``: pause between two searches for records that are due for removal.
        """
        self._image = image
        self._broker = broker
        self._stale_after_ms = stale_after_ms
        self._retention_check_ms = retention_check_ms
        self._waiting: dict[TopicPartition, dict[RequestId, Request]] = {}
        self._places: dict[RequestId, TopicPartition] = {}
        self._deadlines: list[tuple[int, RequestId]] = []
        self._wakes: dict[TopicPartition, int] = {}
        """When the wake of a partition was last requested from the controller, while it has not woken."""
        self._refusals: dict[TopicPartition, RaylogError] = {}
        """The controller's last error, of partitions that it has not woken yet."""
        self._disconnected_ms: int | None = 0
        self._next_chore_ms = 0
        self._chores: Iterator[TopicPartition] = iter(())

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._places)

    def step(self, event: Event) -> Outbox[Effect]:
        """Handle one event; return its effects."""
        out: Outbox[Effect] = Outbox()
        match event:
            case WriteReceived() | FetchReceived() | ListOffsetsReceived() | EpochEndReceived():
                self._take(event, event.now_ms, out)
            case MetadataChanged():
                self._look_again(self._waiting if event.partitions is None else event.partitions, event.now_ms, out)
            case WakeRefused():
                self._wake_refused(event, out)
            case LinkChanged():
                self._disconnected_ms = None if event.is_connected else event.now_ms
            case RequestDropped():
                self._forget(event.request)
            case Tick():
                self._time_passed(event, out)
            case _:
                assert_never(event)
        return out

    # ------------------------------------------------------------ requests

    def _take(self, event: Request, now_ms: int, out: Outbox[Effect]) -> None:
        """Answer a request, or keep it until it can be answered."""
        try:
            state = self._state_for(event, now_ms)
            if state.asleep is None:
                self._wait(state.partition, event, min(event.deadline_ms, event.now_ms + WAKE_WAIT_MS))
            else:
                self._answer(event, state, state.asleep, now_ms, out)
        except RaylogError as error:
            out.now.append(RefuseRequest(request=event.request, error=error))

    def _state_for(self, event: Request, now_ms: int) -> PartitionState:
        """Return the state of a request's partition, which sleeps on this broker or is waking.

        Raises the error for the client in all other cases.
        """
        if self._is_stale(now_ms):
            raise NotController(
                "This broker has lost the controller, so that its metadata may be old; try another one."
            )
        image = self._image()
        name = image.topic_names.get(event.topic_id)
        state = None if name is None else image.partition(TopicPartition(name, event.partition))
        if name is None:
            raise UnknownTopicId("There is no topic with this id; refresh the metadata.")
        if state is None:
            raise UnknownTopicOrPartition(f"Topic {name!r} has no partition {event.partition}.")
        if state.asleep is None:
            if state.leader != NO_LEADER or state.partition not in self._wakes:
                raise _led_elsewhere(state)
            return state
        if state.leader != self._broker():
            raise NotLeaderOrFollower(f"{state.partition} sleeps on broker {state.leader}; refresh the metadata.")
        if event.leader_epoch not in (NO_EPOCH, state.leader_epoch):
            raise FencedLeaderEpoch() if event.leader_epoch < state.leader_epoch else UnknownLeaderEpoch()
        return state

    def _answer(self, event: Request, state: PartitionState, log: SleepPoint, now_ms: int, out: Outbox[Effect]) -> None:
        start, end = log.log_start_offset, log.end_offset
        match event:
            case FetchReceived():
                if not start <= event.fetch_offset <= end:
                    raise OffsetOutOfRange(
                        f"Offset {event.fetch_offset} is outside the log, which runs from {start} to {end}. Reset the "
                        "position.",
                        start=start,
                        end=end,
                    )
                if event.fetch_offset < end:
                    self._wake(state.partition, event, now_ms, out)
                elif event.deadline_ms <= now_ms:
                    out.now.append(AnswerFetch(request=event.request, high_watermark=end, log_start_offset=start))
                else:
                    self._wait(state.partition, event, event.deadline_ms)
            case ListOffsetsReceived():
                offset = {EARLIEST: start, LATEST: end}.get(event.timestamp, _NONE if start == end else None)
                if offset is None:
                    self._wake(state.partition, event, now_ms, out)
                else:
                    answer = AnswerOffset(request=event.request, offset=offset, leader_epoch=state.leader_epoch)
                    out.now.append(answer)
            case EpochEndReceived():
                if event.epoch < log.last_epoch:
                    self._wake(state.partition, event, now_ms, out)
                else:
                    epoch = event.epoch if log.last_epoch == NO_EPOCH else log.last_epoch
                    out.now.append(
                        AnswerEpochEnd(request=event.request, epoch=epoch, end_offset=end, log_start_offset=start)
                    )
            case WriteReceived():
                self._wake(state.partition, event, now_ms, out)
            case _:
                assert_never(event)

    # ------------------------------------------------------------ waiting

    def _wake(self, partition: TopicPartition, event: Request, now_ms: int, out: Outbox[Effect]) -> None:
        self._wait(partition, event, min(event.deadline_ms, event.now_ms + WAKE_WAIT_MS))
        if partition not in self._wakes:
            self._wakes[partition] = now_ms
            out.now.append(WakePartition(partition=partition))

    def _wait(self, partition: TopicPartition, event: Request, until_ms: int) -> None:
        self._waiting.setdefault(partition, {})[event.request] = event
        self._places[event.request] = partition
        heappush(self._deadlines, (until_ms, event.request))

    def _look_again(self, partitions: Collection[TopicPartition], now_ms: int, out: Outbox[Effect]) -> None:
        """Handle the waiting requests of these partitions again: the partitions have woken, fallen asleep, or moved."""
        for partition in list(partitions):
            state = self._image().partition(partition)
            if state is None or state.asleep is None:
                is_awake = state is None or state.leader != NO_LEADER
                self._refusals.pop(partition, None)
                if is_awake:
                    self._wakes.pop(partition, None)
                elif partition in self._waiting:
                    self._wakes.setdefault(partition, now_ms)  # it wakes at the request of another broker
            for event in list(self._waiting.get(partition, {}).values()):
                self._forget(event.request)
                self._take(event, now_ms, out)

    def _forget(self, request: RequestId) -> Request | None:
        partition = self._places.pop(request, None)
        if partition is None:
            return None
        waiting = self._waiting[partition]
        event = waiting.pop(request)
        if not waiting:
            del self._waiting[partition]
        return event

    def _wake_refused(self, event: WakeRefused, out: Outbox[Effect]) -> None:
        if event.error.retriable:
            if event.partition in self._wakes:
                self._refusals[event.partition] = event.error  # requested again while requests wait
            return
        self._wakes.pop(event.partition, None)
        for request in list(self._waiting.get(event.partition, {})):
            self._forget(request)
            out.now.append(RefuseRequest(request=request, error=event.error))

    # ------------------------------------------------------------ time

    def _is_stale(self, now_ms: int) -> bool:
        return self._disconnected_ms is not None and now_ms - self._disconnected_ms >= self._stale_after_ms()

    def _time_passed(self, event: Tick, out: Outbox[Effect]) -> None:
        now_ms = event.now_ms
        if self._is_stale(now_ms) and self._places:
            self._look_again(list(self._waiting), now_ms, out)
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, request = heappop(self._deadlines)
            partition, waiting = self._places.get(request), self._forget(request)
            if partition is not None and waiting is not None:
                self._expire(partition, waiting, now_ms, out)
        for partition, requested_ms in list(self._wakes.items()):
            if partition not in self._waiting:
                del self._wakes[partition]
                self._refusals.pop(partition, None)
            elif now_ms - requested_ms >= WAKE_AGAIN_MS:
                self._wakes[partition] = now_ms
                out.now.append(WakePartition(partition=partition))
        if now_ms >= self._next_chore_ms:
            self._do_chore(now_ms, event.deleting_ms, out)

    def _expire(self, partition: TopicPartition, event: Request, now_ms: int, out: Outbox[Effect]) -> None:
        """End a request's wait: a fetch at the end is answered, any other is refused and looks for the leader again."""
        if isinstance(event, FetchReceived):
            self._take(event, now_ms, out)
            if self._forget(event.request) is None:
                return
        wakes = NotLeaderOrFollower("The partition is being woken and has no leader yet; refresh the metadata.")
        error = self._refusals.get(partition, wakes)
        out.now.append(RefuseRequest(request=event.request, error=error))

    def _do_chore(self, now_ms: int, deleting_ms: int, out: Outbox[Effect]) -> None:
        """Request the wake of the next partition whose oldest records are due for removal; one at a time."""
        for partition in self._chores:
            if self._is_expired(partition, deleting_ms):
                self._next_chore_ms = now_ms + CHORE_PAUSE_MS
                out.now.append(WakePartition(partition=partition))
                return
        self._next_chore_ms = now_ms + self._retention_check_ms()
        mine = self._broker()
        sleepers = [
            state.partition
            for state in self._image().partitions()
            if state.asleep is not None and state.leader == mine and state.asleep.oldest_ms >= 0
        ]
        self._chores = iter(sleepers)

    def _is_expired(self, partition: TopicPartition, deleting_ms: int) -> bool:
        image = self._image()
        state, topic = image.partition(partition), image.topics.get(partition.topic)
        if state is None or topic is None or state.asleep is None or state.leader != self._broker():
            return False
        config = TopicConfig.from_dict(topic.config)
        return config.deletes and 0 <= config.retention_ms < deleting_ms - state.asleep.oldest_ms

    def next_due_ms(self, now_ms: int, otherwise: int) -> int:
        """Return when the next tick has something to do; ``otherwise`` at the latest."""
        due_ms = min(otherwise, self._next_chore_ms)
        if self._deadlines:
            due_ms = min(due_ms, self._deadlines[0][0])
        for requested_ms in self._wakes.values():
            due_ms = min(due_ms, requested_ms + WAKE_AGAIN_MS)
        return max(now_ms, due_ms)


def _led_elsewhere(state: PartitionState) -> NotLeaderOrFollower:
    """Return the refusal for a partition that is awake; it names the leader to spare a metadata request (KIP-951)."""
    place = state.place(state.leader)
    details: dict[str, object] = {}
    if place is not None and place.port:
        details["leader"] = [state.leader, state.leader_epoch, place.host, place.port]
        details["leader_topic_id"] = state.topic_id
    return NotLeaderOrFollower(f"{state.partition} is awake; refresh the metadata.", **details)
