"""Requests that a process makes to its own replica: they pass through the runner like those of the network.

So a role's append is acknowledged when every in-sync replica has it, and a read ends at the high watermark, without a
second way into the log. May touch: the loop's futures.
"""

from __future__ import annotations

import asyncio
from typing import Any

from raylog.actors.replica.consumer_reads import FETCH_BYTES_MAX
from raylog.rpc.framing import NO_PAYLOAD, Buffer, Buffers


class LocalRequest:
    """One request, answered once through :attr:`answer`; abandoned where that is cancelled."""

    __slots__ = ("answer", "append_ms", "args", "began_ns", "method", "opened_for", "payload")

    def __init__(self, method: str, args: Any, payload: Buffer = b"") -> None:
        """``payload``: the record batches of a produce request; the leader stamps them, so they may not be shared."""
        self.method = method
        self.args = args
        self.payload = memoryview(bytearray(payload)) if payload else memoryview(b"")
        self.began_ns = 0
        self.append_ms = -1
        self.opened_for: object = None
        self.answer: asyncio.Future[tuple[Any, bytes]] = asyncio.get_running_loop().create_future()
        """The reply and its records."""

    @property
    def is_deserted(self) -> bool:
        """Whether the answer is no longer waited for."""
        return self.answer.done()

    @property
    def room_bytes(self) -> int:
        """How large the answer should be at most: as large as any, each is taken at once."""
        return FETCH_BYTES_MAX

    def reply(self, args: object = None, payload: Buffers = NO_PAYLOAD) -> None:
        """Answer, with a copy of the records: the memory behind them may be a segment's."""
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
