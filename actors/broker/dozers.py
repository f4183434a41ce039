"""The broker's side of dozing replicas: it stops their processes when they offer it, and continues them in time.

Owned by the ``Broker`` actor. ``core/dozing/watch.py`` decides what is done when; the system's calls are behind
``actors/dozing/port.py``. May touch: the clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from raylog.actors.clock import monotonic_ms
from raylog.actors.dozing.port import Offer, Processes, StoppableProcess
from raylog.actors.resting import DozingReplica
from raylog.core.dozing.watch import Act, ProcessWatch
from raylog.core.vouching import NO_LIFE

logger = logging.getLogger(__name__)


class _Dozer:
    """What a broker knows of one replica's process."""

    def __init__(self, process: StoppableProcess, owner: Dozers) -> None:
        self.process = process
        self.owner = owner
        self.watch = ProcessWatch()
        self.name = ""
        self.life = NO_LIFE
        self.rested_ms = 0
        self.report: Mapping[str, Any] = {}
        self.timer: asyncio.TimerHandle | None = None

    def offered(self, offer: Offer) -> None:
        self.owner.take_offer(self, offer)

    def awoken(self) -> None:
        self.owner.do(self, self.watch.awoken())

    def readable(self) -> None:
        self.owner.do(self, self.watch.readable())

    def ended(self) -> None:
        self.owner.forget(self)


class Dozers:
    """The processes of one broker's replicas that may be stopped."""

    def __init__(self, processes: Processes, now_ms: Callable[[], int] = monotonic_ms) -> None:
        """Make it; no process is stopped before :meth:`start`."""
        self._processes = processes
        self._now_ms = now_ms
        self._dozers: dict[_Dozer, None] = {}
        self._held: dict[str, int] = {}
        """How many holds each name has, see `held_awake`; the watch of each process of that name has as many."""
        self._rely_until_ms: int | None = None
        self._relying: asyncio.TimerHandle | None = None
        self._is_refused = False
        self._acts: Mapping[Act, Callable[[_Dozer], None]] = {
            Act.WATCH: lambda dozer: dozer.process.watch(),
            Act.LOOK: self._look,
            Act.STOP: self._stop,
            Act.CONTINUE: self._continue,
            Act.UNWATCH: self._unwatch,
            Act.NOTIFY: lambda dozer: dozer.process.notify(may_doze=True),
        }

    async def start(self) -> None:
        """Continue processes that an earlier process of this broker has left stopped, and take offers from now on.

        If that is not possible, no replica dozes, and the log says why.
        """
        try:
            await self._processes.start(self._joined, self._wake_all)
        except Exception as error:  # any error: a broker serves without this
            logger.warning("no replica dozes here: %s", error)

    async def stop(self) -> None:
        """Continue all processes, and take no more offers."""
        self.rely_until(None)
        for dozer in list(self._dozers):
            self.forget(dozer)
        await self._processes.stop()

    # ------------------------------------------------------------ what the broker's other parts need

    def dozing(self) -> dict[str, DozingReplica]:
        """Return the replicas whose processes are stopped now, by their names."""
        return {
            dozer.name: DozingReplica(dozer.report.get("status", {}), dozer.report.get("metrics", {}))
            for dozer in self._dozers
            if dozer.watch.is_stopped and dozer.report
        }

    def dozing_count(self) -> int:
        """Return how many replicas' processes are stopped now; stopped spares do not count."""
        return sum(dozer.watch.is_stopped and bool(dozer.report) for dozer in self._dozers)

    def rested(self, now_ms: int) -> dict[int, int]:
        """Return, by incarnation, until when this broker had stopped its process; ``now_ms`` if it is stopped now."""
        return {
            dozer.life: now_ms if dozer.watch.is_stopped else dozer.rested_ms
            for dozer in self._dozers
            if dozer.life != NO_LIFE
        }

    def rely_until(self, until_ms: int | None) -> None:
        """Let processes that send no heartbeats be stopped until then; a later call may extend it. None: stop none."""
        self._rely_until_ms = until_ms
        if until_ms is None:
            self._rely_no_more()
        elif self._relying is None:
            self._check_reliance()

    def expect(self, silent_ms: int) -> None:
        """Let the keeper continue all processes if this broker does not run for so long."""
        self._processes.expect(silent_ms)

    def wake(self, incarnation: int) -> None:
        """Continue the process of this incarnation, if it is stopped."""
        for dozer in self._dozers:
            if dozer.life == incarnation:
                self.do(dozer, dozer.watch.end())

    @contextmanager
    def held_awake(self, name: str) -> Iterator[None]:
        """Keep the replica of this name running during a block, because a call to its process must be answered."""
        self._held[name] = self._held.get(name, 0) + 1
        for dozer in self._named(name):
            self.do(dozer, dozer.watch.hold())
        try:
            yield
        finally:
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]
            for dozer in self._named(name):  # looked up again: another process may have this name by now
                dozer.watch.release()

    def _named(self, name: str) -> list[_Dozer]:
        return [dozer for dozer in self._dozers if dozer.name == name]

    def _check_reliance(self) -> None:
        self._relying = None
        until_ms, now_ms = self._rely_until_ms, self._now_ms()
        if until_ms is None or now_ms >= until_ms:
            self._rely_until_ms = None
            self._rely_no_more()
        else:
            wait_s = (until_ms - now_ms) / 1000
            self._relying = asyncio.get_running_loop().call_later(wait_s, self._check_reliance)

    def _rely_no_more(self) -> None:
        if self._relying is not None:
            self._relying.cancel()
            self._relying = None
        for dozer in list(self._dozers):
            if dozer.life != NO_LIFE:
                self.do(dozer, dozer.watch.end())

    def _wake_all(self) -> None:
        """Continue all processes, because the keeper may have done so, and their states here would be wrong."""
        for dozer in list(self._dozers):
            self.do(dozer, dozer.watch.end())

    # ------------------------------------------------------------ what comes in

    def _joined(self, process: StoppableProcess) -> _Dozer:
        dozer = _Dozer(process, self)
        self._dozers[dozer] = None
        return dozer

    def take_offer(self, dozer: _Dozer, offer: Offer) -> None:
        """Take the offer of an idle replica, whose process may be stopped."""
        if dozer.name != offer.name:
            for _ in range(self._held.get(dozer.name, 0)):
                dozer.watch.release()
            for _ in range(self._held.get(offer.name, 0)):
                dozer.watch.hold()
            dozer.name = offer.name
        dozer.life, dozer.report = offer.life, offer.report
        self.do(dozer, dozer.watch.offered(offer.until_ms))

    def forget(self, dozer: _Dozer) -> None:
        """Forget a process that has ended, or whose connection has; it is continued if it is stopped."""
        if dozer not in self._dozers:
            return
        del self._dozers[dozer]
        if dozer.watch.is_stopped:
            dozer.process.resume()
        self._unwatch(dozer)
        dozer.process.close()

    # ------------------------------------------------------------ what is done

    def do(self, dozer: _Dozer, acts: list[Act]) -> None:
        """Carry out the acts that its watch has decided on, in order."""
        for act in acts:
            self._acts[act](dozer)

    def _look(self, dozer: _Dozer) -> None:
        may_rely = dozer.life == NO_LIFE or self._rely_until_ms is not None
        is_readable = not may_rely or dozer.process.has_input()
        self.do(dozer, dozer.watch.looked(readable=is_readable, now_ms=self._now_ms()))

    def _stop(self, dozer: _Dozer) -> None:
        until_ms = dozer.watch.until_ms
        if until_ms is None:
            return
        try:
            dozer.process.stop()
        except OSError as error:
            self._refused(dozer, error)
            return
        if dozer.process.has_other_descriptors():
            self.do(dozer, dozer.watch.readable())
            return
        wait_s = max(0, until_ms - self._now_ms()) / 1000
        dozer.timer = asyncio.get_running_loop().call_later(wait_s, self._due, dozer)

    def _refused(self, dozer: _Dozer, error: OSError) -> None:
        self.do(dozer, dozer.watch.refused())
        if isinstance(error, PermissionError):
            dozer.process.notify(may_doze=False)
        if not self._is_refused:
            self._is_refused = True
            logger.warning("%s does not doze, and others may not either: %s", dozer.name, error)

    def _due(self, dozer: _Dozer) -> None:
        until_ms = dozer.watch.until_ms
        if until_ms is not None:  # the loop's clock may be a millisecond ahead
            self.do(dozer, dozer.watch.ticked(max(until_ms, self._now_ms())))

    def _continue(self, dozer: _Dozer) -> None:
        dozer.rested_ms = self._now_ms()
        dozer.process.resume()

    def _unwatch(self, dozer: _Dozer) -> None:
        if dozer.timer is not None:
            dozer.timer.cancel()
            dozer.timer = None
        dozer.process.unwatch()
