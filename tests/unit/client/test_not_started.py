"""Clients of asyncio before their start: a public call needs no cluster, or says that the client was not started."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import raylog
from raylog import TopicPartition
from raylog.core.errors import ClientClosed

TIMEOUT_S = 5.0

HERE = TopicPartition("t", 0)
OPTIONS: dict[str, Any] = {"bootstrap": "127.0.0.1:1", "secret": bytes(32).hex()}
ARGUMENTS: dict[str, Any] = {
    "partition": HERE,
    "partitions": [HERE],
    "offset": 1,
    "offsets": {HERE: 1},
    "timestamps": {HERE: 1},
    "epochs": {HERE: 0},
    "before": {HERE: 1},
    "reassignments": {HERE: [1]},
    "topics": ["t"],
    "value": b"v",
    "values": [b"v"],
    "handler": lambda message: None,
    "number": 1,
    "producer_id": 1,
    "transactional_ids": ["x"],
    "broker": 1,
    "total": 3,
}
"""By the parameter's name; every other one is text."""
MORE: dict[str, dict[str, Any]] = {
    "AsyncProducer.send_offsets_to_transaction": {
        "offsets": {HERE: 1},
        "group_metadata": raylog.ConsumerGroupMetadata("g"),
    },
    "AsyncAdmin.cancel_scheduled": {"topic": "t", "schedule_id": "s"},
    "AsyncAdmin.deliver_now": {"topic": "t", "schedule_id": "s"},
    "AsyncAdmin.reschedule": {"topic": "t", "schedule_id": "s", "delay": 1},
    "AsyncAdmin.create_token": {"read": ["t"]},
    "AsyncAdmin.remove_members": {"group_id": "g", "all_members": True},
    "AsyncAdmin.reset_offsets": {"group_id": "g", "to": "earliest"},
    "AsyncAdmin.describe_producers": {"partitions": [HERE]},
}
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
        for name, _ in inspect.getmembers(getattr(raylog, kind), inspect.isfunction)
        if not name.startswith("_")
        and name not in local
        and not (kind == "AsyncHalfMessageProducer" and "transaction" in name)  # it has none
    ]


def arguments(call: Callable[..., Any]) -> dict[str, Any]:
    needed = [each for each in inspect.signature(call).parameters.values() if each.default is each.empty]
    named = [each.name for each in needed if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return {each: ARGUMENTS.get(each, "t") for each in named}


async def called(client: object, kind: str, name: str) -> None:
    call = getattr(client, name)
    outcome = call(**(MORE.get(f"{kind}.{name}") or arguments(call)))
    await (outcome.__aenter__() if hasattr(outcome, "__aenter__") else outcome)


@pytest.mark.parametrize(("kind", "name"), calls(), ids=lambda each: each)
async def test_a_call_before_the_start_says_what_to_do(kind: str, name: str) -> None:
    with pytest.raises(ClientClosed, match=f"This {kind} is not started: `await start\\(\\)`, or use `async with`"):
        await asyncio.wait_for(called(made(kind), kind, name), TIMEOUT_S)


@pytest.mark.parametrize("kind", LOCAL)
async def test_what_was_not_started_is_stopped_all_the_same(kind: str) -> None:
    client = made(kind)
    await client.stop()
    await client.stop()
