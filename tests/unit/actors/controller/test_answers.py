"""The metadata image as a reply on the wire."""

from raylog.actors.controller.answers import metadata_answer
from raylog.core.metadata.image import MetadataImage


def test_a_topic_that_is_named_twice_is_described_once() -> None:
    found = metadata_answer(MetadataImage(), ["b", "a", "b", "b", "a"])
    assert [row.topic for row in found.topics] == ["b", "a"]
