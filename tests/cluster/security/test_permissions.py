"""Every method of every endpoint, called with each kind of credential: only allowed calls reach a handler."""

import time
from typing import Any

import pytest

from raylog.actors.naming import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from raylog.actors.permissions import permissions
from raylog.base.errors import ClusterAuthorizationFailed, ConnectionFailed, InvalidRequest, RaylogError
from raylog.protocol.broker import BROKER
from raylog.protocol.controller import CONTROLLER
from raylog.protocol.groups import GROUP_COORDINATOR
from raylog.protocol.replica import REPLICA
from raylog.protocol.transactions import TRANSACTION_COORDINATOR
from raylog.rpc import Connection, Grant, Role, Secret, TopicGrant, connect, mint
from raylog.rpc.auth.credentials import derived_client_secret
from raylog.rpc.auth.tokens import ALL_PARTITIONS, ranges_of
from tests.cluster.local_cluster import SECRET, LocalCluster
from tests.cluster.talk import Talk, in_cluster

CLIENT = derived_client_secret(SECRET)
TABLES = {
    "coordinator": permissions(GROUP_COORDINATOR).roles,
    "transaction coordinator": permissions(TRANSACTION_COORDINATOR).roles,
    "replica": permissions(REPLICA).roles,
    "internal replica": permissions(REPLICA, is_internal=True).roles,
    "transactions": permissions(REPLICA, is_internal=True).roles,
    "broker": permissions(BROKER).roles,
    "controller": permissions(CONTROLLER).roles,
}


async def places(cluster: LocalCluster, talk: Talk) -> dict[str, tuple[str, int]]:
    """One endpoint of each kind."""
    await talk.create("t")
    _, host, port = (await talk.broker("find_coordinator", ["transaction", "x"])).args
    return {
        "coordinator": await talk.coordinator("g"),  # first: it makes the internal topic
        "transaction coordinator": (host, port),
        "replica": (await talk.leader("t"))[1],
        "internal replica": (await talk.leader(OFFSETS_TOPIC))[1],
        "transactions": (await talk.leader(TRANSACTIONS_TOPIC))[1],
        "broker": cluster.broker_servers[2].endpoint,
        "controller": cluster.running().endpoint,
    }


async def gets_in(connection: Connection, method: str, args: object = None) -> bool:
    """Whether the handler got the request: it refuses the odd arguments, or answers."""
    try:
        await connection.call(method, ["no arguments of any method"] if args is None else args, timeout_s=0.3)
    except RaylogError as refusal:
        is_shut_out = isinstance(refusal, (ClusterAuthorizationFailed, ConnectionFailed))  # the controller lets none in
        return not is_shut_out and "knows no method" not in str(refusal)
    return True


async def gets_a_producer_id(connection: Connection) -> bool:
    """Whether a token may have an id: it names no topic, so what counts is whether the token writes to any."""
    try:
        await connection.call("init_producer_id", [], timeout_s=5)
    except ClusterAuthorizationFailed:
        return False
    return True


@in_cluster()
async def test_each_role_may_call_exactly_the_methods_of_the_table(cluster: LocalCluster, talk: Talk) -> None:
    ends_s = int(time.time()) + 60
    narrow = mint(CLIENT, Grant(ends_s))
    topic = TopicGrant("0a" * 16, "t", ALL_PARTITIONS, writes=True)
    wide = mint(CLIENT, Grant(ends_s, (topic,), transactional_id_prefix="x", group="g"))
    found = await places(cluster, talk)
    for kind, endpoint in found.items():
        credentials: list[tuple[Role, Secret]] = [(Role.CLUSTER, SECRET), (Role.CLIENT, CLIENT)]
        for role, secret in (*credentials, (Role.TOKEN, narrow), (Role.TOKEN, wide)):
            connection = await connect(*endpoint, secret=secret)
            assert connection.role == role
            for method, lowest in TABLES[kind].items():
                # A token reaches no handler with what it does not name; that of init_producer_id is checked apart.
                allowed = role >= lowest and role != Role.TOKEN
                assert await gets_in(connection, method) == allowed, (kind, method, role)
            if kind == "broker" and role == Role.TOKEN:
                assert await gets_a_producer_id(connection) == (secret is wide)
            assert not await gets_in(connection, "no such method"), kind
            connection.close()
    assert cluster.fatal == []


async def refused(secret: Secret, endpoint: tuple[str, int], method: str, args: Any) -> str:
    connection = await connect(*endpoint, secret=secret)
    try:
        with pytest.raises((ClusterAuthorizationFailed, ConnectionFailed, InvalidRequest)) as refusal:
            await connection.call(method, args, timeout_s=5)
    finally:
        connection.close()
    return refusal.value.message


@in_cluster()
async def test_a_clients_host_cannot_vote_register_or_change_an_isr(cluster: LocalCluster, talk: Talk) -> None:
    found = await places(cluster, talk)
    head, _ = await talk.leader("t")
    await talk.whole("t")
    state = await talk.partition("t")
    attempts = [
        ("broker", "voter_promise", [99, "me"]),
        ("controller", "register_broker", [1, -1, "here", "127.0.0.1", 1, "d", cluster.cluster_id]),
        ("controller", "alter_partition", [head[0], "t", 0, state.leader, 1, state.leader_epoch, 0, [[1, 1]]]),
        ("replica", "replica_fetch", [*head, 2, 1, 0, 0, 1 << 20, 0, 0, 0]),
    ]
    for kind, method, args in attempts:
        error = await refused(CLIENT, found[kind], method, args)
        assert ("closed the connection" if kind == "controller" else "needs the cluster's own secret") in error
    batch_args = [*(await talk.leader(OFFSETS_TOPIC))[0], -1, 1000]
    assert "needs the cluster's own secret" in await refused(CLIENT, found["internal replica"], "produce", batch_args)
    assert sorted((await talk.partition("t")).isr) == sorted(state.isr)


@in_cluster()
async def test_a_token_reads_its_partitions_until_it_ends(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("other")
    found = await places(cluster, talk)
    head, endpoint = await talk.leader("t")
    await talk.produce("t", b"readable")
    other, elsewhere = await talk.leader("other")
    grant = Grant(int(time.time()) + 60, (TopicGrant(str(head[0]), "t", ranges_of([0])),))
    for signer in (SECRET, CLIENT):
        token = mint(signer, grant)
        connection = await connect(*endpoint, secret=token)
        assert (await connection.call("fetch", [*head, 0, 1000, 1, 0, 0], timeout_s=5)).payload
        assert await gets_in(connection, "list_offsets", [*head, -1])
        for method, args in (
            ("fetch", [other[0], 0, -1, 0, 1000, 1, 0, 0]),
            ("fetch", [head[0], 1, -1, 0, 1000, 1, 0, 0]),
            ("produce", [*head, -1, 1000]),
            ("fetch", []),
            ("fetch", None),
            ("list_offsets", {"a": 1}),
        ):
            assert not await gets_in(connection, method, args if args is not None else {}), (method, args)
        connection.close()
        broker = await connect(*found["broker"], secret=token)
        assert await gets_in(broker, "metadata", [["t"]])
        assert await gets_in(broker, "metadata", [[]])
        for names in (["other"], ["t", "other"], None):
            assert not await gets_in(broker, "metadata", [names]), names
        broker.close()
        assert "token" in await refused(token, elsewhere, "fetch", [*other, 0, 1000, 1, 0, 0])


@in_cluster()
async def test_a_connection_outlives_no_token(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    head, endpoint = await talk.leader("t")
    ends_s = int(time.time()) + 2
    token = mint(CLIENT, Grant(ends_s, (TopicGrant(str(head[0]), "t", ranges_of([0])),)))
    connection = await connect(*endpoint, secret=token)
    assert await gets_in(connection, "list_offsets", [*head, -1])
    deadline = time.monotonic() + 10
    while await gets_in(connection, "list_offsets", [*head, -1]):
        assert time.monotonic() < deadline, "the token ends"
    assert time.time() >= ends_s
    connection.close()
