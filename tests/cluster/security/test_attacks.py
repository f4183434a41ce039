"""Attacks on a real cluster: no process ends or grows beyond its budget, others go on, the node counts as healthy.

Each is a thing that a tenant with one right on one topic can do, or a stranger. What the process beside it sees is
judged by ``under_attack.py``.
"""

import asyncio
import os
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from raylog.base.errors import RaylogError
from raylog.rpc import Connection
from raylog.rpc.framing import NOTIFICATION, REQUEST
from raylog.storage.batch.compression import compress
from raylog.storage.batch.header import MAGIC_COLUMNS, BatchMeta, header_before
from raylog.storage.batch.records import encode_batch
from tests.cluster.security.under_attack import Attacked, raw_request, send_raw

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
REQUESTS_MIB = 256
"""The budget of a process for requests and incomplete frames."""
ANSWERS_MIB = 256 + 64
"""For answers that are not read."""
MIB = 2**20
encode = msgspec.msgpack.encode


@pytest.fixture(scope="module")
def attacked(shared_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with Attacked.running(tmp_path_factory.mktemp("data")) as found:
        yield found


async def refused(*calls: Any) -> list[str]:
    """The names of the errors of calls; those that were taken are left out."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, RaylogError):
            raise outcome
    return [type(outcome).__name__ for outcome in outcomes if isinstance(outcome, RaylogError)]


def test_frames_are_announced_and_never_sent(attacked: Attacked) -> None:
    async def attack() -> None:
        place = await attacked.leader("t")
        mine = attacked.token(place, writes=True)
        connections = [await attacked.dial(place.endpoint, mine) for _ in range(30)]
        for connection in connections:
            await send_raw(connection, struct.pack(">II", 900_000, 100) + b"xxxx")
        others = [await attacked.dial(place.endpoint) for _ in range(30)]
        for connection in others:
            await send_raw(connection, struct.pack(">II", 100 * MIB, 100) + b"xxxx")
        await asyncio.sleep(1.0)

    with attacked.watched():
        attacked.run(attack())


def test_frames_stop_halfway(attacked: Attacked) -> None:
    """60 frames of 20 MiB each, of which half comes: 600 MiB."""

    async def attack() -> None:
        place = await attacked.leader("t")
        connections = [await attacked.dial(place.endpoint) for _ in range(60)]
        half = struct.pack(">II", 20 * MIB, 100) + bytes(10 * MIB)
        await asyncio.gather(*(send_raw(connection, half) for connection in connections))
        await asyncio.sleep(0.5)

    with attacked.watched(growth_mib=REQUESTS_MIB):
        attacked.run(attack())


def test_arguments_have_fields_without_end(attacked: Attacked) -> None:
    async def attack() -> None:
        place = await attacked.leader("t")
        connections = [await attacked.dial(place.endpoint) for _ in range(3)]
        fields = [*place.head, 0, 1_000, 1, 600_000, 0]
        count = 1_000_000
        args = bytes([0x90 | 9]) + b"".join(map(encode, fields)) + b"\xdd" + struct.pack(">I", count) + b"\x90" * count
        for number in range(20):
            for connection in connections:
                await send_raw(connection, raw_request(REQUEST, number + 1, "fetch", args))
        nested = b"\x91" * 60_000 + b"\x90"
        for method in ("fetch", "queue_open", "no such method", "metadata"):
            await send_raw(connections[0], raw_request(REQUEST, 99, method, nested))
        await asyncio.sleep(0.5)

    with attacked.watched(growth_mib=REQUESTS_MIB):
        attacked.run(attack())


def test_fetches_come_as_notifications(attacked: Attacked) -> None:
    async def attack() -> None:
        place = await attacked.leader("t")
        connection = await attacked.dial(place.endpoint, attacked.token(place))
        args = encode([*place.head, 0, 100_000_000, 1, 600_000, 0])
        await send_raw(connection, raw_request(NOTIFICATION, 0, "fetch", args) * 100_000)
        async with asyncio.timeout(10):
            await connection.wait_closed()

    with attacked.watched():
        attacked.run(attack())


def test_requests_wait_by_the_ten_thousand(attacked: Attacked) -> None:
    async def attack() -> None:
        place = await attacked.leader("t")
        end = (await (await attacked.dial(place.endpoint)).call("list_offsets", [*place.head, -1], timeout_s=20)).args[
            0
        ]
        connections = [await attacked.dial(place.endpoint, attacked.token(place)) for _ in range(10)]
        args = encode([*place.head, end, 1_000, 1, 600_000, 0])
        for connection in connections:
            await send_raw(connection, b"".join(raw_request(REQUEST, each, "fetch", args) for each in range(1, 20_000)))
        await asyncio.sleep(3.0)  # until all of them wait

    with attacked.watched(growth_mib=REQUESTS_MIB):
        attacked.run(attack())


def test_methods_have_names_of_a_megabyte(attacked: Attacked) -> None:
    async def attack() -> None:
        place = await attacked.leader("t")
        for endpoint in (place.endpoint, attacked.broker):
            for secret, size in ((attacked.token(place), 50_000), (None, 1_000_000)):
                connection = await attacked.dial(endpoint, secret)
                for number in range(100):
                    await send_raw(connection, raw_request(REQUEST, number + 1, f"m{number:04}" + "x" * size, b"\x90"))

    with attacked.watched():
        attacked.run(attack())
        with urllib.request.urlopen(f"http://127.0.0.1:{attacked.metrics_port}/metrics", timeout=20) as page:
            assert len(page.read()) < MIB


def test_metadata_repeat_a_name(attacked: Attacked) -> None:
    async def attack() -> None:
        place = await attacked.leader("t")
        connection = await attacked.dial(attacked.broker, attacked.token(place))
        await refused(*(connection.call("metadata", [["t"] * 10_000], timeout_s=30) for _ in range(20)))
        other = await attacked.dial(attacked.broker)
        await refused(*(other.call("metadata", [["t"] * 200_000], timeout_s=30) for _ in range(5)))
        await refused(*(other.call("metadata", [[f"n{n}" for n in range(100_000)]], timeout_s=30) for _ in range(5)))

    with attacked.watched():
        attacked.run(attack())


def bomb(size: int, code: int = 4) -> bytes:
    body = compress(code, encode([None, [b"k"], [bytes(size)], None]))
    now_ms = int(time.time() * 1000)
    return (
        header_before(
            body,
            magic=MAGIC_COLUMNS,
            count=1,
            first_timestamp=now_ms,
            max_timestamp=now_ms,
            compression=code,
            meta=BatchMeta(),
        )
        + body
    )


def test_batches_decompress_to_gigabytes(attacked: Attacked) -> None:
    import raylog

    with raylog.Admin(**attacked.where) as admin:
        for topic, config in (
            ("gzipped", {"compression.type": "gzip"}),
            ("compacted", {"cleanup.policy": "compact"}),
            ("plain", {}),
        ):
            admin.create_topic(topic, partitions=1, replication_factor=1, config=config)

    async def attack(topic: str) -> None:
        place = await attacked.leader(topic)
        connection = await attacked.dial(place.endpoint, attacked.token(place, reads=False, writes=True))
        payload = bomb(120 * MIB) * 20
        await refused(*(connection.call("produce", [*place.head, -1, 20_000], payload, timeout_s=60) for _ in range(3)))

    async def late(topic: str) -> None:
        place = await attacked.leader(topic)
        began_s = time.monotonic()
        await (await attacked.dial(place.endpoint)).call("list_offsets", [*place.head, -1], timeout_s=30)
        assert time.monotonic() - began_s < 5

    for topic in ("gzipped", "compacted", "plain"):
        with attacked.watched(growth_mib=160):  # one batch of at most 128 MiB at a time, in a thread

            async def both(topic: str = topic) -> None:
                await asyncio.gather(attack(topic), late(topic))

            attacked.run(both())


def test_producers_invent_ids(attacked: Attacked) -> None:
    async def attack() -> None:
        place = await attacked.leader("t")
        connection = await attacked.dial(place.endpoint, attacked.token(place, writes=True))
        now_ms = int(time.time() * 1000)
        for base in (2**62, 10**6):
            for first in range(0, 60_000, 2_000):
                metas = (BatchMeta(base + number, 0, 0) for number in range(first, first + 2_000))
                payload = b"".join(encode_batch(None, [b"x"], [now_ms], None, meta) for meta in metas)
                await refused(connection.call("produce", [*place.head, -1, 20_000], payload, timeout_s=60))

    with attacked.watched():
        attacked.run(attack())


def test_answers_are_not_read(attacked: Attacked) -> None:
    async def attack() -> None:
        place = await attacked.leader("t")
        writer = await attacked.dial(place.endpoint)
        for _ in range(40):
            batch = encode_batch(None, [os.urandom(900_000)], [int(time.time() * 1000)])
            await writer.call("produce", [*place.head, -1, 20_000], batch, timeout_s=60)
        start = (await writer.call("list_offsets", [*place.head, -2], timeout_s=20)).args[0]
        token = attacked.token(place)
        connections = [await attacked.dial(place.endpoint, token) for _ in range(60)]
        args = encode([*place.head, start, 64 * MIB, 1, 100, 0])
        for connection in connections:
            assert connection._transport is not None
            connection._transport.pause_reading()
            await send_raw(connection, b"".join(raw_request(REQUEST, each, "fetch", args) for each in range(1, 20)))
        await asyncio.sleep(2.0)

    with attacked.watched(growth_mib=ANSWERS_MIB):
        attacked.run(attack())


def test_a_thousand_connections_are_idle(attacked: Attacked) -> None:
    async def attack() -> None:
        place = await attacked.leader("t")
        token = attacked.token(place)
        connections: list[Connection] = []
        for _ in range(20):
            connections += await asyncio.gather(*(attacked.dial(place.endpoint, token) for _ in range(50)))

    with attacked.watched():
        attacked.run(attack())


def test_strangers_fill_the_page_of_health(attacked: Attacked) -> None:
    with attacked.watched():
        until_s = time.monotonic() + 3
        while time.monotonic() < until_s:
            held = []
            for _ in range(80):
                stranger = socket.create_connection(("127.0.0.1", attacked.metrics_port), timeout=5)
                stranger.sendall(b"GET /")
                held.append(stranger)
            time.sleep(0.3)
            for stranger in held:
                stranger.close()


def test_strangers_shake_hands_at_random(attacked: Attacked) -> None:
    async def attack() -> None:
        place = await attacked.leader("t")

        async def one(endpoint: tuple[str, int], data: bytes) -> None:
            try:
                async with asyncio.timeout(10):
                    reader, writer = await asyncio.open_connection(*endpoint)
                    writer.write(data)
                    await reader.read(2_000)
                    writer.close()
            except (OSError, TimeoutError):
                pass

        for endpoint in (place.endpoint, attacked.broker):
            for _ in range(20):
                await asyncio.gather(*(one(endpoint, os.urandom(200)) for _ in range(50)))

    with attacked.watched():
        attacked.run(attack())


def shapes(topic_id: str) -> Iterator[bytes]:
    """Batches of delayed records that no honest client sends."""
    now_ms = int(time.time() * 1000)
    soon, envelope = now_ms + 200, ("raylog-schedule", f"{topic_id}:0:{now_ms}:t".encode())

    def raw(body: bytes, *, count: int = 1, first: int = now_ms, last: int = soon, code: int = 0) -> bytes:
        meta = BatchMeta(3_000_000 + next(numbers), 0, 0)
        head = header_before(
            body,
            magic=MAGIC_COLUMNS,
            count=count,
            first_timestamp=first,
            max_timestamp=last,
            compression=code,
            meta=meta,
        )
        return head + body

    def headed(*headers: tuple[str, bytes | None], due_ms: int = soon) -> bytes:
        return encode_batch([b"k"], [b"v"], [due_ms], [list(headers)], BatchMeta(4_000_000 + next(numbers), 0, 0))

    numbers = iter(range(1_000))
    for delta in (2**63 - 1 - now_ms, 2**64 - 1, 2**61, 2**62 + 5):
        yield raw(encode([[delta], [b"k"], [b"v"], [[envelope]]]))
    yield raw(b"\xff\xffno msgpack")
    yield raw(encode([None, [5], [7], [[envelope]]]))
    yield raw(encode([None, [b"k"], [b"v"], [[1, 2]]]))
    yield raw(encode([None, [b"k", b"l"], [b"v"], [[envelope]]]))
    yield raw(encode([None, [b"k"]]))
    yield raw(encode([None, [b"k"], [b"v"], [[envelope]]]), first=2**62 + 2**61, last=2**62 + 2**61)
    yield raw(compress(4, encode([None, [b"k"], [bytes(120 * MIB)], [[envelope]]])), code=4)
    yield headed()
    yield headed(("raylog-schedule", f"{topic_id}:0:{now_ms}:".encode() + b"\xff\xfe"))
    yield headed(("raylog-schedule", f"{topic_id}:0:{now_ms}:".encode() + b"n" * 900_000))
    yield headed(("raylog-schedule", f"{topic_id}:{'9' * 5_000}:{now_ms}:t".encode()))
    yield headed(("raylog-schedule", f"{topic_id}:0:{'9' * 5_000}:t".encode()))
    yield headed(envelope, ("raylog-half", b"9" * 5_000 + b":3:abctx"), due_ms=2**61 + now_ms)
    yield headed(envelope, ("raylog-half", b"10:3:\xff\xff\xfftx\xff"), due_ms=2**61 + now_ms)
    for internal in ("__consumer_offsets", "__transaction_state", "__scheduled", "__share_state", "__undeliverable"):
        yield headed(("raylog-schedule", f"{topic_id}:0:{now_ms}:{internal}".encode()))


def test_delayed_records_are_poisoned(attacked: Attacked) -> None:
    import raylog

    with raylog.Producer(**attacked.where) as producer:
        producer.send("t", b"warm", delay="50ms").result(30)

    async def attack() -> None:
        place, there = await attacked.leader("t"), await attacked.leader("__scheduled")
        for secret in (None, attacked.token(place, reads=False, writes=True)):
            connection = await attacked.dial(there.endpoint, secret)
            for payload in shapes(place.topic_id):
                assert await refused(connection.call("schedule", [*there.head, -1, 5_000], payload, timeout_s=30))

    with attacked.watched(growth_mib=160):
        attacked.run(attack())
        with raylog.Producer(**attacked.where) as producer, raylog.Consumer(**attacked.where) as consumer:
            consumer.assign([raylog.TopicPartition("t", 0)])
            consumer.seek_to_end()
            producer.send("t", b"still delivered", delay="100ms").result(30)
            until_s, found = time.monotonic() + 30, list[Any]()
            while b"still delivered" not in found and time.monotonic() < until_s:
                found += [record.value for records in consumer.poll(500).values() for record in records]
            assert b"still delivered" in found


def test_tokens_invent_transactional_ids_and_notes(attacked: Attacked) -> None:
    async def attack(endpoint: tuple[str, int], groups: tuple[str, int]) -> None:
        place = await attacked.leader("t")
        token = attacked.token(place, writes=True, transactional_id_prefix="mine-", group="mine")
        connection = await attacked.dial(endpoint, token)
        for first in range(0, 12_000, 400):
            await refused(
                *(
                    connection.call("init_transactions", [f"mine-{n}", 60_000], timeout_s=60)
                    for n in range(first, first + 400)
                )
            )
        producer_id, epoch, *_ = (await connection.call("init_transactions", ["mine-0", 60_000], timeout_s=60)).args
        for first in range(0, 110_000, 500):
            rows = [[place.topic_id, "t", number] for number in range(first, first + 500)]
            if await refused(
                connection.call("add_partitions_to_txn", ["mine-0", producer_id, epoch, rows], timeout_s=60)
            ):
                break
        connection = await attacked.dial(groups, token)
        for first in range(0, 8_000, 12):
            rows = [[place.topic_id, "t", number, 1, -1, "n" * 4_096] for number in range(first, first + 12)]
            await refused(connection.call("offset_commit", ["mine", -1, "", rows], timeout_s=60))
        join: list[Any] = ["mine", "", None, "c" * 1_000, 30_000, 30_000, "consumer", [["range", bytes(50_000)]]]
        await refused(*(connection.call("join_group", join, timeout_s=30) for _ in range(100)))

    transactions = attacked.run(attacked.coordinator("transaction", "mine-0"))
    groups = attacked.run(attacked.coordinator("group", "mine"))
    with attacked.watched(also=groups, method=("offset_fetch", ["calm", []])):
        attacked.run(attack(transactions, groups))


def test_a_queue_has_members_and_verdicts_without_end(attacked: Attacked) -> None:
    async def attack() -> None:
        place = await attacked.leader("t")
        connection = await attacked.dial(place.endpoint, attacked.token(place, group="q"))
        for first in range(0, 12_000, 200):
            await refused(
                *(
                    connection.call("queue_open", [*place.head, "q", f"{n}" + "m" * 1_000, {}], timeout_s=60)
                    for n in range(first, first + 200)
                )
            )
        verdicts = [[0, 2**40, 1, 0, -1, "w" * 200, 0]] * 200
        await refused(
            *(connection.call("queue_acknowledge", [*place.head, "q", "1", verdicts], timeout_s=60) for _ in range(100))
        )

    with attacked.watched():
        attacked.run(attack())
