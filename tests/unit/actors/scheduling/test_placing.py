"""Where delayed records go: a target does not exist only by an answer to a query that was sent for them."""

import asyncio
from typing import Any, cast

from raylog.actors.scheduling.bodies import Body
from raylog.actors.scheduling.placing import Placing
from raylog.actors.scheduling.role import SchedulerRole
from raylog.core.dead_letters import UNDELIVERABLE_TOPIC
from raylog.core.errors import NotController, UnknownTopicOrPartition
from raylog.core.scheduling.envelope import Envelope
from raylog.core.scheduling.events import Target
from raylog.protocol.admin import EnsureInternalTopicReply
from raylog.protocol.broker import MetadataPartition, MetadataReply, MetadataTopic

OLD, NEW = "a" * 32, "b" * 32


class Host:
    """The controller's metadata of one topic, and a clock."""

    def __init__(self) -> None:
        self.topic_id = OLD
        self.partitions = 1
        self.is_away = False
        self.queries = 0

    def now_ms(self) -> int:
        return 1_000

    async def metadata(self, names: list[str]) -> MetadataReply:
        self.queries += 1
        if self.is_away:
            raise NotController
        rows = [MetadataPartition(number, 1, 1, "h", 1, [1], [1], []) for number in range(self.partitions)]
        code = 0 if self.topic_id else UnknownTopicOrPartition.code
        topics = [MetadataTopic(code, self.topic_id, name, False, rows if self.topic_id else [], {}) for name in names]
        return MetadataReply("c", 1, [], topics, False, 1)

    async def ensure_topic(self, name: str) -> EnsureInternalTopicReply:
        return EnsureInternalTopicReply("u" * 32, 1)

    def spawn(self, work: Any, name: str) -> None:
        self.task = asyncio.ensure_future(work)


class Stage:
    """The part of the scheduler's role that finds targets."""

    def __init__(self) -> None:
        self.host = Host()
        role = cast(Any, SchedulerRole.__new__(SchedulerRole))
        role.host, role.placing = self.host, Placing(cast(Any, self.host), UNDELIVERABLE_TOPIC)
        role.machine = type("Machine", (), {"undeliverable": set(), "unresolved": set()})
        role._feed_resolved = self.found
        self.role = role
        self.targets: tuple[Target, ...] = ()

    def found(self, targets: tuple[Target, ...]) -> None:
        self.targets = targets

    async def resolve(self, *bodies: Body) -> list[tuple[str, int]]:
        """The topic and the number of the partition that each record goes to; -1 = it is not known yet."""
        self.role.bodies = {body.offset: body for body in bodies}
        self.role.bodies = type("Bodies", (), {"read": staticmethod(self.role.bodies.__getitem__)})
        self.host.task = asyncio.ensure_future(asyncio.sleep(0))
        self.role._resolve(tuple(body.offset for body in bodies))
        while not self.host.task.done():
            await self.host.task
        return [(target.topic, target.lane[1]) for target in self.targets]


def body(topic_id: str, partition: int = 0, offset: int = 0) -> Body:
    return Body(offset, None, b"v", [Envelope("t", topic_id, partition, 5).header()])


async def test_a_target_that_was_created_again_gets_its_records_at_once() -> None:
    stage = Stage()
    assert await stage.resolve(body(OLD)) == [("t", 0)]
    stage.host.topic_id = NEW
    assert await stage.resolve(body(NEW)) == [("t", 0)]
    assert await stage.resolve(body(OLD)) == [(UNDELIVERABLE_TOPIC, 0)]


async def test_a_target_exists_while_no_controller_answers() -> None:
    stage = Stage()
    await stage.resolve(body(OLD))
    stage.host.topic_id, stage.host.is_away = NEW, True
    assert await stage.resolve(body(NEW)) == [("t", -1)]
    stage.host.is_away = False
    assert await stage.resolve(body(NEW)) == [("t", 0)]


async def test_a_partition_that_was_added_gets_its_records_at_once() -> None:
    stage = Stage()
    await stage.resolve(body(OLD))
    stage.host.partitions = 3
    assert await stage.resolve(body(OLD, 2)) == [("t", 2)]
    assert await stage.resolve(body(OLD, 3)) == [(UNDELIVERABLE_TOPIC, 0)]


async def test_what_is_known_and_fits_is_not_requested_again() -> None:
    stage = Stage()
    await stage.resolve(body(OLD))
    await stage.resolve(body(OLD))
    assert stage.host.queries == 1
