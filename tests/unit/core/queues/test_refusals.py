"""What a queue refuses for what it knows is proved by a change that it stores; its members come again by themselves."""

from __future__ import annotations

import pytest

from raylog.base.errors import InconsistentGroupProtocol, InvalidConfig, NonEmptyGroup, RaylogError, UnknownMemberId
from raylog.core.decision import Refuse
from raylog.core.outbox import Outbox
from raylog.core.queues import events as ev
from raylog.core.queues.machine import QueueMachine
from raylog.core.queues.records import QueueChange
from tests.unit.core.queues.requests import opened, reset, take


def queue(start: int = 3) -> QueueMachine:
    machine = QueueMachine(QueueChange(start, (), {}, None), {}, is_later=False)
    machine.loaded(0, 0)
    return machine


def refusal(effects: list[ev.Effect]) -> RaylogError | None:
    return next((effect.error for effect in effects if isinstance(effect, Refuse)), None)


def change(out: Outbox[ev.Effect]) -> QueueChange | None:
    return next((effect.change for effect in out.now if isinstance(effect, ev.StoreChange)), None)


REFUSED: dict[str, tuple[ev.Event, type[RaylogError]]] = {
    "settings": (opened("n", {"queue.delivery.limit": "7"}, 1), InconsistentGroupProtocol),
    "reset": (reset(0, 1, readable_end=9), NonEmptyGroup),
}


@pytest.mark.parametrize(("event", "error"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_waits_for_a_change_that_changes_nothing(event: ev.Event, error: type[RaylogError]) -> None:
    machine = queue()
    machine.step(opened("m", {}, 1))
    out = machine.step(event)
    assert change(out) == QueueChange(3, (), None, None)
    assert refusal(out.now) is None
    assert isinstance(refusal(out.after_sync), error)


def test_a_member_that_is_not_known_opens_the_queue_again_at_once() -> None:
    out = queue().step(take("m", (3, 9), 1, 1))
    assert change(out) is None
    assert isinstance(refusal(out.now), UnknownMemberId)


def test_a_queue_that_no_member_has_begun_does_not_begin_by_a_refusal() -> None:
    out = queue(-1).step(opened("m", {"no.such.setting": "7"}, 1, readable_end=9))
    assert change(out) is None
    assert isinstance(refusal(out.now), InvalidConfig)
