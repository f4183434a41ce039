"""What nothing uses now is kept for the next use, for a while."""

from __future__ import annotations

import asyncio
import os

import pytest

from raylog.client import kept
from raylog.client.kept import Kept


class Closer:
    """Remembers what was closed."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.is_done = asyncio.Event()

    async def close(self, item: str) -> None:
        """Close an item."""
        self.closed.append(item)
        self.is_done.set()


def test_an_item_is_taken_once_and_for_its_purpose() -> None:
    async def story() -> None:
        closer = Closer()
        items = Kept(closer.close, at_most=2)
        await items.keep("a", "one")
        assert items.take("b") is None
        assert items.take("a") == "one"
        assert items.take("a") is None
        assert closer.closed == []

    asyncio.run(story())


def test_what_is_too_much_and_what_is_replaced_is_closed() -> None:
    async def story() -> None:
        closer = Closer()
        items = Kept(closer.close, at_most=2)
        for purpose, item in (("a", "one"), ("b", "two"), ("b", "three"), ("c", "four")):
            await items.keep(purpose, item)
        assert closer.closed == ["two", "one"]
        assert len(items) == 2
        await items.close()
        assert sorted(closer.closed) == ["four", "one", "three", "two"]
        assert len(items) == 0

    asyncio.run(story())


def test_an_item_that_is_not_used_is_closed_and_a_taken_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(kept, "KEPT_S", 0.01)
        closer = Closer()
        items = Kept(closer.close, at_most=2)
        await items.keep("a", "one")
        assert items.take("a") == "one"
        await items.keep("b", "two")
        await asyncio.wait_for(closer.is_done.wait(), 10)
        assert closer.closed == ["two"]
        assert items.take("b") is None

    asyncio.run(story())


def test_what_is_kept_when_the_loop_ends_is_closed_and_nothing_else() -> None:
    closer = Closer()

    async def story() -> None:
        items = Kept(closer.close, at_most=2)
        await items.keep("a", "one")
        taken = items.take("a")
        assert taken is not None
        await items.keep("a", taken)  # before the first wait has noticed its end
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert closer.closed == []
        await items.keep("b", "two")
        assert items.take("b") == "two"

    asyncio.run(story())  # which cancels what is left
    assert closer.closed == ["one"]


def test_a_child_process_has_nothing_of_its_parent() -> None:
    items = Kept(Closer().close, at_most=2)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(items.keep("a", "one"))
    child = os.fork()
    if child == 0:
        os._exit(len(items))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(items) == 1
    loop.run_until_complete(items.close())
    loop.close()
