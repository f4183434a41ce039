"""The socket between a broker and the replicas that it may stop: its address, its messages, and both ends' identity.

Its address is abstract: no file is left in the data directory, and it ends with the broker's process. May touch:
sockets.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Final

import msgpack

from raylog.actors.dozing.port import Offer

MESSAGE_BYTES: Final = 65_536
AWAKE: Final = b"awake"
"""From a replica: it reads its sockets again."""
OVER: Final = b"over"
"""From a broker: the rest is over."""
OFF: Final = b"off"
"""From a broker: this process may not be stopped; offer no more."""


def _address(folder: Path) -> str:
    """Of a data directory: by its place on the disk, which is the same under every name. Raises OSError.

    It is the same for every user: each end checks whose process is at the other, and can so name the two users.
    """
    found = os.stat(folder)
    return f"\0raylog.doze.{found.st_dev:x}.{found.st_ino:x}"


def listen(folder: Path) -> socket.socket:
    """Listen for the replicas of a data directory, whose lock the caller holds; raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.setblocking(False)
        listener.bind(_address(folder))
        listener.listen(1024)
    except BaseException:  # any error: the socket has no other owner
        listener.close()
        raise
    return listener


def connect(folder: Path) -> socket.socket:
    """Connect with the broker of a data directory; raises OSError, PermissionError for one of another user."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        channel.setblocking(False)  # where the broker accepts none, this fails, and is tried again later
        channel.connect(_address(folder))
        peer_pid(channel)
    except BaseException:  # any error: the socket has no other owner
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
