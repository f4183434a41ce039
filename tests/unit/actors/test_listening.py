"""The address at which a server opens: configured, kept from before, or any that is free."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.listening import FIRST_PORTS, KEPT_FILE, keep_settings, kept_values, open_endpoint
from raylog.base.errors import AuthenticationFailed, InvalidConfig, StartFailed
from raylog.rpc import Request, RpcServer, connect

SECRET = b"a secret of some length"
HERE = "127.0.0.1"


@dataclass
class Spec:
    secret: bytes = SECRET
    host: str = HERE
    allow_plaintext: bool = False


def echo(request: Request) -> None:
    request.reply(request.args)


class Process:
    """A server that is started and stopped as a process of the cluster is."""

    def __init__(self, folder: Path, config: dict[str, str] | None = None, *, is_broker: bool = True) -> None:
        self.file = folder / KEPT_FILE
        self.config = config or {}
        self.is_broker = is_broker
        self.server = RpcServer(echo, secret=SECRET)

    async def start(self, **more: Any) -> tuple[str, int]:
        return await open_endpoint(
            self.server,
            Spec(**more),
            name="broker 7",
            config={**kept_values(self.file), **self.config},
            kept=self.file,
            is_broker=self.is_broker,
        )

    async def stop(self) -> None:
        await self.server.close()


async def once(folder: Path, config: dict[str, str] | None = None, *, is_broker: bool = True) -> tuple[str, int]:
    """Start a process, connect to it, stop it; returns its endpoint."""
    process = Process(folder, config, is_broker=is_broker)
    endpoint = await process.start()
    try:
        connection = await connect(*endpoint, secret=SECRET)
        connection.close("done")
    finally:
        await process.stop()
    return endpoint


@contextmanager
def taken(port: int = 0, host: str = HERE) -> Iterator[int]:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((host, port))
        other.listen()
        yield other.getsockname()[1]


@pytest.mark.parametrize("is_broker", [True, False])
def test_the_port_of_before_is_taken_again(tmp_path: Path, is_broker: bool) -> None:
    first, second = (asyncio.run(once(tmp_path, is_broker=is_broker)) for _ in range(2))
    assert first == second
    assert (first[1] in FIRST_PORTS) is is_broker


def test_a_port_that_is_used_by_then_is_replaced_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "raylog.actors.listening")
    _, before = asyncio.run(once(tmp_path))
    assert not caplog.messages
    with taken(before):
        _, now = asyncio.run(once(tmp_path))
    assert now != before
    assert caplog.messages == [
        f"port {before}, which broker 7 had before, is taken: it has {now} now; clients whose bootstrap= names the "
        "former port need the new one"
    ]
    assert asyncio.run(once(tmp_path))[1] == now, "and kept in its turn"


@pytest.mark.parametrize("text", ["", "port.RAYLOG=soon\n", "port.RAYLOG=70000\n", "\0\0\0", "port.RAYLOG=1\n"])
def test_a_file_without_a_port_costs_only_the_port(tmp_path: Path, text: str) -> None:
    (tmp_path / KEPT_FILE).write_text(text)
    assert asyncio.run(once(tmp_path))[1] in (*FIRST_PORTS, 1)


def test_a_folder_that_takes_no_file_costs_only_the_port(tmp_path: Path) -> None:
    assert asyncio.run(once(tmp_path / "missing"))[1]


def test_a_configured_port_is_taken_or_the_start_fails_with_the_reason(tmp_path: Path) -> None:
    with taken() as port:
        config = {"listeners": f"RAYLOG://:{port}"}
        with pytest.raises(StartFailed, match=rf"^listeners: broker 7 cannot listen at 127.0.0.1:{port}: another"):
            asyncio.run(once(tmp_path, config))
    assert asyncio.run(once(tmp_path, config)) == (HERE, port)
    assert asyncio.run(once(tmp_path)) == (HERE, port), "the directory knows the settings of the last start"


def test_an_address_of_another_machine_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="no such address"):
        asyncio.run(Process(tmp_path, {"listeners": "RAYLOG://192.0.2.7:0"}).start(allow_plaintext=True))
    with pytest.raises(StartFailed, match="without TLS"):
        asyncio.run(Process(tmp_path, {"listeners": "RAYLOG://192.0.2.7:0"}).start())


def test_settings_that_the_cluster_changed_count_at_the_next_start(tmp_path: Path) -> None:
    with taken() as port:
        pass
    asyncio.run(once(tmp_path, {"listeners": "RAYLOG://127.0.0.9:0"}))
    keep_settings(tmp_path / KEPT_FILE, {"listeners": f"RAYLOG://:{port}", "num.partitions": "3"})
    assert asyncio.run(once(tmp_path)) == (HERE, port)
    keep_settings(tmp_path / KEPT_FILE, {})
    assert kept_values(tmp_path / KEPT_FILE) == {"port.RAYLOG": str(port)}


def test_variables_of_the_node_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYLOG_LISTENERS", "RAYLOG://127.0.0.5:0")
    assert asyncio.run(once(tmp_path, {"listeners": "RAYLOG://127.0.0.9:0"}))[0] == "127.0.0.5"
    monkeypatch.setenv("RAYLOG_LISTENERS", "127.0.0.5")
    with pytest.raises(InvalidConfig, match=r"RAYLOG_LISTENERS.*not of that form"):
        asyncio.run(once(tmp_path))


def test_clients_get_and_may_dial_the_advertised_address(tmp_path: Path) -> None:
    """A relay in between is refused, as ever, unless the broker advertises it."""

    async def relayed(config: dict[str, str]) -> tuple[str, int]:
        process = Process(tmp_path, config)
        relay = await asyncio.start_server(lambda *ends: forward(target, *ends), HERE, port)
        try:
            endpoint = await process.start()
            target[:] = [HERE, int(kept_values(process.file)["port.RAYLOG"])]
            connection = await connect(HERE, port, secret=SECRET)
            connection.close("done")
            return endpoint
        finally:
            relay.close()
            await process.stop()

    target: list[Any] = []
    with taken() as port:
        pass
    with pytest.raises(AuthenticationFailed):
        asyncio.run(relayed({}))
    assert asyncio.run(relayed({"advertised.listeners": f"RAYLOG://localhost:{port}"})) == ("localhost", port)


async def forward(target: list[Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    there, here = await asyncio.open_connection(*target)

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            sink.write(data)
        sink.close()

    await asyncio.gather(pump(reader, here), pump(there, writer), return_exceptions=True)
