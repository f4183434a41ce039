"""The clients' keywords: typed as the registry has them, shown by `help()`, and refused by type checkers when wrong.

mypy checks this file with `warn_unused_ignores`: where it does not find one of the mistakes below, `make types` fails.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import raylog
from raylog.base.errors import InvalidConfig
from raylog.client import keywords
from raylog.client.config import ALIASES, ClientConfig, QueueConsumerConfig, keys_of
from raylog.outbox import OutboxRelay
from tools import client_keywords

CLIENTS: tuple[tuple[type[Any], type[ClientConfig]], ...] = (
    (raylog.Producer, raylog.ProducerConfig),
    (raylog.AsyncProducer, raylog.ProducerConfig),
    (raylog.HalfMessageProducer, raylog.ProducerConfig),
    (raylog.AsyncHalfMessageProducer, raylog.ProducerConfig),
    (OutboxRelay, raylog.ProducerConfig),
    (raylog.Consumer, raylog.ConsumerConfig),
    (raylog.AsyncConsumer, raylog.ConsumerConfig),
    (raylog.Admin, raylog.AdminConfig),
    (raylog.AsyncAdmin, raylog.AdminConfig),
    (raylog.QueueConsumer, raylog.QueueConsumerConfig),
    (raylog.AsyncQueueConsumer, raylog.QueueConsumerConfig),
)


def test_the_typed_dictionaries_are_those_of_the_registry() -> None:
    text = client_keywords.PATH.read_text(encoding="utf-8")
    assert text == client_keywords.text(), "run `python -m tools.client_keywords`"


@pytest.mark.parametrize(("client", "kind"), CLIENTS, ids=lambda each: each.__name__)
def test_a_constructor_takes_the_keys_of_its_configuration(client: type[Any], kind: type[ClientConfig]) -> None:
    typed = getattr(keywords, client_keywords.name_of(kind))
    assert client.__init__.__annotations__["keywords"] == f"Unpack[{typed.__name__}]"
    aliases = {alias for alias, name in ALIASES.items() if name in keys_of(kind)}
    assert set(typed.__annotations__) == {*keys_of(kind), *aliases}


@pytest.mark.parametrize(("client", "kind"), CLIENTS, ids=lambda each: each.__name__)
def test_help_shows_every_key_of_a_client(client: type[Any], kind: type[ClientConfig]) -> None:
    shown = inspect.signature(client).parameters
    assert set(keys_of(kind)) <= set(shown)
    assert all(shown[name].default == key.default for name, key in keys_of(kind).items())


def test_type_checkers_refuse_what_the_constructors_refuse() -> None:
    with pytest.raises(InvalidConfig):
        raylog.Producer(valeu_serializer="json")  # type: ignore[call-arg]
    with pytest.raises(InvalidConfig):
        raylog.AsyncProducer(linger_ms="soon")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig):
        raylog.AsyncConsumer(auto_offset_reset="begin")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig):
        raylog.AsyncAdmin(group_id="board")  # type: ignore[call-arg]
    with pytest.raises(InvalidConfig):
        raylog.AsyncQueueConsumer("jobs", order="keys", group_id="workers")  # type: ignore[arg-type]


def test_type_checkers_take_what_the_constructors_take() -> None:
    raylog.AsyncProducer(acks=1, linger_ms=None, partitioner=lambda topic, key, count: 0, value_serializer=str.encode)
    raylog.AsyncConsumer(bootstrap_servers="a:1", partition_assignment_strategy=["range", "sticky"])
    raylog.AsyncQueueConsumer("a", "b", group_id="g", lock="30s", retry=["1s", 5], priority={"a": 2, "b": 1})
    assert QueueConsumerConfig is raylog.QueueConsumerConfig


@pytest.mark.parametrize("client", [raylog.Consumer, raylog.AsyncConsumer, raylog.QueueConsumer])
def test_a_consumer_whose_configuration_comes_first_says_where_it_goes(client: Any) -> None:
    with pytest.raises(TypeError, match=r'config=\{"group\.id"'):
        client({"group.id": "g", "bootstrap.servers": "a:1"}, group_id="g")
    with pytest.raises(TypeError, match="topics one by one"):
        client(["orders"], group_id="g")
