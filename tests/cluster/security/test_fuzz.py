"""Well-typed requests of any content, to every endpoint with every credential: each is answered, and nothing ends.

Seeded, and as long as its rounds. Arguments mean something half of the time, so that requests reach behind the checks;
payloads are record batches, batches that were damaged, and noise. What is to be refused by the types alone is in
``test_malformed.py``; what members may do to each other is not tried: they have the cluster's secret.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin

import msgspec

from raylog.actors.naming import OFFSETS_TOPIC
from raylog.core.errors import ConnectionFailed, RaylogError, RequestTimedOut, UnknownServerError
from raylog.protocol.broker import BROKER
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
"""Requests of each method with each credential."""
AT_ONCE = 32
ANSWER_S = 2.0
HARMFUL = frozenset({"stop_broker", "raise_feature_level", "delete_topic", "alter_partition_reassignments"})
"""Well-formed, they do what they say."""
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
        batch = bytearray(encode_batch([b"k"], [chance.randbytes(20)], [int(time.time() * 1000)], None, meta))
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
        "all": mint(CLIENT, Grant(end_s, (both,), transactional_id_prefix="", group="g")),
    }


async def places(cluster: LocalCluster, talk: Talk) -> dict[tuple[str, int], Endpoint]:
    """An endpoint of each kind that admits clients."""
    await talk.create("t")
    _, host, port = (await talk.broker("find_coordinator", ["transaction", "tx"])).args
    return {
        (await talk.leader("t"))[1]: REPLICA,
        await talk.coordinator("g"): GROUP_COORDINATOR,
        (await talk.leader(OFFSETS_TOPIC))[1]: REPLICA,
        (host, port): TRANSACTION_COORDINATOR,
        cluster.broker_servers[2].endpoint: BROKER,
    }


def requests(endpoint: Endpoint, role: Role | str) -> list[AnyMethod]:
    """The methods to try with a credential; with the cluster's those that clients may call as well."""
    tried = [method for method in endpoint.methods.values() if method.name not in HARMFUL]
    return [method for method in tried if role != Role.CLUSTER or method.role < Role.CLUSTER]


async def answered(connection: Connection, inventor: Inventor, method: AnyMethod, found: Counter[str]) -> None:
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
        found["answered"] += 1


@in_cluster()
async def test_no_request_ends_a_process_or_stays_unanswered(cluster: LocalCluster, talk: Talk) -> None:
    found: Counter[str] = Counter()
    where = await places(cluster, talk)
    inventor = Inventor(talk.topic_ids["t"])
    for place, endpoint in where.items():
        for role, secret in credentials(inventor.topic_id).items():
            connection = await connect(*place, secret=secret)
            todo = [method for method in requests(endpoint, role) for _ in range(ROUNDS)]
            for begin in range(0, len(todo), AT_ONCE):
                some = todo[begin : begin + AT_ONCE]
                await asyncio.gather(*(answered(connection, inventor, method, found) for method in some))
            connection.close()
            began_s = time.monotonic()
            await talk.call(cluster.broker_servers[1].endpoint, "metadata", [["t"]])
            assert time.monotonic() - began_s < 5, f"others waited after {endpoint.name} and {role}"
    assert cluster.fatal == []
    assert not {outcome: count for outcome, count in found.items() if ":" in outcome}
    assert found["answered"] > 100
    assert found["refused"] > 1000
    end = await talk.produce("t", b"still here")
    assert (await talk.fetch("t", end)).records == [(end, b"still here")]
