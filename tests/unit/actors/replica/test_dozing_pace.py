"""How often a replica looks whether it may rest: seldom where its rests end at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from raylog.actors.replica.dozing import LONGEST_LOOK_S, SHORTEST_LOOK_S, Doze, Dozing

LOOKS = 8


class RestsFor:
    """Rests that last for a given time."""

    def __init__(self, rest_ms: int) -> None:
        self._rest_ms = rest_ms

    async def rest(self, doze: Doze) -> int:
        return self._rest_ms

    def close(self) -> None:
        """Nothing was opened."""


async def pauses_between_rests(rest_ms: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses before each of the first looks of a replica that is always at rest."""
    parts: Any = SimpleNamespace(controller=SimpleNamespace(rested=lambda _: None))
    subject = Dozing(RestsFor(rest_ms), parts, check_ms=500)
    monkeypatch.setattr(subject, "_look", lambda _: object())
    monkeypatch.setattr(subject, "_beat", lambda: True)
    pauses: list[float] = []

    async def sleep(pause_s: float) -> None:
        if pause_s:
            pauses.append(pause_s)
        if len(pauses) > LOOKS:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await subject.run()
    return pauses[1:LOOKS]


async def test_a_replica_that_rested_looks_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(await pauses_between_rests(5_000, monkeypatch)) == {SHORTEST_LOOK_S}


async def test_a_replica_that_its_broker_does_not_stop_looks_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = await pauses_between_rests(1, monkeypatch)
    assert pauses[-1] == LONGEST_LOOK_S
    assert pauses == sorted(pauses)
