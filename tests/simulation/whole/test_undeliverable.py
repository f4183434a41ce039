"""The topic of what cannot be delivered is shared: each part of a world looks at what is its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raylog.core.ids import TopicPartition
from tests.simulation.whole.forwarding.clients import UNDELIVERABLE, LettersReader
from tests.simulation.whole.forwarding.letters import Letters
from tests.simulation.whole.renewed import Renewed
from tests.simulation.world import Violation

pytestmark = pytest.mark.sim

AT = TopicPartition(UNDELIVERABLE, 0), 0


def reader(renewed: Renewed) -> LettersReader:
    world: Any = SimpleNamespace(letters=Letters(), renewed=renewed, books=None)
    return LettersReader(world, "reader")


def test_a_delayed_record_of_an_earlier_topic_may_land_there() -> None:
    renewed = Renewed()
    renewed.delayed.add(b"6/5/delayed")
    reader(renewed)._arrived(AT, b"6/5/delayed", ())


def test_what_no_client_has_sent_may_not() -> None:
    with pytest.raises(Violation, match="which no client has sent"):
        reader(Renewed())._arrived(AT, b"6/5/delayed", ())
