"""Every public method of every synchronous client is struck: an admin's here, the others' in their own tables."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from raylog.base.errors import RaylogError
from raylog.client.admin.admin import Admin
from raylog.client.consumer.consumer import Consumer
from raylog.client.half_messages.producer import HalfMessageProducer
from raylog.client.producer.producer import Producer
from raylog.client.queues.consumer import QueueConsumer
from raylog.client.workers.pool import WorkerPool
from tests.cluster.hostile import test_interrupted_clients as clients
from tests.cluster.hostile import test_interrupted_producers as producers
from tests.cluster.hostile import test_interrupted_transactions as transactions
from tests.cluster.hostile.striking import Interrupt, Measured, Strike, spread
from tests.cluster.hostile.world import NEXT_S, Remains, World
from tests.unit.client.public_calls import HERE, arguments, public_calls

pytestmark = pytest.mark.filterwarnings("ignore")
OF_ADMIN = [name for name in public_calls(Admin) if name != "close"]
LOCAL = {
    "assignment", "current_lag", "end", "highwater", "metrics", "paused", "stop", "subscription", "topic_id",
}  # fmt: skip
"""These read an attribute, or set one, and have nothing that could be left halfway."""
CLOSED = {"close"}
"""Struck for every client: `test_making_and_closing_a_client_is_interrupted_anywhere`."""
PRODUCED = {
    "send": "plain", "send_batch": "columns", "flush": "flush", "partitions_for": "partitions", "send_arrow": "arrow",
}  # fmt: skip
"""The rows of producers' calls, by method."""
ONCE = {"init_transactions", "prepare_transaction", "complete_transaction", "transaction"}
"""`transaction` is made of the calls that are struck; the others decide about a whole producer, and are repeated."""
STRUCK: dict[type, set[str]] = {
    Admin: set(OF_ADMIN),
    Producer: PRODUCED.keys() | transactions.ABORT.keys() | transactions.STEPS.keys() | ONCE,
    HalfMessageProducer: PRODUCED.keys() | transactions.ABORT.keys() | transactions.STEPS.keys() | ONCE | {"prepare"},
    Consumer: clients.CONSUMED.keys() | clients.ASSIGNING.keys() | {"seek_to_end"},
    QueueConsumer: clients.TAKEN.keys() | {"commit", "run"},
    WorkerPool: {"run"},
}


@pytest.mark.parametrize("kind", list(STRUCK), ids=lambda kind: kind.__name__)
def test_every_public_method_has_a_row(kind: type) -> None:
    assert set(public_calls(kind)) - STRUCK[kind] - LOCAL - CLOSED == set()
    assert set(PRODUCED.values()) <= producers.CALLS.keys()


@pytest.mark.parametrize("name", OF_ADMIN)
def test_a_call_of_an_admin_is_interrupted_anywhere(world: World, name: str) -> None:
    topic, remains = world.topic(), Remains()
    with Admin(**world.options) as admin:
        call = getattr(admin, name)
        given = {key: with_topic(value, topic) for key, value in arguments(name, call).items()}
        with suppress(RaylogError):
            call(**given)
        with suppress(RaylogError), Measured() as measured:
            call(**given)
        for at in spread(measured.steps):
            strike = Strike(at)
            with suppress(Interrupt, RaylogError), strike:
                call(**given)
            assert "t1" in admin.list_topics(timeout_s=NEXT_S), strike.place
    remains.check()


def with_topic(value: Any, topic: str) -> Any:
    """An argument that names the topic of this test in the place of `t`."""
    if isinstance(value, list):
        return [with_topic(each, topic) for each in value]
    if isinstance(value, dict):
        return {with_topic(key, topic): each for key, each in value.items()}
    if value == HERE:
        return HERE._replace(topic=topic)
    return topic if value == "t" else value
