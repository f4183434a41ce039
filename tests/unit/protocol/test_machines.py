"""Well-typed requests of any content, fed to the machines: each is answered or refused, as its page states."""

from __future__ import annotations

import random
from collections.abc import Container, Mapping
from types import SimpleNamespace
from typing import Annotated, Any, cast, get_args, get_origin

import msgspec
import pytest

from raylog.actors.metadata.voter import order_of
from raylog.actors.received import received
from raylog.base.errors import RaylogError
from raylog.core.controller.events import ControllerRequest
from raylog.core.decision import Refuse, Reply
from raylog.core.groups.events import GroupMessage
from raylog.protocol.controller import CONTROLLER, SessionHeartbeatRequest
from raylog.protocol.groups import GROUP_COORDINATOR
from raylog.protocol.message import Message
from raylog.protocol.method import AnyMethod
from raylog.protocol.transactions import TRANSACTION_COORDINATOR, TRANSACTION_METRICS
from raylog.protocol.voter import VOTER_METHODS
from tests.unit.core.controller.bench import T0, Bench
from tests.unit.core.controller.bench import received as taken
from tests.unit.core.groups.context import GROUP, Groups
from tests.unit.core.transactions.context import NAME, Transactions
from tests.unit.protocol.samples import inner

ROUNDS = 30
WHOLE = [-(2**63), -1, 0, 1, 2, 3, 7, 2**31, 2**63 - 1]


def of_any_content(kind: Any, chance: random.Random, texts: list[str]) -> Any:
    """Return a message of the stated types, made of values that mean something and values that do not."""
    if type(None) in get_args(kind) and chance.random() < 0.3:
        return None
    whole = WHOLE
    if get_origin(kind) is Annotated:
        (bounds,) = [meta for meta in get_args(kind)[1:] if isinstance(meta, msgspec.Meta)]
        low, high = int(bounds.ge or 0), int(bounds.le or 0)
        whole = [low, high, *[number for number in WHOLE if low <= number <= high]]
    kind = inner(kind)
    pools: Mapping[Any, list[Any]] = {int: whole, str: texts, bool: [True, False], bytes: [b"", b"x"]}
    if kind in pools:
        return chance.choice(pools[kind])
    if get_origin(kind) is not None:
        *_, held = get_args(kind)
        values = [of_any_content(held, chance, texts) for _ in range(chance.randrange(3))]
        return dict(zip(texts, values, strict=False)) if issubclass(get_origin(kind), Mapping) else values
    assert issubclass(kind, Message), kind
    return [of_any_content(field.type, chance, texts) for field in msgspec.structs.fields(kind)]


def with_builder(methods: Mapping[str, AnyMethod], builders: Container[type[Message]]) -> list[AnyMethod]:
    return [method for method in methods.values() if method.request in builders]


@pytest.mark.parametrize(
    "method", with_builder(CONTROLLER.methods, get_args(ControllerRequest)), ids=lambda it: it.name
)
def test_a_controller_takes_any_content(method: AnyMethod) -> None:
    chance = random.Random(method.name)
    for _ in range(ROUNDS):
        bench = Bench().start()
        for broker in (1, 2):
            bench.broker(broker)
        bench.create()
        for broker in (1, 2):
            bench.replica(broker)
        texts = ["flights", bench.topic_id(), "group", "retention.ms", "", "x", "é" * 300]
        request = CONTROLLER.read_request(method.name, of_any_content(method.request, chance, texts))
        session = chance.choice([bench.sessions["broker", 1], bench.sessions[T0, 1], 999])
        outbox = bench.machine.step(taken(request, bench.now, 1_000, session))
        outcomes = [effect for effect in [*outbox.now, *outbox.after_sync] if isinstance(effect, (Reply, Refuse))]
        answered = [] if isinstance(request, SessionHeartbeatRequest) else [1_000]  # the shell answers heartbeats
        assert [effect.request for effect in outcomes] == answered, request
        for effect in outcomes:
            if isinstance(effect, Reply):
                method.read_reply(effect.result)


@pytest.mark.parametrize(
    "method",
    [each for each in GROUP_COORDINATOR.methods.values() if each.request in get_args(GroupMessage)],
    ids=lambda it: it.name,
)
def test_a_group_coordinator_takes_any_content(method: AnyMethod) -> None:
    chance = random.Random(method.name)
    for _ in range(ROUNDS):
        groups = Groups()
        members = groups.stable()
        texts = [GROUP, *members, "consumer", "range", "", "x", "é" * 300]
        args = of_any_content(method.request, chance, texts)
        number = groups.request = groups.request + 1
        request = cast(Any, SimpleNamespace(method=method.name, args=args, peer_host="::1", grant=None))
        groups.step(received(GROUP_COORDINATOR, request, number, groups.now_ms))
        groups.tick(60_000)
        if number in groups.replies:
            method.read_reply(groups.replies[number])
        else:
            assert number in groups.refusals, args


@pytest.mark.parametrize(
    "method",
    [method for method in TRANSACTION_COORDINATOR.methods.values() if method is not TRANSACTION_METRICS],
    ids=lambda it: it.name,
)
def test_a_transaction_coordinator_takes_any_content(method: AnyMethod) -> None:
    chance = random.Random(method.name)
    for _ in range(ROUNDS):
        txns = Transactions()
        txns.begun()
        texts = [NAME, "Ongoing", "workers", "", "x", "é" * 300]
        args = of_any_content(method.request, chance, texts)
        number = txns.request = txns.request + 1
        request = cast(Any, SimpleNamespace(method=method.name, args=args, peer_host="::1", grant=None))
        txns.step(received(TRANSACTION_COORDINATOR, request, number, txns.now_ms))
        txns.write_markers()
        txns.tick(60_000)
        if number in txns.replies:
            method.read_reply(txns.replies[number])
        else:
            assert number in txns.refusals, args


@pytest.mark.parametrize("method", VOTER_METHODS, ids=lambda it: it.name)
def test_a_voter_refuses_payloads_that_are_none(method: AnyMethod) -> None:
    chance = random.Random(method.name)
    for _ in range(ROUNDS):
        args = method.read_request(of_any_content(method.request, chance, ["", "x"]))
        payload = memoryview(bytearray(chance.randbytes(chance.randrange(200))))
        try:
            order = order_of(args, payload, 5)
        except RaylogError:
            continue
        assert order.event.request == 5
