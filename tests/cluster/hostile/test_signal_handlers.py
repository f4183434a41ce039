"""A signal handler that uses a client, at any step of a call: it works, or fails at once with a sentence."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from raylog.base.errors import ClientClosed, ConcurrentUse, RaylogError
from raylog.client.admin.admin import Admin
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.producer import Producer
from tests.cluster.hostile.striking import Measured, Strike, spread
from tests.cluster.hostile.test_interrupted_clients import filled
from tests.cluster.hostile.world import NEXT_S, Remains, World

pytestmark = pytest.mark.filterwarnings("ignore")
AT_ONCE_S = 4.0
"""What a handler may take, on a loaded machine: no deadline of a call is shorter."""


class Clients:
    """One of each, for the interrupted call and for the handler."""

    def __init__(self, world: World, topic: str, group: str) -> None:
        self.topic = topic
        self.producer = Producer(**world.options, linger_ms=1, batch_size=400)
        self.consumer = Consumer(topic, **world.options, group_id=group, auto_offset_reset="earliest")
        self.admin = Admin(**world.options)
        self.future = self.producer.send(topic, b"first", partition=0)
        assert self.consumer.poll(NEXT_S * 1_000, max_records=1)

    def close(self) -> None:
        """Close them all."""
        self.producer.close(NEXT_S)
        self.consumer.close(timeout=NEXT_S)
        self.admin.close()


CALLS: dict[str, Callable[[Clients], Any]] = {
    "send": lambda clients: clients.producer.send(clients.topic, b"x" * 50),
    "send to a partition": lambda clients: clients.producer.send(clients.topic, b"x" * 150, partition=0),
    "send_batch": lambda clients: clients.producer.send_batch(clients.topic, [b"x" * 50], partition=0),
    "flush": lambda clients: clients.producer.flush(NEXT_S),
    "result": lambda clients: clients.producer.send(clients.topic, b"x").result(NEXT_S),
    "poll": lambda clients: clients.consumer.poll(50, max_records=1),
    "list_topics": lambda clients: clients.admin.list_topics(),
}
HANDLERS: dict[str, Callable[[Clients], Any]] = {
    "send": lambda clients: clients.producer.send(clients.topic, b"handler", partition=0),
    "flush": lambda clients: clients.producer.flush(NEXT_S),
    "result": lambda clients: clients.producer.send(clients.topic, b"handler").result(NEXT_S),
    "poll": lambda clients: clients.consumer.poll(10, max_records=1),
    "commit": lambda clients: clients.consumer.commit(timeout=NEXT_S),
    "list_topics": lambda clients: clients.admin.list_topics(),
    "metrics": lambda clients: clients.producer.metrics(),
}
CLOSES: dict[str, Callable[[Clients], Any]] = {
    "close the producer": lambda clients: clients.producer.close(NEXT_S),
    "close the consumer": lambda clients: clients.consumer.close(timeout=NEXT_S),
    "close the admin": lambda clients: clients.admin.close(),
}


class Handled:
    """A handler, and how it went."""

    def __init__(self, act: Callable[[Clients], Any], clients: Clients) -> None:
        self._act, self._clients = act, clients
        self.seconds = 0.0
        self.error: RaylogError | None = None

    def __call__(self) -> None:
        began_s = time.monotonic()
        try:
            self._act(self._clients)
        except RaylogError as error:
            self.error = error
        self.seconds = time.monotonic() - began_s


@pytest.mark.parametrize("name", list(CALLS))
def test_a_handler_uses_clients_amid_a_call(world: World, name: str) -> None:
    call, remains = CALLS[name], Remains()
    clients = Clients(world, filled(world), world.name())
    try:
        call(clients)
        with Measured() as measured:
            call(clients)
        for handler, act in HANDLERS.items():
            for at in spread(measured.steps):
                handled = Handled(act, clients)
                with Strike(at, handled) as strike:
                    call(clients)
                where = f"{handler} in {strike.place}: {handled.error}"
                assert handled.seconds < AT_ONCE_S, where
                assert handled.error is None or isinstance(handled.error, ConcurrentUse), where
                assert clients.producer.send(clients.topic, b"next", partition=0).result(NEXT_S).offset >= 0
    finally:
        clients.close()
    remains.check()


@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.parametrize("handler", list(CLOSES))
def test_a_handler_closes_a_client_amid_a_call(world: World, name: str, handler: str) -> None:
    call, remains, topic = CALLS[name], Remains(), filled(world)
    clients = Clients(world, topic, world.name())
    call(clients)
    with Measured() as measured:
        call(clients)
    clients.close()
    for at in spread(measured.steps):
        clients = Clients(world, topic, world.name())
        handled = Handled(CLOSES[handler], clients)
        strike = Strike(at, handled)
        try:
            with strike:
                call(clients)
        except ClientClosed:
            pass  # its client was closed under it
        where = f"{handler} in {strike.place}: {handled.error}"
        assert handled.seconds < AT_ONCE_S, where
        assert handled.error is None or isinstance(handled.error, ConcurrentUse), where
        clients.close()
    remains.check()
