"""What a relay decides while it holds the lease of a shard, for all lanes of the shard. Pure; time is an argument.

The holder runs one turn like this. It calls `take_changes`. One transaction writes these changes, reads candidates
into a `Planner` and writes its plan; then comes `planned`. Every batch of `sendable` is sent, and its outcome comes
back through `stored` or `failed`. A session whose transaction has failed is thrown away, and a new one begins from the
table. So nothing here is ever rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from raylog.base.errors import RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.producer.resumed import KnownSequence
from raylog.outbox.lane import OutboxLane
from raylog.outbox.model import Changes, Full, Limits, OutboxBatch, Position, TopicView
from raylog.outbox.planning import NO_ROOM, Plan, Planner, Room


class Session:
    """The lanes of one shard, from the moment its lease was taken."""

    def __init__(self, producer_id: int, limits: Limits | None = None) -> None:
        """`producer_id`: the shard's, which is stored with its lease."""
        self.producer_id = producer_id
        self.limits = limits or Limits()
        self.topics: dict[str, TopicView] = {}
        self.lanes: dict[TopicPartition, OutboxLane] = {}
        self.absent: set[str] = set()
        """Topics that do not exist, or are not known now."""
        self._turns = 0

    def load(self, batches: Iterable[OutboxBatch], positions: Mapping[TopicPartition, Position]) -> None:
        """Take in what the table holds: unmarked batches, ordered by lane and number, and the lanes' positions."""
        for where, position in positions.items():
            self.lanes[where] = OutboxLane(where, position)
        for batch in batches:
            self.lanes[batch.where].load(batch)

    # ------------------------------------------------------------ topics and leaders

    @property
    def used_topics(self) -> set[str]:
        """Topics of the lanes that have unmarked batches."""
        return {where.topic for where, lane in self.lanes.items() if lane.unmarked}

    def learn_topic(self, name: str, view: TopicView | None) -> None:
        """Take in what a topic is now; None = there is none of that name."""
        if view is None:
            self.topics.pop(name, None)
            self.absent.add(name)
            return
        self.topics[name] = view
        self.absent.discard(name)
        for lane in self.lanes.values():
            if lane.where.topic == name and lane.position is not None and lane.position.topic_id != view.topic_id:
                lane.recreated()

    def unverified(self, now_ms: int) -> list[tuple[TopicPartition, int]]:
        """The lanes whose leaders have to report now, each with the producer id in question."""
        return [
            (where, self.producer_id if lane.position is None else lane.position.producer_id)
            for where, lane in self.lanes.items()
            if lane.wants_verification and lane.may_try(now_ms)
        ]

    def verified(self, where: TopicPartition, known: KnownSequence | None, now_ms: int) -> None:
        """Take in the answer of a lane's leader."""
        self.lanes[where].verify(known, now_ms)

    def unreachable(self, where: TopicPartition, error: RaylogError, now_ms: int) -> None:
        """The leader of a lane did not answer."""
        lane = self.lanes[where]
        lane.last_error = error
        lane.pause(now_ms)

    @property
    def wants_producer_id(self) -> bool:
        """Whether a lane has used up the epochs of the shard's producer id."""
        return any(lane.is_used_up(self.producer_id) for lane in self.lanes.values())

    # ------------------------------------------------------------ a turn

    def take_changes(self) -> Changes:
        """The decisions about sent batches that the next transaction has to write."""
        changes = Changes()
        for where, lane in self.lanes.items():
            topic = self.topics.get(where.topic)
            lane.take_changes(changes, None if topic is None else topic.topic_id, self.producer_id)
        return changes

    def planner(self) -> Planner:
        """A planner for the candidates of this turn."""
        self._turns += 1
        return Planner(self.topics, self._room, self.limits, self._turns)

    def _room(self, where: TopicPartition) -> Room:
        lane = self.lanes.get(where)
        if lane is None:  # its leader has to report before it gets a batch
            self.lanes[where] = OutboxLane(where, None)
            return NO_ROOM
        return lane.room(self.topics[where.topic].topic_id, self.producer_id)

    def confirm_topic(self, name: str) -> None:
        """Note that a topic's limits were just fetched; this holds for the next plan only."""
        if name in self.topics:
            self.topics[name] = replace(self.topics[name], is_confirmed=True)

    def planned(self, plan: Plan) -> None:
        """Take over a plan, once its transaction has committed."""
        for name, view in self.topics.items():
            if view.is_confirmed:
                self.topics[name] = replace(view, is_confirmed=False)
        for where, position in plan.positions.items():
            self.lanes[where].position = position
        for batch in plan.batches:
            self.lanes[batch.where].load(batch)

    def full(self) -> Full:
        """What can take no row now, so that its rows need not be read."""
        found = Full(topics=set(self.absent))
        for where, lane in self.lanes.items():
            view = self.topics.get(where.topic)
            if view is not None and lane.room(view.topic_id, self.producer_id).batches < 1:
                found.add(where, view.partitions)
        found.find_targets(self.topics)
        return found

    # ------------------------------------------------------------ sending

    def sendable(self, now_ms: int) -> list[OutboxBatch]:
        """The batches to send now; from now on they count as on their way."""
        return [batch for lane in self.lanes.values() for batch in lane.sendable(now_ms)]

    def stored(self, batch: OutboxBatch, offset: int) -> None:
        """A batch is acknowledged."""
        self.lanes[batch.where].stored(batch.number, offset)

    def failed(self, batch: OutboxBatch, error: RaylogError, now_ms: int) -> None:
        """An attempt to send a batch has failed."""
        self.lanes[batch.where].failed(batch.number, error, now_ms)

    def due_ms(self) -> int | None:
        """When the first pause ends that a lane with batches to send waits for; None = no lane waits."""
        return min((due for lane in self.lanes.values() if (due := lane.due_ms()) is not None), default=None)

    @property
    def unmarked_rows(self) -> int:
        """Rows in batches that are not marked yet."""
        return sum(len(batch.rows) for lane in self.lanes.values() for batch in lane.unmarked)

    def errors(self) -> dict[TopicPartition, RaylogError]:
        """The last error of each lane that has not stored anything since."""
        return {where: lane.last_error for where, lane in self.lanes.items() if lane.last_error is not None}
