"""RocketMQ 5 over its own remoting protocol, straight to one broker: no Python library for it is maintained.

Sends are in flight like those of other libraries; a pull waits at the broker until messages come.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.clients.base import Client
from benchmarks.peers.processes import Unavailable

SEND_MESSAGE_V2, PULL_MESSAGE, UPDATE_AND_CREATE_TOPIC, GET_MAX_OFFSET, DELETE_TOPIC = 310, 11, 17, 30, 215
SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY = 0, 19, 20
SUSPEND_WITH_SUBSCRIPTION = 2 | 4
IN_FLIGHT = 200
PULL_MAX = 1_000
LENGTHS = struct.Struct(">II")
BODY_AT = 84
"""Where the length of a stored message's body is; before it are sizes, offsets, times and IPv4 addresses."""
TIMEOUT_S = 60.0


class Remoting:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")
        self._numbers = itertools.count(1)

    def frame(self, code: int, fields: Mapping[str, Any], body: bytes = b"") -> bytes:
        """A request as bytes."""
        header = json.dumps(
            {"code": code, "language": "PYTHON", "version": 0, "opaque": next(self._numbers), "flag": 0,
             "extFields": {name: str(value) for name, value in fields.items()}}, separators=(",", ":"),
        ).encode()  # fmt: skip
        return LENGTHS.pack(4 + len(header) + len(body), len(header)) + header + body

    def write(self, data: bytes) -> None:
        """Send frames."""
        self._socket.sendall(data)

    def read(self) -> tuple[dict[str, Any], bytes]:
        """The next answer: its header, and its body."""
        size, header_size = LENGTHS.unpack(self._reader.read(LENGTHS.size))
        header_size &= 0xFFFFFF
        header: dict[str, Any] = json.loads(self._reader.read(header_size))
        return header, self._reader.read(size - 4 - header_size)

    def query(self, code: int, fields: Mapping[str, Any], accepted: Sequence[int] = (SUCCESS,)) -> Any:
        """Send a request and return its answer. Raises Unavailable for another code than the accepted ones."""
        self.write(self.frame(code, fields))
        header, body = self.read()
        if header["code"] not in accepted:
            raise Unavailable(f"RocketMQ answered {header['code']} to request {code}: {header.get('remark')}")
        return header, body

    def close(self) -> None:
        """Disconnect."""
        self._reader.close()
        self._socket.close()


def create_topic(port: int, name: str) -> None:
    """Create a topic with one queue."""
    remoting = Remoting(port)
    remoting.query(
        UPDATE_AND_CREATE_TOPIC,
        {"topic": name, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
         "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"},
    )  # fmt: skip
    remoting.close()


def delete_topic(port: int, name: str) -> None:
    """Delete a topic."""
    remoting = Remoting(port)
    remoting.query(DELETE_TOPIC, {"topic": name})
    remoting.close()


class Measured(Client):
    """A sender of timer messages, and a reader of their topic."""

    def open_producer(self) -> None:
        """Connect."""
        self.remoting = Remoting(int(self.job.address["port"]))
        self._outstanding = 0
        self._keys = itertools.count(time.time_ns())

    def send_chunk(self, payloads: Sequence[bytes]) -> None:
        """One request a message; it waits when too many are not answered."""
        frame = self.remoting.frame
        frames = []
        for payload in payloads:
            properties = f"UNIQ_KEY\x01{next(self._keys):032X}\x02WAIT\x01true"
            if self.job.delay_ms:
                properties += f"\x02TIMER_DELIVER_MS\x01{self.due_ms(payload)}"
            fields = {
                "a": "bench", "b": self.job.topic, "c": "TBW102", "d": 1, "e": 0, "f": 0,
                "g": time.time_ns() // 1_000_000, "h": 0, "i": properties, "j": 0, "k": "false", "l": 0, "m": "false",
            }  # fmt: skip
            frames.append(frame(SEND_MESSAGE_V2, fields, payload))
        self.remoting.write(b"".join(frames))
        self._outstanding += len(frames)
        while self._outstanding > IN_FLIGHT:
            self._answered()

    def _answered(self) -> None:
        header, _ = self.remoting.read()
        self._outstanding -= 1
        if header["code"] != SUCCESS:
            raise Unavailable(f"RocketMQ refused a message: {header['code']}, {header.get('remark')}")

    def flush(self) -> None:
        """Wait for the answers."""
        while self._outstanding:
            self._answered()

    def open_consumer(self, *, group: str | None = None, at_end: bool = False) -> None:
        """Begin behind the last message."""
        self.remoting = Remoting(int(self.job.address["port"]))
        self._offset = 0
        if at_end:
            header, _ = self.remoting.query(GET_MAX_OFFSET, {"topic": self.job.topic, "queueId": 0})
            self._offset = int(header["extFields"]["offset"])

    def values(self, timeout_s: float) -> list[bytes]:
        """A pull that waits at the broker."""
        fields = {
            "consumerGroup": "bench", "topic": self.job.topic, "queueId": 0, "queueOffset": self._offset,
            "maxMsgNums": PULL_MAX, "sysFlag": SUSPEND_WITH_SUBSCRIPTION, "commitOffset": 0,
            "suspendTimeoutMillis": max(1, int(timeout_s * 1000)), "subscription": "*", "subVersion": 0,
            "expressionType": "TAG",
        }  # fmt: skip
        header, body = self.remoting.query(PULL_MESSAGE, fields, (SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY))
        if header["code"] != SUCCESS:
            return []
        self._offset = int(header["extFields"]["nextBeginOffset"])
        found, place = [], 0
        while place < len(body):
            size = int.from_bytes(body[place : place + 4], "big")
            length = int.from_bytes(body[place + BODY_AT : place + BODY_AT + 4], "big")
            found.append(body[place + BODY_AT + 4 : place + BODY_AT + 4 + length])
            place += size
        return found

    def take(self, timeout_s: float) -> tuple[int, int]:
        """The same, counted."""
        values = self.values(timeout_s)
        return len(values), sum(map(len, values))

    def close(self) -> None:
        """Disconnect."""
        if hasattr(self, "remoting"):
            self.remoting.close()
