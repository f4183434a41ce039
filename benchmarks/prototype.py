"""A bare prototype of the message flow, an upper bound for the machine and Python: plain asyncio sockets and one file.

The client packs records into a batch (msgpack, CRC-32C) and sends it as a frame, several at once; the server checks the
CRC, appends the frame to a file and answers with the offset. No replication, metadata, idempotence, recovery: the
difference to Raylog is the price of those. `python -m benchmarks.prototype MODE FOLDER` is the server; MODE is `store`,
`sync` (fdatasync before the answer) or `echo` (the frame is returned and nothing is stored).
"""

from __future__ import annotations

import asyncio
import collections
import os
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import google_crc32c
import msgspec

from benchmarks.job import Outcome
from benchmarks.loads import Meter, payloads

FRAME = struct.Struct(">II")
"""Length of the body, and its CRC-32C."""
ANSWER = struct.Struct(">Q")
IN_FLIGHT = 5
RECEIVE_BYTES = 4 << 20
FILE = "prototype.log"
BATCH_BYTES = 1 << 20
"""Of the rows among the limits; beside the others, `prototype_client` takes the batch size of its job."""


class Server(asyncio.BufferedProtocol):
    """One connection: frames in, answers out."""

    def __init__(self, mode: str, descriptor: int) -> None:
        self._mode = mode
        self._file = descriptor
        self._buffer = bytearray(RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._end = 0
        self._position = 0
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        """Handle every complete frame, and move the rest to the front."""
        self._end += count
        begin = 0
        while self._end - begin >= FRAME.size:
            length, crc = FRAME.unpack_from(self._buffer, begin)
            stop = begin + FRAME.size + length
            if stop > self._end:
                break
            self._handle(begin, stop, crc)
            begin = stop
        if begin:
            self._buffer[: self._end - begin] = self._view[begin : self._end]
            self._end -= begin

    def _handle(self, begin: int, stop: int, crc: int) -> None:
        assert self._transport is not None
        frame = self._view[begin:stop]
        if self._mode == "echo":
            self._transport.write(bytes(frame))
            return
        if google_crc32c.value(bytes(frame[FRAME.size :])) != crc:
            raise ValueError("a frame was damaged on its way")
        self._position += os.write(self._file, frame)
        if self._mode == "sync":
            os.fdatasync(self._file)
        self._transport.write(ANSWER.pack(self._position))


async def serve(mode: str, folder: Path) -> None:
    """Listen until standard input closes; the port is printed first."""
    descriptor = os.open(folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        server = await asyncio.get_running_loop().create_server(lambda: Server(mode, descriptor), "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        server.close()
    finally:
        os.close(descriptor)


class Running:
    """The server in its own process."""

    def __init__(self, mode: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.prototype", mode, str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def stop(self) -> None:
        """End it."""
        self._process.communicate(timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Sender:
    """The client's side of a connection: batches, a few of them in flight."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers_frames: bool) -> None:
        self._reader = reader
        self._writer = writer
        self._answers_frames = answers_frames
        self._encode = msgspec.msgpack.Encoder().encode
        self._waiting: collections.deque[int] = collections.deque()
        self.answered = 0
        """Records that were answered."""

    @staticmethod
    async def connected(port: int, *, answers_frames: bool = False) -> Sender:
        """Connect; `answers_frames` when the server echoes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=RECEIVE_BYTES)
        return Sender(reader, writer, answers_frames=answers_frames)

    async def send(self, values: Sequence[bytes]) -> None:
        """Send a batch, as soon as few enough are in flight."""
        while len(self._waiting) >= IN_FLIGHT:
            await self._answer()
        body = self._encode([None, None, values, None])
        self._writer.writelines([FRAME.pack(len(body), google_crc32c.value(body)), body])
        self._waiting.append(len(values))
        await self._writer.drain()

    async def _answer(self) -> None:
        if self._answers_frames:
            length, _ = FRAME.unpack(await self._reader.readexactly(FRAME.size))
            await self._reader.readexactly(length)
        else:
            await self._reader.readexactly(ANSWER.size)
        self.answered += self._waiting.popleft()

    async def drain(self) -> None:
        """Wait until every batch was answered."""
        while self._waiting:
            await self._answer()

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        await self._writer.wait_closed()


def records_of(batch_bytes: int, size: int) -> int:
    """Number of records of a size in a batch; msgpack needs up to five bytes for each."""
    return max(1, batch_bytes // (size + 5))


async def _client(port: int, size: int, seconds: float, *, answers_frames: bool) -> int:
    """Send batches for a time, a few at once; returns the number of answered records."""
    sender = await Sender.connected(port, answers_frames=answers_frames)
    per_batch = records_of(BATCH_BYTES, size)
    pool = payloads(size, 1_000)
    values = (pool * (per_batch // len(pool) + 1))[:per_batch]
    ends_s = time.monotonic() + seconds
    try:
        while time.monotonic() < ends_s:
            await sender.send(values)
        await sender.drain()
        return sender.answered
    finally:
        await sender.close()


def measure(mode: str, folder: Path, size: int, seconds: float) -> Outcome:
    """Run server and client; a warm-up of a fifth of the time is not counted."""
    with Running(mode, folder) as server:
        asyncio.run(_client(server.port, size, seconds / 5, answers_frames=mode == "echo"))
        meter = Meter([server.pid])
        records = asyncio.run(_client(server.port, size, seconds, answers_frames=mode == "echo"))
        return meter.read(records, records * size)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2])))
