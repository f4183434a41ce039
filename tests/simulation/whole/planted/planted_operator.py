"""Bugs that the observer, a stopped broker, an unclean election or a relaxed flush reveals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from raylog.actors.replica.effects import ReplicaEffects
from raylog.base.ids import LATEST
from raylog.client.consumer import fetcher
from raylog.core.controller import liveness
from raylog.core.controller.liveness import Liveness
from raylog.core.controller.shutdown import Shutdown
from raylog.core.replication import leader
from raylog.core.replication.consumer_events import AnswerOffset
from raylog.core.replication.visibility import Visibility
from tests.simulation.whole.plan import LAST_MAN, OPERATOR
from tests.simulation.whole.planted.bugs import Bug


def _keeps_leaders(original: Callable[..., None]) -> Callable[..., None]:
    """A broker is marked as stopped, and no leader moves away from it."""

    def stop(self: Shutdown, *rest: Any) -> None:
        settle, Liveness.settle = Liveness.settle, lambda *_, **__: None  # type: ignore[method-assign]
        try:
            original(self, *rest)
        finally:
            Liveness.settle = settle  # type: ignore[method-assign]

    return stop


def _all_in_sync(original: Callable[..., Any]) -> Callable[..., Any]:
    """An unclean election takes all replicas for in sync."""

    def settle(state: Any, *rest: Any, **known: Any) -> Any:
        after = original(state, *rest, **known)
        is_unclean = after.unclean_leader_epoch != state.unclean_leader_epoch
        return replace(after, isr=after.replicas) if is_unclean else after

    return settle


def _false(_: object) -> Callable[..., bool]:
    return lambda *_: False


def _none(_: object) -> Callable[..., None]:
    return lambda *_: None


def _any_client_joins(_: object) -> Callable[..., bool]:
    return lambda progress, place, *_: progress.durable_end is not None and place is not None and place.port != 0


def _to_the_end(original: Callable[..., None]) -> Callable[..., None]:
    def list_offsets(self: Visibility, event: Any, leader_epoch: Any, out: Any) -> None:
        if event.timestamp == LATEST and self.exposed is not None:
            answer = AnswerOffset(request=event.request, offset=self._log.end, leader_epoch=leader_epoch)
            out.now.append(answer)
        else:
            original(self, event, leader_epoch, out)

    return list_offsets


OPERATOR_BUGS: Final = (
    Bug("a stopped broker keeps its leaders", Shutdown, "stop", _keeps_leaders, ("W18",), profile=OPERATOR),
    Bug("an unclean election keeps all in sync", liveness, "settle", _all_in_sync, ("W18",), profile=OPERATOR),
    Bug("a consumer does not notice a truncation", fetcher, "must_compare", _false, ("W5", "W9"), profile=OPERATOR),
    Bug("a relaxed flush is never due", ReplicaEffects, "flush_if_due", _none, ("W20",), profile=OPERATOR),
    Bug(
        "a follower joins the ISR before it has caught up",
        leader,
        "may_join",
        _any_client_joins,
        ("W17", "W10"),
        8,
        LAST_MAN,
    ),
    Bug("the end offset is that of the log", Visibility, "list_offsets", _to_the_end, ("W17",)),
)
