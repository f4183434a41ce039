"""What ends one shard ends the whole relay, whatever it is: a relay that waits for nothing looks as if it worked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine

from raylog import outbox
from raylog.outbox.relay import OutboxRelay
from raylog.outbox.store import OutboxStore


class Exit(BaseException):
    """Raised by the program around the relay, such as a test's own end."""


@pytest.mark.parametrize("kind", [Exit, ValueError])
def test_an_exception_in_one_shard_is_raised(
    kind: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'bank.db'}")
    outbox.init(engine, shards=2)
    relay = OutboxRelay(engine, "bank", bootstrap="nowhere:1", secret="aa")
    producer: Any = SimpleNamespace(cluster=SimpleNamespace(metadata=SimpleNamespace(cluster_id="c")))

    def fail(*_: object) -> None:
        raise kind

    monkeypatch.setattr(OutboxStore, "take", fail)

    async def run() -> None:
        relay.prepare()
        await asyncio.wait_for(relay.relay_through(producer), 20.0)

    with pytest.raises(kind):
        asyncio.run(run())
    engine.dispose()
