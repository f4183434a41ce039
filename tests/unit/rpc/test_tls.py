"""TLS from Ray's variables, with certificates made on the spot by the openssl command."""

from __future__ import annotations

import asyncio
import random
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from raylog.rpc import ConnectFailed, client_context, server_context
from tests.unit.rpc.support import is_cut, leave, limits, run, serving, stranger, until

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates by the openssl command")


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Ray's variables for one self-signed certificate, which is its own authority."""
    folder: Path = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
         "-subj", "/CN=raylog test", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True,
        capture_output=True,
        timeout=60,
    )  # fmt: skip
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(certificate),
        "RAY_TLS_SERVER_KEY": str(key),
        "RAY_TLS_CA_CERT": str(certificate),
    }


def test_tls_is_off_unless_ray_uses_it() -> None:
    assert server_context({}) is None
    assert client_context({"RAY_USE_TLS": "0"}) is None


def test_missing_files_are_named() -> None:
    with pytest.raises(ValueError, match="RAY_TLS_SERVER_CERT"):
        server_context({"RAY_USE_TLS": "1"})


@needs_openssl
def test_calls_of_all_sizes_go_through_tls(environ: dict[str, str]) -> None:
    async def scenario() -> None:
        async with serving(tls=server_context(environ)) as place:
            connection = await place.connect(tls=client_context(environ))
            for size in (0, 100, 20_000, 5_000_000):
                payload = random.Random(size).randbytes(size)
                calls = [connection.call_nowait("echo", [size], payload, timeout_s=15) for _ in range(4)]
                for reply in await asyncio.gather(*calls):
                    assert reply.payload == payload
            await connection.drain()
            await leave(connection)

    run(scenario())


@needs_openssl
def test_a_client_without_certificate_or_without_tls_is_refused(environ: dict[str, str]) -> None:
    async def scenario() -> None:
        async with serving(tls=server_context(environ), limits=limits(auth_timeout_s=0.5)) as place:
            naked = ssl.create_default_context(cafile=environ["RAY_TLS_CA_CERT"])
            with pytest.raises(ConnectFailed):
                await place.connect(tls=naked)
            with pytest.raises(ConnectFailed):
                await place.connect(timeout_s=2)
            async with stranger(place) as (reader, writer):
                writer.write(b"no TLS at all, but long enough to be read as a record of it")
                assert await is_cut(reader)
            connection = await place.connect(tls=client_context(environ))
            assert (await connection.call("echo", ["alive"], timeout_s=5)).args == ["alive"]
            # Connections whose TLS handshake failed are forgotten too, else they would fill up the server.
            await until(lambda: not place.server._strangers, "the failed ones are forgotten")
            await leave(connection)

    run(scenario())
