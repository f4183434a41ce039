"""Arguments for every public call of the clients, for tests that walk through all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import raylog
from raylog import TopicPartition

HERE = TopicPartition("t", 0)
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
_MORE: dict[str, dict[str, Any]] = {
    "send_offsets_to_transaction": {
        "offsets": {HERE: 1},
        "group_metadata": raylog.ConsumerGroupMetadata("g"),
    },
    "cancel_scheduled": {"topic": "t", "schedule_id": "s"},
    "deliver_now": {"topic": "t", "schedule_id": "s"},
    "reschedule": {"topic": "t", "schedule_id": "s", "delay": 1},
    "create_token": {"read": ["t"]},
    "remove_members": {"group_id": "g", "all_members": True},
    "reset_offsets": {"group_id": "g", "to": "earliest"},
    "describe_producers": {"partitions": [HERE]},
}


def public_calls(kind: type) -> list[str]:
    """The names of a class's public methods."""
    return [name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")]


def arguments(name: str, call: Callable[..., Any]) -> dict[str, Any]:
    """What a public method may be called with: the topic, the group and every name are `t`."""
    if name in _MORE:
        return _MORE[name]
    needed = [each for each in inspect.signature(call).parameters.values() if each.default is each.empty]
    named = [each.name for each in needed if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return {each: ARGUMENTS.get(each, "t") for each in named}
