"""What a sender of letters does with refusals, and with what goes wrong in the records of one group."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raylog.actors.queues import letters
from raylog.actors.queues.letters import LIMIT, LIMIT_DEFAULT, LIMIT_MAX, limit_for_copies, sent_at_last
from raylog.base.errors import (
    NotLeaderOrFollower,
)
from raylog.core.forwarding.sizes import ROOM_BYTES, Room, size_of
from raylog.core.queues import events as ev
from raylog.core.queues.records import LetterBox

EFFECT = ev.SendLetters(cause="test", box=LetterBox("dead", "id", 0, 7), sequence=0, letters=())


def test_a_topic_of_copies_has_room_for_headers() -> None:
    assert limit_for_copies({}) == str(LIMIT_DEFAULT + ROOM_BYTES)
    assert limit_for_copies({LIMIT: "5000000"}) == str(5_000_000 + ROOM_BYTES)
    assert limit_for_copies({LIMIT: str(LIMIT_MAX)}) == str(LIMIT_MAX)
    assert limit_for_copies({}, least=40_000_000) == "40000000"


def test_one_record_always_has_room() -> None:
    room = Room(100)
    assert [room.takes(size) for size in (500, 1)] == [True, False]
    room = Room(100)
    assert [room.takes(size) for size in (60, 40, 1)] == [True, True, False]
    assert size_of(b"k", None, [("name", None), ("name", b"1")]) == size_of(None, None, ()) + 10


class Sender:
    """Fails with what it is given, in turn, then stores."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def send(self, group: str, effect: ev.SendLetters) -> ev.LettersStored:
        if self.errors:
            raise self.errors.pop(0)
        return ev.LettersStored(cause="stored", now_ms=0, sequence=effect.sequence)


class Host:
    partition = "jobs-0"


def outcome(sender: Sender, *, is_over: bool = False) -> Any:
    host: Any = Host()
    return asyncio.run(sent_at_last(sender, host, "workers", EFFECT, lambda: is_over))


def test_whatever_is_wrong_in_one_groups_records_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "PAUSE_MAX_S", 0.001)
    assert isinstance(outcome(Sender(TypeError("a body"), ValueError("another"))), ev.LettersStored)


def test_the_end_of_a_leadership_is_none_of_it() -> None:
    with pytest.raises(NotLeaderOrFollower):
        outcome(Sender(NotLeaderOrFollower("it ends")))


def test_a_queue_that_is_over_sends_nothing() -> None:
    assert outcome(Sender(TypeError("never seen")), is_over=True) is None
