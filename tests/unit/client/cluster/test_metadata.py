"""The metadata cache: the newest leader epoch wins, regardless of its source."""

import pytest

from raylog.client.cluster.metadata import MetadataCache
from raylog.protocol.broker import MetadataBroker, MetadataPartition, MetadataReply, MetadataTopic


def answer(
    version: int, *, epoch: int, port: int = 9, topic_id: str = "t1", partitions: int = 1, error: int = 0
) -> MetadataReply:
    rows = [MetadataPartition(number, 1, epoch, "h", port, [1, 2], [1], []) for number in range(partitions)]
    topic = MetadataTopic(error, topic_id, "a", is_internal=False, partitions=[] if error else rows, config={})
    return MetadataReply("c", version, [MetadataBroker(1, "h", 5, "n")], [topic])


def epoch_of(cache: MetadataCache) -> int:
    found = cache.partition("a", 0)
    assert found is not None
    return found.leader_epoch


@pytest.fixture
def cache() -> MetadataCache:
    return MetadataCache()


def test_the_first_answer_is_taken(cache: MetadataCache) -> None:
    assert cache.update(answer(1, epoch=3)) == {"a"}
    assert cache.cluster_id == "c"
    assert cache.partition("a", 0) is not None
    assert cache.partition("a", 1) is None
    assert cache.partition("b", 0) is None


def test_a_repeated_answer_changes_nothing(cache: MetadataCache) -> None:
    cache.update(answer(1, epoch=3))
    assert cache.update(answer(2, epoch=3)) == set()


def test_a_newer_epoch_wins_even_from_a_broker_that_is_behind(cache: MetadataCache) -> None:
    cache.update(answer(5, epoch=3))
    cache.update(answer(4, epoch=4))
    assert epoch_of(cache) == 4


def test_an_older_epoch_never_comes_back(cache: MetadataCache) -> None:
    cache.update(answer(5, epoch=4))
    assert cache.update(answer(6, epoch=3)) == set()
    assert epoch_of(cache) == 4


def test_in_the_same_epoch_the_newer_version_says_where_the_leader_is(cache: MetadataCache) -> None:
    cache.update(answer(5, epoch=4, port=1))
    cache.update(answer(4, epoch=4, port=2))
    found = cache.partition("a", 0)
    assert found is not None
    assert found.endpoint == ("h", 1)
    cache.update(answer(6, epoch=4, port=3))
    found = cache.partition("a", 0)
    assert found is not None
    assert found.endpoint == ("h", 3)


def test_a_topic_created_again_starts_with_its_own_epochs(cache: MetadataCache) -> None:
    cache.update(answer(5, epoch=9, topic_id="t1"))
    assert cache.update(answer(6, epoch=0, topic_id="t2")) == {"a"}
    assert epoch_of(cache) == 0
    cache.update(answer(5, epoch=9, topic_id="t1"))
    assert epoch_of(cache) == 0


def test_a_deleted_topic_is_forgotten_unless_the_news_is_older(cache: MetadataCache) -> None:
    cache.update(answer(5, epoch=1))
    assert cache.update(answer(4, epoch=-1, error=3)) == set()
    assert cache.update(answer(6, epoch=-1, error=3)) == {"a"}
    assert cache.topic("a") is None


def test_a_partition_without_leader_has_no_endpoint(cache: MetadataCache) -> None:
    cache.update(answer(1, epoch=1, port=0))
    found = cache.partition("a", 0)
    assert found is not None
    assert found.endpoint is None


def test_partitions_that_were_added_are_not_lost_to_an_older_answer(cache: MetadataCache) -> None:
    cache.update(answer(5, epoch=1, partitions=3))
    cache.update(answer(4, epoch=1, partitions=2))
    assert cache.partition("a", 2) is not None


def test_a_topic_missing_from_an_answer_about_all_topics_is_forgotten(cache: MetadataCache) -> None:
    cache.update(answer(5, epoch=3))
    nothing = MetadataReply("c", 6, [MetadataBroker(1, "h", 5, "n")], [])
    assert cache.update(nothing) == set()
    assert cache.topic("a") is not None, "an answer about other topics says nothing about this one"
    assert cache.update(nothing, is_whole=True) == {"a"}
    assert cache.topic("a") is None


def test_an_old_answer_about_all_topics_drops_none_that_came_later(cache: MetadataCache) -> None:
    cache.update(answer(5, epoch=3))
    assert cache.update(MetadataReply("c", 4, [MetadataBroker(1, "h", 5, "n")], []), is_whole=True) == set()
    assert cache.topic("a") is not None


def test_the_leader_of_an_earlier_topic_of_that_name_is_no_news(cache: MetadataCache) -> None:
    """The refusal was on its way while the topic was deleted and created again; its epochs begin again."""
    cache.update(answer(5, epoch=1, topic_id="new"))
    leader = [2, 7, "host-2", 9_002]
    assert not cache.update_leader("a", 0, leader, "old")
    assert epoch_of(cache) == 1
    assert cache.update_leader("a", 0, leader, "new")
    assert epoch_of(cache) == 7
    assert not cache.update_leader("a", 0, [3, 8, "host-3", 9_003], None)
