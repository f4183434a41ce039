"""The topic of what cannot be delivered is shared: each part of a world looks at what is its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raylog.base.ids import TopicPartition
from raylog.core.dead_letters import Cause, Reason, dead_headers
from tests.simulation.whole.forwarding.clients import AGAIN, PING, UNDELIVERABLE, LettersReader
from tests.simulation.whole.forwarding.letters import Headers, Letters
from tests.simulation.world import Violation

pytestmark = pytest.mark.sim

AT = TopicPartition(UNDELIVERABLE, 0), 0


def landed(name: bytes, headers: Headers) -> None:
    world: Any = SimpleNamespace(letters=Letters(), books=None)
    LettersReader(world, "reader")._arrived(AT, name, headers)


def left(topic: str) -> Headers:
    cause = Cause(reason=Reason.UNDELIVERABLE, topic=topic, partition=0, offset=5)
    return tuple(dead_headers((), cause))


def test_a_delayed_record_of_an_earlier_topic_may_land_there() -> None:
    landed(b"6/5/delayed", left("created-again"))


@pytest.mark.parametrize("headers", [(), left(PING), left(AGAIN)])
def test_what_no_client_has_sent_may_not(headers: Headers) -> None:
    with pytest.raises(Violation, match="which no client has sent"):
        landed(b"expirer/5", headers)
