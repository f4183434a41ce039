"""Consumers' fetches at a leader without followers, on a real log and real connections: the handling of bytes."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from raylog.actors import clock
from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.replica.cleaner import Cleaner
from raylog.actors.replica.ports import Keeper, ReplicaPorts, ReplicaRequest, Sync
from raylog.actors.replica.runner import ReplicaRunner
from raylog.actors.settings import CleanerPace, FlushPolicy
from raylog.base.ids import Incarnation, TopicPartition
from raylog.core.replication.replica import ReplicationSettings
from raylog.protocol.replica import FetchReply, FetchRequest, ProduceRequest
from raylog.rpc import Request
from raylog.rpc.framing import REQUEST, encode_header
from tests.unit.core.replication.context import ME, partition_state
from tests.unit.rpc.support import raw_member, serving, until
from tests.unit.storage.logs import batch, open_log

MARK = 4_194_304
VALUE = bytes(1_000_000)


class Answered:
    """A request that keeps its replies."""

    is_deserted = False

    def __init__(self, payload: bytes = b"", *, room_bytes: int = 1 << 30) -> None:
        self.payload = payload
        self.room_bytes = room_bytes
        self.began_ns = 0
        self.append_ms = -1
        self.opened_for: object = None
        self.answers: list[tuple[Any, int]] = []

    def reply(self, args: object = None, payload: Any = b"") -> None:
        self.answers.append((args, len(payload)))

    def fail(self, error: BaseException) -> None:
        raise error


@contextmanager
def leading(folder: Path, turns: list[Callable[[], None]] | None = None, **config: Any) -> Iterator[ReplicaRunner]:
    """A leader without followers, for which everything written counts as durable.

    ``turns`` get what it wants called after other requests; None: that is called by the running loop.
    """

    def soon(call: Callable[[], None]) -> None:
        if turns is None:
            asyncio.get_running_loop().call_soon(call)
        else:
            turns.append(call)

    def nothing(_: Any) -> None:
        pass

    log = open_log(folder / "t-0", **config)
    sync = SimpleNamespace(kick=lambda: None, busy_since_ms=None, exclusive=nullcontext())
    keeper = SimpleNamespace(offset=0, tick=lambda *_: None, lower=nothing)
    runner = ReplicaRunner(
        TopicPartition("t", 0),
        log,
        clock=clock,
        sync=cast(Sync, sync),
        keeper=cast(Keeper, keeper),
        ports=ReplicaPorts(
            send_fetch=nothing,
            propose_isr=nothing,
            propose_sleep=nothing,
            resign=nothing,
            rebuild=nothing,
            verify=lambda question: runner.transaction_confirmed(question.request, None),
            role_changed=nothing,
            soon=soon,
            fatal=nothing,
        ),
        flush=FlushPolicy(messages=1 << 60, ms=1_000),
        counters=ReplicaCounters(),
        cleaner=Cleaner(log, folder, "t-0", CleanerPace(backoff_ms=1, bytes_per_s=1 << 40), ReplicaCounters()),
    )
    runner.begin(ME, Incarnation(10), ReplicationSettings(min_insync_replicas=1))
    runner.state_received(10, partition_state(isr=(ME,), replicas=(ME,), leader_epoch=3))
    yield runner
    log.close()


def parked(runner: ReplicaRunner) -> int:
    return 0 if runner.machine is None else runner.machine.parked_consumer_fetches


def produce(runner: ReplicaRunner, *values: bytes) -> None:
    runner.receive(cast(ReplicaRequest, Answered(batch(*values))), ProduceRequest("id", 0, -1, 1, 1_000))


def fetch(min_bytes: int = 1, max_wait_ms: int = 60_000) -> FetchRequest:
    return FetchRequest("id", 0, 3, 0, 1 << 20, min_bytes, max_wait_ms, 0)


async def test_fetches_that_wake_together_are_answered_as_the_peer_takes_them(tmp_path: Path) -> None:
    """A hundred parked fetches of one connection, and one append of a megabyte, made 96 MiB of unsent answers."""
    with leading(tmp_path, retention_ms=-1) as runner:  # the record's timestamp is one of 1970

        def handle(request: Request) -> None:
            runner.receive(request, fetch())

        async with serving(handle) as place, raw_member(place) as (reader, writer):
            writer.write(b"".join(encode_header(REQUEST, n, "fetch", [], 0) for n in range(1, 101)))
            await until(lambda: parked(runner) == 100, "all fetches are parked")
            (accepted,) = place.server.connections
            produce(runner, VALUE)
            assert accepted.statistics()["unsent_bytes"] <= MARK + len(VALUE) + 1000
            assert 0 < parked(runner) < 100
            taken = 0
            while taken < 100 * len(VALUE):
                runner.tick()
                assert accepted.statistics()["unsent_bytes"] <= MARK + len(VALUE) + 1000
                with suppress(TimeoutError):  # the server may learn only after this tick that all was taken
                    async with asyncio.timeout(0.01):
                        taken += len(await reader.read(1 << 20))
            assert parked(runner) == 0


def test_others_have_their_turn_between_the_fetches_of_many_connections(tmp_path: Path) -> None:
    """Thirty fetches of 1 MB that came in at once: each turn reads 8 MiB, and one fetch more, also of overdue ones."""
    turns: list[Callable[[], None]] = []
    with leading(tmp_path, turns, retention_ms=-1) as runner:
        produce(runner, VALUE)
        requests = [Answered() for _ in range(30)]
        for number, request in enumerate(requests):
            runner.receive(request, fetch(max_wait_ms=0 if number % 2 else 60_000))
        answered = []
        while turns:
            answered.append(sum(bool(request.answers) for request in requests))
            (turn,) = turns
            turns.clear()
            turn()
        assert answered == [9, 18, 27, 30]
        assert [request.answers[0][1] for request in requests] == [requests[0].answers[0][1]] * 30


def test_an_overdue_fetch_is_answered_empty_while_the_peer_is_behind(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        produce(runner, VALUE)
        request = Answered(room_bytes=0)
        runner.receive(request, fetch(max_wait_ms=0))
        assert request.answers == [(FetchReply(1, 1, 0), 0)]


def test_a_fetch_waits_until_there_are_as_many_bytes_as_it_requests(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        produce(runner, b"x")
        request = Answered()
        runner.receive(request, fetch(min_bytes=1_000))
        assert not request.answers
        produce(runner, bytes(2_000))
        assert [args for args, _ in request.answers] == [FetchReply(2, 2, 0)]
