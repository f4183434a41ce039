"""What comes of a task of a role that fails: one that answers a request refuses it, any other ends the process."""

from __future__ import annotations

import asyncio
from typing import Any

from raylog.actors.answering import answering
from raylog.actors.roles.host import RoleHost
from raylog.base.ids import TopicPartition
from raylog.base.invariants import InvariantBroken
from tests.waiting import eventually


class Request:
    """A request, and its refusal."""

    method = "schedule"

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        self.error = error


def host(failures: list[str]) -> RoleHost:
    nothing: Any = None
    return RoleHost(
        partition=TopicPartition("t", 0),
        topic_id="i",
        broker=1,
        leader_epoch=1,
        log=nothing,
        config=dict,
        trusted_ms=nothing,
        receive=nothing,
        controller=nothing,
        targets=nothing,
        on_failed=failures.append,
    )


async def fails(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def test_a_defect_in_one_request_is_its_answer() -> None:
    failures: list[str] = []
    request = Request()
    host(failures).spawn(answering(fails(ValueError("4,301 digits")), request), "request")
    await eventually(lambda: request.error is not None)
    assert isinstance(request.error, ValueError)
    assert failures == []


async def test_a_broken_invariant_and_a_task_of_its_own_end_the_process() -> None:
    failures: list[str] = []
    request = Request()
    host(failures).spawn(answering(fails(InvariantBroken("two leaders")), request), "request")
    await eventually(lambda: len(failures) == 1)
    host(failures).spawn(fails(ValueError("x")), "life")
    await eventually(lambda: len(failures) == 2)
    assert isinstance(request.error, InvariantBroken)
