"""Brokers vouch for their replicas: these cost the controller nothing at rest, and a lost broker harms none of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from raylog.actors.controller.runner import ControllerRunner
from raylog.core.controller.events import ControllerRequest
from raylog.core.controller.sessions import BrokerMember, ReplicaMember
from raylog.protocol.controller import SessionHeartbeatRequest
from raylog.rpc import Request
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually

WINDOWS = 20
QUICK = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "100"}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the requests that become events of the controller: heartbeats by the kind of member, others by method."""
    counts: Counter[str] = Counter()

    def counting(
        runner: ControllerRunner[Request], number: int, method: str, message: ControllerRequest, session: int
    ) -> None:
        found = runner.machine._sessions.get(session)
        is_heartbeat = isinstance(message, SessionHeartbeatRequest) and found is not None
        counts[type(found.member if is_heartbeat and found is not None else message).__name__] += 1
        feed(runner, number, method, message, session)

    feed = ControllerRunner._feed
    with patch.object(ControllerRunner, "_feed", counting):
        yield counts


async def rested(cluster: LocalCluster) -> None:
    """Wait until brokers vouch for all replicas."""
    await eventually(lambda: all(replica._link._is_vouched_for for replica in cluster.replicas.values()))


async def requests_in(cluster: LocalCluster, heartbeats: int) -> Counter[str]:
    """Return the requests that the controller receives in the time of so many heartbeats of its brokers."""
    with counted() as counts:
        await eventually(lambda: counts[BrokerMember.__name__] >= heartbeats)
        return Counter(counts)


async def requests_at_rest(cluster: LocalCluster) -> Counter[str]:
    """Return the requests in a time in which no replica sends any, or in the last of several.

    On a machine that is busy with other work, a replica may be late, and sends a heartbeat itself.
    """
    counts: Counter[str] = Counter()
    for _ in range(WINDOWS):
        await rested(cluster)
        counts = await requests_in(cluster, 12)
        if ReplicaMember.__name__ not in counts:
            break
    return counts


@in_cluster(config=QUICK)
async def test_replicas_at_rest_send_the_controller_nothing(cluster: LocalCluster, talk: Talk) -> None:
    few = await requests_at_rest(cluster)
    await talk.create("t", partitions=20)
    assert len(cluster.replicas) == 60
    many = await requests_at_rest(cluster)
    assert ReplicaMember.__name__ not in many
    assert set(many) == set(few) == {BrokerMember.__name__}
    assert len(cluster.running()._running().machine._sessions._alone) == 3, "it looks at its brokers as time passes"


@in_cluster(config=QUICK)
async def test_replicas_speak_while_their_broker_is_away_and_rest_again(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", partitions=3)
    await rested(cluster)
    before = cluster.running().image.topics["t"].partitions
    with counted() as counts:
        await cluster.stop_broker(1)
        # For longer than the session timeout by the clock of the other brokers.
        await eventually(lambda: counts[BrokerMember.__name__] >= 2 * 25 and counts[ReplicaMember.__name__] >= 3 * 10)
    assert cluster.running().image.topics["t"].partitions == before
    assert await talk.produce("t", b"a") == 0
    await cluster.start_broker(1)
    await cluster.broker_servers[1].wait_registered(10)
    many = await requests_at_rest(cluster)
    assert ReplicaMember.__name__ not in many
    assert cluster.running().image.topics["t"].partitions == before


@in_cluster(config=QUICK)
async def test_a_leader_that_hangs_is_replaced_while_its_broker_runs(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await rested(cluster)
    row = await talk.partition("t")
    leader = cluster.replica("t", 0, row.leader)
    ticks = leader._ticks
    ticks._tick = lambda latest_ms: latest_ms  # it does nothing at its ticks any more, as if its event loop stood still
    await talk.until("t", lambda found: found.leader not in (-1, row.leader))


@in_cluster(config=QUICK)
async def test_replicas_rest_again_after_a_restart_of_the_controller(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", partitions=3)
    await rested(cluster)
    await cluster.stop_controller()
    await cluster.start_controller()
    await cluster.pass_grace()
    assert ReplicaMember.__name__ not in await requests_at_rest(cluster)
    assert {state.leader_epoch for state in cluster.running().image.topics["t"].partitions} == {1}
