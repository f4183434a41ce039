"""The metadata image as a reply on the wire."""

from raylog.actors.controller.answers import metadata_answer
from raylog.core.metadata.image import MetadataImage


def test_a_topic_that_is_named_twice_is_described_once() -> None:
    found = metadata_answer(MetadataImage(), ["b", "a", "b", "b", "a"])
    assert [row.topic for row in found.topics] == ["b", "a"]


def test_nothing_is_listed_for_a_client_that_knows_the_version() -> None:
    image = MetadataImage()
    assert metadata_answer(image, None, image.version - 1).is_unchanged is False
    found = metadata_answer(image, ["a"], image.version)
    assert (found.is_unchanged, found.version, found.topics, found.brokers) == (True, image.version, (), ())
