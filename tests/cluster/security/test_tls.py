"""With Ray's TLS variables set, actors and clients communicate over TLS alone."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import raylog
from raylog.actors import transport
from raylog.base.errors import ConnectionFailed
from raylog.rpc import connect
from tests.cluster.local_cluster import SECRET, LocalCluster
from tests.unit.rpc.auth.test_tls import environ, needs_openssl

__all__ = ["environ"]


@pytest.fixture
def tls(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Switch TLS on for this process, as Ray's variables do."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    transport.contexts.cache_clear()
    yield
    transport.contexts.cache_clear()


@needs_openssl
@pytest.mark.usefixtures("tls")
async def test_a_cluster_with_tls_produces_replicates_and_consumes(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path) as cluster:
        async with raylog.AsyncAdmin(**cluster.clients()) as admin:
            await admin.create_topic("t", partitions=2, replication_factor=3)
        async with raylog.AsyncProducer(**cluster.clients()) as producer:
            sent = [await producer.send("t", b"%d" % number) for number in range(100)]
            for future in sent:
                await future
        async with raylog.AsyncConsumer(
            "t", auto_offset_reset="earliest", group_id="g", **cluster.clients()
        ) as consumer:
            read: set[bytes | None] = set()
            async with asyncio.timeout(30):
                while len(read) < 100:
                    for records in (await consumer.getmany(timeout_ms=500)).values():
                        read.update(record.value for record in records)
        with pytest.raises(ConnectionFailed):
            await connect(*cluster.broker_servers[1].endpoint, secret=SECRET, timeout_s=2)
        assert not cluster.fatal
