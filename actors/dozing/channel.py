"""The socket between a broker and the replicas that it may stop: its place, its messages, and both ends' identity.

It lies in the data directory, which names it by a path below /proc, because the path of a Unix socket may have only 107
characters. May touch: the data directory, sockets.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgpack

from raylog.actors.dozing.port import Offer

NAME: Final = "doze.socket"
MESSAGE_BYTES: Final = 65_536
AWAKE: Final = b"awake"
"""From a replica: it reads its sockets again."""
OVER: Final = b"over"
"""From a broker: the rest is over."""
OFF: Final = b"off"
"""From a broker: this process may not be stopped; offer no more."""


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)


def listen(folder: Path) -> socket.socket:
    """Listen in a data directory, whose lock the caller holds; raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.setblocking(False)
        (folder / NAME).unlink(missing_ok=True)
        with _short_path(folder) as path:
            listener.bind(path)
        (folder / NAME).chmod(0o600)
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(folder: Path) -> socket.socket:
    """Connect with the broker of a data directory; raises OSError, PermissionError for one of another user."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        channel.setblocking(False)  # where the broker accepts none, this fails, and is tried again later
        with _short_path(folder) as path:
            channel.connect(path)
        peer_pid(channel)
    except BaseException:
        channel.close()
        raise
    return channel


def peer_pid(channel: socket.socket) -> int:
    """Return the process at the other end; raises PermissionError for one of another user, or out of sight."""
    pid, user, _ = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid() or pid <= 0:
        raise PermissionError(f"process {pid} of user {user} is at the other end, this is one of user {os.getuid()}")
    return int(pid)


def encode_offer(offer: Offer) -> bytes:
    """Return the message of a replica that rests."""
    packed: bytes = msgpack.packb([offer.name, offer.life, offer.until_ms, offer.descriptors, offer.report])
    return packed


def decode_offer(message: bytes) -> Offer:
    """Return what :func:`encode_offer` packed; raises ValueError and TypeError for anything else."""
    name, life, until_ms, descriptors, report = msgpack.unpackb(message)
    if not isinstance(report, dict):
        raise TypeError(f"{report!r:.80} is no report")
    return Offer(name=str(name), life=int(life), until_ms=int(until_ms), descriptors=int(descriptors), report=report)
