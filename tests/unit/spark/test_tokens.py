"""Reads with a token in place of the secret, without a Spark session."""

import time
from collections.abc import Iterator

import pytest

from raylog.base.errors import AuthenticationFailed, ClusterAuthorizationFailed, InvalidConfig, RaylogError
from raylog.client.admin.admin import Admin
from raylog.rpc import Grant, Token, TopicGrant, mint
from raylog.rpc.auth.token_text import token_text
from raylog.rpc.auth.tokens import ALL_PARTITIONS
from raylog.spark.reading.options import ReadOptions, parse_options
from tests.unit.client.toy_server import SECRET, ToyCluster
from tests.unit.spark.support import fill, plan, rows_of


@pytest.fixture(scope="module")
def cluster() -> Iterator[ToyCluster]:
    with ToyCluster() as running:
        for topic in ("orders", "orders-late", "payroll"):
            running.create_topic(topic, 2)
            fill(running, topic, 0, [10])
            fill(running, topic, 1, [5])
        yield running


@pytest.fixture(scope="module")
def line(cluster: ToyCluster) -> str:
    with Admin(**cluster.options) as admin:
        return admin.create_token(read=["orders", "orders-late"])


def chosen(cluster: ToyCluster, token: str, **given: str) -> ReadOptions:
    return parse_options({"raylog.bootstrap": cluster.bootstrap, "raylog.token": token, **given})


def test_a_query_reads_with_a_token_alone(cluster: ToyCluster, line: str) -> None:
    for what, count in (
        ({"subscribe": "orders"}, 15),
        ({"subscribePattern": ".*"}, 30),
        ({"assign": '{"orders":[1]}'}, 5),
    ):
        options = chosen(cluster, line, **what)
        assert line not in repr(options)
        rows = [row for piece in plan(options) for row in rows_of(piece, options)]
        assert len(rows) == count, what


def test_the_tasks_of_a_holder_have_its_token(cluster: ToyCluster, line: str) -> None:
    options = chosen(cluster, line, subscribe="orders")
    assert isinstance(options.wanted.secret, Token)
    assert {piece.secret for piece in plan(options)} == {options.wanted.secret}


def expired() -> str:
    topic = TopicGrant("id", "orders", ALL_PARTITIONS)
    return token_text(mint(SECRET, Grant(int(time.time()), (topic,))))


@pytest.mark.parametrize(
    ("make", "kind", "sentence"),
    [
        (lambda line: line[:-9], InvalidConfig, r"The token is incomplete, or was changed"),
        (lambda line: SECRET.hex(), InvalidConfig, r"A token begins with 'raylog-token-', and this text does not"),
        (lambda line: expired(), AuthenticationFailed, r"our token: it has expired\. Make a new one"),
        (
            lambda line: token_text(mint(b"another secret", Grant(2**33))),
            AuthenticationFailed,
            r"Make a new one for this",
        ),
    ],
)
def test_a_wrong_token_is_one_sentence(
    cluster: ToyCluster, line: str, make: object, kind: type[RaylogError], sentence: str
) -> None:
    assert callable(make)
    with pytest.raises(kind, match=sentence):
        plan(chosen(cluster, make(line), subscribe="orders"))


def test_a_token_for_other_topics_names_the_one_that_it_lacks(cluster: ToyCluster, line: str) -> None:
    with pytest.raises(ClusterAuthorizationFailed, match="does not read the topic 'payroll': make one with"):
        plan(chosen(cluster, line, subscribe="payroll"))
    with Admin(**cluster.options) as admin:
        writing = admin.create_token(write=["orders"])
    with pytest.raises(ClusterAuthorizationFailed, match="does not read the topic 'orders': make one with"):
        plan(chosen(cluster, writing, subscribe="orders"))


def test_a_secret_and_a_token_are_not_given_together(cluster: ToyCluster, line: str) -> None:
    with pytest.raises(InvalidConfig, match=r"raylog\.secret and raylog\.token are both given: leave one out"):
        chosen(cluster, line, subscribe="orders", **{"raylog.secret": SECRET.hex()})
    with pytest.raises(InvalidConfig, match="The secret is a token: give it as token"):
        plan(parse_options({"raylog.bootstrap": cluster.bootstrap, "raylog.secret": line, "subscribe": "orders"}))
