"""What a leader's log refuses is answered as its machine judges it, and what its disk refuses with the disk's error."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from raylog.actors.replica.ports import ReplicaRequest
from raylog.base.errors import NotEnoughReplicas, OutOfOrderSequence, RaylogError, RecordTooLarge
from raylog.base.ids import NO_EPOCH
from raylog.protocol import replica as wire
from raylog.storage.errors import DiskFull
from raylog.storage.log.config import LogConfig
from tests.unit.actors.replica.following import ME, OTHER, Clocks, Following, Request
from tests.unit.storage.logs import batch, produced


@pytest.fixture
def leading(tmp_path: Path) -> Following:
    """It leads, with one batch of a producer, and its follower has not fetched yet."""
    leading = Following(tmp_path, LogConfig(max_message_bytes=500), Clocks())
    leading.state(ME, 1)
    leading.produce(produced(0))
    return leading


def fetched_by_other(leading: Following) -> None:
    args = wire.ReplicaFetchRequest("id", 0, 1, OTHER, 11, 0, NO_EPOCH, 1_000, 0, 0, 0)
    leading.runner.receive(cast(ReplicaRequest, Request()), args)


REFUSED = {"hole": (produced(5), OutOfOrderSequence), "large": (batch(b"x" * 900), RecordTooLarge)}


@pytest.mark.parametrize(("payload", "error"), REFUSED.values(), ids=REFUSED)
def test_a_producer_tries_again_until_the_follower_has_followed(
    leading: Following, payload: bytes, error: type[RaylogError]
) -> None:
    first = leading.produce(payload)
    assert isinstance(first.error, NotEnoughReplicas)
    assert error.__name__ in str(first.error)
    fetched_by_other(leading)
    assert isinstance(leading.produce(payload).error, error)


def test_a_disk_that_refuses_says_so_at_once(leading: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise DiskFull("append", OSError(28, "the test's disk is full"))

    monkeypatch.setattr(leading.log, "append_as_leader", full)
    assert isinstance(leading.produce(produced(1)).error, DiskFull)
