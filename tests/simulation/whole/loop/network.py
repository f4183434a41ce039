"""The network between simulated hosts: connections as the kernel gives them to asyncio, over links that fail.

Bytes of a connection keep their order. A blocked link holds segments until it heals, as TCP retransmits them, or breaks
the connection after ``BROKEN_AFTER_S``; a killed process's connections are closed by its kernel; a host that is down
sends nothing at all.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from typing import Any, Final

from tests.simulation.whole.loop.processes import SimFuture, SimProcess
from tests.simulation.whole.loop.scheduler import Scheduler
from tests.simulation.whole.loop.threads import Threads

BROKEN_AFTER_S: Final = 30.0
"""Timeout for a peer that acknowledges nothing (``Limits.dead_peer_timeout_s``)."""
HIGH_BYTES: Final = 256 * 1024
"""Capacity of a connection's sockets in one direction."""
READ_BYTES: Final = 256 * 1024
BYTES_PER_S: Final = 200e6
REPEAT_S: Final = 0.4
"""Longest time after a link heals until TCP retransmits lost segments."""
WIDOWED_S: Final = 5.0
"""Longest time after a host regains power until a peer sends something and learns that its connection is lost."""
FIRST_PORT: Final = 20_000
AGAIN: Final = 0.8
"""Share of servers that get a port which was used before, where ports are used again."""

_CLOSE, _RESET = object(), object()


def _kind(name: str) -> str:
    """Return what kind of process has a name: a replica, a coordinator, a broker."""
    return name.partition(":")[0].partition("-")[0]


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, network: Network, process: SimProcess, local: tuple[str, int], remote: tuple[str, int], number: int
    ) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self._network = network
        self._number = number
        self.process = process
        self.host = local[0]
        self.peer: SimTransport | None = None
        self._protocol: Any = None
        self._inbox = bytearray()
        self._pump_due = False
        self._is_reading = True
        self._is_closing = False
        self.is_lost = False
        self._is_finished = False
        """The peer has closed its sending side."""
        self._in_flight = 0
        self._writing_paused = False
        self.segments: deque[object] = deque()
        self.last_arrival_s = 0.0
        self.overdue = 0
        """Segments that a blocked link holds."""
        process.transports[self] = None

    def __hash__(self) -> int:
        """Identical from run to run."""
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    # ------------------------------------------------------------ asyncio's side

    def attach(self, protocol: Any) -> None:
        """Begin: the connection is made."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._schedule_pump()

    def write(self, data: Any) -> None:
        """Send bytes."""
        if self._is_closing or self.is_lost or not self.process.is_alive:
            return
        payload = bytes(data)
        self._in_flight += len(payload)
        self._network.send(self, payload, len(payload))
        if self._in_flight > HIGH_BYTES and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """Send pieces."""
        self.write(b"".join(bytes(piece) for piece in list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignored: the sockets' own bounds apply."""

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the peer has not read."""
        return self._in_flight

    def can_write_eof(self) -> bool:
        """No half-closed connections."""
        return False

    def pause_reading(self) -> None:
        """Leave arriving bytes in the socket."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Read again."""
        self._is_reading = True
        self._schedule_pump()

    def is_reading(self) -> bool:
        """Whether arriving bytes are read."""
        return self._is_reading and not self._is_closing

    def is_closing(self) -> bool:
        """Whether sending is over."""
        return self._is_closing

    def get_protocol(self) -> Any:
        """Return the protocol."""
        return self._protocol

    def close(self) -> None:
        """Send the written bytes, then close."""
        if not self._is_closing and self.process.is_alive:
            self._is_closing = True
            self._network.send(self, _CLOSE, 0)
            self.process.call_soon(self._lost, None)

    def abort(self) -> None:
        """Close at once."""
        if not self.is_lost and self.process.is_alive:
            self._is_closing = True
            self._network.send(self, _RESET, 0)
            self.process.call_soon(self._lost, None)

    # ------------------------------------------------------------ the kernel's side

    def receive(self, segment: object) -> None:
        """A segment has arrived at this host."""
        if self.is_lost or not self.process.is_alive or (self._is_closing and segment is not _RESET):
            if segment is not _RESET and segment is not _CLOSE and self.peer is not None:
                self._network.send(self, _RESET, 0)
            return
        if segment is _CLOSE:
            self._is_finished = True
        elif segment is _RESET:
            self.break_off(ConnectionResetError(104, "Connection reset by peer"))
            return
        else:
            assert isinstance(segment, bytes)
            self._inbox += segment
        self._schedule_pump()

    def break_off(self, error: OSError | None) -> None:
        """The connection is lost."""
        if not self.is_lost and self.process.is_alive:
            self._is_closing = True
            self.process.call_input(self._lost, error)

    def _schedule_pump(self) -> None:
        if not self._pump_due and self._is_reading and self._protocol is not None:
            self._pump_due = True
            self.process.call_input(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        if self._is_closing or self.is_lost or not self._is_reading:
            return
        inbox, protocol = self._inbox, self._protocol
        if inbox:
            if isinstance(protocol, asyncio.BufferedProtocol):
                buffer = memoryview(protocol.get_buffer(-1))
                count = min(len(buffer), len(inbox))
                buffer[:count] = memoryview(inbox)[:count]
                del inbox[:count]
                self._taken(count)
                protocol.buffer_updated(count)
            else:
                count, data = len(inbox), bytes(inbox)
                inbox.clear()
                self._taken(count)
                protocol.data_received(data)
            if inbox or self._is_finished:
                self._schedule_pump()
        elif self._is_finished:
            protocol.eof_received()
            self.close()

    def _taken(self, count: int) -> None:
        peer = self.peer
        if peer is not None:
            peer._in_flight -= count
            if peer._writing_paused and peer._in_flight <= HIGH_BYTES // 2:
                self._network.scheduler.after(self._network.latency(), peer._resume_writing)

    def _resume_writing(self) -> None:
        if self._writing_paused and not self.is_lost and self.process.is_alive:
            self._writing_paused = False
            self.process.call_soon(self._protocol.resume_writing)

    def _lost(self, error: OSError | None) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.process.transports.pop(self, None)
            self._network.forget(self)
            if self._protocol is not None:
                self._protocol.connection_lost(error)

    def process_ended(self) -> None:
        """The process was killed: its kernel closes this end."""
        self.is_lost = True
        self._network.send(self, _RESET if self._inbox else _CLOSE, 0)
        self._network.forget(self)


class _Socket:
    def __init__(self, name: tuple[str, int]) -> None:
        self._name = name

    def getsockname(self) -> tuple[str, int]:
        """Return host and port."""
        return self._name

    def fileno(self) -> tuple[str, int]:
        """Return what names the socket to its process's loop."""
        return self._name


class SimServer:
    """A listening socket."""

    def __init__(self, network: Network, process: SimProcess, factory: Any, name: tuple[str, int]) -> None:
        self._network = network
        self.process = process
        self.factory = factory
        self.name = name
        self.sockets = (_Socket(name),)

    async def start_serving(self) -> None:
        """Accept connections."""
        self._network.listeners[self.name] = self

    def is_serving(self) -> bool:
        """Whether connections are accepted."""
        return self._network.listeners.get(self.name) is self

    def close(self) -> None:
        """Stop accepting."""
        if self.is_serving():
            del self._network.listeners[self.name]
            self._network.ended(self.name, self.process)

    async def wait_closed(self) -> None:
        """Return."""

    def accept(self, transport: SimTransport) -> None:
        """Give a new connection its protocol, in the server's process."""
        transport.attach(self.factory())


class Network:
    """Hosts, listeners, connections, and which links are blocked."""

    def __init__(self, scheduler: Scheduler) -> None:
        """No host is cut off."""
        self.scheduler = scheduler
        self.threads = Threads(scheduler)
        self.listeners: dict[tuple[str, int], SimServer] = {}
        self.down: set[str] = set()
        """Hosts that lost power."""
        self._outages: dict[str, int] = {}
        """The number of the last outage of a host, which distinguishes it from the next."""
        self.blocked: dict[tuple[str, str], int] = {}
        """Blocked links, by (from, to); the number distinguishes one blocking from the next."""
        self.latency_s = (0.000_05, 0.000_4)
        self.slow: dict[tuple[str, str], float] = {}
        """Extra seconds of a link."""
        self.clock_jump_s: dict[str, float] = {}
        """Clock offset of a host."""
        self._stalled: dict[SimTransport, None] = {}
        self._widows: dict[str, list[SimTransport]] = {}
        """Ends whose peers went down with their host; they learn of it when the host answers again."""
        self._open: dict[SimTransport, None] = {}
        self._ports: dict[str, int] = {}
        self.uses_ports_again = False
        """Whether a server may get a port of one that has ended, as from a system with few of them."""
        self._ended_ports: dict[str, list[tuple[str, int]]] = {}
        """By host the processes that have ended, and their ports."""
        self._number = 0

    def latency(self) -> float:
        """Draw the time that a segment travels: mostly short, now and then long."""
        draw = self.scheduler.random.random
        low, high = self.latency_s
        drawn = low + (high - low) * draw()
        return drawn if draw() < 0.995 else drawn * 20

    def port(self, host: str) -> int:
        """Return a port of a host that was never used."""
        found = self._ports.get(host, FIRST_PORT)
        while self._is_taken((host, found)):  # by a process that was given it, as it had it on another host
            found += 1
        self._ports[host] = found + 1
        return found

    def _is_taken(self, name: tuple[str, int]) -> bool:
        listener = self.listeners.get(name)
        return listener is not None and listener.process.is_alive

    def server(self, process: SimProcess, factory: Any, host: str, port: int) -> SimServer:
        """Return a server that does not serve yet. Raises OSError where another one has the port."""
        if port and self._is_taken((host, port)):
            raise OSError(errno.EADDRINUSE, f"address already in use: {host}:{port}")
        again = 0 if port else self._port_of_ended(process)
        if again and self._is_taken((host, again)):
            again = 0
        return SimServer(self, process, factory, (host, port or again or self.port(host)))

    def _port_of_ended(self, process: SimProcess) -> int:
        """Return the port of a server of this host that has ended, 0 = none: mostly one of another of its kind."""
        ended = self._ended_ports.get(process.host)
        if not ended or not self.scheduler.chance(AGAIN):
            return 0
        kind = _kind(process.name)
        alike = [entry for entry in ended if entry[0] != process.name and _kind(entry[0]) == kind]
        among = alike if alike and self.scheduler.chance(0.7) else ended
        chosen = among[int(self.scheduler.random.random() * len(among))]
        ended.remove(chosen)
        return chosen[1]

    def ended(self, name: tuple[str, int], process: SimProcess) -> None:
        """A server has ended."""
        if self.uses_ports_again:
            self._ended_ports.setdefault(name[0], []).append((process.name, name[1]))

    def carries(self, source: str, target: str) -> bool:
        """Whether a link carries segments now."""
        return (source, target) not in self.blocked and source not in self.down and target not in self.down

    async def connect(self, process: SimProcess, factory: Any, host: str, port: int) -> tuple[SimTransport, Any]:
        """Make a connection; refused where nothing listens, never answered over a blocked link."""
        made: SimFuture = SimFuture(loop=process)
        self.scheduler.after(self._pace(process.host, host), self._syn, process, factory, (host, port), made)
        transport: SimTransport = await made
        protocol = factory()
        transport.attach(protocol)
        return transport, protocol

    def _syn(self, process: SimProcess, factory: Any, name: tuple[str, int], made: SimFuture) -> None:
        if made.done() or not process.is_alive:
            return
        if not (self.carries(process.host, name[0]) and self.carries(name[0], process.host)):
            self.scheduler.after(1.0, self._syn, process, factory, name, made)
            return
        listener = self.listeners.get(name)
        back_s = self._pace(name[0], process.host)
        if listener is None or not listener.process.is_alive:
            self.scheduler.after(back_s, self._refused, process, made, name)
            return
        local = (process.host, self.port(process.host))
        near = SimTransport(self, process, local, name, self._next())
        far = SimTransport(self, listener.process, name, local, self._next())
        near.peer, far.peer = far, near
        self._open[near] = self._open[far] = None
        listener.process.call_input(listener.accept, far)
        self.scheduler.after(back_s, self._established, process, made, near)

    def _refused(self, process: SimProcess, made: SimFuture, name: tuple[str, int]) -> None:
        if not made.done() and process.is_alive:
            made.set_exception(ConnectionRefusedError(111, f"Connect call failed {name}"))

    def _established(self, process: SimProcess, made: SimFuture, near: SimTransport) -> None:
        if made.done() or not process.is_alive:
            self.send(near, _RESET, 0)
            near.is_lost = True
            process.transports.pop(near, None)
            self.forget(near)
        else:
            made.set_result(near)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _pace(self, source: str, target: str) -> float:
        return self.latency() + (self.slow.get((source, target), 0.0) if self.slow else 0.0)

    # ------------------------------------------------------------ segments

    def send(self, source: SimTransport, segment: object, size: int) -> None:
        """Put a segment on the link to the peer."""
        peer = source.peer
        if peer is None:
            return
        now_s = self.scheduler.now_s
        arrival_s = max(source.last_arrival_s, now_s + self._pace(source.host, peer.host)) + size / BYTES_PER_S
        source.last_arrival_s = arrival_s
        source.segments.append(segment)
        self.scheduler.at(arrival_s, self._arrive, source)

    def _arrive(self, source: SimTransport) -> None:
        peer = source.peer
        assert peer is not None
        if len(source.segments) <= source.overdue:
            return  # lost with their host, or at a reset
        if source.overdue or not self.carries(source.host, peer.host):
            source.overdue += 1
            self._stalled[source] = None
        else:
            peer.receive(source.segments.popleft())

    def _repeat(self, source: SimTransport) -> None:
        peer = source.peer
        assert peer is not None
        if self.carries(source.host, peer.host):
            self._stalled.pop(source, None)
            while source.overdue:
                source.overdue -= 1
                peer.receive(source.segments.popleft())

    def hurry(self, process: SimProcess) -> None:
        """Have the next segment on each way to a process arrive now."""
        for transport in list(process.transports):
            if transport.peer is not None and transport.peer.segments and not transport.peer.overdue:
                self._arrive(transport.peer)

    def connects(self, one: SimProcess, other: SimProcess) -> bool:
        """Whether two processes have a connection that is open at both ends."""
        return any(
            end.peer is not None and end.peer.process is other and not (end.is_closing() or end.peer.is_closing())
            for end in one.transports
        )

    def forget(self, transport: SimTransport) -> None:
        """An end is closed."""
        self._open.pop(transport, None)

    # ------------------------------------------------------------ faults

    def block(self, source: str, target: str) -> None:
        """Block a link in one direction."""
        number = self._next()
        self.blocked[(source, target)] = number
        self.scheduler.after(BROKEN_AFTER_S, self._give_up, source, target, number)

    def heal(self, source: str, target: str) -> None:
        """Unblock a link."""
        self.blocked.pop((source, target), None)
        self._repeat_all()

    def reset(self, process: SimProcess) -> None:
        """Reset the connections of a process, as a middlebox does; what was in flight is lost."""
        for transport in list(process.transports):
            peer = transport.peer
            for end in (transport, peer):
                if end is not None:
                    end.segments.clear()
                    end.overdue = 0
                    self._stalled.pop(end, None)
                    end.break_off(ConnectionResetError(104, "Connection reset by peer"))

    def break_between(self, one: str, other: str) -> None:
        """Break the connections between two hosts, as impatient peers do on a link that is blocked."""
        self._break({one, other}, lambda item: True)

    def power_off(self, host: str) -> None:
        """Make a host fall silent; the caller kills its processes, without a FIN or RST to their peers."""
        self.down.add(host)
        self._outages[host] = number = self._next()
        self.scheduler.after(BROKEN_AFTER_S, self._give_up_host, host, number)

    def power_on(self, host: str) -> None:
        """Make a host answer again; its earlier connections are unknown to it."""
        self.down.discard(host)
        for widow in self._widows.pop(host, []):
            self.scheduler.after(
                self.scheduler.between(0.0, WIDOWED_S), widow.break_off, ConnectionResetError(104, "Reset by peer")
            )
        self._repeat_all()

    def _repeat_all(self) -> None:
        for source in list(self._stalled):
            self.scheduler.after(self.scheduler.between(0.0, REPEAT_S), self._repeat, source)

    def _give_up(self, source: str, target: str, number: int) -> None:
        if self.blocked.get((source, target)) == number:
            self._break({source, target}, lambda item: True)

    def _give_up_host(self, host: str, number: int) -> None:
        if host in self.down and self._outages[host] == number:
            self._break({host}, lambda item: not item.process.is_alive or item.host != host)

    def _break(self, hosts: set[str], which: Any) -> None:
        for item in list(self._open):
            peer = item.peer
            assert peer is not None
            if ({item.host, peer.host} == hosts or (len(hosts) == 1 and peer.host in hosts)) and which(item):
                item.break_off(TimeoutError(110, "Connection timed out"))
                self.scheduler.after(BROKEN_AFTER_S, self._probe, peer)

    def _probe(self, end: SimTransport) -> None:
        """A keepalive probe of an end whose peer was given up: it learns that the connection is lost."""
        end.break_off(ConnectionResetError(104, "Connection reset by peer"))

    def process_ended(self, process: SimProcess) -> None:
        """Close the listeners and connections of a killed process."""
        for name, listener in list(self.listeners.items()):
            if listener.process is process:
                del self.listeners[name]
                self.ended(name, process)
        for transport in list(process.transports):
            if process.host in self.down:
                transport.is_lost = True
                transport.segments.clear()
                transport.overdue = 0
                self._stalled.pop(transport, None)
                self.forget(transport)
                if transport.peer is not None:
                    self._widows.setdefault(process.host, []).append(transport.peer)
            else:
                transport.process_ended()
        process.transports.clear()
