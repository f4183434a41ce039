"""Makes replies on the wire from the metadata image. Pure; used by brokers, and by the controller for coordinators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from raylog.base.errors import UnknownTopicOrPartition
from raylog.core.configuration.config import ClusterConfig
from raylog.core.controller.coordinators import topic_behind
from raylog.core.controller.sessions import BrokerMember, Member, ReplicaMember
from raylog.core.controller.voters import voters_max
from raylog.core.coordinators.hashing import coordinator_partition
from raylog.core.metadata.image import BrokerImage, MetadataImage, TopicImage
from raylog.core.partition import PartitionState, ReplicaPlace
from raylog.protocol.broker import MetadataBroker, MetadataPartition, MetadataReplica, MetadataReply, MetadataTopic

NO_VERSION: Final = -1


def metadata_answer(
    image: MetadataImage, names: Sequence[str] | None, known_version: int = NO_VERSION
) -> MetadataReply:
    """Return the reply to ``metadata`` for topics, each once; ``names`` None: all topics.

    For a client that has the metadata of this version already, the reply lists nothing.
    """
    creates_topics = image.config.get("auto.create.topics.enable") == "true"  # unset, it is off
    if known_version == image.version:
        return MetadataReply(image.cluster_id, image.version, (), (), creates_topics, image.feature_level, True)
    brokers = [MetadataBroker(found.broker, found.host, found.port, found.node_id) for found in image.online_brokers()]
    wanted = sorted(image.topics) if names is None else dict.fromkeys(names)
    topics = [_topic_answer(image, image.topics.get(name), name) for name in wanted]
    return MetadataReply(image.cluster_id, image.version, brokers, topics, creates_topics, image.feature_level)


def coordinator_index(image: MetadataImage, kind: str, key: str) -> int:
    """Return the number of the coordinator of a key, which is that of its partition of the kind's internal topic."""
    topic = image.topic(topic_behind(kind))
    config = ClusterConfig.from_dict(image.config)
    if topic is not None:
        count = len(topic.partitions)
    elif kind == "transaction":
        count = config.transaction_state_log_num_partitions
    else:
        count = config.offsets_topic_num_partitions
    return coordinator_partition(key, count)


def cluster_answer(image: MetadataImage, is_present: Callable[[Member], bool]) -> dict[str, object]:
    """Return brokers, topics and their partitions as plain values, for ``status``.

    Online means connected to the controller: after a restart the metadata still has endpoints of earlier incarnations.
    """
    return {
        "cluster_id": image.cluster_id,
        "controller_epoch": image.controller_epoch,
        "version": image.version,
        "config": dict(image.config),
        "metadata_voters": {
            "voters": sorted(int(number) for number in image.voters),
            "max": voters_max(image.config),
        },
        "brokers": [
            {
                "broker": item.broker,
                "host": item.host,
                "port": item.port,
                "node_id": item.node_id,
                "online": item.online and is_present(BrokerMember(item.broker)),
                "stopped": item.stopped,
            }
            for _, item in sorted(image.brokers.items())
        ],
        "topics": {
            name: [_partition_status(image, state, is_present) for state in topic.partitions]
            for name, topic in image.topics.items()
        },
    }


def _topic_answer(image: MetadataImage, topic: TopicImage | None, name: str) -> MetadataTopic:
    if topic is None:
        return MetadataTopic(UnknownTopicOrPartition.code, "", name, False, (), {})
    partitions = [_partition_answer(image, state) for state in topic.partitions]
    return MetadataTopic(0, topic.topic_id, name, name.startswith("__"), partitions, dict(topic.config))


def _partition_answer(image: MetadataImage, state: PartitionState) -> MetadataPartition:
    leader = image.leader_of(state)
    place: ReplicaPlace | BrokerImage | None = state.place(leader)
    if state.asleep is not None:
        place = image.brokers.get(leader)
    return MetadataPartition(
        partition=state.partition.partition,
        leader=leader,
        leader_epoch=state.leader_epoch,
        leader_host="" if place is None else place.host,
        leader_port=0 if place is None else place.port,
        replicas=state.replicas,
        isr=state.isr,
        places=[MetadataReplica(place.broker, place.host, place.port) for place in state.places],
        elr=state.elr,
        unclean_leader_epoch=state.unclean_leader_epoch,
        is_asleep=state.asleep is not None,
    )


def _partition_status(
    image: MetadataImage, state: PartitionState, is_present: Callable[[Member], bool]
) -> dict[str, object]:
    """Return one partition as plain values; a replica of a sleeping partition is online if its broker is."""
    if state.asleep is not None:
        online = [broker for broker in state.replicas if is_present(BrokerMember(broker))]
    else:
        online = [
            place.broker
            for place in state.places
            if place.port and is_present(ReplicaMember(state.topic_id, state.partition, place.broker))
        ]
    return {
        "partition": state.partition.partition,
        "leader": image.leader_of(state),
        "leader_epoch": state.leader_epoch,
        "replicas": list(state.replicas),
        "isr": list(state.isr),
        "elr": list(state.elr),
        "unclean_leader_epoch": state.unclean_leader_epoch,
        "online": online,
        "asleep": state.asleep is not None,
    }
