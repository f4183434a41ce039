"""The processes of a broker's replicas on Linux: offers from a socket of the data directory, signals by pidfd.

Owned by the dozers of a broker (``actors/broker/dozers.py``), which decide. May touch: the socket of the data
directory, the descriptors that replicas pass, and their processes by signals.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from raylog.actors.dozing.channel import AWAKE, MESSAGE_BYTES, OFF, OVER, decode_offer, listen, peer_pid
from raylog.actors.dozing.guard import Guard
from raylog.actors.dozing.port import ProcessEvents, StoppableProcess

logger = logging.getLogger(__name__)

ACCEPTED_AT_ONCE: Final = 64
CAN_STOP: Final = hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal") and hasattr(select, "epoll")


class SystemProcess:
    """One replica's process, as :class:`raylog.actors.dozing.port.StoppableProcess`."""

    events: ProcessEvents

    def __init__(self, channel: socket.socket, guard: Guard) -> None:
        """``channel``: the connection to it, closed with this object. Raises OSError if it gets no pidfd."""
        self._pid = peer_pid(channel)
        self._process = os.pidfd_open(self._pid)
        self._channel = channel
        self._guard = guard
        self._sockets: int | None = None
        self._is_watched = False
        self._descriptors = 0

    def begin(self) -> None:
        """From now on report messages and the end of the process to ``events``."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel.fileno(), self._receive)
        loop.add_reader(self._process, self._end)

    def stop(self) -> None:
        """Stop it, after noting it for the keeper. Raises OSError, PermissionError if that is not allowed."""
        self._guard.note(self._pid)
        signal.pidfd_send_signal(self._process, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue it; nothing happens if it runs or has ended."""
        with suppress(OSError):
            signal.pidfd_send_signal(self._process, signal.SIGCONT)

    def watch(self) -> None:
        """Report ``readable`` from now on, for as long as something can be read."""
        if self._sockets is not None and not self._is_watched:
            self._is_watched = True
            asyncio.get_running_loop().add_reader(self._sockets, self._readable)

    def unwatch(self) -> None:
        """Let go of the sockets that were offered last."""
        sockets, self._sockets = self._sockets, None
        if sockets is not None:
            if self._is_watched:
                asyncio.get_running_loop().remove_reader(sockets)
            os.close(sockets)
        self._is_watched = False

    def has_input(self) -> bool:
        """Return whether something can be read from its sockets or its channel now."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        if self._sockets is not None:
            poll.register(self._sockets, select.POLLIN)
        return self._sockets is None or bool(poll.poll(0))

    def has_other_descriptors(self) -> bool:
        """Return whether its number of descriptors has changed since its offer."""
        try:
            return len(os.listdir(f"/proc/{self._pid}/fd")) != self._descriptors
        except OSError:  # it has ended, which is reported separately
            return False

    def notify(self, *, may_doze: bool) -> None:
        """Send it OVER: its doze is over; ``may_doze`` False: send OFF, it may never doze."""
        with suppress(OSError):  # it has ended, or has so many unread messages that it wakes up anyway
            self._channel.send(OVER if may_doze else OFF)

    def close(self) -> None:
        """Release it; nothing is reported any more. Idempotent."""
        if self._channel.fileno() < 0:
            return
        loop = asyncio.get_running_loop()
        self.unwatch()
        loop.remove_reader(self._channel.fileno())
        loop.remove_reader(self._process)
        self._channel.close()
        os.close(self._process)

    def _end(self) -> None:
        self.events.ended()

    def _readable(self) -> None:
        self.events.readable()

    def _receive(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES, 2)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        try:
            if message == AWAKE:
                self.events.awoken()
            elif len(descriptors) == 1:
                offer = decode_offer(message)
                self.unwatch()
                self._sockets, self._descriptors = descriptors.pop(), offer.descriptors
                self.events.offered(offer)
            else:
                self.events.ended()
        except (ValueError, TypeError) as error:
            logger.warning("process %d sent no offer that can be read, it does not doze: %s", self._pid, error)
            self.events.ended()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def may_stop() -> bool:
    """Return whether this process may stop others of its user, as far as can be known before the first offer."""
    try:
        _try_pidfd()
    except OSError:
        return False
    return CAN_STOP


def _try_pidfd() -> None:
    """Raise OSError if this process gets no pidfd, which a container may forbid."""
    if CAN_STOP:
        os.close(os.pidfd_open(os.getpid()))


class SystemProcesses:
    """The replicas' processes that have connected to one broker."""

    def __init__(self, folder: Path) -> None:
        """``folder``: the data directory, whose lock this broker holds from :meth:`start` to :meth:`stop`."""
        self._folder = folder
        self._guard = Guard(folder)
        self._listener: socket.socket | None = None
        self._joined: Callable[[StoppableProcess], ProcessEvents] | None = None
        self._is_refused = False

    async def start(self, joined: Callable[[StoppableProcess], ProcessEvents], paused: Callable[[], None]) -> None:
        """Continue processes that an earlier broker process left stopped, then take offers. Raises OSError, others."""
        if not CAN_STOP:
            raise OSError("this system has no descriptors for processes")
        self._joined = joined
        _try_pidfd()
        await self._guard.start(paused)
        self._listener = await asyncio.to_thread(listen, self._folder)
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def expect(self, silent_ms: int) -> None:
        """Let the keeper continue all processes when this broker is silent for so long."""
        self._guard.silent_ms = silent_ms

    async def stop(self) -> None:
        """Take no more offers, and end the keeper, which continues all stopped processes."""
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()
        await self._guard.stop()

    def _accept(self) -> None:
        if self._listener is None or self._joined is None:
            return
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                channel, _ = self._listener.accept()
            except OSError:  # no connection is waiting, or no file descriptor is free
                return
            channel.setblocking(False)
            try:
                process = SystemProcess(channel, self._guard)
            except OSError as error:
                self._refuse(channel, error)
                continue
            process.events = self._joined(process)
            process.begin()

    def _refuse(self, channel: socket.socket, error: OSError) -> None:
        """Send OFF to a process that cannot be stopped; the first such process is logged."""
        if not self._is_refused:
            self._is_refused = True
            logger.warning("replicas in %s do not doze if their processes cannot be stopped: %s", self._folder, error)
        with suppress(OSError):
            channel.send(OFF)
        channel.close()
