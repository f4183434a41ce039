"""A broker that no controller has registered knows nothing of the cluster, and sends clients elsewhere."""

from pathlib import Path
from typing import Any

import pytest

from raylog.actors.actor_specs import BrokerSpec
from raylog.actors.broker.server import BrokerServer
from raylog.base.errors import ConnectionFailed, NotController
from raylog.protocol.broker import FIND_COORDINATOR, METADATA, FindCoordinatorRequest, MetadataRequest
from raylog.protocol.message import Message
from raylog.rpc import connect
from tests.coroutines import run

SECRET = b"a secret of the cluster"


async def _no_controller() -> tuple[str, int]:
    raise ConnectionFailed("there is no controller")


async def call_before_registration(folder: Path, method: str, request: Message) -> None:
    spec = BrokerSpec(broker=1, folder=folder, secret=SECRET, cluster_id="c" * 32, node_id="node")
    factory: Any = None  # no replica is made without a controller
    server = BrokerServer(spec, find_controller=_no_controller, factory=factory, on_fatal=pytest.fail)
    await server.start()
    try:
        connection = await connect(*server.endpoint, secret=SECRET, timeout_s=5.0)
        try:
            await connection.call(method, request, timeout_s=5.0)
        finally:
            connection.close("done")
    finally:
        await server.stop()


@pytest.mark.parametrize("kind", ["group", "transaction"])
def test_a_broker_without_a_controller_finds_no_coordinator(tmp_path: Path, kind: str) -> None:
    with pytest.raises(NotController):
        run(call_before_registration(tmp_path, FIND_COORDINATOR.name, FindCoordinatorRequest(kind, "some key")))


def test_a_broker_without_a_controller_has_no_metadata(tmp_path: Path) -> None:
    with pytest.raises(NotController):
        run(call_before_registration(tmp_path, METADATA.name, MetadataRequest(None)))
