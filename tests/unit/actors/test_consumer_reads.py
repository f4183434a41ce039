"""Consumers' reads at a leader, on a real log and real connections; the machine's two answers are the test's."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from raylog.actors.consumer_reads import ConsumerReads
from raylog.actors.tail_reader import TailReader
from raylog.core.replication.replica import ReplicaMachine
from raylog.protocol.replica import FETCH, FetchReply, FetchRequest
from raylog.rpc import Request
from raylog.rpc.framing import REQUEST, encode_header
from tests.unit.rpc.support import raw_member, serving, until
from tests.unit.storage.logs import NOW, batch, open_log

MARK = 4_194_304
VALUE = bytes(1_000_000)


async def test_fetches_that_wake_together_are_answered_as_fast_as_the_peer_takes_the_answers(tmp_path: Path) -> None:
    """A hundred parked fetches of one connection, and one append of a megabyte, made 96 MiB of unsent answers."""
    log = open_log(tmp_path / "t-0")
    state = SimpleNamespace(exposed_high_watermark=0, high_watermark=0, consumer_fetch_error=lambda epoch: None)
    reads = ConsumerReads(log, TailReader(log), lambda: cast(ReplicaMachine, state))

    def handle(request: Request) -> None:
        reads.fetch(request, FETCH.read_request(request.args))

    async with serving(handle) as place, raw_member(place) as (reader, writer):
        fetch = ["id", 0, 3, 0, 1 << 20, 1, 60_000, 0]
        writer.write(b"".join(encode_header(REQUEST, n, "fetch", fetch, 0) for n in range(1, 101)))
        await until(lambda: reads.parked == 100, "all fetches are parked")
        (accepted,) = place.server.connections
        log.append_as_leader(batch(VALUE), 3, NOW)
        state.exposed_high_watermark = state.high_watermark = 1
        reads.wake()
        assert accepted.statistics()["unsent_bytes"] <= MARK + len(VALUE) + 1000
        assert 0 < reads.parked < 100
        taken = 0
        while taken < 100 * len(VALUE):
            reads.wake()
            assert accepted.statistics()["unsent_bytes"] <= MARK + len(VALUE) + 1000
            taken += len(await reader.read(1 << 20))
        assert reads.parked == 0
    log.close()


def test_a_fetch_whose_time_is_over_is_answered_without_records_while_the_peer_is_behind(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_as_leader(batch(VALUE), 3, NOW)
    state = SimpleNamespace(exposed_high_watermark=1, high_watermark=1, consumer_fetch_error=lambda epoch: None)
    reads = ConsumerReads(log, TailReader(log), lambda: cast(ReplicaMachine, state))
    taken: list[tuple[object, int]] = []
    connection = SimpleNamespace(
        is_behind=True,
        send_reply=lambda _, args, payload, __: taken.append((args, len(payload))),
    )
    request = Request(connection, 1, "fetch", [], memoryview(b""), False)
    reads.fetch(request, FetchRequest("id", 0, 3, 0, 1 << 20, 1, 0, 0))
    assert taken == [(FetchReply(1, 1, 0), 0)]
    log.close()
