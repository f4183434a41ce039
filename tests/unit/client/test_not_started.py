"""Clients of asyncio before their start: a public call needs no cluster, or says that the client was not started."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import raylog
from raylog.base.errors import ClientClosed
from tests.unit.client.public_calls import HERE, arguments, public_calls

TIMEOUT_S = 5.0

OPTIONS: dict[str, Any] = {"bootstrap": "127.0.0.1:1", "secret": bytes(32).hex()}
LOCAL = {
    "AsyncProducer": {"metrics", "stop", "start"},
    "AsyncHalfMessageProducer": {"metrics", "stop", "start"},
    "AsyncConsumer": {
        "assign", "assignment", "current_lag", "group_metadata", "highwater", "metrics", "pause", "paused", "resume",
        "seek", "start", "stop", "subscribe", "subscription", "topic_id", "unsubscribe",
    },
    "AsyncQueueConsumer": {"end", "start", "stop"},
    "AsyncAdmin": {"start", "stop"},
}  # fmt: skip
"""What needs no cluster: it works before the start, or does nothing."""


def made(kind: str) -> Any:
    match kind:
        case "AsyncProducer":
            return raylog.AsyncProducer(transactional_id="x", **OPTIONS)
        case "AsyncHalfMessageProducer":
            return raylog.AsyncHalfMessageProducer("g", lambda half: None, **OPTIONS)
        case "AsyncConsumer":
            consumer = raylog.AsyncConsumer(group_id="g", **OPTIONS)
            consumer.assign([HERE])
            return consumer
        case "AsyncQueueConsumer":
            return raylog.AsyncQueueConsumer("t", group_id="g", **OPTIONS)
        case _:
            return raylog.AsyncAdmin(**OPTIONS)


def calls() -> list[tuple[str, str]]:
    return [
        (kind, name)
        for kind, local in LOCAL.items()
        for name in public_calls(getattr(raylog, kind))
        if name not in local and not (kind == "AsyncHalfMessageProducer" and "transaction" in name)  # it has none
    ]


async def called(client: object, name: str) -> None:
    call = getattr(client, name)
    outcome = call(**arguments(name, call))
    await (outcome.__aenter__() if hasattr(outcome, "__aenter__") else outcome)


@pytest.mark.parametrize(("kind", "name"), calls(), ids=lambda each: each)
async def test_a_call_before_the_start_says_what_to_do(kind: str, name: str) -> None:
    with pytest.raises(ClientClosed, match=f"This {kind} is not started: `await start\\(\\)`, or use `async with`"):
        await asyncio.wait_for(called(made(kind), name), TIMEOUT_S)


@pytest.mark.parametrize("kind", LOCAL)
async def test_what_was_not_started_is_stopped_all_the_same(kind: str) -> None:
    client = made(kind)
    await client.stop()
    await client.stop()
