"""Tokens that drivers make for tasks."""

import time

import pytest

from raylog.base.errors import ClusterAuthorizationFailed, InvalidConfig
from raylog.base.ids import TopicPartition
from raylog.client.producer.producer import Producer
from raylog.client.task_tokens import TaskTokens, write_token_for
from raylog.rpc import Token, TopicGrant
from tests.unit.client.toy_server import SECRET, ToyCluster


def test_a_task_writes_with_a_token_to_its_topics_alone() -> None:
    with ToyCluster() as cluster:
        ids = {"out": cluster.create_topic("out")}
        cluster.create_topic("other")
        token = write_token_for(SECRET, ids, transactional_id_prefix="sink", lifetime_s=60)
        assert token.grant.topics == (TopicGrant(ids["out"], "out", writes=True),)
        assert token.grant.transactional_id_prefix == "sink"
        assert time.time() + 58 < token.grant.expires_s < time.time() + 62
        assert write_token_for(token, {"x": "y"}, lifetime_s=1) is token
        with Producer(bootstrap=cluster.bootstrap, token=token) as producer:
            producer.send("out", value=b"one").result(10)
            with pytest.raises(ClusterAuthorizationFailed, match="'other'"):
                producer.send("other", value=b"two").result(10)
        assert cluster.records("out", 0) == [(0, None, b"one")]


def test_more_topics_than_a_token_names_are_refused() -> None:
    many = {f"topic-{number}": f"{number:032x}" for number in range(40)}
    with pytest.raises(InvalidConfig, match="fewer topics"):
        write_token_for(SECRET, many, lifetime_s=60)


def test_tasks_of_a_minute_get_the_same_token_and_later_ones_another() -> None:
    now_s = 1_000_000.0
    tokens = TaskTokens(lambda: now_s)

    def token(partition: int = 0, topic_id: str = "a", lifetime_s: float = 43_200) -> Token:
        return tokens.of(SECRET, topic_id, TopicPartition("t", partition), lifetime_s=lifetime_s)

    first = token()
    now_s += 59.0
    assert token() == first
    assert first.grant.expires_s >= now_s + 43_200
    assert len({first, token(1), token(topic_id="b"), token(lifetime_s=86_400)}) == 4
    now_s += 2.0
    assert token() != first
    now_s -= 120.0  # the clock was set back: an old token would hold for longer than was set
    assert token().grant.expires_s <= now_s + 43_200 + 62


def test_a_short_life_is_shared_for_a_hundredth_of_it() -> None:
    now_s = 1_000_000.0
    tokens = TaskTokens(lambda: now_s)
    place = TopicPartition("t", 0)
    first = tokens.of(SECRET, "a", place, lifetime_s=300)
    now_s += 4.0
    second = tokens.of(SECRET, "a", place, lifetime_s=300)
    assert second != first
    assert now_s + 300 <= second.grant.expires_s <= now_s + 305
    assert tokens.of(second, "b", TopicPartition("u", 0), lifetime_s=1) is second
