"""What a role states of what is stored is proved by a row first: a leader that was deposed does not know it all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.forwarding.forwarder_states import ForwarderStateRole as Forwarding
from raylog.actors.naming import FORWARDING_TOPIC, SHARE_STATE_TOPIC
from raylog.actors.queues.share_states import ShareStateRole as ShareState
from raylog.actors.roles.role import Role
from raylog.actors.scheduling import halves as scheduling
from raylog.actors.scheduling.role import SchedulerRole
from raylog.base.errors import RaylogError
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.protocol import forwarding as fwd
from raylog.protocol import halves, queues
from raylog.protocol import scheduling as sched
from raylog.protocol.message import Message
from tests.unit.actors.coordinators.incarnations import SentRequest
from tests.unit.actors.roles.leading import LeadingHost
from tests.waiting import eventually

DUE_MS = 1_800_000_000_000


class Led:
    """A role on its log."""

    def __init__(self, host: LeadingHost, role: Role) -> None:
        self.host = host
        self.role = role

    def send(self, kind: type[Message], *fields: object) -> SentRequest:
        """Send a request to the leader that its sender knows of."""
        make: Callable[..., Message] = kind
        request = SentRequest(kind.__name__, make("i", 0, self.host.leader_epoch, *fields))
        taken: Any = request
        self.role.receive(taken, request.args)
        return request

    async def answer(self, kind: type[Message], *fields: object) -> Any:
        """Return the answer to a request."""
        request = self.send(kind, *fields)
        await eventually(lambda: bool(request.answers))
        (answer,) = request.answers
        return answer


TOPICS: dict[type[Role], str] = {
    Forwarding: FORWARDING_TOPIC,
    SchedulerRole: SCHEDULED_TOPIC,
    ShareState: SHARE_STATE_TOPIC,
}
BEFORE: dict[type[Role], list[tuple[Any, ...]]] = {
    Forwarding: [(fwd.SaveForwarderRequest, "expiry", 5, b"note")],
    SchedulerRole: [(sched.DescribeSchedulerRequest,)],
    ShareState: [(queues.ReadShareStateRequest, "g", "jobs", "t", 0, 3, 1)],
}
CASES: dict[str, tuple[type[Role], type[Message], tuple[object, ...]]] = {
    "load": (Forwarding, fwd.LoadForwarderRequest, ("expiry", 5)),
    "load_fenced": (Forwarding, fwd.LoadForwarderRequest, ("expiry", 4)),
    "save_fenced": (Forwarding, fwd.SaveForwarderRequest, ("expiry", 4, b"note")),
    "redrives": (Forwarding, fwd.ListRedrivesRequest, ("",)),
    "cancel_redrive": (Forwarding, fwd.CancelRedriveRequest, (7,)),
    "cancel_scheduled": (SchedulerRole, sched.CancelScheduledRequest, ([DUE_MS], [3])),
    "move_scheduled": (SchedulerRole, sched.MoveScheduledRequest, (DUE_MS, 3, DUE_MS)),
    "list_scheduled": (SchedulerRole, sched.ListScheduledRequest, ("", -1, -1, DUE_MS, 10)),
    "find_scheduled": (SchedulerRole, sched.FindScheduledRequest, ("t", "id")),
    "list_halves": (SchedulerRole, halves.ListHalvesRequest, ("", "", "", 10)),
    "share_states": (ShareState, queues.ListShareStatesRequest, ("",)),
    "delete_unknown": (ShareState, queues.DeleteShareStateRequest, ("h", "t", 0)),
    "write_fenced": (ShareState, queues.WriteShareStateRequest, ("g", "t", 0, 3, 7, 1, [0, [], None, None, False])),
    "write_number": (ShareState, queues.WriteShareStateRequest, ("g", "t", 0, 3, 1, 9, [0, [], None, None, False])),
}


@asynccontextmanager
async def leading(kind: type[Role], folder: Path) -> AsyncIterator[Led]:
    """A role that has loaded its log, and has stored something."""
    host = LeadingHost(folder / "log", TOPICS[kind])
    role = kind(host)
    led = Led(host, role)
    role.begin()
    try:
        for before, *fields in BEFORE[kind]:
            assert not isinstance(await led.answer(before, *fields), BaseException)
        await eventually(lambda: not role.is_busy)
        host.appended.clear()
        yield led
    finally:
        await host.end()
        await role.end()


@pytest.mark.parametrize(("role", "kind", "fields"), CASES.values(), ids=CASES)
async def test_a_leader_that_was_deposed_states_nothing(
    role: type[Role], kind: type[Message], fields: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "ANSWERED_WITHIN_S", 0.3)
    async with leading(role, tmp_path) as led:
        led.host.is_deposed = True
        answer = await led.answer(kind, *fields)
        assert isinstance(answer, RaylogError), answer
        assert answer.retriable, answer


@pytest.mark.parametrize(("role", "kind", "fields"), CASES.values(), ids=CASES)
async def test_one_that_leads_answers_with_a_row(
    role: type[Role], kind: type[Message], fields: tuple[Any, ...], tmp_path: Path
) -> None:
    async with leading(role, tmp_path) as led:
        answer = await led.answer(kind, *fields)
        assert led.host.appended == [1], answer


FLOODS: list[tuple[type[Role], type[Message], tuple[object, ...]]] = [
    CASES[name] for name in ("cancel_redrive", "cancel_scheduled", "delete_unknown")
]


@pytest.mark.parametrize(("role", "kind", "fields"), FLOODS)
async def test_a_flood_of_questions_is_no_flood_of_rows(
    role: type[Role], kind: type[Message], fields: tuple[Any, ...], tmp_path: Path
) -> None:
    async with leading(role, tmp_path) as led:
        sent = [led.send(kind, *fields) for _ in range(200)]
        await eventually(lambda: all(each.answers for each in sent))
        assert not any(isinstance(each.answers[0], BaseException) for each in sent)
        assert sum(led.host.appended) <= 3
