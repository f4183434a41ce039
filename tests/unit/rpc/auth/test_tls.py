"""TLS from Ray's variables, with certificates made on the spot by the openssl command."""

import asyncio
import random
import shutil
import socket
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from raylog.base.errors import AuthenticationFailed, ConnectionFailed
from raylog.rpc import client_context, connect, server_context
from raylog.rpc.auth.addresses import ENV_ADVERTISED, Advertised
from raylog.rpc.errors import TlsMismatch
from tests.coroutines import run
from tests.unit.rpc.support import SECRET, is_cut, leave, limits, serving, stranger, until

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates by the openssl command")


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Make a certificate, which is its own authority, and its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
         "-subj", "/CN=raylog test", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True,
        capture_output=True,
        timeout=60,
    )  # fmt: skip
    return certificate, key


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Ray's variables for one certificate."""
    certificate, key = self_signed(tmp_path_factory.mktemp("tls"))
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(certificate),
        "RAY_TLS_SERVER_KEY": str(key),
        "RAY_TLS_CA_CERT": str(certificate),
    }


def test_tls_is_off_unless_ray_uses_it() -> None:
    assert server_context({}) is None
    assert client_context({"RAY_USE_TLS": "0"}) is None


@pytest.mark.parametrize("text", ["yes", "on", "True!", "2"])
def test_a_value_that_ray_would_take_for_off_is_refused(text: str) -> None:
    for make in (server_context, client_context):
        with pytest.raises(ValueError, match=f"RAY_USE_TLS='{text}' means nothing to Ray"):
            make({"RAY_USE_TLS": text})


def test_missing_files_are_named() -> None:
    with pytest.raises(ValueError, match="RAY_TLS_SERVER_CERT"):
        server_context({"RAY_USE_TLS": "1"})


@needs_openssl
def test_tls_without_an_authority_is_refused(environ: dict[str, str]) -> None:
    without = {name: value for name, value in environ.items() if name != "RAY_TLS_CA_CERT"}
    for make in (server_context, client_context):
        with pytest.raises(ValueError, match="RAY_TLS_CA_CERT must name the file"):
            make(without)


@needs_openssl
def test_renewed_certificates_hold_from_the_next_connection_on(environ: dict[str, str], tmp_path: Path) -> None:
    async def scenario() -> None:
        mine = {**environ}
        for name in ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"):
            mine[name] = str(tmp_path / name)
            shutil.copy(environ[name], mine[name])
        server, client = server_context(mine), client_context(mine)
        async with serving(tls=server) as place:
            before = await place.connect(tls=client)
            (tmp_path / "new").mkdir()
            certificate, key = self_signed(tmp_path / "new")
            shutil.copy(certificate, mine["RAY_TLS_SERVER_CERT"])
            # Only one of the files has been replaced: what was loaded before still holds.
            assert (await (await place.connect(tls=client)).call("echo", [1], timeout_s=5)).args == [1]
            shutil.copy(key, mine["RAY_TLS_SERVER_KEY"])
            shutil.copy(certificate, mine["RAY_TLS_CA_CERT"])
            after = await place.connect(tls=client)
            for connection in (before, after):
                assert (await connection.call("echo", ["alive"], timeout_s=5)).args == ["alive"]
            with pytest.raises(ConnectionFailed):
                await place.connect(tls=client_context(environ))  # of the authority that was replaced

    run(scenario())


@needs_openssl
def test_a_relay_that_ends_tls_with_another_certificate_is_refused(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where its address is advertised and its certificate is the authority's: the two certificates differ."""
    (tmp_path / "m").mkdir()
    certificate, key = self_signed(tmp_path / "m")
    both = tmp_path / "both.pem"
    both.write_text(Path(environ["RAY_TLS_CA_CERT"]).read_text() + certificate.read_text())
    trusting = {**environ, "RAY_TLS_CA_CERT": str(both)}
    middle = {**trusting, "RAY_TLS_SERVER_CERT": str(certificate), "RAY_TLS_SERVER_KEY": str(key)}

    async def scenario() -> None:
        async with serving(tls=server_context(trusting)) as place:
            other = client_context(middle)
            assert other is not None
            over = asyncio.Event()

            async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                there, back = await asyncio.open_connection(place.host, place.port, ssl=other)

                async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                    with suppress(ConnectionError, ssl.SSLError):
                        while data := await source.read(65536):
                            sink.write(data)
                    sink.close()

                await asyncio.gather(pump(reader, back), pump(there, writer))
                over.set()

            relay = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=server_context(middle))
            async with relay:
                address = relay.sockets[0].getsockname()
                monkeypatch.setenv(ENV_ADVERTISED, f"{address[0]}:{address[1]}")
                place.server._advertised = Advertised.read()
                with pytest.raises(AuthenticationFailed, match="refused our secret"):
                    await connect(address[0], address[1], secret=SECRET, tls=client_context(trusting))
                await over.wait()
            assert not place.server.connections

    run(scenario())


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
            with pytest.raises(ConnectionFailed):
                await place.connect(tls=naked)
            with pytest.raises(ConnectionFailed):
                await place.connect(timeout_s=2)
            async with stranger(place) as (reader, writer):
                writer.write(b"no TLS at all, but long enough to be read as a record of it")
                assert await is_cut(reader)
            connection = await place.connect(tls=client_context(environ))
            assert (await connection.call("echo", ["alive"], timeout_s=5)).args == ["alive"]
            # Connections whose TLS handshake failed are dropped too, else they would fill up the server.
            await until(lambda: not place.server._strangers, "the failed ones are forgotten")
            await leave(connection)

    run(scenario())


@needs_openssl
def test_tls_at_one_end_alone_is_one_sentence_at_once(environ: dict[str, str]) -> None:
    async def scenario() -> None:
        async with serving() as plain, serving(tls=server_context(environ)) as secure:
            with pytest.raises(TlsMismatch, match=r"does not speak TLS.*`unset RAY_USE_TLS`"):
                await plain.connect(tls=client_context(environ))
            with pytest.raises(TlsMismatch, match="speaks TLS, and this process does not: set RAY_USE_TLS=1"):
                await connect(secure.host, secure.port, secret=SECRET, timeout_s=2, is_first=True)

    run(scenario())


def test_a_server_of_another_kind_is_named_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:

        async def scenario() -> None:
            with pytest.raises(ConnectionFailed, match="takes connections and sends nothing"):
                await connect(*silent.getsockname(), secret=SECRET, timeout_s=0.4, is_first=True)

        run(scenario())
