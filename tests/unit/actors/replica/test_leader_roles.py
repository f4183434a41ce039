"""Roles of a leader on a real log: they begin and end with a leadership, and are clients of their own log."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from raylog.actors.replica.leader_roles import LeaderRoles
from raylog.actors.replica.ports import ReplicaRequest
from raylog.actors.replica.runner import ReplicaRunner
from raylog.actors.roles.host import ControllerCalls, RoleHost
from raylog.actors.roles.local import LocalRequest
from raylog.actors.roles.role import Role
from raylog.base.errors import NotLeaderOrFollower, OffsetOutOfRange
from raylog.base.ids import EARLIEST, LATEST
from raylog.protocol.message import Message
from raylog.protocol.replica import ReplicaStatusRequest
from raylog.rpc import Request
from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.records import decode_batch
from tests.unit.actors.replica.test_consumer_reads import leading
from tests.unit.actors.specs import replica_spec
from tests.unit.storage.logs import batch
from tests.waiting import eventually

EPOCH = 3


class Recorder(Role):
    """A role that notes its life, and has a task that never ends by itself."""

    kind = "recorder"
    requests: ClassVar[frozenset[type[Message]]] = frozenset({ReplicaStatusRequest})
    lives: ClassVar[list[tuple[str, int]]] = []

    def begin(self) -> None:
        self.lives.append(("begins", self.host.leader_epoch))
        self.was_cancelled = False
        self.host.spawn(self.wait(), "waits")

    async def wait(self) -> None:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise

    def receive(self, request: Request, args: Any) -> None:
        self.lives.append((type(args).__name__, self.host.leader_epoch))

    async def end(self) -> None:
        assert self.was_cancelled
        self.lives.append(("ends", self.host.leader_epoch))


class Stage:
    """The roles of a replica that leads."""

    def __init__(self, runner: ReplicaRunner, folder: Path, *kinds: type[Role]) -> None:
        spec = replica_spec(folder, topic_id="id")
        self.hosts: list[RoleHost] = []
        self.failures: list[str] = []
        stage = self

        class Keeping(Role):
            """Gives the test its host."""

            kind = "keeping"

            def begin(self) -> None:
                stage.hosts.append(self.host)

        def receive(request: LocalRequest) -> None:
            runner.receive(cast(ReplicaRequest, request), request.args)

        self.roles = LeaderRoles(
            lambda: spec,
            (Keeping, *kinds),
            log=lambda: runner.log,
            trusted_ms=runner.clock.trusted_ms,
            receive=receive,
            controller=cast(ControllerCalls, None),
            on_failed=self.failures.append,
        )


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[ReplicaRunner]:
    with leading(tmp_path) as found:
        yield found


def leading_host(runner: ReplicaRunner, folder: Path) -> RoleHost:
    stage = Stage(runner, folder)
    stage.roles.lead(EPOCH)
    return stage.hosts[0]


async def test_what_a_role_appends_it_can_fetch(runner: ReplicaRunner, tmp_path: Path) -> None:
    host = leading_host(runner, tmp_path)
    appended = await host.produce(batch(b"first", b"second"))
    assert appended.base_offset == 0
    reply, records = await host.fetch(0, max_bytes=1 << 20, max_wait_ms=0)
    assert reply.high_watermark == 2
    ((position, header),) = iter_headers(records)
    assert decode_batch(records, position, header).values == [b"first", b"second"]


async def test_a_fetch_at_the_end_waits_for_the_next_append(runner: ReplicaRunner, tmp_path: Path) -> None:
    host = leading_host(runner, tmp_path)
    waiting = asyncio.ensure_future(host.fetch(0, max_bytes=1 << 20, max_wait_ms=60_000))
    await asyncio.sleep(0)
    assert not waiting.done()
    await host.produce(batch(b"late"))
    async with asyncio.timeout(5):
        reply, _ = await waiting
    assert reply.high_watermark == 1


async def test_places_of_the_own_log(runner: ReplicaRunner, tmp_path: Path) -> None:
    host = leading_host(runner, tmp_path)
    await host.produce(batch(b"a", b"b", b"c"))
    assert (await host.list_offsets(EARLIEST)).offset == 0
    assert (await host.list_offsets(LATEST)).offset == 3
    assert await host.delete_records(2) == 2
    with pytest.raises(OffsetOutOfRange):
        await host.fetch(0, max_bytes=1 << 20, max_wait_ms=0)


async def test_roles_begin_and_end_with_each_leadership(runner: ReplicaRunner, tmp_path: Path) -> None:
    Recorder.lives.clear()
    roles = Stage(runner, tmp_path, Recorder).roles
    roles.lead(EPOCH)
    await asyncio.sleep(0)  # its task begins
    roles.lead(EPOCH + 1)
    await asyncio.sleep(0)
    roles.receive(cast(Request, None), ReplicaStatusRequest())
    async with asyncio.timeout(5):
        await roles.stop()
    assert Recorder.lives == [
        ("begins", EPOCH),
        ("begins", EPOCH + 1),
        ("ReplicaStatusRequest", EPOCH + 1),
        ("ends", EPOCH),
        ("ends", EPOCH + 1),
    ]


async def test_after_its_end_a_role_can_do_nothing(runner: ReplicaRunner, tmp_path: Path) -> None:
    stage = Stage(runner, tmp_path, Recorder)
    stage.roles.lead(EPOCH)
    await asyncio.sleep(0)
    stage.roles.follow()
    with pytest.raises(NotLeaderOrFollower):
        await stage.hosts[0].produce(batch(b"too late"))
    with pytest.raises(NotLeaderOrFollower):
        stage.roles.receive(cast(Request, None), ReplicaStatusRequest())
    await stage.roles.stop()
    assert runner.log.log_end_offset == 0


async def test_the_process_runs_until_the_roles_have_ended(runner: ReplicaRunner, tmp_path: Path) -> None:
    roles = Stage(runner, tmp_path, Recorder).roles
    roles.lead(EPOCH)
    await asyncio.sleep(0)
    roles.follow()
    busy = [roles.is_busy]
    await roles.stop()
    busy.append(roles.is_busy)
    assert busy == [True, False]


async def test_a_task_of_a_role_that_fails_ends_the_process(runner: ReplicaRunner, tmp_path: Path) -> None:
    stage = Stage(runner, tmp_path)
    stage.roles.lead(EPOCH)

    async def fail() -> None:
        raise ValueError("a defect")

    stage.hosts[0].spawn(fail(), "work")
    await eventually(lambda: bool(stage.failures))
    assert stage.failures == ["t-0: t-0 work failed: ValueError('a defect')"]
    await stage.roles.stop()
