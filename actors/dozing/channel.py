"""The socket between a broker and the replicas that it may stop: its address, its messages, and checks of the peer.

Its address is in Linux's abstract namespace: it leaves no file in the data directory, and ends with the broker's
process. May touch: sockets.
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
"""From a broker: the doze is over."""
OFF: Final = b"off"
"""From a broker: this process cannot be stopped and should make no more offers."""


def _address(folder: Path) -> str:
    """The address of a data directory: made of device and inode, which do not depend on its path. Raises OSError.

    It does not depend on the user, so that processes of two users meet: each end checks the other's user, and can
    report the difference.
    """
    found = os.stat(folder)
    return f"\0raylog.doze.{found.st_dev:x}.{found.st_ino:x}"


def listen(folder: Path) -> socket.socket:
    """Listen for the replicas of a data directory, whose lock the caller holds. Raises OSError."""
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
    """Connect to the broker of a data directory. Raises OSError; PermissionError for a broker of another user."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        channel.setblocking(False)  # if the broker's queue is full, connecting fails, and is tried again later
        channel.connect(_address(folder))
        peer_pid(channel)
    except BaseException:  # any error: the socket has no other owner
        channel.close()
        raise
    return channel


def peer_pid(channel: socket.socket) -> int:
    """Return the process id of the other end. Raises PermissionError for another user's or an invisible process."""
    pid, user, _ = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid() or pid <= 0:
        raise PermissionError(f"process {pid} of user {user} is at the other end, this is one of user {os.getuid()}")
    return int(pid)


def encode_offer(offer: Offer) -> bytes:
    """Return the message with which a replica offers its process."""
    packed: bytes = msgpack.packb([offer.name, offer.life, offer.until_ms, offer.descriptors, offer.report])
    return packed


def decode_offer(message: bytes) -> Offer:
    """Return the offer in a message. Raises ValueError or TypeError for any other message."""
    name, life, until_ms, descriptors, report = msgpack.unpackb(message)
    if not isinstance(report, dict):
        raise TypeError(f"{report!r:.80} is no report")
    return Offer(name=str(name), life=int(life), until_ms=int(until_ms), descriptors=int(descriptors), report=report)
