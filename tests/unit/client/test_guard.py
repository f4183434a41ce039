"""The guard of all clients: whose each of its refusals is, and that every public client has it."""

import asyncio

import pytest

import raylog
from raylog.base.errors import ClientClosed, ConcurrentUse
from raylog.client.guard import Home, NotPickled, Turn
from raylog.outbox import OutboxRelay

CLIENTS = (
    raylog.Producer, raylog.AsyncProducer, raylog.Consumer, raylog.AsyncConsumer, raylog.QueueConsumer,
    raylog.AsyncQueueConsumer, raylog.HalfMessageProducer, raylog.AsyncHalfMessageProducer, raylog.Admin,
    raylog.AsyncAdmin, raylog.WorkerPool, OutboxRelay,
)  # fmt: skip


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_every_client_refuses_to_be_pickled(client: type) -> None:
    assert issubclass(client, NotPickled)


def test_a_turn_is_for_one_and_names_where_the_other_is() -> None:
    turn = Turn(lambda is_inside: "inside" if is_inside else "elsewhere")
    with turn:
        with pytest.raises(ConcurrentUse, match="inside"), turn:
            pass
        assert not hasattr(turn, "free")
    with turn:
        pass


async def test_another_task_is_refused_as_another_thread_is() -> None:
    turn = Turn(lambda is_inside: "inside" if is_inside else "elsewhere")

    async def take() -> None:
        with turn:
            pass

    with turn, pytest.raises(ConcurrentUse, match="elsewhere"):
        await asyncio.create_task(take())
    await take()


def test_a_client_belongs_to_the_loop_of_its_start() -> None:
    home = Home("AsyncThing")

    async def enter() -> None:
        home.enter()
        home.check()

    async def check() -> None:
        home.check()

    home.check()  # not started yet
    asyncio.run(enter())
    assert home.has_ended
    with pytest.raises(ClientClosed, match="AsyncThing was started on another event loop, which has ended"):
        asyncio.run(check())
