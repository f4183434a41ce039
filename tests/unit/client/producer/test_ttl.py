"""A record's time to live as it is given to a producer."""

from __future__ import annotations

from datetime import timedelta

import pytest

from raylog.client.producer.scheduling import with_ttl
from raylog.core.dead_letters import TTL


@pytest.mark.parametrize("ttl", [None, -1])
def test_no_time_to_live_adds_nothing(ttl: int | None) -> None:
    assert with_ttl({"a": b"1"}, ttl) == {"a": b"1"}


@pytest.mark.parametrize(("ttl", "ms"), [(0, b"0"), (250, b"250"), ("2s", b"2000"), (timedelta(seconds=1), b"1000")])
def test_a_time_to_live_is_a_header(ttl: int | str | timedelta, ms: bytes) -> None:
    assert (with_ttl(None, ttl) or [])[-1] == (TTL, ms)  # type: ignore[index]  # what it returns is a list


@pytest.mark.parametrize("ttl", [-2, -1_000, timedelta(seconds=-1)])
def test_a_negative_time_to_live_is_refused(ttl: int | timedelta) -> None:
    with pytest.raises(ValueError, match="not negative"):
        with_ttl(None, ttl)
