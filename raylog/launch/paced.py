"""Ends many actors, a bounded number at a time, and reports the progress. Reaches Ray through the port `Actors`.

An actor that is requested to stop writes and closes its files. If all actors of a machine did so at once, each would
take too long, and would be killed before it is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from raylog.base.errors import StartFailed
from raylog.client.progress import Progress

STOPS_AT_ONCE: Final = 64
"""Most actors of the cluster that may be stopping at the same time: a few for each processor."""
CLEAN_STOP_S: Final = 15.0
"""How long an actor may take to write and close its files. Then it is killed, and its log scanned at the next start."""
KILL_S: Final = 5.0
"""Time that is reserved before the deadline for actors that had to be killed."""
POLL_S: Final = 0.1
NAMED_MAX: Final = 10


class Actors(Protocol):
    """The actors of a cluster, by name."""

    def names(self) -> list[str]:
        """Return the names of all actors, including those that are being restarted."""

    def find(self, name: str) -> Any:
        """Return the handle of an actor; None when it has ended."""

    def request_stop(self, handle: Any) -> Any:
        """Request an actor to stop; returns a handle of the answer, for `answered`."""

    def answered(self, requests: Sequence[Any], timeout_s: float) -> list[Any]:
        """Wait until all requests are answered or have failed, at most ``timeout_s``; returns those that are."""

    def end(self, handle: Any) -> None:
        """Kill an actor for good; Ray does not restart it."""


class PacedEnd:
    """Ends groups of actors one after another before a deadline."""

    def __init__(
        self,
        actors: Actors,
        deadline_s: float,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``deadline_s`` is a time of ``clock``, in seconds; ``sleep`` has to advance that clock."""
        self._actors = actors
        self._deadline_s = deadline_s
        self._progress = progress
        self._clock = clock
        self._sleep = sleep
        self._ended: set[str] = set()
        self._total = 0

    def run(self, groups: Sequence[Iterable[str]]) -> None:
        """End every actor of a group before the next group begins. May be called again, with actors made since then.

        Raises :class:`StartFailed`, which names the actors that have not ended by the deadline.
        """
        fixed = [list(group) for group in groups]
        self._ended.difference_update(*fixed)
        self._total = len(self._ended) + sum(len(group) for group in fixed)
        for group in fixed:
            self._stop(group)
            self._wait_until_ended(group)

    def _stop(self, group: list[str]) -> None:
        """Request each actor to stop, and kill it when it has stopped or does not answer in time."""
        waiting = group[::-1]
        stopping: dict[Any, tuple[Any, float]] = {}
        while waiting or stopping:
            while waiting and len(stopping) < STOPS_AT_ONCE:
                handle = self._actors.find(waiting.pop())
                if handle is not None:
                    stopping[self._actors.request_stop(handle)] = handle, self._until_s()
            done = set(self._actors.answered(list(stopping), POLL_S)) if stopping else set()
            now_s = self._clock()
            done |= {request for request, (_, until_s) in stopping.items() if now_s >= until_s}
            for request in done:
                self._actors.end(stopping.pop(request)[0])
            self._look(group)

    def _until_s(self) -> float:
        """Until when an actor that is requested now may take to stop; it gets a moment even past the deadline."""
        now_s = self._clock()
        return now_s + max(POLL_S, min(CLEAN_STOP_S, self._deadline_s - KILL_S - now_s))

    def _wait_until_ended(self, group: list[str]) -> None:
        while lasting := self._look(group):
            if self._clock() >= self._deadline_s:
                more = f" and {len(lasting) - NAMED_MAX} more" if len(lasting) > NAMED_MAX else ""
                raise StartFailed(
                    f"Actors did not end in time: {', '.join(lasting[:NAMED_MAX])}{more}; "
                    "`ray list actors` shows their state."
                )
            self._sleep(POLL_S)

    def _look(self, group: list[str]) -> list[str]:
        """Report how many actors have ended; returns those of the group that have not. One request to Ray."""
        there = set(self._actors.names())
        self._ended |= set(group) - there
        lasting = [name for name in group if name in there]
        self._progress.at(len(self._ended), self._total, "processes ended")
        return lasting
