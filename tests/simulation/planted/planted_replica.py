"""Planted bugs in the shipped shell of a replica, in consumer visibility, and in due times."""

from __future__ import annotations

from collections.abc import Callable

from raylog.actors.replica.consumer_reads import ConsumerReads
from raylog.actors.replica.effects import ReplicaEffects
from raylog.core.replication.events import AnswerProduce
from raylog.core.replication.isr import FollowerProgress
from raylog.core.replication.leader import Leader
from raylog.core.replication.parked import ParkedFetches, ParkedProduces
from raylog.core.replication.visibility import Visibility
from tests.simulation.planted.bugs import STORY, Edit, Planted, nothing


def answer_twice(original: Callable[..., None]) -> Callable[..., None]:
    """An acknowledgement is sent twice."""

    def answer(self: ReplicaEffects, effect: AnswerProduce) -> None:
        request = self._requests[effect.request]
        original(self, effect)
        self._requests[effect.request] = request
        original(self, effect)

    return answer


REPLICA_BUGS = (
    Planted(
        "a follower that never fetched never lags",
        STORY,
        1,
        ("L7",),
        FollowerProgress,
        "lags",
        Edit("return self.durable_end", "return self.durable_end is not None and self.durable_end"),
    ),
    Planted(
        "effects leave before the disk has what they rest on",
        "reboot",
        20,
        ("I1", "I4", "I7"),
        ReplicaEffects,
        "durable_end",
        ReplicaEffects.end,
    ),
    Planted(
        "a consumer is given what is not committed",
        "swarm",
        20,
        ("I3",),
        ConsumerReads,
        "_try_fetch",
        Edit("fetch, upper = effect.fetch, effect.upper", "fetch, upper = effect.fetch, self._log.log_end_offset"),
    ),
    Planted(
        "a look-up returns the log end",
        "swarm",
        20,
        ("I3",),
        Visibility,
        "list_offsets",
        Edit("request, exposed = event.request, self.exposed", "request, exposed = event.request, self._log.end"),
    ),
    Planted(
        "a consumer is answered with fewer bytes than it waits for",
        "swarm",
        20,
        ("L6",),
        ConsumerReads,
        "_try_fetch",
        Edit("found_bytes < min(message.min_bytes, max_bytes)", "False"),
    ),
    Planted("a consumer that waits is not woken", "swarm", 20, ("L6",), Visibility, "wake", nothing),
    Planted("a consumer's time is never over", "swarm", 20, ("L6",), Visibility, "tick", nothing),
    Planted("a producer's time is never over", "swarm", 20, ("L6",), ParkedProduces, "expire", nothing),
    Planted("a follower's time is never over", "swarm", 20, ("L6",), ParkedFetches, "take_overdue", lambda *_: []),
    Planted("requests stay when leading ends", "swarm", 20, ("L6",), Leader, "resign", nothing),
    Planted(
        "an acknowledgement is sent twice",
        "swarm",
        20,
        ("L6",),
        ReplicaEffects,
        "_answer_produce",
        answer_twice(ReplicaEffects._answer_produce),
    ),
)
