"""A bell has a loop call what threads have given it: each once, in order, also behind one that fails."""

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from raylog.client.bell import Bell

WAIT_S = 10
pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="there are no bells here")


def rung(bell: Bell, *calls: Callable[[], object]) -> None:
    """Ring in another thread."""

    def ring() -> None:
        for call in calls:
            bell.ring(call)

    thread = threading.Thread(target=ring)
    thread.start()
    thread.join(WAIT_S)


async def test_what_a_thread_rings_for_is_called_on_the_loop_in_order() -> None:
    bell = Bell.on_running_loop()
    assert bell is not None
    called: list[tuple[int, int]] = []
    done = asyncio.Event()
    rung(bell, *[lambda number=number: called.append((number, threading.get_ident())) for number in range(3)], done.set)
    await asyncio.wait_for(done.wait(), WAIT_S)
    assert called == [(number, threading.get_ident()) for number in range(3)]


async def test_a_call_that_fails_is_reported_and_keeps_none_from_being_made() -> None:
    bell = Bell.on_running_loop()
    assert bell is not None
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    done = asyncio.Event()

    def fails() -> None:
        raise ValueError("as planned")

    rung(bell, fails, done.set)
    await asyncio.wait_for(done.wait(), WAIT_S)
    assert [str(each["exception"]) for each in reported] == ["as planned"]


async def test_a_loop_has_one_bell() -> None:
    assert Bell.on_running_loop() is Bell.on_running_loop()


def test_a_bell_ends_with_its_loop_and_may_be_rung_behind_its_end() -> None:
    async def found() -> Bell | None:
        return Bell.on_running_loop()

    bell = asyncio.run(found())
    assert bell is not None
    descriptor = bell._descriptor
    gc.collect()
    os.fstat(descriptor)  # still open, as the bell is held
    bell.ring(lambda: None)
    del bell
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


async def test_where_no_bell_can_be_made_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd")
    assert Bell.on_running_loop() is None
