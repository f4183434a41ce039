"""A group coordinator for the clients' tests: the real machine behind real sockets, its log in memory.

Every step is checked by the machine's own `validate`, and by a referee of our own: in one generation a partition has
one owner, and generations never fall. `move` replaces the coordinator as a restarted actor does: another port, and a
machine rebuilt from the log.
"""

import asyncio
import time
from collections import Counter
from typing import Any

from raylog.actors.received import received
from raylog.base import errors
from raylog.base.ids import TopicPartition
from raylog.client.group.embedded_protocol import decode_assignment
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.decision import Refuse, Reply
from raylog.core.groups.coordinator import GroupCoordinatorMachine
from raylog.core.groups.events import AppendRecords, Effect, Event, LookUpTopics, RequestDropped, Tick, TopicsSeen
from raylog.core.groups.records import GROUP_ROWS, GroupChanged, OffsetCommitted
from raylog.core.groups.settings import GroupSettings
from raylog.core.groups.states import ConsumerGroupState, GroupState
from raylog.core.outbox import Outbox
from raylog.protocol.groups import GROUP_COORDINATOR
from raylog.rpc import Request, RequestConnection
from raylog.rpc.framing import decode_args
from tests.unit.client.toy_server import ToyCluster, ToyEndpoint, _abort_all

TICK_S = 0.02
SETTINGS = GroupSettings(initial_rebalance_delay_ms=20, min_session_timeout_ms=50)
Wire = tuple[list[Any], list[Any] | None]


class ToyCoordinator:
    """The coordinator of all groups. Everything here runs on the toy cluster's loop."""

    def __init__(self, cluster: ToyCluster, settings: GroupSettings = SETTINGS) -> None:
        self.cluster = cluster
        self.settings = settings
        self.log: list[Wire] = []
        self.generations: list[GroupChanged] = []
        """Every stable generation, in order."""
        self.commits: list[OffsetCommitted] = []
        self.requests_seen: list[str] = []
        self.is_loading = False
        self.silenced: set[str] = set()
        """Client ids whose requests are ignored, as if the network dropped them."""
        self._members = 0
        self._requests: dict[int, Request] = {}
        self.muted: list[Request] = []
        self._numbers = 0
        self._client_of: dict[RequestConnection, str] = {}
        self._endpoint: ToyEndpoint | None = None
        self._is_ticking = False
        self._machine = self._rebuilt()
        cluster._on_find_coordinator = self._on_find_coordinator  # type: ignore[method-assign]

    # Life

    async def start(self) -> None:
        self._endpoint = await self.cluster._listen(self._serve)
        self.cluster.replicas["coordinator", self._endpoint.port, 0] = self._endpoint  # closed with the cluster
        if not self._is_ticking:
            self._is_ticking = True
            self.cluster._own(self._tick())

    async def move(self) -> None:
        """Die and come back elsewhere with what is in the log."""
        old, self._endpoint = self._endpoint, None
        assert old is not None
        self._requests.clear()
        _abort_all(old)
        await old.server.close()
        self._machine = self._rebuilt()
        await self.start()

    def cut(self) -> None:
        """Break every connection; the machine lives on."""
        assert self._endpoint is not None
        _abort_all(self._endpoint)

    def _rebuilt(self) -> GroupCoordinatorMachine:
        machine = GroupCoordinatorMachine(settings=self.settings, share=EVERY_KEY, new_member_id=self._new_member_id)
        for key, value in self.log:
            machine.replay(key, value)
        machine.loaded(self._now_ms(), wall_ms=int(time.time() * 1000))
        return machine

    def _new_member_id(self, client_id: str) -> str:
        self._members += 1
        return f"{client_id}-{self._members}"

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._step(Tick(cause="tick", now_ms=self._now_ms()))

    @staticmethod
    def _now_ms() -> int:
        return int(time.monotonic() * 1000)

    # Queries of tests

    def owners(self, group: str) -> dict[TopicPartition, str]:
        """The owner of each partition in the group's last generation; empty while there is no stable one."""
        consumers = self._machine._consumers.get(group)
        if consumers is not None:
            owners = {TopicPartition(at.topic, at.partition): member for at, member in consumers.owners.items()}
            return owners if consumers.state == ConsumerGroupState.STABLE.value else {}
        for key, value in reversed(self.log):
            record = GROUP_ROWS.read(key, value)
            if isinstance(record, GroupChanged) and record.group == group:
                return _owners(record) if record.state is GroupState.STABLE else {}
        return {}

    def generation(self, group: str) -> int:
        """The group's last generation, or its epoch."""
        consumers = self._machine._consumers.get(group)
        return self.generations[-1].generation if consumers is None else consumers.epoch

    def members(self, group: str) -> int:
        """How many members the group's last stable generation has; 0 while there is none."""
        consumers = self._machine._consumers.get(group)
        if consumers is not None:
            return len(consumers.members) if consumers.state == ConsumerGroupState.STABLE.value else 0
        for key, value in reversed(self.log):
            record = GROUP_ROWS.read(key, value)
            if isinstance(record, GroupChanged) and record.group == group:
                return len(record.members) if record.state is GroupState.STABLE else 0
        return 0

    def offset(self, group: str, topic: str, partition: int) -> int | None:
        """What is committed."""
        found = None
        for commit in self.commits:
            if (commit.key.group, commit.key.topic, commit.key.partition) == (group, topic, partition):
                found = commit.offset
        return found

    # Serving

    def _on_find_coordinator(self, request: Request) -> None:
        if self._endpoint is None:
            raise errors.CoordinatorNotAvailable("The coordinator is being started.")
        request.reply([0, self._endpoint.host, self._endpoint.port])

    def _is_silenced(self, request: Request) -> bool:
        """By the client that has joined on the connection, or by the member id: a client may have connected again."""
        ids = [each for each in decode_args(request.args) if isinstance(each, str)]
        named = any(each.startswith(f"{client}-") for each in ids for client in self.silenced)
        return named or self._client_of.get(request.connection) in self.silenced

    def _serve(self, request: Request) -> None:
        self.requests_seen.append(request.method)
        if request.method == "join_group":
            self._client_of[request.connection] = decode_args(request.args)[3]
        if self._is_silenced(request):
            self.muted.append(request)
            return
        if self.is_loading:
            raise errors.CoordinatorLoadInProgress("The coordinator still reads its log.")
        self._numbers += 1
        number = self._numbers
        self._requests[number] = request
        request.connection.on_close(lambda _: self._dropped(number))
        self._step(received(GROUP_COORDINATOR, request, number, self._now_ms()))

    def _dropped(self, number: int) -> None:
        if self._requests.pop(number, None) is not None:
            self._step(RequestDropped(cause="connection", now_ms=self._now_ms(), request=number))

    def _step(self, event: Event) -> None:
        out: Outbox[Effect] = self._machine.step(event)
        self._machine.validate()
        for effect in [*out.now, *out.after_sync]:
            if isinstance(effect, AppendRecords):
                for key, value in effect.records:
                    self._append(key, value)
            elif isinstance(effect, LookUpTopics):
                asyncio.get_running_loop().call_soon(self._topics_seen, effect.topics)
            elif isinstance(effect, Reply) and (request := self._requests.pop(effect.request, None)) is not None:
                request.reply(effect.result)
            elif isinstance(effect, Refuse) and (request := self._requests.pop(effect.request, None)) is not None:
                request.fail(effect.error)

    def _topics_seen(self, requested: tuple[str, ...]) -> None:
        counts = Counter(topic for topic, _ in self.cluster.partitions)
        facts = {topic: (self.cluster.topics[topic][0], counts[topic]) for topic in requested if topic in counts}
        self._step(TopicsSeen(cause="seen", now_ms=self._now_ms(), requested=requested, topics=facts))

    def _append(self, key: list[Any], value: list[Any] | None) -> None:
        self.log.append((key, value))
        record = GROUP_ROWS.read(key, value)
        if isinstance(record, OffsetCommitted):
            self.commits.append(record)
        elif isinstance(record, GroupChanged):
            if self.generations and self.generations[-1].group == record.group:
                assert record.generation >= self.generations[-1].generation, "a generation fell"
            if record.state is GroupState.STABLE:
                _owners(record)
                self.generations.append(record)


def _owners(record: GroupChanged) -> dict[TopicPartition, str]:
    """The owner of each partition; fails when a partition has two owners in this generation."""
    found: dict[TopicPartition, str] = {}
    for member in record.members:
        for partition in decode_assignment(member.assignment):
            assert partition not in found, f"{partition} has two owners in generation {record.generation}"
            found[partition] = member.member_id
    return found
