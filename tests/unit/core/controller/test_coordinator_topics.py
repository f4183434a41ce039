"""Topics of coordinators are compacted, and keys hash to their partitions as in Kafka."""

from raylog.actors.controller.answers import coordinator_index
from raylog.core.controller.coordinators import INTERNAL_TOPIC_CONFIG
from raylog.core.coordinators.hashing import coordinator_partition
from tests.unit.core.controller.bench import Bench


def test_a_group_hashes_as_in_kafka_before_and_after_the_topic_is_created() -> None:
    bench = Bench().start()
    bench.broker(1)
    expected = coordinator_partition("polls", 1)
    assert coordinator_index(bench.image, "group", "polls") == expected
    bench.ensure()
    assert bench.image.topics["__consumer_offsets"].config == INTERNAL_TOPIC_CONFIG
    assert INTERNAL_TOPIC_CONFIG["cleanup.policy"] == "compact"
    assert coordinator_index(bench.image, "group", "polls") == expected
