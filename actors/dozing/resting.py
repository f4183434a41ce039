"""The replica's side of a doze: it offers to be stopped, and waits without reading until its doze is over.

Used by the replica's shell on its event loop, whose thread blocks here. All sockets of the process are watched,
including Ray's, and the eventfds by which other threads wake the loop. Whatever comes in ends the doze, whether the
process is stopped or not. May touch: the process's descriptors, the socket to its broker.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from raylog.actors.clock import monotonic_ms
from raylog.actors.dozing.channel import AWAKE, MESSAGE_BYTES, OFF, connect, encode_offer
from raylog.actors.dozing.port import Offer
from raylog.actors.replica.dozing import Doze

logger = logging.getLogger(__name__)

RETRY_MS: Final = 5_000
"""Pause before the next try to connect to the broker."""


class DozeLink:
    """The connection to the broker that may stop this process."""

    def __init__(self, folder: Path, name: str) -> None:
        """``folder``: the broker's data directory. ``name``: the replica's, for the broker."""
        self._folder = folder
        self._name = name
        self._channel: socket.socket | None = None
        self._retry_at_ms = 0
        self._is_off = False
        self._has_complained = False

    def close(self) -> None:
        """Close the connection; from now on the broker does not stop this process."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    async def rest(self, doze: Doze) -> int:
        """Offer to be stopped until the doze's end, and wait. Returns for how long it waited, in milliseconds.

        It blocks the event loop meanwhile. 0: something can be read already, or no broker can stop this process.
        """
        channel = self._connected()
        if channel is None:
            return 0
        began_ms = monotonic_ms()
        with select.epoll() as sockets:
            descriptors = _watch_all(sockets, besides=channel.fileno())
            if not descriptors:
                return 0
            try:
                self._drain(channel)
                socket.send_fds(channel, [encode_offer(self._offer(doze, descriptors))], [sockets.fileno()])
            except OSError as error:
                self._lost(error)
                return 0
            _wait(channel, sockets, doze)
            try:
                # Before anything is read: only this message keeps the broker from stopping this process now.
                channel.send(AWAKE)
            except OSError as error:
                self._lost(error)
        return max(1, monotonic_ms() - began_ms)

    def _offer(self, doze: Doze, descriptors: int) -> Offer:
        return Offer(
            name=self._name, life=doze.life, until_ms=doze.until_ms, descriptors=descriptors, report=doze.report()
        )

    def _connected(self) -> socket.socket | None:
        now_ms = monotonic_ms()
        if self._channel is None and not self._is_off and now_ms >= self._retry_at_ms:
            self._retry_at_ms = now_ms + RETRY_MS
            try:
                self._channel = connect(self._folder)
            except PermissionError as error:
                self._complain(error)
            except OSError as error:  # no broker, or one that does not stop replicas
                logger.debug("%s finds no broker that may stop it: %s", self._name, error)
        return self._channel

    def _complain(self, error: PermissionError) -> None:
        """Log once why this process does not doze. A later broker process may belong to the same user."""
        if not self._has_complained:
            self._has_complained = True
            logger.warning(
                "%s does not doze, because it runs as another user than its broker (%s): run all processes of a node's "
                "Ray as one user, or set replica.doze.after.ms=-1",
                self._name,
                error,
            )

    def _drain(self, channel: socket.socket) -> None:
        """Discard messages about an earlier doze. Raises OSError if the broker sent OFF or closed the connection."""
        with suppress(BlockingIOError):
            while True:
                message = channel.recv(MESSAGE_BYTES)
                if message == OFF:
                    self._is_off = True
                if not message or self._is_off:
                    raise ConnectionResetError("the broker stops no replicas")

    def _lost(self, error: OSError) -> None:
        logger.debug("%s does not doze until its broker is found: %s", self._name, error)
        self.close()


def _watch_all(sockets: select.epoll, *, besides: int) -> int:
    """Watch every descriptor by which this process can be reached; returns how many descriptors it has.

    0: something has come in already.
    """
    events = set()
    reading = select.EPOLLIN | select.EPOLLRDHUP
    names = os.listdir("/proc/self/fd")
    for name in names:
        number = int(name)
        if number in (besides, sockets.fileno()):
            continue
        with suppress(OSError):  # the descriptor of the listing itself, or one that another thread has closed
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                sockets.register(number, reading)
            elif os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventfd]":
                sockets.register(number, reading)
                events.add(number)
    ready = {number for number, _ in sockets.poll(0)}
    for number in ready & events:  # the threads of Ray keep some events set for good
        sockets.unregister(number)
    return 0 if ready - events else len(names) - 1  # without the descriptor of the listing itself


def _wait(channel: socket.socket, sockets: select.epoll, doze: Doze) -> None:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(sockets.fileno(), select.POLLIN)
    # Waits are short, because a process that its broker has not stopped, or that was continued because its broker
    # hangs, has to notice by itself that it must send heartbeats. In a stopped process they cost nothing.
    while (left_ms := doze.until_ms - monotonic_ms()) > 0:
        if poll.poll(min(left_ms, doze.check_ms)) or not doze.holds():
            return
