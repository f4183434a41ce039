"""Topics: names, creation, deletion, more partitions and configuration. Called by the controller's step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from raylog.base.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
    did_you_mean,
)
from raylog.base.ids import BrokerId
from raylog.core.configuration.config import TopicConfig, sleep_after_ms, validate_topic_config
from raylog.core.configuration.config_origins import describe_cluster, describe_topic
from raylog.core.configuration.time_keys import check_expiry
from raylog.core.controller.decision import ControllerDecision, ControllerSettings
from raylog.core.controller.events import StopReplica
from raylog.core.controller.liveness import Liveness
from raylog.core.controller.placement import Assignment, place_replicas
from raylog.core.controller.sessions import ReplicaMember
from raylog.core.controller.wake_queue import WakeQueue, has_too_much
from raylog.core.forwarding.settings import expires
from raylog.core.metadata.image import MetadataImage, TopicImage
from raylog.core.metadata.records import (
    PartitionsAdded,
    PartitionsBornAsleep,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from raylog.core.received import Received
from raylog.protocol.admin import (
    AlterTopicConfigRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    DescribeConfigsRequest,
)

TOPIC_NAME_LENGTH_MAX = 249
"""Kafka's limit: with ``-`` and a partition number the name must fit into a file name."""
PARTITIONS_MAX = 10_000
"""Partitions of one topic; each is at least one process, so that more is surely a mistake."""
INTERNAL_PREFIX = "__"

_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def validate_topic_name(name: str, existing: Iterable[str] = ()) -> None:
    """Raise InvalidTopic, with the reason, when a new topic may not have this name beside the ``existing`` ones."""
    if not name:
        raise InvalidTopic("A topic needs a name.")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise InvalidTopic(f"The topic name has {len(name)} characters; at most {TOPIC_NAME_LENGTH_MAX} are allowed.")
    if name in (".", ".."):
        raise InvalidTopic(f"{name!r} cannot be a topic name; choose another one.")
    illegal = sorted(set(name) - _LEGAL)
    if illegal:
        listed = " ".join(repr(character) for character in illegal)
        raise InvalidTopic(f"The topic name {name!r} contains {listed}; use letters, digits, '.', '_' and '-'.")
    folded = name.replace(".", "_")
    for other in existing:
        if other != name and other.replace(".", "_") == folded:
            raise InvalidTopic(
                f"The topic name {name!r} collides with {other!r}: '.' and '_' are the same in metric names."
            )


class Topics:
    """Decides which topics there are."""

    def __init__(self, settings: ControllerSettings, liveness: Liveness, wakes: WakeQueue) -> None:
        """``liveness`` elects; sleeping partitions that have to work, such as removing records, enter ``wakes``."""
        self._settings = settings
        self._liveness = liveness
        self._wakes = wakes

    def create(self, event: Received[CreateTopicRequest], decision: ControllerDecision) -> None:
        """Create a topic for a client; answers [topic id], or [""] when the request is only validated."""
        message, name = event.message, event.message.topic
        if name.startswith(INTERNAL_PREFIX):
            raise InvalidTopic(f"Names that begin with {INTERNAL_PREFIX!r} are Raylog's own; choose another one.")
        topics = decision.image.topics
        if name in topics:
            raise TopicAlreadyExists(f"Topic {name!r} exists.")
        validate_topic_name(name, topics)
        settings = decision.image.settings
        if message.assignments is None:
            count = settings.num_partitions if message.num_partitions == -1 else message.num_partitions
            factor = message.replication_factor
            factor = settings.default_replication_factor if factor == -1 else factor
            assignment = self.placed(count, factor, decision)
        else:
            assignment = self.given(message.assignments, message.num_partitions, message.replication_factor, decision)
        config = _checked_config(message.configs, len(assignment[0]))
        check_expiry(name, config)
        self._check_room(config, assignment, decision.image)
        if message.validate_only:
            decision.reply(event.request, [""])
            return
        decision.reply(event.request, [self._write(name, config, assignment, decision)])

    def create_internal(
        self, name: str, count: int, wanted: int, config: Mapping[str, object], decision: ControllerDecision
    ) -> None:
        """Create an internal topic of ``count`` partitions, with as many of ``wanted`` replicas as are possible now."""
        factor = min(wanted, len(self._liveness.able_brokers(wanted)))
        assignment = self.placed(count, factor, decision)
        self._write(name, _checked_config(config, factor), assignment, decision)

    def delete(self, event: Received[DeleteTopicRequest], decision: ControllerDecision) -> None:
        """Delete a topic and stop its replicas."""
        topic = _known(event.message.topic, decision.image)
        if topic.internal:
            raise InvalidRequest(f"{topic.name!r} is Raylog's own and cannot be deleted.")
        decision.write(TopicDeleted(topic_id=topic.topic_id, topic=topic.name))
        for state in topic.partitions:
            self._liveness.forget(state.partition)
            for broker in state.replicas:
                session = decision.sessions.of(ReplicaMember(topic.topic_id, state.partition, broker))
                if session is not None:
                    decision.sessions.close(session.number)
                    reason = f"topic {topic.name} was deleted"
                    decision.after_sync.append(StopReplica(cause=event.cause, session=session.number, reason=reason))
        decision.reply(event.request, [])

    def alter_config(self, event: Received[AlterTopicConfigRequest], decision: ControllerDecision) -> None:
        """Change a topic's own settings; settings that are not named stay unchanged."""
        topic = _known(event.message.topic, decision.image)
        message = event.message
        both = sorted(set(message.set) & set(message.delete))
        if both:
            raise InvalidConfig(f"{both[0]!r} is both set and deleted; do one of the two.")
        validate_topic_config(dict.fromkeys(message.delete), defaults_only=True)
        kept = {key: value for key, value in topic.config.items() if key not in message.delete}
        factor = min(state.replication_factor for state in topic.partitions)
        config = _checked_config({**kept, **message.set}, factor)
        check_expiry(topic.name, config)
        before_ms, after_ms = (sleep_after_ms(each, decision.image.config) for each in (topic.config, config))
        stays_awake = after_ms < 0 <= before_ms
        if stays_awake:
            asleep = (state.replicas for state in topic.partitions if state.asleep is not None)
            check_awake(Counter(broker for replicas in asleep for broker in replicas), decision.image)
        if config != topic.config:
            before, after = TopicConfig.from_dict(topic.config), TopicConfig.from_dict(config)
            decision.write(TopicConfigured(topic_id=topic.topic_id, topic=topic.name, config=config))
            works_now = (after.compacts and not before.compacts) or (expires(config) and config != topic.config)
            for state in list(topic.partitions):
                has_records = state.asleep is not None and state.asleep.size_bytes > 0
                removes = (works_now and has_records) or has_too_much(state, decision.image.topics[topic.name])
                if stays_awake or removes:  # to stay awake, or to remove records or send them on
                    self._wakes.add(state)
                # An unclean election may have just been allowed.
                self._liveness.settle(state.partition, decision)
            self._wakes.time_passed(decision)
        decision.reply(event.request, [])

    def describe_configs(self, event: Received[DescribeConfigsRequest], decision: ControllerDecision) -> None:
        """Answer with every setting of a topic or of the cluster, and where it comes from."""
        image = decision.image
        if event.message.topic is None:
            decision.reply(event.request, [list(row) for row in describe_cluster(image.values, image.topics)])
            return
        topic = _known(event.message.topic, image)
        factor = min(state.replication_factor for state in topic.partitions)
        decision.reply(event.request, [list(row) for row in describe_topic(topic.config, image.config, factor)])

    def _write(self, name: str, config: Mapping[str, str], assignment: Assignment, decision: ControllerDecision) -> str:
        topic_id = self._settings.new_topic_id()
        decision.write(TopicCreated(topic_id=topic_id, topic=name, config=config, partitions=assignment))
        self._begin(decision.image.topics[name], 0, decision)
        return topic_id

    def _begin(self, topic: TopicImage, first: int, decision: ControllerDecision) -> None:
        """Begin the partitions from ``first`` on: asleep, or awake if the topic's partitions never sleep."""
        if _begin_asleep(topic.config, decision.image):
            decision.write(PartitionsBornAsleep(topic=topic.name, first=first, end=len(topic.partitions)))
            self._liveness.settle_sleepers(decision)
            return
        for state in topic.partitions[first:]:
            self._liveness.expect(state, decision)

    def _check_room(self, config: Mapping[str, str], assignment: Assignment, image: MetadataImage) -> None:
        """Raise InvalidPartitions when a broker has no room for its new replicas.

        If the partitions never sleep, there has to be room for all of them awake.
        """
        added = Counter(broker for replicas in assignment for broker in replicas)
        present = Counter(broker for state in image.partitions() for broker in state.replicas)
        for broker, count in sorted(added.items()):
            bound, total = image.declared_bound(broker), present[broker] + count
            if bound is not None and total > bound.limit:
                raise InvalidPartitions(
                    f"Broker {broker} would have {total} replicas and may have {bound.limit} ({bound.why}). Create "
                    "fewer partitions, delete topics, or add brokers."
                )
        if not _begin_asleep(config, image):
            check_awake(added, image)

    def create_partitions(self, event: Received[CreatePartitionsRequest], decision: ControllerDecision) -> None:
        """Add partitions for a client; records that are there already stay where they are."""
        image = decision.image
        topic = _known(event.message.topic, image)
        if topic.internal:
            raise InvalidRequest(
                f"{topic.name!r} is Raylog's own and keeps its number of partitions: its records are found by it."
            )
        present, total = len(topic.partitions), event.message.count
        if total < present:
            raise InvalidPartitions(
                f"Topic {topic.name!r} has {present} partitions and cannot have {total}: partitions are never "
                "taken away, because their records would be lost."
            )
        if total == present:
            raise InvalidPartitions(f"Topic {topic.name!r} has {present} partitions already: name a larger total.")
        if total > PARTITIONS_MAX:
            raise InvalidPartitions(f"A topic has 1 to {PARTITIONS_MAX} partitions, not {total}.")
        added = total - present
        factor = topic.partitions[0].replication_factor
        if event.message.assignments is None:
            assignment = self.placed(added, factor, decision)
        else:
            assignment = self.given(event.message.assignments, added, factor, decision)
        self._check_room(topic.config, assignment, image)
        decision.write(PartitionsAdded(topic_id=topic.topic_id, topic=topic.name, partitions=assignment))
        self._begin(topic, present, decision)
        decision.reply(event.request, [])

    def placed(self, partitions: int, replication_factor: int, decision: ControllerDecision) -> Assignment:
        """Choose brokers for new partitions; raises InvalidPartitions and InvalidReplicationFactor."""
        image = decision.image
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidPartitions(f"A topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}.")
        nodes = self._liveness.able_brokers(replication_factor)
        if not 1 <= replication_factor <= len(nodes):
            raise InvalidReplicationFactor(
                f"The replication factor {replication_factor} is not possible: {_online(len(nodes))}; choose at "
                "least 1 and at most as many, or start more brokers."
            )
        leaders, replicas = Counter[BrokerId](), Counter[BrokerId]()
        for state in image.partitions():
            leaders[state.replicas[0]] += 1
            replicas.update(state.replicas)
        return place_replicas(
            nodes, partitions=partitions, replication_factor=replication_factor, leaders=leaders, replicas=replicas
        )

    def given(
        self,
        assignment: Sequence[Sequence[int]],
        partitions: int,
        replication_factor: int,
        decision: ControllerDecision,
    ) -> Assignment:
        """Check the brokers that a client chose; -1 = as many partitions or replicas as it names."""
        known = decision.image.brokers
        if not 1 <= len(assignment) <= PARTITIONS_MAX:
            raise InvalidPartitions(f"A topic has 1 to {PARTITIONS_MAX} partitions, not {len(assignment)}.")
        if partitions not in (-1, len(assignment)):
            raise InvalidRequest(f"The assignment has {len(assignment)} partitions, and {partitions} were requested.")
        factor = len(assignment[0]) if replication_factor == -1 else replication_factor
        for number, brokers in enumerate(assignment):
            if not brokers or len(brokers) != factor:
                raise InvalidReplicationFactor(
                    f"Partition {number} is assigned to {len(brokers)} brokers, not {factor}."
                )
            if len(set(brokers)) != len(brokers):
                raise InvalidRequest(f"Partition {number} is assigned to a broker twice.")
            missing = [broker for broker in brokers if broker not in known]
            if missing:
                raise InvalidRequest(f"Partition {number} is assigned to broker {missing[0]}, which never registered.")
        return tuple(tuple(BrokerId(broker) for broker in brokers) for brokers in assignment)


def _known(name: str, image: MetadataImage) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(did_you_mean("topic", name, image.topics))
    return topic


def check_awake(added: Mapping[BrokerId, int], image: MetadataImage, config: Mapping[str, str] | None = None) -> None:
    """Raise InvalidPartitions when a broker has no room for ``added`` more awake replicas.

    ``config``: settings of the cluster to use instead of those in force.
    """
    for broker, count in sorted(added.items()):
        bound, total = image.awake_bound(broker, config), image.awake[broker] + count
        if bound is not None and total > bound.limit:
            raise InvalidPartitions(
                f"Broker {broker} would have {total} replicas awake and may have {bound.limit} ({bound.why}). Let "
                "the topic's partitions sleep (replica.sleep.after.ms), create fewer, or add brokers."
            )


def _begin_asleep(config: Mapping[str, str], image: MetadataImage) -> bool:
    """Return whether new partitions of a topic with this configuration begin asleep."""
    return sleep_after_ms(config, image.config) >= 0


def _checked_config(config: Mapping[str, object], replication_factor: int) -> dict[str, str]:
    checked = validate_topic_config(config)
    needed = int(checked.get("min.insync.replicas", "1"))
    if needed > replication_factor:
        raise InvalidConfig(
            f"min.insync.replicas={needed} can never be met with {replication_factor} replicas; lower it."
        )
    return checked


def _online(count: int) -> str:
    return "1 broker is online" if count == 1 else f"{count} brokers are online"
