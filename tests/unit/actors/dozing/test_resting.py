"""A replica that finds no broker that may stop it: it does not rest, and states why if that can be changed."""

import logging
import os
from pathlib import Path

import pytest

from raylog.actors.clock import monotonic_ms
from raylog.actors.dozing import channel, resting
from raylog.actors.dozing.resting import DozeLink
from raylog.actors.replica.dozing import Doze


def doze() -> Doze:
    return Doze(until_ms=monotonic_ms() + 60_000, life=-1, report=dict, holds=lambda: True, check_ms=100)


@pytest.fixture
def replica_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process at the other end of a connection is one of another user."""
    real = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    monkeypatch.setattr(resting, "RETRY_MS", 0)


async def test_a_replica_of_another_user_does_not_doze_and_logs_it_once(
    tmp_path: Path, replica_of_another_user: None, caplog: pytest.LogCaptureFixture
) -> None:
    link = DozeLink(tmp_path, "flights-0")
    with channel.listen(tmp_path), caplog.at_level(logging.WARNING):
        assert [await link.rest(doze()) for _ in range(3)] == [0, 0, 0]
    (record,) = caplog.records
    assert "flights-0 does not doze, because it runs as another user than its broker" in record.message
    assert "run all processes of a node's Ray as one user, or set replica.doze.after.ms=-1" in record.message


async def test_a_replica_without_a_broker_does_not_doze_and_logs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert await DozeLink(tmp_path, "flights-0").rest(doze()) == 0
    assert not caplog.records
