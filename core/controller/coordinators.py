"""Coordinators and producer ids. Called by the controller's step.

A coordinator is started on first use, and fenced by the producer epoch it writes with: each incarnation gets the next
one. One whose groups are not used ends, until the next use (ADR 0044).
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.base.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    StaleBrokerEpoch,
    did_you_mean,
)
from raylog.base.ids import ProducerId
from raylog.core.configuration.config import sleep_after_ms
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.events import (
    EndCoordinator,
    RequestSleep,
    StartCoordinator,
)
from raylog.core.controller.sessions import CoordinatorMember
from raylog.core.controller.topics import Topics
from raylog.core.controller.wake_queue import WakeQueue
from raylog.core.metadata.image import Coordinator
from raylog.core.metadata.records import CoordinatorPlaced, ProducerIdsAllocated
from raylog.core.received import Received
from raylog.protocol.controller import (
    AllocateProducerIdsRequest,
    EnsureCoordinatorRequest,
    RegisterCoordinatorRequest,
    SleepCoordinatorRequest,
)

INTERNAL_TOPICS: Mapping[str, str] = {"group": "__consumer_offsets", "transaction": "__transaction_state"}
"""The topic behind each kind of coordinator; coordinator ``i`` writes to its partition ``i``."""
INTERNAL_TOPIC_CONFIG: Mapping[str, str] = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": str(8 * 1024 * 1024),
    "cleanup.policy": "compact",
}
"""Small segments: the active one is never cleaned, and a coordinator reads all of it when it starts (ADR 0047)."""
PRODUCER_IDS_MAX = 100_000
"""Producer ids that one request may take."""
PRODUCER_EPOCHS = 32_767
"""Producer epochs are 16-bit; after the last but one a coordinator continues with another producer id. The last one
fences the earlier id: no coordinator is registered with it."""
START_RETRY_MS = 5_000
"""A coordinator that was started but has not registered is started again after this time."""


def topic_behind(kind: str) -> str:
    """Return the topic that coordinators of this kind write to.

    Raises :class:`InvalidRequest` for an unknown kind: a coordinator of another kind must never serve it, because two
    coordinators on one partition would not fence each other.
    """
    topic = INTERNAL_TOPICS.get(kind)
    if topic is None:
        raise InvalidRequest(did_you_mean("kind of coordinator", kind, INTERNAL_TOPICS))
    return topic


class Coordinators:
    """Decides which coordinators run, and hands out producer ids."""

    def __init__(self, topics: Topics, wakes: WakeQueue) -> None:
        """Internal topics are made by ``topics``, and their partitions woken by ``wakes``."""
        self._topics = topics
        self._wakes = wakes
        self._started_ms: dict[tuple[str, int], int] = {}
        """When each coordinator was last started, until it registers; by kind and index."""

    def ensure(self, event: Received[EnsureCoordinatorRequest], decision: ControllerDecision) -> None:
        """Start a coordinator unless it runs; its topic is created on first use.

        Its partition wakes at the same time: a coordinator begins with an append.
        """
        kind, index = event.message.kind, event.message.index
        name = topic_behind(kind)
        if name not in decision.image.topics:
            if not decision.image.online_brokers():
                raise CoordinatorNotAvailable("No broker is online that could hold the coordinator's topic; try again.")
            self._create_topic(kind, name, decision)
        count = len(decision.image.topics[name].partitions)
        if not 0 <= index < count:
            error = InvalidRequest(f"There are {count} {kind} coordinators; {index} is not one of them.")
            decision.refuse(event.request, error)
            return
        key = (kind, index)
        if decision.sessions.of(CoordinatorMember(*key)) is None:
            started = self._started_ms.get(key)
            if started is None or decision.now_ms - started >= START_RETRY_MS:
                self._started_ms[key] = decision.now_ms
                self._wakes.wake_if_room(decision.image.topics[name].partitions[index], decision)
                decision.after_sync.append(StartCoordinator(cause=event.cause, kind=kind, index=index))
        decision.reply(event.request, [])

    def _create_topic(self, kind: str, name: str, decision: ControllerDecision) -> None:
        settings = decision.image.settings
        count, wanted = settings.offsets_topic_num_partitions, settings.offsets_topic_replication_factor
        if kind == "transaction":
            count = settings.transaction_state_log_num_partitions
            wanted = settings.transaction_state_log_replication_factor
        self._topics.create_internal(name, count, wanted, INTERNAL_TOPIC_CONFIG, decision)

    def register(self, event: Received[RegisterCoordinatorRequest], decision: ControllerDecision) -> None:
        """Register a coordinator: a new incarnation gets the next epoch, the present one keeps its epoch."""
        message, session = event.message, event.sender.session
        key = (message.kind, message.index)
        topic = decision.image.topics.get(topic_behind(message.kind))
        if topic is None or not 0 <= message.index < len(topic.partitions):
            raise CoordinatorNotAvailable(f"There is no partition for {message.kind} coordinator {message.index}.")
        held = decision.image.coordinators.get(key)
        if message.epoch != -1 and (held is None or held.epoch != message.epoch):
            raise StaleBrokerEpoch(
                f"A newer life of {message.kind} coordinator {message.index} is registered; this process has to end."
            )
        member = CoordinatorMember(*key)
        decision.supersede(session, member)
        epoch = message.epoch
        producer_id = held.producer_id if held is not None else ProducerId(-1)
        if epoch == -1:
            epoch = held.epoch + 1 if held is not None else 0
            if held is None or not keeps_producer(held.epoch, epoch):
                producer_id = self._allocate(1, decision)
        placed = Coordinator(
            kind=message.kind,
            index=message.index,
            epoch=epoch,
            producer_id=producer_id,
            host=message.host,
            port=message.port,
        )
        if placed != held:
            self._place(placed, decision)
        decision.sessions.open(session, member, epoch, decision.now_ms)
        self._started_ms.pop(key, None)
        config = dict(decision.image.config)
        decision.reply(event.request, [epoch, producer_id, epoch % PRODUCER_EPOCHS, config])

    def fall_asleep(self, event: Received[SleepCoordinatorRequest], decision: ControllerDecision) -> None:
        """End a coordinator that proposes its own end. The next request for it starts another one, in the next epoch.

        Raises StaleBrokerEpoch for another incarnation than the registered one, and InvalidRequest when the
        configuration forbids it to sleep: the coordinator may still have an older configuration.
        """
        kind, index, epoch = event.message.kind, event.message.index, event.message.epoch
        member = CoordinatorMember(kind, index)
        session = decision.sessions.of(member)
        if session is None or session.number != event.sender.session or session.life != epoch:
            raise StaleBrokerEpoch(f"{kind} coordinator {index} is not registered in epoch {epoch}.")
        topic = decision.image.topics[topic_behind(kind)]
        if sleep_after_ms(topic.config, decision.image.config) < 0:
            raise InvalidRequest(f"The coordinators of {topic.name} do not sleep, because its partitions do not.")
        decision.sessions.close(session.number)
        self.lost(member, decision)
        decision.reply(event.request, [])
        decision.after_sync.append(EndCoordinator(cause=event.cause, kind=kind, index=index))

    def rest(self, decision: ControllerDecision) -> None:
        """Have every coordinator that is not in use propose its own end."""
        for session in decision.sessions:
            if isinstance(session.member, CoordinatorMember):
                decision.after_sync.append(RequestSleep(cause=decision.cause, session=session.number, idle_ms=0))

    def lost(self, member: CoordinatorMember, decision: ControllerDecision) -> None:
        """Note that a coordinator's session is over."""
        held = decision.image.coordinators.get((member.kind, member.index))
        if held is not None and held.port:
            self._place(
                Coordinator(
                    kind=held.kind, index=held.index, epoch=held.epoch, producer_id=held.producer_id, host="", port=0
                ),
                decision,
            )

    def grace_ended(self, decision: ControllerDecision) -> None:
        """Remove the coordinators that did not re-register after the controller's start."""
        for kind, index in sorted(decision.image.coordinators):
            member = CoordinatorMember(kind, index)
            if decision.sessions.of(member) is None:
                self.lost(member, decision)

    def producer_ids(self, event: Received[AllocateProducerIdsRequest], decision: ControllerDecision) -> None:
        """Hand out a block of producer ids; no id is ever handed out twice."""
        count = event.message.count
        if not 1 <= count <= PRODUCER_IDS_MAX:
            raise InvalidRequest(f"One request may take 1 to {PRODUCER_IDS_MAX} producer ids, not {count}.")
        first = self._allocate(count, decision)
        decision.reply(event.request, [first, count])

    def _allocate(self, count: int, decision: ControllerDecision) -> ProducerId:
        first = decision.image.next_producer_id
        decision.write(ProducerIdsAllocated(next_id=ProducerId(first + count)))
        return first

    def _place(self, placed: Coordinator, decision: ControllerDecision) -> None:
        decision.write(
            CoordinatorPlaced(
                kind=placed.kind,
                index=placed.index,
                epoch=placed.epoch,
                producer_id=placed.producer_id,
                host=placed.host,
                port=placed.port,
            )
        )


def keeps_producer(held: int, epoch: int) -> bool:
    """Return whether coordinator epoch ``epoch`` may keep the producer id of epoch ``held``, the one before.

    It may if its producer epoch is higher.
    """
    return epoch % PRODUCER_EPOCHS > held % PRODUCER_EPOCHS
