"""Requests of a role to the replica in its own process: they pass through the runner like those of the network.

So there is only one way into the log: a role's append is acknowledged when every in-sync replica has it, and a read
ends at the high watermark. May touch: the loop's futures.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from raylog.rpc.framing import NO_PAYLOAD, Buffer, Buffers

FETCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""Most bytes of one reply, for any request. One batch more is still far below the limit of a frame."""


class LocalRequest:
    """One request, answered once through :attr:`answer`. To abandon it, cancel that."""

    __slots__ = ("answer", "append_ms", "args", "began_ns", "method", "opened_for", "payload")

    def __init__(self, method: str, args: Any, payload: Buffer = b"") -> None:
        """``payload``: the batches of a produce request; they are copied, because the leader writes into them."""
        self.method = method
        self.args = args
        self.payload = memoryview(bytearray(payload)) if payload else memoryview(b"")
        self.began_ns = 0
        self.append_ms = -1
        self.opened_for: object = None
        self.answer: asyncio.Future[tuple[Any, bytes]] = asyncio.get_running_loop().create_future()
        """The reply and its record batches."""

    @property
    def is_deserted(self) -> bool:
        """Whether the request was answered or abandoned."""
        return self.answer.done()

    @property
    def room_bytes(self) -> int:
        """Most bytes of the reply: the general limit, since a role reads each reply at once."""
        return FETCH_BYTES_MAX

    def reply(self, args: object = None, payload: Buffers = NO_PAYLOAD) -> None:
        """Answer with a copy of the records, because their memory may be that of a mapped segment."""
        if not self.answer.done():
            self.answer.set_result((args, _joined(payload)))

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        if not self.answer.done():
            self.answer.set_exception(error)


def _joined(payload: Buffers) -> bytes:
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    return b"".join(payload)
