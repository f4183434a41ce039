"""Tokens that drivers make for tasks that write."""

import time

import pytest

from raylog.client.producer.producer import Producer
from raylog.client.task_tokens import write_token_for
from raylog.core.errors import ClusterAuthorizationFailed, InvalidConfig
from raylog.rpc import TopicGrant
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
