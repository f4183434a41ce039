"""Which sleeping partitions wake, and in which order, if brokers do not have room for all of them.

Partitions that requests wait for come first, topic by topic in turns; while a broker has such requests
it repeats its own every second. Then come partitions that have to wake for another reason: moves, lost logs,
configurations that remove records, and partitions that sleep only because the cluster was stopped. This second kind
also waits until few others are starting: a broker starts replicas' processes in the order in which they wake, a few at
a time, and a request for a sleeping partition would wait behind all of them.

If there is no room, topics take turns: the next place is for the topic with the fewest partitions awake or ahead in the
queue. So a reader of hundreds of partitions delays the first partition of any other topic by one place. And while a
topic with less than its share waits, topics with more than theirs give up partitions that are little used.

Called by the controller's step. Kept in memory: a controller that starts finds in the metadata what has to wake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from raylog.base.errors import TooManyAwake, UnknownTopicOrPartition, did_you_mean
from raylog.base.ids import BrokerId, TopicPartition
from raylog.core.configuration.config import TopicConfig, sleep_after_ms
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.liveness import Liveness
from raylog.core.controller.rest import StopRest
from raylog.core.controller.sessions import BrokerMember
from raylog.core.controller.sleep import MAKES_ROOM_AFTER_MS, Sleeping, full_broker, request_sleep, room_on
from raylog.core.metadata.image import MetadataImage, TopicImage
from raylog.core.partition import PartitionState
from raylog.core.received import Received
from raylog.protocol.admin import WakePartitionsRequest

STARTS_AT_ONCE: Final = 8
"""A partition that no request waits for is not woken while one of its brokers has so many replicas to start, which
takes a second or two of a core."""
REQUEST_LASTS_MS: Final = 3_000
"""A requested wake that had no room keeps its place for so long; brokers repeat the request every second."""

OVER_SHARE_IDLE_MS: Final = 1_000
"""While another topic waits, partitions of a topic with more than its share fall asleep after so long without use."""
FORCED_AFTER_MS: Final = 10_000
"""Once a topic has waited for so long, each attempt to make room puts one of those to sleep even if it is used."""


class Claim(NamedTuple):
    """A requested wake that had no room: when it was first requested, and when last, in milliseconds."""

    first_ms: int
    last_ms: int


Requests = dict[TopicPartition, Claim]
"""Requested wakes that had no room, in the order of the first requests."""


class WakeQueue:
    """The sleeping partitions that are to wake when all of their brokers have room."""

    def __init__(self, liveness: Liveness, sleeping: Sleeping) -> None:
        """``sleeping`` makes room."""
        self._liveness = liveness
        self._sleeping = sleeping
        self._requests: Requests = {}
        self._waiting: dict[TopicPartition, None] = {}
        """Partitions that have to wake, and that no request waits for."""
        self._pressed_ms: dict[BrokerId, int] = {}
        """When the leaders on a full broker were last requested to make room."""
        self._stop = StopRest()
        """While it is on, only partitions that requests wait for wake."""

    @property
    def count(self) -> int:
        """Number of partitions that wait for their wake without a request."""
        return len(self._waiting)

    def started(self, image: MetadataImage) -> None:
        """Find the sleeping partitions that have to wake: an earlier controller did not wake them, or a stop came."""
        lost = {partition for partition, _ in image.lost_logs}
        for topic in image.topics.values():
            never_sleeps = sleep_after_ms(topic.config, image.config) < 0
            for state in topic.partitions:
                if never_sleeps or state.is_moving or state.partition in lost or has_too_much(state, topic):
                    self.add(state)

    def rest(self, decision: ControllerDecision) -> None:
        """Put all partitions to sleep that can, because the cluster is about to stop."""
        self._stop.begin(decision)

    def add(self, state: PartitionState) -> None:
        """Wake a partition when there is room; no effect on one that is awake."""
        if state.asleep is not None:
            self._waiting[state.partition] = None

    def wake(self, event: Received[WakePartitionsRequest], decision: ControllerDecision) -> None:
        """Wake the named partitions of a topic, or all; answer with the number of partitions that were woken.

        The first partition without room, because a broker has as many replicas awake as it may or its room is reserved
        for earlier requests, keeps a place in the queue for REQUEST_LASTS_MS. Raises TooManyAwake if none was woken.
        """
        woken = 0
        for state in _sleepers(event.message, decision.image):
            full = full_broker(state, decision.image, self._taken_before(state, decision))
            if full is not None:
                claim = self._requests.get(state.partition)
                first_ms = decision.now_ms if claim is None or _is_over(claim, decision) else claim.first_ms
                self._requests[state.partition] = Claim(first_ms, decision.now_ms)
                self._sleeping.make_room(decision, full)
                if not woken:
                    raise _too_many(state, full, decision.image)
                break
            self._requests.pop(state.partition, None)
            self._liveness.wake(state.partition, decision)
            woken += 1
        decision.reply(event.request, [woken])

    def wake_if_room(self, state: PartitionState, decision: ControllerDecision) -> None:
        """Wake a partition that is about to be written to, if it sleeps and there is room for it now."""
        taken = self._taken_before(state, decision)
        if state.asleep is not None and full_broker(state, decision.image, taken) is None:
            self._liveness.wake(state.partition, decision)

    def time_passed(self, decision: ControllerDecision) -> None:
        """Wake the partitions that have room now, and request full brokers' leaders to make room."""
        if self._stop.ends(decision.now_ms):
            self.started(decision.image)
        if self._stop.is_on:
            self._stop.go_on(decision)
        full = {*self._wake_requested(decision), *self._wake_others(decision)}
        for broker in sorted(full):
            if decision.now_ms - self._pressed_ms.get(broker, -MAKES_ROOM_AFTER_MS) >= MAKES_ROOM_AFTER_MS:
                self._pressed_ms[broker] = decision.now_ms
                self._sleeping.make_room(decision, broker)
                self._press_large_topics(decision, broker)

    def _press_large_topics(self, decision: ControllerDecision, broker: BrokerId) -> None:
        """Put partitions to sleep of topics that have more than their share of a full broker, while others wait."""
        image, bound = decision.image, decision.image.awake_bound(broker)
        waiting = [state.partition for state in self._requested(decision) if broker in state.replicas]
        if bound is None or not waiting:
            return
        large = over_share(broker, bound.limit, {partition.topic for partition in waiting}, image)
        for state in large:
            request_sleep(state, decision, idle_ms=OVER_SHARE_IDLE_MS)
        if large and has_waited((self._requests[partition] for partition in waiting), decision.now_ms):
            largest = [state for state in large if state.partition.topic == large[0].partition.topic]
            turn = decision.now_ms // MAKES_ROOM_AFTER_MS % len(largest)
            request_sleep(largest[turn], decision, idle_ms=0)

    def _requested(
        self, decision: ControllerDecision, *, besides: PartitionState | None = None
    ) -> list[PartitionState]:
        """Return the sleeping partitions that requests still wait for, and ``besides``, in the order of their wakes."""
        if not self._requests and besides is None:
            return []
        waiting = list[PartitionState]()
        for partition, claim in self._requests.items():
            state = decision.image.partition(partition)
            if state is not None and state.asleep is not None and not _is_over(claim, decision):
                waiting.append(state)
        if besides is not None and all(state.partition != besides.partition for state in waiting):
            waiting.append(besides)
        return in_turns(waiting, decision.image)

    def _taken_before(self, sleeper: PartitionState, decision: ControllerDecision) -> Counter[BrokerId]:
        """Return, by broker, the room that is reserved for requests before this one's: they wake at the next tick.

        They do not wake at once, because the request that is handled now may be refused, and then writes nothing.
        """
        taken = Counter[BrokerId]()
        if not self._requests:
            return taken
        for state in self._requested(decision, besides=sleeper):
            if state.partition == sleeper.partition:
                break
            if full_broker(state, decision.image, taken) is None:
                taken.update(state.replicas)
        return taken

    def _wake_requested(self, decision: ControllerDecision) -> set[BrokerId]:
        """Wake the partitions that earlier requests wait for, if there is room; return the brokers without room."""
        full, left = set[BrokerId](), set[TopicPartition]()
        for state in self._requested(decision):
            without = full_broker(state, decision.image, {})
            if without is None:
                self._liveness.wake(state.partition, decision)
            else:
                full.add(without)
                left.add(state.partition)
        self._requests = {partition: claim for partition, claim in self._requests.items() if partition in left}
        return full

    def _wake_others(self, decision: ControllerDecision) -> set[BrokerId]:
        """Wake partitions that no request waits for, if there is room and little else starts; return full brokers."""
        image, full = decision.image, set[BrokerId]()
        if self._stop.is_on:
            return full
        starting = self._liveness.starting() if self._waiting else Counter()
        for partition in list(self._waiting):
            state = image.partition(partition)
            if state is None or state.asleep is None:
                del self._waiting[partition]
                continue
            without = [broker for broker in state.replicas if room_on(broker, image) <= 0]
            full.update(without)
            if without or any(starting[broker] >= STARTS_AT_ONCE for broker in state.replicas):
                continue
            if self._liveness.in_grace and not _all_there(state, decision):
                continue  # a broker that has not registered yet would lose the leadership or its place in the ISR
            del self._waiting[partition]
            self._liveness.wake(partition, decision)
            starting.update(state.replicas)
        return full


def _is_over(claim: Claim, decision: ControllerDecision) -> bool:
    return decision.now_ms - claim.last_ms > REQUEST_LASTS_MS


def _sleepers(message: WakePartitionsRequest, image: MetadataImage) -> list[PartitionState]:
    """Return the named partitions that sleep. Raises UnknownTopicOrPartition."""
    topic = image.topics.get(message.topic)
    if topic is None:
        raise UnknownTopicOrPartition(did_you_mean("topic", message.topic, image.topics))
    count = len(topic.partitions)
    numbers = range(count) if message.partitions is None else message.partitions
    for number in numbers:
        if not 0 <= number < count:
            raise UnknownTopicOrPartition(f"Topic {message.topic!r} has partitions 0 to {count - 1}, not {number}.")
    return [state for state in (topic.partitions[number] for number in numbers) if state.asleep is not None]


def _all_there(state: PartitionState, decision: ControllerDecision) -> bool:
    return all(decision.sessions.of(BrokerMember(broker)) is not None for broker in state.replicas)


def _too_many(state: PartitionState, broker: BrokerId, image: MetadataImage) -> TooManyAwake:
    bound, awake = image.awake_bound(broker), image.awake[broker]
    limit, why = (0, "") if bound is None else (bound.limit, bound.why)
    others = "" if awake >= limit else ", and others were requested before it"
    return TooManyAwake(
        f"{state.partition} stays asleep: broker {broker} has {awake} replicas awake and may have {limit} ({why})"
        f"{others}. Use fewer partitions at a time, add brokers, or lower replica.sleep.after.ms.",
        broker=broker,
        awake=awake,
        limit=limit,
    )


def has_too_much(state: PartitionState, topic: TopicImage) -> bool:
    """Return whether a partition sleeps with more bytes than its topic's configuration retains."""
    if state.asleep is None or not state.asleep.size_bytes:
        return False
    config = TopicConfig.from_dict(topic.config)
    return config.deletes and 0 <= config.retention_bytes < state.asleep.size_bytes


# ---------------------------------------------------------------- shares


def in_turns(waiting: Sequence[PartitionState], image: MetadataImage) -> list[PartitionState]:
    """Return waiting partitions, given in the order of their first requests, in the order in which they wake.

    A topic's n-th partition awake comes before the (n+1)-th of any other topic; of equals, the earlier request.
    """
    turns, ordered = Counter[str](), list[tuple[int, int, PartitionState]]()
    for place, state in enumerate(waiting):
        topic = state.partition.topic
        if topic not in turns:
            held = image.topics.get(topic)
            turns[topic] = 0 if held is None else sum(each.asleep is None for each in held.partitions)
        ordered.append((turns[topic], place, state))
        turns[topic] += 1
    return [state for _, _, state in sorted(ordered, key=lambda row: row[:2])]


def over_share(broker: BrokerId, limit: int, waiting: Iterable[str], image: MetadataImage) -> list[PartitionState]:
    """Return the partitions awake on a full broker of topics with more than their share, the largest topic first.

    A share is an equal part of the room (``limit``) for each topic that waits or has partitions awake there. Empty
    unless a topic in ``waiting``, those that wait for room there, has less than its share.
    """
    awake: dict[str, list[PartitionState]] = {}
    for state in image.partitions():
        if state.asleep is None and broker in state.replicas:
            awake.setdefault(state.partition.topic, []).append(state)
    wanting = set(waiting)
    share = max(1, limit // max(1, len(wanting | set(awake))))
    if all(len(awake.get(topic, ())) >= share for topic in wanting):
        return []
    return [
        state
        for _, held in sorted(awake.items(), key=lambda item: (-len(item[1]), item[0]))
        if len(held) > share
        for state in held
    ]


def has_waited(claim: Iterable[Claim], now_ms: int) -> bool:
    """Return whether one of these has waited so long that even partitions in use have to make room."""
    return any(now_ms - each.first_ms >= FORCED_AFTER_MS for each in claim)
