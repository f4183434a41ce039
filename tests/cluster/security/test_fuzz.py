"""Well-typed requests of any content, to every endpoint with every credential: each is answered, and nothing ends.

Seeded, and as long as its rounds. Arguments mean something half of the time, so that requests reach behind the checks;
payloads are record batches, delayed ones, batches that were damaged, and noise. What is to be refused by the types
alone is in ``test_malformed.py``; what members may do to each other is not tried: they have the cluster's secret.
"""

import asyncio
import random
import struct
import time
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest

from raylog.actors.naming import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from raylog.base.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    RaylogError,
    RequestTimedOut,
    UnknownServerError,
)
from raylog.core.controller.internal_topics import ON_FIRST_USE
from raylog.core.scheduling.envelope import HALF_HEADER, HEADER, ID_HEADER, Envelope, HalfName
from raylog.core.scheduling.keys import HELD_MS, NAMED_MS
from raylog.protocol.broker import BROKER, METADATA
from raylog.protocol.controller import CONTROLLER
from raylog.protocol.groups import GROUP_COORDINATOR
from raylog.protocol.message import Setting
from raylog.protocol.method import AnyMethod, Endpoint
from raylog.protocol.replica import REPLICA
from raylog.protocol.transactions import TRANSACTION_COORDINATOR
from raylog.rpc import Connection, Grant, Role, Secret, TopicGrant, connect, mint
from raylog.rpc.auth.credentials import derived_client_secret
from raylog.rpc.auth.tokens import ALL_PARTITIONS
from raylog.storage.batch.records import BatchMeta, encode_batch
from tests.cluster.local_cluster import SECRET, LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.unit.protocol.samples import inner

CLIENT = derived_client_secret(SECRET)
SEED = 20
ROUNDS = 8
"""Requests of each method with each credential, at the broker, the coordinators, and one leader."""
ROUNDS_ELSEWHERE = 3
"""At the leaders of internal topics."""
AT_ONCE = 32
ANSWER_S = 2.0
HARMFUL = frozenset({"stop_broker", "raise_feature_level", "delete_topic", "alter_partition_reassignments"})
"""Well-formed, they do what they say; so they are tried with credentials that they are to be refused for."""
WHOLE = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 7, 1000, 2**15, 2**31 - 1, 2**31, 2**62, 2**63 - 1)
SETTINGS = ("retention.ms", "cleanup.policy", "segment.bytes", "queue.order", "max.message.bytes", "no.such.key")


class Inventor:
    """Invents requests for one topic."""

    def __init__(self, topic_id: str) -> None:
        self.chance = random.Random(SEED)
        self.topic_id = topic_id
        self.texts = ("t", topic_id, "g", "tx", "", "..", "x" * 300, "é\0\n", "__scheduled", OFFSETS_TOPIC, "none")

    def arguments(self, method: AnyMethod) -> list[Any]:
        """Return arguments of the stated types."""
        return [self.value(field.type, field.name) for field in msgspec.structs.fields(method.request)]

    def value(self, kind: Any, name: str) -> Any:
        chance = self.chance
        if type(None) in get_args(kind) and chance.random() < 0.3:
            return None
        whole: tuple[int, ...] = WHOLE
        if get_origin(kind) is Annotated:
            low, high = ((meta.ge, meta.le) for meta in get_args(kind)[1:] if isinstance(meta, msgspec.Meta)).__next__()
            whole = tuple(number for number in WHOLE if int(low or 0) <= number <= int(high or 0))
        kind = chance.choice(get_args(Setting)) if kind == Setting else inner(kind)
        if kind is int:
            return self._number(name, whole)
        if kind is str:
            return self._text(name)
        if kind in (bool, float, bytes):
            return {bool: chance.random() < 0.5, float: chance.choice((0.0, -1.0, 1e308)), bytes: self.noise()}[kind]
        if get_origin(kind) is not None:
            *_, held = get_args(kind)
            values = [self.value(held, name) for _ in range(chance.randrange(3))]
            is_mapping = issubclass(get_origin(kind), Mapping)
            return dict(zip(chance.sample(SETTINGS, len(values)), values, strict=True)) if is_mapping else values
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return [self.value(field.type, field.name) for field in msgspec.structs.fields(kind)]
        return chance.choice([None, 1, "x", b"x", [], {}])

    def payload(self) -> bytes:
        """Return a batch, a damaged batch, noise or nothing."""
        chance = self.chance
        meta = BatchMeta(producer_id=chance.choice((-1, 5, 2**62)), producer_epoch=0, base_sequence=0)
        due_ms = int(time.time() * 1000) + chance.choice((0, 0, HELD_MS, NAMED_MS))
        batch = bytearray(encode_batch([b"k"], [chance.randbytes(20)], [due_ms], [self.headers()], meta))
        match chance.randrange(4):
            case 0:
                return bytes(batch)
            case 1:
                batch[chance.randrange(len(batch))] ^= 1 << chance.randrange(8)
                return bytes(batch)
            case 2:
                return self.noise()
            case _:
                return b""

    def headers(self) -> list[tuple[str, bytes | None]]:
        """Return headers, such as those of delayed records."""
        chance = self.chance
        name = chance.choice(self.texts)
        own = [
            Envelope(name, self.topic_id, chance.choice((-1, 0, 2**31)), 0).header(),
            (HEADER, self.noise()),
            HalfName(chance.choice(self.texts) or "g", "1", chance.choice((0, 10**8))).header(),
            (HALF_HEADER, self.noise()),
            (ID_HEADER, chance.choice((None, b"", b"id", bytes(300)))),
        ]
        return chance.sample(own, chance.randrange(4))

    def noise(self) -> bytes:
        return self.chance.randbytes(self.chance.randrange(100))

    def _number(self, name: str, whole: tuple[int, ...]) -> int:
        chance = self.chance
        if name in ("max_wait_ms", "timeout_ms"):
            return chance.choice((0, 1, 20, -1))
        if name in ("num_partitions", "count", "replication_factor"):
            return chance.choice((-1, 0, 1, 2))  # a thousand partitions are no fault
        if name in ("partition", "current_leader_epoch", "acks") and chance.random() < 0.8:
            return 0 if name == "partition" else -1
        return chance.choice(whole)

    def _text(self, name: str) -> str:
        usual = {"topic_id": self.topic_id, "group_id": "g", "transactional_id": "tx", "topic": "t"}.get(name)
        return usual if usual is not None and self.chance.random() < 0.7 else self.chance.choice(self.texts)


def credentials(topic_id: str) -> dict[Role | str, Secret]:
    """One of each kind; tokens with one right, with all, and with none."""
    end_s = int(time.time()) + 600
    reads, writes = (TopicGrant(topic_id, "t", ALL_PARTITIONS), TopicGrant(topic_id, "t", (), True))
    both = TopicGrant(topic_id, "t", ALL_PARTITIONS, True)
    return {
        Role.CLUSTER: SECRET,
        Role.CLIENT: CLIENT,
        "nothing": mint(CLIENT, Grant(end_s)),
        "reads": mint(CLIENT, Grant(end_s, (reads,))),
        "writes": mint(CLIENT, Grant(end_s, (writes,))),
        "group": mint(CLIENT, Grant(end_s, (reads,), group="g")),
        "prefix": mint(CLIENT, Grant(end_s, (writes,), transactional_id_prefix="tx")),
        "all": mint(CLIENT, Grant(end_s, (both,), transactional_id_prefix="t", group="g")),
    }


async def places(cluster: LocalCluster, talk: Talk) -> dict[str, tuple[tuple[str, int], Endpoint]]:
    """An endpoint of each kind that admits clients; replicas of each topic that has methods of its own."""
    await talk.create("t")
    _, host, port = (await talk.broker("find_coordinator", ["transaction", "tx"])).args
    found: dict[str, tuple[tuple[str, int], Endpoint]] = {
        "t": ((await talk.leader("t"))[1], REPLICA),
        GROUP_COORDINATOR.name: (await talk.coordinator("g"), GROUP_COORDINATOR),
        TRANSACTION_COORDINATOR.name: ((host, port), TRANSACTION_COORDINATOR),
        BROKER.name: (cluster.broker_servers[2].endpoint, BROKER),
    }
    for topic in ON_FIRST_USE:
        await talk.broker("ensure_internal_topic", [topic])
    for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, *ON_FIRST_USE):
        found[topic] = ((await talk.leader(topic))[1], REPLICA)
    return found


def requests(endpoint: Endpoint, role: Role | str) -> list[AnyMethod]:
    """The methods to try with a credential; with the cluster's those that clients may call as well."""
    return [
        method
        for method in endpoint.methods.values()
        if (method.name not in HARMFUL or role not in (Role.CLUSTER, Role.CLIENT))
        and (role != Role.CLUSTER or method.role < Role.CLUSTER)
    ]


def covers(role: Role | str, method: AnyMethod) -> bool:
    """Whether a request with this credential may be answered."""
    if isinstance(role, Role):
        return role >= method.role
    return method.role == Role.TOKEN and (role != "nothing" or method is METADATA)  # of no topic


async def answered(
    connection: Connection, inventor: Inventor, method: AnyMethod, role: Role | str, found: Counter[str]
) -> None:
    """Send one request, and count what it is answered with."""
    args = inventor.arguments(method)
    try:
        await connection.call(method.name, args, inventor.payload(), timeout_s=ANSWER_S)
    except UnknownServerError as defect:
        found[f"defect: {method.name}{args!r:.300}: {defect}"] += 1
    except ConnectionFailed as lost:
        found[f"lost: {method.name}{args!r:.300}: {lost}"] += 1
    except RequestTimedOut:
        found["late" if method.waits else f"unanswered: {method.name}{args!r:.300}"] += 1
    except RaylogError:
        found["refused"] += 1
    else:
        found["answered" if covers(role, method) else f"let in: {role} {method.name}{args!r:.300}"] += 1


@in_cluster()
async def test_no_request_ends_a_process_or_stays_unanswered(cluster: LocalCluster, talk: Talk) -> None:
    found: Counter[str] = Counter()
    where = await places(cluster, talk)
    inventor = Inventor(talk.topic_ids["t"])
    tried: set[tuple[str, str, Role | str]] = set()
    for name, (place, endpoint) in where.items():
        for role, secret in credentials(inventor.topic_id).items():
            connection = await connect(*place, secret=secret)
            rounds = ROUNDS_ELSEWHERE if name.startswith("__") else ROUNDS
            todo = [method for method in requests(endpoint, role) for _ in range(rounds)]
            tried.update((endpoint.name, method.name, role) for method in todo)
            for begin in range(0, len(todo), AT_ONCE):
                some = todo[begin : begin + AT_ONCE]
                await asyncio.gather(*(answered(connection, inventor, method, role, found) for method in some))
            connection.close()
            began_s = time.monotonic()
            await talk.call(cluster.broker_servers[1].endpoint, "metadata", [["t"]])
            assert time.monotonic() - began_s < 5, f"others waited after {name} and {role}"
    assert cluster.fatal == []
    assert tried >= {
        (endpoint.name, name, role)
        for endpoint in (BROKER, REPLICA, GROUP_COORDINATOR, TRANSACTION_COORDINATOR)
        for name in endpoint.methods
        for role in ("nothing", "reads", "writes", "group", "prefix", "all")
    }, "every method with every kind of token"
    assert not {outcome: count for outcome, count in found.items() if ":" in outcome}
    assert found["answered"] > 100
    assert found["refused"] > 1000
    end = await talk.produce("t", b"still here")
    assert (await talk.fetch("t", end)).records == [(end, b"still here")]


async def without_credential(place: tuple[str, int], method: AnyMethod, inventor: Inventor) -> bytes:
    """Send a request without a handshake; what came back but the server's part of a handshake."""
    args = msgspec.msgpack.encode(inventor.arguments(method))
    header = b"\x94" + b"".join(map(msgspec.msgpack.encode, (0, 1, method.name))) + args
    frame = struct.pack(">II", 4 + len(header), len(header)) + header
    reader, writer = await asyncio.open_connection(*place)
    writer.write(frame)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@in_cluster()
async def test_no_method_is_reached_without_the_right_credential(cluster: LocalCluster, talk: Talk) -> None:
    where = await places(cluster, talk)
    where[CONTROLLER.name] = (cluster.running().endpoint, CONTROLLER)
    inventor = Inventor(talk.topic_ids["t"])
    for name, (place, endpoint) in where.items():
        answers = await asyncio.gather(
            *(without_credential(place, method, inventor) for method in endpoint.methods.values())
        )
        assert max(map(len, answers)) < 200, f"{name} says at most that it refuses"
        stranger = mint(b"another cluster's secret", Grant(2**33, (TopicGrant("id", "t", ALL_PARTITIONS, True),)))
        past = mint(CLIENT, Grant(int(time.time()) - 1, (TopicGrant(inventor.topic_id, "t", ALL_PARTITIONS),)))
        for wrong in (b"another secret, just as long", stranger, past):
            with pytest.raises((AuthenticationFailed, ConnectionFailed)):
                await connect(*place, secret=wrong)
    for secret in (CLIENT, mint(CLIENT, Grant(2**33, (TopicGrant(inventor.topic_id, "t", ALL_PARTITIONS, True),)))):
        connection = await connect(*cluster.running().endpoint, secret=secret)
        with pytest.raises(RaylogError):
            await connection.call("metadata", [None], timeout_s=5)
    assert cluster.fatal == []
