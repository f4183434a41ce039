"""The link to a controller that sends no replies: a vanished controller is replaced, a paused one is kept."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from raylog.actors import controller_link
from raylog.actors.controller_link import ControllerLink, known_first
from raylog.base.errors import BrokerIdNotRegistered, ConnectionFailed, NotController, RequestTimedOut
from raylog.protocol.controller import SessionHeartbeatRequest
from raylog.rpc import Connection, Reply, Request, RpcServer
from raylog.rpc.framing import decode_args
from tests.waiting import eventually

SECRET = b"a secret for tests"
BEAT_S = 0.02
PATIENT_BEAT_S = 0.4
"""Where a missing reply must not be mistaken for a busy machine."""


class Controller:
    """Counts registrations; replies to heartbeats only if it is not ``silent``."""

    def __init__(self, *, silent: bool) -> None:
        self.silent = silent
        self.has_session = True
        self.registered = 0
        self.beats = 0
        self._unanswered: list[Request] = []
        self.server = RpcServer(self._handle, secret=SECRET)

    def _handle(self, request: Request) -> None:
        if request.method == "register":
            self.registered += 1
            self.has_session = True
            request.reply([])
            return
        self.beats += request.method == "heartbeat"
        if self.silent or request.method == "slow":
            self._unanswered.append(request)  # no reply, as from a machine without power
        elif not self.has_session:
            request.fail(BrokerIdNotRegistered())
        else:
            request.reply()


def link_to(find: Callable[[], Awaitable[tuple[str, int]]], heartbeat_s: float = BEAT_S, **more: Any) -> ControllerLink:
    async def register(connection: Connection) -> None:
        await connection.call("register", [], timeout_s=5)

    return ControllerLink(
        find,
        name="test",
        secret=SECRET,
        register=register,
        handler=lambda request: None,
        heartbeat_s=heartbeat_s,
        on_superseded=lambda reason: None,
        **more,
    )


@asynccontextmanager
async def linked(
    find: Callable[[], Awaitable[tuple[str, int]]], *controllers: Controller, heartbeat_s: float = BEAT_S
) -> AsyncIterator[ControllerLink]:
    """A link that has connected to what ``find`` returns; it and the controllers are closed in the end."""
    link = link_to(find, heartbeat_s)
    link.start()
    try:
        await link.wait_connected(5)
        yield link
    finally:
        await link.stop()
        for controller in controllers:
            await controller.server.close()


async def serving() -> tuple[Controller, Callable[[], Awaitable[tuple[str, int]]]]:
    """A controller that answers, and a search that finds it."""
    controller = Controller(silent=False)
    place = await controller.server.start()

    async def find() -> tuple[str, int]:
        return place

    return controller, find


async def test_a_controller_that_went_silent_is_left_for_one_that_serves() -> None:
    first, second = Controller(silent=True), Controller(silent=False)
    places = [await first.server.start(), await second.server.start()]
    place = places[0]

    async def find() -> tuple[str, int]:
        return place

    async with linked(find, first, second) as link:
        assert (first.registered, second.registered) == (1, 0)
        place = places[1]
        await eventually(lambda: second.registered == 1 and link.is_connected)


async def test_a_controller_that_is_paused_keeps_its_connections() -> None:
    controller = Controller(silent=True)
    place = await controller.server.start()
    looked = 0
    # The kernel of a paused process still accepts connections; no request on them gets a reply.
    with socket.create_server(("127.0.0.1", 0)) as paused:

        async def find() -> tuple[str, int]:
            nonlocal looked
            looked += 1
            return place if looked == 1 else paused.getsockname()[:2]

        async with linked(find, controller) as link:
            await eventually(lambda: looked >= 3)
            assert link.is_connected
            assert controller.registered == 1


async def test_a_controller_that_answers_is_never_looked_for_again() -> None:
    controller = Controller(silent=False)
    place = await controller.server.start()
    looked = 0

    async def find() -> tuple[str, int]:
        nonlocal looked
        looked += 1
        return place

    async with linked(find, controller, heartbeat_s=PATIENT_BEAT_S):
        await asyncio.sleep(5 * PATIENT_BEAT_S)  # nothing is to happen in this time
        assert (looked, controller.registered) == (1, 1)


async def test_a_link_whose_session_is_over_registers_again() -> None:
    controller, find = await serving()
    async with linked(find, controller) as link:
        controller.has_session = False
        await eventually(lambda: controller.registered == 2 and link.is_connected)
        before = controller.beats
        await eventually(lambda: controller.beats > before + 1)
        assert controller.registered == 2, "the new session is kept"


async def test_a_process_that_its_broker_vouches_for_sends_no_heartbeats() -> None:
    controller, find = await serving()
    async with linked(find, controller) as link:
        await eventually(lambda: controller.beats > 0)
        link.vouched_for(True)
        await asyncio.sleep(2 * BEAT_S)  # the last one is on its way
        before = controller.beats
        await asyncio.sleep(10 * BEAT_S)  # nothing is to happen in this time
        assert (controller.beats, controller.registered) == (before, 1)
        link.vouched_for(False)
        await eventually(lambda: controller.beats > before + 1)


async def test_a_call_that_is_not_answered_is_followed_by_a_heartbeat() -> None:
    controller, find = await serving()
    async with linked(find, controller) as link:
        await eventually(lambda: controller.beats > 0)
        link.vouched_for(True)
        await asyncio.sleep(2 * BEAT_S)  # the last one is on its way
        before = controller.beats
        with pytest.raises(RequestTimedOut):
            await link.call("slow", [], timeout_s=0.05)
        await eventually(lambda: controller.beats > before)
        assert controller.registered == 1


async def test_a_heartbeat_is_handed_back_when_it_is_answered() -> None:
    controller, find = await serving()
    sent: list[SessionHeartbeatRequest] = []
    answered: list[SessionHeartbeatRequest] = []

    def report() -> SessionHeartbeatRequest:
        sent.append(SessionHeartbeatRequest(len(sent)))
        return sent[-1]

    link = link_to(find, report=report, on_answered=lambda request, _: answered.append(request))
    link.start()
    try:
        await eventually(lambda: len(answered) >= 3)
    finally:
        await link.stop()
        await controller.server.close()
    assert answered[:3] == sent[:3]


async def test_a_link_survives_a_search_that_fails_in_an_unforeseen_way() -> None:
    controller = Controller(silent=False)
    place = await controller.server.start()
    looked = 0

    async def find() -> tuple[str, int]:
        nonlocal looked
        looked += 1
        if looked == 1:
            raise ZeroDivisionError
        return place

    async with linked(find, controller) as link:
        assert link.is_connected


def test_states_behind_the_answer_to_a_registration_come_in_order() -> None:
    """A process that is paused while it registers finds them all in its socket at once, and none may be dropped."""
    taken: list[object] = []
    sent: list[asyncio.Future[Reply]] = []

    async def scenario() -> None:
        def serve(request: Request) -> None:
            request.reply([])
            if request.method == "register":
                sent.extend(
                    request.connection.call_nowait("partition_state", number, timeout_s=5) for number in range(5)
                )

        server = RpcServer(serve, secret=SECRET)
        place = await server.start()

        async def find() -> tuple[str, int]:
            return place

        async def register(connection: Connection) -> None:
            await connection.call("register", [], timeout_s=5)
            await asyncio.sleep(0)  # the rest is there before this goes on
            taken.append("registered")

        def handle(request: Request) -> None:
            taken.append(decode_args(request.args))
            request.reply()

        link = ControllerLink(
            find,
            name="test",
            secret=SECRET,
            register=register,
            handler=handle,
            heartbeat_s=PATIENT_BEAT_S,
            on_superseded=lambda reason: None,
        )
        link.start()
        try:
            await eventually(lambda: len(taken) >= 6)
        finally:
            await link.stop()
            await server.close()

    asyncio.run(scenario())
    assert taken == ["registered", 0, 1, 2, 3, 4]


async def test_a_call_reports_a_controller_that_is_away_before_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_link, "REACHED_WITHIN_S", 0.05)

    async def find() -> tuple[str, int]:
        raise ConnectionFailed("no controller")

    link = link_to(find)
    link.start()
    try:
        async with asyncio.timeout(5):
            with pytest.raises(NotController, match=r"within 0\.1 s"):
                await link.call("create_topic", [], timeout_s=60)
    finally:
        await link.stop()


async def test_a_known_place_is_returned_once_and_then_searched_for() -> None:
    async def search() -> tuple[str, int]:
        return "10.0.0.9", 9

    find = known_first(("10.0.0.2", 7), search)
    assert [await find() for _ in range(3)] == [("10.0.0.2", 7), ("10.0.0.9", 9), ("10.0.0.9", 9)]
    assert await known_first(None, search)() == ("10.0.0.9", 9)


async def test_a_controller_that_has_left_its_known_place_is_searched_for() -> None:
    controller, search = await serving()
    with socket.socket() as left:
        left.bind(("127.0.0.1", 0))  # no process listens there
        async with linked(known_first(left.getsockname(), search), controller) as link:
            assert link.place == await search()
