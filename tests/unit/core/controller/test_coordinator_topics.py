"""Topics of coordinators are created with Kafka's hash of groups, and keep the one they have."""

import pytest

from raylog.actors.controller.answers import coordinator_index
from raylog.core.controller.coordinators import COMPACTED
from raylog.core.controller.events import AlterTopicConfigReceived
from raylog.core.coordinators.hashing import HASH_KEY, JAVA, coordinator_partition
from raylog.core.errors import InvalidConfig
from raylog.core.features import SUPPORTED
from tests.unit.core.controller.bench import Bench


@pytest.fixture
def bench() -> Bench:
    """A cluster of this release with one broker, before the first group."""
    found = Bench().start()
    found.broker(1, levels=SUPPORTED)
    return found


def test_a_group_hashes_as_in_kafka_before_and_after_the_topic_is_created(bench: Bench) -> None:
    expected = coordinator_partition("polls", 1, {HASH_KEY: JAVA})
    assert coordinator_index(bench.image, "group", "polls") == expected
    bench.ensure()
    assert bench.image.topics["__consumer_offsets"].config == {**COMPACTED, HASH_KEY: JAVA}
    assert coordinator_index(bench.image, "group", "polls") == expected


@pytest.mark.parametrize(("changed", "deleted"), [({HASH_KEY: "crc32"}, ()), ({}, (HASH_KEY,))])
def test_the_hash_of_a_topic_cannot_be_changed(bench: Bench, changed: dict[str, str], deleted: tuple[str, ...]) -> None:
    bench.ensure()
    alteration = AlterTopicConfigReceived(
        cause="test", now_ms=bench.now, request=bench.number(), topic="__consumer_offsets", set=changed, delete=deleted
    )
    with pytest.raises(InvalidConfig, match="cannot be changed"):
        bench.call(alteration)
