"""A real cluster that is attacked: with the credentials of tenants, and with others that must not notice it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec

import raylog
from raylog.rpc import Connection, Grant, Secret, Token, TopicGrant, connect, mint
from raylog.rpc.auth.tokens import ALL_PARTITIONS
from tests.waiting import free_port

ROOT: Final = Path(__file__).parents[3]
GROWTH_MIB: Final = 128
"""How far a process may grow beyond its budget."""
WAIT_S: Final = 1.0
"""How much longer others may wait than those of a process that is not attacked, in processor time of that process."""
Endpoint = tuple[str, int]
T = TypeVar("T")


@dataclass
class Seen:
    """What the process beside an attack has seen."""

    waits: dict[str, float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    grown: dict[str, float] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)


@dataclass
class Place:
    """A partition's leader."""

    topic: str
    topic_id: str
    epoch: int
    endpoint: Endpoint

    @property
    def head(self) -> list[Any]:
        """The first fields of requests about it."""
        return [self.topic_id, 0, self.epoch]


class Attacked:
    """The cluster, with topics `t` (attacked) and `calm` (not)."""

    def __init__(self, cluster: raylog.Cluster, folder: str, metrics_port: int) -> None:
        self.cluster, self.folder, self.metrics_port = cluster, folder, metrics_port
        self._open: list[Connection] = []
        self.secret = bytes.fromhex(cluster.secret())
        host, _, port = cluster.bootstrap().partition(",")[0].rpartition(":")
        self.broker: Endpoint = (host, int(port))
        self.where: dict[str, Any] = {"bootstrap": cluster.bootstrap(), "secret": cluster.secret()}

    @classmethod
    @contextmanager
    def running(cls, root: Path) -> Iterator[Self]:
        """Start it in the Ray that this process has joined, with the topics."""
        port = free_port()
        config = {"replica.sleep.after.ms": "-1", "metrics.port": str(port), "group.initial.rebalance.delay.ms": "50"}
        with raylog.start(root, config=config) as cluster:
            found = cls(cluster, os.environ["RAY_TMPDIR"], port)
            with raylog.Admin(**found.where) as admin:
                for topic in ("t", "calm"):
                    admin.create_topic(topic, partitions=1, replication_factor=1)
            yield found

    # What an attacker has

    def token(self, place: Place, *, reads: bool = True, writes: bool = False, **rights: Any) -> Token:
        """A token with these rights on one topic."""
        topic = TopicGrant(place.topic_id, place.topic, ALL_PARTITIONS if reads else (), writes)
        return mint(self.secret, Grant(int(time.time()) + 3_600, (topic,), **rights))

    async def dial(self, endpoint: Endpoint, secret: Secret | None = None) -> Connection:
        """A connection that is open until the attack is over."""
        found = await connect(*endpoint, secret=self.secret if secret is None else secret, timeout_s=20)
        self._open.append(found)
        return found

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run an attack, and close what it has opened."""

        async def closing() -> T:
            try:
                return await work
            finally:
                there, self._open = self._open, []
                for connection in there:
                    connection.abort("the attack is over")
                await asyncio.gather(*(connection.wait_closed() for connection in there))

        return asyncio.run(closing())

    async def leader(self, topic: str) -> Place:
        """Where a topic's partition 0 is led."""
        connection = await self.dial(self.broker)
        async with asyncio.timeout(30):
            while True:
                row = (await connection.call("metadata", [[topic]], timeout_s=20)).args[3][0]
                if row[0] == 0 and row[4][0][4]:
                    _, _, epoch, host, port, *_ = row[4][0]
                    return Place(topic, row[1], epoch, (host, port))
                await asyncio.sleep(0.1)

    async def coordinator(self, kind: str, key: str) -> Endpoint:
        """The coordinator of a group or transactional id."""
        connection = await self.dial(self.broker)
        _, host, port = (await connection.call("find_coordinator", [kind, key], timeout_s=30)).args
        return host, port

    # What the others see

    @contextmanager
    def watched(
        self,
        *,
        growth_mib: float = 0.0,
        also: Endpoint | None = None,
        method: Sequence[Any] = (),
    ) -> Iterator[Seen]:
        """Look at everything meanwhile, and judge at the end; ``growth_mib``: the budget of the attacked process."""
        places = self.run(self._places())
        calls: dict[str, list[Any]] = {
            name: [*place.endpoint, "list_offsets", [*place.head, -1]] for name, place in places.items()
        }
        calls["broker"] = [*self.broker, "metadata", [["calm"]]]
        if also is not None:
            calls["coordinator"] = [*also, *method]
        plan = {
            "secret": self.secret.hex(),
            "folder": self.folder,
            "metrics_port": self.metrics_port,
            "calls": calls,
        }
        command = [sys.executable, "-m", "tests.cluster.security.probe"]
        seen = Seen()
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
            assert probe.stdin is not None
            assert probe.stdout is not None
            try:
                probe.stdin.write(json.dumps(plan) + "\n")
                probe.stdin.flush()
                assert probe.stdout.readline() == "ready\n"
                yield seen
            finally:
                probe.stdin.close()
                found = json.loads(probe.stdout.readline())
                for name in ("waits", "errors", "grown", "ended"):
                    setattr(seen, name, found[name])
        self._judge(seen, growth_mib)

    async def _places(self) -> dict[str, Place]:
        return {topic: await self.leader(topic) for topic in ("t", "calm")}

    @staticmethod
    def _judge(seen: Seen, budget_mib: float) -> None:
        print(json.dumps({"waits": seen.waits, "grown": seen.grown, "errors": seen.errors[:3]}, indent=1))
        assert seen.ended == [], "no process ends"
        assert seen.errors == [], "others are served, and the node counts as healthy"
        large = {title: grown for title, grown in seen.grown.items() if grown > budget_mib + GROWTH_MIB}
        assert large == {}, f"grown by more than {budget_mib} + {GROWTH_MIB} MiB"
        usual = max(seen.waits["calm"], seen.waits["calm, newcomer"])
        late = {name: wait for name, wait in seen.waits.items() if wait - usual >= WAIT_S}
        assert late == {}, f"others waited longer than at a process that is not attacked ({usual:.2f} s)"


def raw_request(
    kind: int, number: int, method: str, args: bytes, payload: bytes = b"", *, announced: int = -1
) -> bytes:
    """A frame with these encoded arguments; ``announced``: another length than it has."""
    pack = msgspec.msgpack.encode
    header = b"\x94" + pack(kind) + pack(number) + pack(method) + args
    length = 4 + len(header) + len(payload) if announced < 0 else announced
    return length.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + payload


async def send_raw(connection: Connection, data: bytes) -> bool:
    """Write bytes to a proved connection's socket, as a foreign client does; whether it still took all of them."""
    if connection._transport is None or connection.is_closed:
        return False
    there = connection._transport.get_extra_info("socket").fileno()
    view, at = memoryview(data), 0
    deadline = time.monotonic() + 20
    while at < len(view) and not connection.is_closed and time.monotonic() < deadline:
        try:
            at += os.write(there, view[at : at + 65_536])
        except BlockingIOError:
            await asyncio.sleep(0.002)
        except OSError:
            return False
    return at == len(view)
