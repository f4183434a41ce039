"""Planted bugs in the shipped shell of a replica, in consumer visibility, and in due times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from raylog.actors.replica.consumer_reads import ConsumerReads
from raylog.actors.replica.effects import ReplicaEffects
from raylog.core.ids import Offset
from raylog.core.replication.consumer_events import FetchStillWaits, ListOffsetsReceived, TryFetch
from raylog.core.replication.events import AnswerProduce
from raylog.core.replication.isr import FollowerProgress
from raylog.core.replication.leader import Leader
from raylog.core.replication.parked import ParkedFetches, ParkedProduces
from raylog.core.replication.visibility import Visibility
from tests.simulation.planted.bugs import STORY, Planted

Outcome = Callable[..., FetchStillWaits | None]


def nothing(*_: Any, **__: Any) -> None:
    """In place of a method that matters."""


def lag_only_if_heard(original: Callable[..., bool]) -> Callable[..., bool]:
    """A follower that never fetched in this epoch stays in sync."""

    def lags(self: FollowerProgress, *seen: Any) -> bool:
        return self.durable_end is not None and original(self, *seen)

    return lags


def read_to_the_end(original: Outcome) -> Outcome:
    """The shell reads up to the log end and ignores its bound."""

    def try_fetch(self: ConsumerReads, effect: TryFetch) -> FetchStillWaits | None:
        return original(self, replace(effect, upper=Offset(self._log.log_end_offset)))

    return try_fetch


def take_any_size(original: Outcome) -> Outcome:
    """A fetch is answered with the available records, without waiting for more."""

    def try_fetch(self: ConsumerReads, effect: TryFetch) -> FetchStillWaits | None:
        return original(self, replace(effect, fetch=replace(effect.fetch, min_bytes=0)))

    return try_fetch


def answer_twice(original: Callable[..., None]) -> Callable[..., None]:
    """An acknowledgement is sent twice."""

    def answer(self: ReplicaEffects, effect: AnswerProduce) -> None:
        request = self._requests[effect.request]
        original(self, effect)
        self._requests[effect.request] = request
        original(self, effect)

    return answer


def look_up_the_log_end(original: Callable[..., None]) -> Callable[..., None]:
    """Look-ups use the log end in place of the high watermark."""

    def list_offsets(self: Visibility, event: ListOffsetsReceived, *rest: Any) -> None:
        exposed, self.exposed = self.exposed, self._log.end
        original(self, event, *rest)
        self.exposed = exposed

    return list_offsets


REPLICA_BUGS = (
    Planted(
        "a follower never heard never lags",
        STORY,
        1,
        ("L7",),
        FollowerProgress,
        "lags",
        lag_only_if_heard(FollowerProgress.lags),
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
        read_to_the_end(ConsumerReads._try_fetch),
    ),
    Planted(
        "a look-up tells the log end",
        "swarm",
        20,
        ("I3",),
        Visibility,
        "list_offsets",
        look_up_the_log_end(Visibility.list_offsets),
    ),
    Planted(
        "a consumer is answered with fewer bytes than it waits for",
        "swarm",
        20,
        ("L6",),
        ConsumerReads,
        "_try_fetch",
        take_any_size(ConsumerReads._try_fetch),
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
