"""How long a relay waits after an outage of the database: longer with each in a row, and not for earlier ones."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from raylog.outbox import relay
from raylog.outbox.relay import OutboxRelay

OUTAGES = 6


class Relay(OutboxRelay):
    """Notes its pauses, and ends after a few outages."""

    def __init__(self) -> None:
        super().__init__(create_engine("sqlite://"), "bank", bootstrap="nowhere:1", secret="aa")
        self.pauses: list[float] = []

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == OUTAGES:
            assert self._stopping is not None
            self._stopping.set()


def holder(has_finished: bool) -> type[Any]:
    class Outage:
        """Holds the shard until the database goes away."""

        session = None

        def __init__(self, *_: Any) -> None:
            self.has_finished = has_finished

        async def take(self) -> bool:
            return True

        async def work(self) -> None:
            raise OperationalError("lost", {}, Exception("lost"))

        async def close(self) -> None:
            pass

    return Outage


@pytest.mark.parametrize("has_finished", [True, False])
async def test_a_session_that_has_worked_begins_again_soon(has_finished: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "Holder", holder(has_finished))
    found = Relay()
    found.prepare()
    await found._keep_shard(0, None)  # type: ignore[arg-type]  # the holder has no use for a producer
    longest_s = relay.FIRST_PAUSE_MS / 1000
    if has_finished:
        assert max(found.pauses) <= longest_s, "an outage a night is not one that lasts"
    else:
        assert found.pauses[-1] > 10 * longest_s, "a database that lets nothing be done has time to recover"
