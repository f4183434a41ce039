"""The cable between network namespaces: a process that carries packets between their TUN devices, or drops them.

Started by ``network.py`` as ``python -m tests.chaos.wire FD``. The kernels' TCP on both ends is real; the behaviour of
a link (cut, lossy, slow, narrow) is decided here for each direction, because not every kernel has ``tc netem``. Ends
when the socket to its parent closes; then every link is removed.
"""

import heapq
import json
import os
import random
import select
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

PACKET_BYTES: Final = 65_536
READS_IN_A_ROW: Final = 32
QUEUE_BYTES: Final = 262_144
"""Queue of a narrow link, before it drops."""
_IPV4: Final = 4


@dataclass(slots=True)
class Link:
    """The effect of one direction between two addresses on packets."""

    cut: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float = 0.0
    """0 = unlimited."""
    free_s: float = 0.0
    """When the last accepted packet will have left."""
    due_s: float = 0.0
    """When it will arrive: no packet overtakes it."""

    def carry(self, size: int, now_s: float, rng: random.Random) -> float | None:
        """Return when a packet arrives; None when it never does."""
        if self.cut or (self.loss and rng.random() < self.loss):
            return None
        leaves_s = now_s
        if self.bytes_per_s:
            leaves_s = max(now_s, self.free_s) + size / self.bytes_per_s
            if (leaves_s - now_s) * self.bytes_per_s > QUEUE_BYTES:
                return None
            self.free_s = leaves_s
        self.due_s = max(self.due_s, leaves_s + self.delay_s + rng.random() * self.jitter_s)
        return self.due_s


class Wire:
    """All links, and the packets that are under way."""

    def __init__(self, control: socket.socket, seed: int = 1) -> None:
        """``control`` carries devices and orders."""
        self._control = control
        self._rng = random.Random(seed)
        self._devices: dict[bytes, int] = {}
        self._addresses: dict[int, bytes] = {}
        self._links: dict[tuple[bytes, bytes], Link] = {}
        self._flying: list[tuple[float, int, bytes, bytes]] = []
        self._count = 0
        self._poll = select.epoll()
        self._poll.register(control.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Carry packets until the parent ends."""
        while True:
            wait_s = max(0.0, self._flying[0][0] - time.monotonic()) if self._flying else 1.0
            for fd, _ in self._poll.poll(wait_s):
                if fd == self._control.fileno():
                    if not self._obey():
                        return
                elif fd in self._addresses:  # an order of the same poll may have closed it
                    self._take(fd)
            now_s = time.monotonic()
            while self._flying and self._flying[0][0] <= now_s:
                _, _, target, packet = heapq.heappop(self._flying)
                self._deliver(target, packet)

    def _obey(self) -> bool:
        """Carry out one order; returns whether the parent is still there."""
        message, fds, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 1)
        if not message:
            return False
        order = json.loads(message)
        if fds:
            self._plug(socket.inet_aton(order["address"]), fds[0])
        else:
            for source, target in order["between"]:
                place = (socket.inet_aton(source), socket.inet_aton(target))
                if order["link"] is None:
                    self._links.pop(place, None)
                else:
                    self._links[place] = Link(**order["link"])
        self._control.send(b"{}")
        return True

    def _plug(self, address: bytes, fd: int) -> None:
        self._unplug(self._devices.get(address))
        os.set_blocking(fd, False)
        self._devices[address] = fd
        self._addresses[fd] = address
        self._poll.register(fd, select.EPOLLIN)

    def _unplug(self, fd: int | None) -> None:
        if fd is not None:
            self._devices.pop(self._addresses.pop(fd), None)
            with suppress(OSError):
                self._poll.unregister(fd)
            os.close(fd)

    def _take(self, fd: int) -> None:
        for _ in range(READS_IN_A_ROW):
            try:
                packet = os.read(fd, PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:  # its namespace was removed
                self._unplug(fd)
                return
            if packet[0] >> 4 != _IPV4:
                continue
            source, target = packet[12:16], packet[16:20]
            link = self._links.get((source, target))
            if link is None:
                self._deliver(target, packet)
                continue
            now_s = time.monotonic()
            arrives_s = link.carry(len(packet), now_s, self._rng)
            if arrives_s is not None:
                self._count += 1
                heapq.heappush(self._flying, (arrives_s, self._count, target, packet))

    def _deliver(self, target: bytes, packet: bytes) -> None:
        fd = self._devices.get(target)
        if fd is not None:
            with suppress(OSError):  # full, or removed: a packet may be lost
                os.write(fd, packet)


class Links:
    """The parent's end: passes devices to the wire, and sets the behaviour of links."""

    def __init__(self, control: socket.socket) -> None:
        """``control``: the other end of the wire's socket."""
        self._control = control
        self._control.settimeout(10)

    def plug(self, address: str, fd: int) -> None:
        """Connect a TUN device; packets for its address go there from now on."""
        socket.send_fds(self._control, [json.dumps({"address": address}).encode()], [fd])
        self._control.recv(16)

    def set(self, between: Iterable[tuple[str, str]], **link: Any) -> None:
        """Set the behaviour of these directions; no arguments = healed."""
        order = {"between": sorted(between), "link": link or None}
        self._control.send(json.dumps(order).encode())
        self._control.recv(16)


def main() -> None:
    """Run the wire on the inherited socket."""
    with socket.socket(fileno=int(sys.argv[1])) as control, suppress(ConnectionError):
        Wire(control).run()


if __name__ == "__main__":
    main()
