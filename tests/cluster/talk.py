"""Raw calls to the endpoints of a local cluster, as any client makes them; and the runner for stories of such calls.

A story is an async function of a cluster and a caller; ``in_cluster`` runs it on a cluster of its own and checks
afterwards that no actor reported a broken invariant.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from raylog.actors.clock import wall_ms
from raylog.base.errors import NotController, RaylogError
from raylog.rpc import Connection, Reply, connect
from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.records import BatchMeta, decode_batch, encode_batch
from tests.cluster.local_cluster import SECRET, LocalCluster

STORY_DEADLINE_S = 60.0
CALL_S = 10.0
PARTITION_FIELDS = 10
"""Fields of a partition's row that this release knows."""


@dataclass(frozen=True)
class Partition:
    """One partition's row of a ``metadata`` answer."""

    partition: int
    leader: int
    leader_epoch: int
    host: str
    port: int
    replicas: list[int]
    isr: list[int]
    places: list[list[Any]]
    elr: list[int] = field(default_factory=list)
    unclean_leader_epoch: int = 0


@dataclass(frozen=True)
class Fetched:
    """The answer to a consumer's fetch: the watermark, and (offset, value) of each record from the fetch offset on."""

    high_watermark: int
    log_start_offset: int
    records: list[tuple[int, bytes | None]]


class Talk:
    """Keeps one connection to each called endpoint."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.topic_ids: dict[str, str] = {}
        self._connections: dict[tuple[str, int], Connection] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close("the story is over")

    async def connection(self, endpoint: tuple[str, int]) -> Connection:
        """Return an open connection to an endpoint."""
        standing = self._connections.get(endpoint)
        if standing is None or standing.is_closed:
            standing = await connect(*endpoint, secret=SECRET, timeout_s=CALL_S)
            self._connections[endpoint] = standing
        return standing

    async def call(self, endpoint: tuple[str, int], method: str, args: object, payload: bytes = b"") -> Reply:
        """Call a method; a refusal is raised as the client's error class."""
        return await (await self.connection(endpoint)).call(method, args, payload, timeout_s=CALL_S)

    # ------------------------------------------------------------ brokers

    async def broker(self, method: str, args: object, broker: int | None = None) -> Reply:
        """Call a broker: this one, or the first that runs."""
        running = self.cluster.broker_servers
        return await self.call(running[min(running) if broker is None else broker].endpoint, method, args)

    async def topic(self, name: str, broker: int | None = None) -> list[Any]:
        """Return a topic's row of a broker's ``metadata``."""
        row: list[Any] = (await self.broker("metadata", [[name]], broker)).args[3][0]
        return row

    async def partition(self, name: str, partition: int = 0, broker: int | None = None) -> Partition:
        """Return a partition as a broker describes it."""
        return Partition(*(await self.topic(name, broker))[4][partition][:PARTITION_FIELDS])

    async def create(
        self, name: str, *, partitions: int = 1, replicas: int = 3, config: Mapping[str, object] | None = None
    ) -> str:
        """Create a topic and wait until all its replicas are in sync; returns its id."""
        reply = await self.broker("create_topic", [name, partitions, replicas, None, dict(config or {}), False, 5000])
        self.topic_ids[name] = reply.args[0]
        for number in range(partitions):
            await self.whole(name, number)
        return self.topic_ids[name]

    async def whole(self, name: str, partition: int = 0) -> Partition:
        """Wait until a partition has a running leader and all replicas are in sync at it; returns it.

        After a restart brokers report the replicas of the previous life, at their old ports, until the new ones have
        registered; and the ISR of a new partition shrinks when its second replica registers.
        """

        def is_whole(row: Partition) -> bool:
            running = {replica.endpoint[1] for replica in self.cluster.replicas.values()}
            at_home = all(port in running for _, _, port in row.places)
            return row.leader > 0 and row.port in running and at_home and sorted(row.isr) == sorted(row.replicas)

        return await self.until(name, is_whole, partition)

    async def until(self, name: str, condition: Callable[[Partition], bool], partition: int = 0) -> Partition:
        """Wait until every running broker reports the partition in the expected state; returns it."""
        deadline = asyncio.get_running_loop().time() + 20
        while True:
            rows: list[Partition | None] = []
            for server in list(self.cluster.broker_servers):
                try:
                    topic = await self.topic(name, server)
                except (NotController, RaylogError, OSError):
                    rows.append(None)  # that broker is starting
                else:
                    rows.append(
                        Partition(*topic[4][partition][:PARTITION_FIELDS]) if len(topic[4]) > partition else None
                    )
            if rows and all(row is not None and condition(row) for row in rows):
                found = rows[0]
                assert found is not None
                return found
            assert asyncio.get_running_loop().time() < deadline, f"{name}-{partition} did not come to it: {rows}"
            await asyncio.sleep(0.01)

    # ------------------------------------------------------------ partitions

    async def leader(self, name: str, partition: int = 0) -> tuple[list[object], tuple[str, int]]:
        """Return the first arguments of requests to a partition, and its leader's endpoint."""
        row = await self.until(name, lambda found: found.port > 0, partition)
        topic_id = (await self.topic(name))[1]
        return [topic_id, partition, row.leader_epoch], (row.host, row.port)

    async def produce(
        self,
        name: str,
        *values: bytes,
        partition: int = 0,
        acks: int = -1,
        timeout_ms: int = 5000,
        transactional_id: str = "",
        **stamp: int,
    ) -> int:
        """Produce one batch to the leader; returns the first offset. ``stamp`` takes producer id, epoch, sequence."""
        head, endpoint = await self.leader(name, partition)
        return await self.produce_at(
            endpoint, head, *values, acks=acks, timeout_ms=timeout_ms, transactional_id=transactional_id, **stamp
        )

    async def produce_at(
        self,
        endpoint: tuple[str, int],
        head: list[object],
        *values: bytes,
        acks: int = -1,
        timeout_ms: int = 5000,
        timestamp_ms: int | None = None,
        transactional_id: str = "",
        **stamp: int,
    ) -> int:
        """Produce one batch to an endpoint, whether it leads or not."""
        at = wall_ms() if timestamp_ms is None else timestamp_ms
        batch = encode_batch(None, list(values), [at] * len(values), None, BatchMeta(**stamp))
        if acks == 0:
            (await self.connection(endpoint)).notify("produce", [*head, 0, timeout_ms], batch)
            return -1
        reply = await self.call(endpoint, "produce", [*head, acks, timeout_ms, transactional_id], batch)
        return int(reply.args[0])

    async def fetch(
        self, name: str, offset: int = 0, *, partition: int = 0, max_wait_ms: int = 0, max_bytes: int = 1 << 20
    ) -> Fetched:
        """Fetch from the leader."""
        head, endpoint = await self.leader(name, partition)
        reply = await self.call(endpoint, "fetch", [*head, offset, max_bytes, 1, max_wait_ms, 0])
        high_watermark, _, log_start, *_ = reply.args
        return Fetched(
            high_watermark, log_start, [record for record in records_in(reply.payload) if record[0] >= offset]
        )

    async def values(self, name: str, count: int, partition: int = 0) -> list[bytes | None]:
        """Read ``count`` records from the start, checking that offsets have no gaps; returns their values."""
        found: list[tuple[int, bytes | None]] = []
        deadline = asyncio.get_running_loop().time() + CALL_S
        while len(found) < count:
            assert asyncio.get_running_loop().time() < deadline, f"{name}-{partition} gave {len(found)} of {count}"
            found += (await self.fetch(name, len(found), partition=partition, max_wait_ms=200)).records
        assert [offset for offset, _ in found] == list(range(len(found)))
        return [value for _, value in found]

    async def list_offsets(self, name: str, timestamp: int, partition: int = 0) -> tuple[int, int]:
        """Return offset and timestamp that the leader answers."""
        head, endpoint = await self.leader(name, partition)
        offset, at, _ = (await self.call(endpoint, "list_offsets", [*head, timestamp])).args
        return offset, at

    # ------------------------------------------------------------ coordinators

    async def coordinator(self, group: str) -> tuple[str, int]:
        """Return the endpoint of a group's coordinator, once it is started and has loaded its groups."""
        deadline = asyncio.get_running_loop().time() + 20
        while True:
            try:
                _, host, port = (await self.broker("find_coordinator", ["group", group])).args
                await self.call((host, port), "list_groups", [])
            except (RaylogError, OSError) as not_yet:
                if asyncio.get_running_loop().time() >= deadline:
                    raise AssertionError(f"no coordinator for {group} within 20 s") from not_yet
                await asyncio.sleep(0.02)
            else:
                return host, port


def records_in(payload: bytes | memoryview) -> list[tuple[int, bytes | None]]:
    """Return (offset, value) of every record; raises on any corruption."""
    found: list[tuple[int, bytes | None]] = []
    for position, header in iter_headers(payload):
        columns = decode_batch(payload, position, header)
        assert columns.values is not None
        found += zip(columns.offsets, columns.values, strict=True)
    return found


async def refused(work: Awaitable[object], *kinds: type[RaylogError]) -> RaylogError:
    """Expect one of these refusals; returns it."""
    try:
        answer = await work
    except kinds as refusal:
        return refusal
    raise AssertionError(f"expected {kinds}, got {answer!r}")


Story = Callable[[LocalCluster, Talk], Awaitable[None]]


def in_cluster(
    *, brokers: int = 3, config: Mapping[str, str] | None = None
) -> Callable[[Story], Callable[[Path], None]]:
    """Run an async story as a test, on a local cluster of its own."""

    def decorate(story: Story) -> Callable[[Path], None]:
        def test(tmp_path: Path) -> None:
            asyncio.run(reported(story, LocalCluster(tmp_path, brokers, config or {})))

        test.__name__, test.__doc__, test.__module__ = story.__name__, story.__doc__, story.__module__
        return test

    return decorate


async def reported(story: Story, cluster: LocalCluster) -> None:
    """Run a story on a cluster, and fail if an actor reported a broken invariant or an error was dropped."""
    unhandled: list[Mapping[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    async with asyncio.timeout(STORY_DEADLINE_S), cluster:
        async with Talk(cluster) as talk:
            await story(cluster, talk)
        assert cluster.fatal == [], cluster.fatal
    assert unhandled == [], unhandled


__all__: Sequence[str] = ["Fetched", "Partition", "Talk", "in_cluster", "records_in", "refused", "reported"]
