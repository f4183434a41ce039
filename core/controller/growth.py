"""More partitions for a topic that exists. Called by the controller's step."""

from __future__ import annotations

from raylog.core.controller.events import CreatePartitionsReceived
from raylog.core.controller.ledger import Ledger
from raylog.core.controller.liveness import Liveness
from raylog.core.controller.topics import PARTITIONS_MAX, Topics
from raylog.core.errors import InvalidPartitions, InvalidRequest, UnknownTopicOrPartition, did_you_mean
from raylog.core.metadata.records import PartitionsAdded


class Growth:
    """Decides which partitions are added."""

    def __init__(self, ledger: Ledger, topics: Topics, liveness: Liveness) -> None:
        """Work on the controller's ledger; places are the topics' to choose, elections those of liveness."""
        self._ledger = ledger
        self._topics = topics
        self._liveness = liveness

    def create_partitions(self, event: CreatePartitionsReceived) -> None:
        """Add partitions for a client; records that are there already stay where they are."""
        image = self._ledger.image
        topic = image.topics.get(event.topic)
        if topic is None:
            raise UnknownTopicOrPartition(did_you_mean("topic", event.topic, image.topics))
        if topic.internal:
            raise InvalidRequest(
                f"{event.topic!r} is Raylog's own and keeps its number of partitions: its records are found by it."
            )
        present = len(topic.partitions)
        if event.total < present:
            raise InvalidPartitions(
                f"Topic {event.topic!r} has {present} partitions and cannot have {event.total}: partitions are never "
                "taken away, because their records would be lost."
            )
        if event.total == present:
            raise InvalidPartitions(f"Topic {event.topic!r} has {present} partitions already; ask for more.")
        if event.total > PARTITIONS_MAX:
            raise InvalidPartitions(f"A topic has 1 to {PARTITIONS_MAX} partitions, not {event.total}.")
        added = event.total - present
        factor = topic.partitions[0].replication_factor
        if event.assignment is None:
            assignment = self._topics.placed(added, factor)
        else:
            assignment = self._topics.given(event.assignment, added, factor)
        self._ledger.write(PartitionsAdded(topic_id=topic.topic_id, topic=topic.name, partitions=assignment))
        for state in topic.partitions[present:]:
            self._liveness.expect(state)
        self._ledger.reply(event.request, [])
