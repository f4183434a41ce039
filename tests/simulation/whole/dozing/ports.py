"""Virtual processes that brokers stop and continue: in place of pidfds, epoll descriptors and Unix sockets.

`SimRest` is the replica's side, `SimProcesses` the broker's: what is decided, and when, is shipped code. A socket of a
process can be read when its loop has an `InputHandle` to run: data, a new connection, an end, a call of Ray.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from raylog.actors.dozing.channel import AWAKE, OFF, OVER
from raylog.actors.dozing.guard import Guard
from raylog.actors.dozing.port import Offer, ProcessEvents, StoppableProcess
from raylog.actors.dozing.resting import RETRY_MS
from raylog.actors.replica.dozing import Doze
from tests.simulation.whole.dozing.channels import ChannelEnd, connected
from tests.simulation.whole.dozing.keepers import Keepers
from tests.simulation.whole.loop.processes import SimProcess
from tests.simulation.whole.loop.scheduler import Scheduler

WAKE_S: Final = (0.000_005, 0.000_3)
"""Latency of a process that waits for its sockets."""
OTHER_DESCRIPTORS: Final = 0.02
"""How often a process has other descriptors when it was stopped than when it offered."""
HURRIED: Final = 0.3
"""How often what is on its way to a process arrives between the look and the stop."""
CALLED: Final = 0.05
"""How often something else comes in there, such as a call of Ray."""
SIGNAL_S: Final = (0.0, 0.000_4)
"""How long after the look a process is stopped: until then it may begin to read what comes."""
Step = Callable[[str, SimProcess, str], None]
"""Gets a step of a doze, the replica's process, and the name of its broker."""
OFFER, STOP, GOES_ON = "offer", "before the stop", "goes on"


class Dozes:
    """What all hosts of a world have in common."""

    def __init__(self, scheduler: Scheduler, on_step: Step) -> None:
        """No broker takes offers yet."""
        self.scheduler = scheduler
        self.on_step = on_step
        self.keepers = Keepers(scheduler)
        self.doors: dict[str, SimProcesses] = {}
        """The listening brokers, by name."""
        self.until_s: dict[SimProcess, float] = {}
        """Until when each process that offered last may be stopped."""
        self.stops = 0
        """How often a process was stopped."""


class SimRest:
    """A replica's side: it offers to be stopped, and waits without reading."""

    def __init__(self, dozes: Dozes, process: SimProcess, broker: str, name: str) -> None:
        """``broker``: the name of the broker that it looks for."""
        self._dozes, self._process, self._broker, self._name = dozes, process, broker, name
        self._channel: ChannelEnd | None = None
        self._retry_at_s = 0.0
        self._is_off = False

    def close(self) -> None:
        """Rest no more."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    async def rest(self, doze: Doze) -> int:
        """As :meth:`raylog.actors.dozing.resting.DozeLink.rest`."""
        channel, process, scheduler = self._connected(), self._process, self._dozes.scheduler
        if channel is None or process.has_input() or not self._drained(channel):
            return 0
        began_s = scheduler.now_s
        self._dozes.until_s[process] = doze.until_ms / 1000
        offer = Offer(name=self._name, life=doze.life, until_ms=doze.until_ms, descriptors=0, report=doze.report())
        try:
            channel.send(offer)
        except OSError:
            self.close()
            return 0
        self._dozes.on_step(OFFER, process, self._broker)
        await process.block(_Wait(scheduler, process, channel, doze).begin)
        try:
            channel.send(AWAKE)
        except OSError:
            self.close()
        self._dozes.on_step("word", process, self._broker)
        return max(1, int(1000 * (scheduler.now_s - began_s)))

    def _connected(self) -> ChannelEnd | None:
        now_s = self._dozes.scheduler.now_s
        if self._channel is None and not self._is_off and now_s >= self._retry_at_s:
            self._retry_at_s = now_s + RETRY_MS / 1000
            door = self._dozes.doors.get(self._broker)
            self._channel = None if door is None else door.connect(self._process)
        return self._channel

    def _drained(self, channel: ChannelEnd) -> bool:
        """Forget what the broker sent about an earlier rest; returns whether it may still stop this process."""
        while channel.inbox:
            self._is_off = self._is_off or channel.receive() == OFF
        if self._is_off or channel.is_readable:
            self.close()
            return False
        return True


class _Wait:
    """One wait of a resting process: it ends as `poll` does, and the replica's loop around it."""

    def __init__(self, scheduler: Scheduler, process: SimProcess, channel: ChannelEnd, doze: Doze) -> None:
        self._scheduler, self._process, self._channel, self._doze = scheduler, process, channel, doze
        self._end: Callable[[], None] = lambda: None
        self._is_over = False

    def begin(self, end: Callable[[], None]) -> None:
        """Have ``end`` called when it is over."""
        self._end = end
        self._process.watchers[self._arrived] = None
        self._channel.arrived = self._arrived
        self._again()

    def _again(self) -> None:
        self._scheduler.after(max(0, min(self._left_ms(), self._doze.check_ms)) / 1000, self._due)

    def _left_ms(self) -> int:
        return self._doze.until_ms - int(self._scheduler.now_s * 1000)

    def _arrived(self) -> None:
        self._scheduler.after(self._scheduler.between(*WAKE_S), self._ready)

    def _ready(self) -> None:
        if not self._is_over and self._process.when_running(self._ready):
            self._is_over = True
            self._process.watchers.pop(self._arrived, None)
            self._channel.arrived = lambda: None
            self._end()

    def _due(self) -> None:
        if self._is_over or not self._process.when_running(self._due):
            return
        outer, self._scheduler.current = self._scheduler.current, self._process
        try:
            holds = self._left_ms() > 0 and self._doze.holds()
        finally:
            self._scheduler.current = outer
        if holds:
            self._again()
        else:
            self._ready()


class SimProcesses:
    """The processes of one life of a broker, which may stop them."""

    def __init__(self, dozes: Dozes, process: SimProcess, folder: Path) -> None:
        """``process``: the broker's own."""
        self.dozes, self.process = dozes, process
        folder.mkdir(parents=True, exist_ok=True)  # no virtual disk has its note, but a real one
        self.guard = Guard(folder)
        self._joined: Callable[[StoppableProcess], ProcessEvents] | None = None

    async def start(self, joined: Callable[[StoppableProcess], ProcessEvents], paused: Callable[[], None]) -> None:
        """Continue what an earlier life has left stopped, and take offers from now on."""
        self._joined = joined
        await self.guard.start(paused)
        self.dozes.doors[self.process.name] = self
        self.process.closers[self._close] = None

    def expect(self, silent_ms: int) -> None:
        """Have the keeper continue all processes when this broker is silent for so long."""
        self.guard.silent_ms = silent_ms

    async def stop(self) -> None:
        """Take no more offers, and end the keeper, which continues what is stopped."""
        self._close()
        await self.guard.stop()

    def connect(self, replica: SimProcess) -> ChannelEnd:
        """Connect a replica with this broker, which accepts it when it runs."""
        near, far = connected(replica, self.process)
        self.dozes.keepers.processes[replica.number] = replica
        self.process.call_input(self._accept, far, replica)
        return near

    def _accept(self, channel: ChannelEnd, replica: SimProcess) -> None:
        assert self._joined is not None
        found = SimStoppable(self, channel, replica)
        found.begin(self._joined(found))

    def _close(self) -> None:
        if self.dozes.doors.get(self.process.name) is self:
            del self.dozes.doors[self.process.name]
            self.process.closers.pop(self._close, None)


class SimStoppable:
    """The process of one replica, as its broker sees it."""

    def __init__(self, owner: SimProcesses, channel: ChannelEnd, target: SimProcess) -> None:
        """Reports nothing before :meth:`begin`."""
        self._dozes, self._broker, self._guard = owner.dozes, owner.process, owner.guard
        self._channel, self._target = channel, target
        self._events: ProcessEvents | None = None
        self._is_offered = self._is_watched = False
        self._signals = 0

    def begin(self, events: ProcessEvents) -> None:
        """Report what comes from now on."""
        self._events = events
        self._channel.arrived = lambda: self._later(self._receive)
        for _ in range(len(self._channel.inbox) + self._channel.is_readable):
            self._later(self._receive)

    def stop(self) -> None:
        """Stop it, once the keeper knows it."""
        self._step(STOP)
        if self._dozes.scheduler.chance(HURRIED):
            self._target.network.hurry(self._target)
        if self._dozes.scheduler.chance(CALLED):
            self._target.call_input(lambda: None)
        self._guard.note(self._target.number)
        self._signals += 1
        self._dozes.scheduler.after(self._dozes.scheduler.between(*SIGNAL_S), self._halt, self._signals)

    def _halt(self, signals: int) -> None:
        if signals == self._signals:
            self._dozes.stops += 1
            self._target.doze()
            self._step("stopped")

    def resume(self) -> None:
        """Continue it; nothing happens when it runs, or was killed."""
        self._signals += 1
        if self._target.is_alive:
            self._step("before it goes on")
            self._target.awake()
            self._step(GOES_ON)

    def watch(self) -> None:
        """Report ``readable`` from now on, for as long as something can be read."""
        if self._is_offered and not self._is_watched:
            self._is_watched = True
            self._target.watchers[self._arrived] = None
            self._step("watched")
            if self._target.has_input():
                self._arrived()

    def unwatch(self) -> None:
        """Let go of the sockets that were offered last."""
        self._is_offered = self._is_watched = False
        self._target.watchers.pop(self._arrived, None)

    def has_input(self) -> bool:
        """Return whether something can be read from its sockets or its channel now."""
        return not self._is_offered or self._channel.is_readable or self._target.has_input()

    def has_other_descriptors(self) -> bool:
        """Return whether it has other descriptors than when it offered."""
        return self._dozes.scheduler.chance(OTHER_DESCRIPTORS)

    def notify(self, *, may_doze: bool) -> None:
        """Send word that its rest is over."""
        if self._channel.peer is not None and not self._channel.peer.is_closed:
            self._channel.send(OVER if may_doze else OFF)

    def close(self) -> None:
        """Let go of it. Reports nothing any more."""
        self.unwatch()
        self._events = None
        self._channel.close()

    def _step(self, name: str) -> None:
        self._dozes.on_step(name, self._target, self._broker.name)

    def _later(self, call: Callable[[], None]) -> None:
        scheduler = self._dozes.scheduler
        scheduler.after(scheduler.between(*WAKE_S), self._broker.call_input, call)

    def _arrived(self) -> None:
        self._later(self._readable)

    def _readable(self) -> None:
        if self._events is not None and self._is_watched and self._target.has_input():
            self._events.readable()

    def _receive(self) -> None:
        events, message = self._events, self._channel.receive()
        if events is None or (message is None and not self._channel.is_readable):
            return
        if message == AWAKE:
            events.awoken()
        elif isinstance(message, Offer):
            self.unwatch()
            self._is_offered = True
            events.offered(message)
        else:
            events.ended()
