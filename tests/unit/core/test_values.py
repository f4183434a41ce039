"""Events are immutable to type checkers and compare by value, at the cost of plain objects."""

from dataclasses import replace

from raylog.base.ids import Offset
from raylog.core.replication.events import Synced


def test_events_are_compared_hashed_and_replaced_as_values() -> None:
    event = Synced(cause="s", now_ms=1, end_offset=Offset(7))
    later = replace(event, now_ms=2)
    assert event != later
    assert event == replace(later, now_ms=1)
    assert len({event, replace(event), later}) == 2
    assert not hasattr(event, "__dict__")


def test_their_setters_are_the_plain_ones() -> None:
    assert Synced.__setattr__ is object.__setattr__
