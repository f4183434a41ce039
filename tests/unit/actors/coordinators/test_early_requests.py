"""Requests that come while a coordinator loads its log: they wait for a while, and are answered once."""

from typing import Any, cast

import pytest

from raylog.actors.coordinators import early_requests
from raylog.actors.coordinators.early_requests import HOLD_MS, EarlyRequests
from raylog.core.errors import CoordinatorLoadInProgress
from raylog.rpc import Request


class SentRequest:
    """A request that keeps its refusals."""

    def __init__(self) -> None:
        self.refusals: list[BaseException] = []
        self.is_deserted = False

    def fail(self, error: BaseException) -> None:
        self.refusals.append(error)


def hold(early: EarlyRequests, now_ms: int = 0) -> SentRequest:
    request = SentRequest()
    early.hold(cast(Request, request), now_ms)
    return request


def test_requests_are_handed_over_in_the_order_of_arrival_once() -> None:
    early = EarlyRequests()
    received: list[Any] = []
    requests = [hold(early), hold(early), hold(early)]
    requests[1].is_deserted = True
    early.hand_over(received.append)
    early.hand_over(received.append)
    assert received == [requests[0], requests[2]]


def test_a_request_that_waits_for_too_long_is_refused() -> None:
    early = EarlyRequests()
    first, second = hold(early, 0), hold(early, 1)
    early.expire(HOLD_MS)
    assert [type(error) for error in first.refusals] == [CoordinatorLoadInProgress]
    assert second.refusals == []


def test_more_than_the_most_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_requests, "HELD_MAX", 1)
    early = EarlyRequests()
    assert hold(early).refusals == []
    assert hold(early).refusals
