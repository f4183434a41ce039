"""What a broker's page shows of groups: what coordinators report, as far as it is about something that there is."""

from raylog.actors.metrics.coordinators import _census
from raylog.base.ids import BrokerId, TopicPartition
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import TopicCreated


def test_offsets_of_partitions_that_there_are_not_make_no_labels() -> None:
    """Any offset that a client had committed was a row of the page: a hundred thousand of one token."""
    image = MetadataImage()
    image.apply(TopicCreated(topic_id="id", topic="t", config={}, partitions=((BrokerId(1),), (BrokerId(1),))))
    rows: list[list[object]] = [["id", "t", partition, 7] for partition in (-1, 0, 1, 2, 2**31 - 1)]
    strangers: list[list[object]] = [["other", "t", 0, 7], ["id", "u", 0, 7]]
    (group,) = _census(image, [["g", "Empty", 0, [*rows, *strangers], 0]])
    assert group.offsets == {TopicPartition("t", 0): 7, TopicPartition("t", 1): 7}
    assert group.topic_ids == {"t": "id"}
