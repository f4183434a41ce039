"""Malformed requests on every endpoint: each is refused, and the server keeps serving."""

import asyncio
import random
import struct
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from raylog.base.errors import ConnectionFailed, InvalidRequest, RaylogError, UnknownTopicId
from raylog.protocol.broker import BROKER
from raylog.protocol.controller import CONTROLLER
from raylog.protocol.groups import GROUP_COORDINATOR
from raylog.protocol.method import AnyMethod
from raylog.protocol.replica import PRODUCE, REPLICA
from raylog.protocol.voter import VOTER_METHODS
from raylog.storage.batch.records import encode_batch
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually

SERVED = (BROKER, REPLICA, GROUP_COORDINATOR, CONTROLLER)
"""The endpoints that listen. Single messages are covered by ``tests/unit/protocol``."""
WELL_FORMED_HARM = {method.name for method in VOTER_METHODS}
"""Their odd requests may be well-formed: a promise of a high epoch ends the controller, as required."""
ODD: list[Any] = [None, True, -1, 0, 2**31, 2**63 - 1, 2**64 - 1, -(2**63), 1.5, float("nan"), "", "x", "é" * 300, b"",
                  b"\xff", [], [[]], [None], {}, {"a": 1}, [1, [2, [3]]], "0" * 32]  # fmt: skip


async def endpoints(cluster: LocalCluster, talk: Talk) -> dict[str, tuple[str, int]]:
    """Make a topic and a group, and return one endpoint of each kind."""
    await talk.create("t")
    return {
        REPLICA.name: (await talk.leader("t"))[1],
        BROKER.name: cluster.broker_servers[2].endpoint,
        GROUP_COORDINATOR.name: await talk.coordinator("g"),
        CONTROLLER.name: cluster.running().endpoint,
    }


async def all_is_well(cluster: LocalCluster, talk: Talk) -> None:
    """Everything still works."""
    end = await talk.produce("t", b"still here")
    assert (await talk.fetch("t", end)).records == [(end, b"still here")]
    await talk.call(await talk.coordinator("g"), "offset_fetch", ["g", None])
    name = f"more-{random.randrange(10**9)}"
    await talk.broker("create_topic", [name, 1, 3, None, {}, False, 5000])
    await talk.whole(name)
    assert cluster.fatal == []


@in_cluster()
async def test_malformed_arguments_of_every_method_are_refused(cluster: LocalCluster, talk: Talk) -> None:
    chance = random.Random(1)
    places = await endpoints(cluster, talk)
    for endpoint in SERVED:
        for method in [*endpoint.methods, "no such method", ""]:
            shapes: list[Any] = [None, {}, "text", 7, [], *([odd] for odd in ODD)]
            if method not in WELL_FORMED_HARM:
                shapes += [[chance.choice(ODD) for _ in range(count)] for count in range(1, 10) for _ in range(4)]
            for args in shapes:
                await quietly(talk, places[endpoint.name], endpoint.methods.get(method), method, args)
    await all_is_well(cluster, talk)


@in_cluster()
async def test_a_leader_takes_any_numbers_behind_the_right_partition(cluster: LocalCluster, talk: Talk) -> None:
    chance = random.Random(5)
    places = await endpoints(cluster, talk)
    (topic_id, partition, epoch), _ = await talk.leader("t")
    numbers = [-(2**63), -1, 0, 2**31, 2**63 - 1, epoch]
    for method in REPLICA.methods.values():
        fields = msgspec.structs.fields(method.request)
        if fields:
            for _ in range(40):
                args = [topic_id, partition, *(chance.choice(numbers) for _ in fields[2:])]
                if method is not PRODUCE or args[3] != 0:  # acks=0 has no answer
                    await quietly(talk, places[REPLICA.name], method, method.name, args)
    await all_is_well(cluster, talk)


async def quietly(talk: Talk, endpoint: tuple[str, int], stated: AnyMethod | None, method: str, args: Any) -> None:
    """Send a request; any answer will do, unless it reports a defect of the server."""
    connection = await talk.connection(endpoint)
    try:
        await asyncio.wait_for(talk.call(endpoint, method, args), 0.2 if stated is not None and stated.waits else 9)
    except RaylogError as refusal:
        if refusal.code == -1:
            raise AssertionError(f"{method} {args!r:.200} was not refused at the door") from refusal
    except (TimeoutError, ConnectionFailed):
        connection.close("parked, or taken for a peer that has moved")


@in_cluster()
async def test_produce_refuses_bytes_that_are_no_batches(cluster: LocalCluster, talk: Talk) -> None:
    chance = random.Random(2)
    await endpoints(cluster, talk)
    head, endpoint = await talk.leader("t")
    good = encode_batch(None, [b"value"], [1000])
    bad = [b"", b"\0", good[:-1], good[:61], good[:60], good[1:], good + b"\0", good + good[:30], bytes(200)]
    bad += [chance.randbytes(chance.randrange(1, 300)) for _ in range(50)]
    for _ in range(200):
        position = chance.randrange(8, len(good))  # the leader rewrites the first eight bytes
        if 12 <= position < 16:
            continue  # and those of the leader epoch
        flipped = bytearray(good)
        flipped[position] ^= 1 << chance.randrange(8)
        bad.append(bytes(flipped))
    for payload in bad:
        for acks in (-1, 1):
            await refused(talk.call(endpoint, "produce", [*head, acks, 1000], payload), RaylogError)
        (await talk.connection(endpoint)).notify("produce", [*head, 0, 1000], payload)
    assert await talk.list_offsets("t", -1) == (0, -1), "none of it was stored"
    await refused(talk.call(endpoint, "produce", [*head, 7, 1000], good), InvalidRequest)
    await all_is_well(cluster, talk)


@in_cluster()
async def test_a_wrong_topic_id_or_partition_is_refused(cluster: LocalCluster, talk: Talk) -> None:
    places = await endpoints(cluster, talk)
    head, _ = await talk.leader("t")
    for wrong in (["f" * 32, 0], [head[0], 1], [head[0], -1], ["", 0]):
        await refused(talk.call(places[REPLICA.name], "fetch", [*wrong, -1, 0, 100, 1, 0, 0]), UnknownTopicId)
        await refused(talk.produce_at(places[REPLICA.name], [*wrong, -1], b"a"), UnknownTopicId)
        await refused(talk.call(places[REPLICA.name], "list_offsets", [*wrong, -1, -1]), UnknownTopicId)
    await all_is_well(cluster, talk)


@in_cluster()
async def test_random_bytes_on_every_endpoint_end_nothing_but_their_connection(
    cluster: LocalCluster, talk: Talk
) -> None:
    chance = random.Random(3)
    places = await endpoints(cluster, talk)
    for endpoint in places.values():
        for size in (1, 7, 100, 5000):
            reader, writer = await asyncio.open_connection(*endpoint)
            writer.write(chance.randbytes(size))
            writer.close()
            await asyncio.wait_for(reader.read(10_000), 10)
            await writer.wait_closed()
    await all_is_well(cluster, talk)


@in_cluster()
async def test_random_frames_of_a_proved_peer_end_nothing_but_its_connection(cluster: LocalCluster, talk: Talk) -> None:
    chance = random.Random(4)
    places = await endpoints(cluster, talk)
    for endpoint in places.values():
        for body in (
            chance.randbytes(50),
            struct.pack(">I", 20) + chance.randbytes(20),
            _frame(msgspec.msgpack.encode([0, 1, "fetch"])),
            _frame(msgspec.msgpack.encode([9, 9, 9, 9])),
            _frame(msgspec.msgpack.encode([0, "one", 5, {}])),
        ):
            connection = await talk.connection(endpoint)
            assert connection._transport is not None
            connection._transport.write(struct.pack(">I", len(body)) + body)
            connection.call_nowait("metadata", [None], timeout_s=5).add_done_callback(lambda done: done.exception())
            await eventually(lambda item=connection: item.is_closed, 5, f"{body!r} on {endpoint}")  # type: ignore[misc]
    await all_is_well(cluster, talk)


def _frame(header: bytes) -> bytes:
    return struct.pack(">I", len(header)) + header


@in_cluster()
async def test_a_thousand_silent_connections_neither_stop_a_leader_nor_block_it(
    cluster: LocalCluster, talk: Talk
) -> None:
    """They took all descriptors, a failed sync ended the leader's process, and its successor met the same."""
    places = await endpoints(cluster, talk)
    host, port = places[REPLICA.name]
    leader = (await talk.partition("t")).leader
    life = cluster.replica("t", 0, leader).status()["incarnation"]
    async with AsyncExitStack() as stack:
        for _ in range(1000):
            _, writer = await asyncio.open_connection(host, port)
            stack.callback(writer.close)
        for number in range(20):
            end = await talk.produce("t", b"%d" % number)
            assert (await talk.fetch("t", end)).records == [(end, b"%d" % number)]
        end = await talk.produce("t", b"last")
        newcomer = await stack.enter_async_context(Talk(cluster))
        newcomer.topic_ids.update(talk.topic_ids)
        assert (await newcomer.fetch("t", end)).records == [(end, b"last")]
        assert cluster.replica("t", 0, leader).status()["incarnation"] == life
    await all_is_well(cluster, talk)
