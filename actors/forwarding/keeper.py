"""The role that keeps the notes of all forwarders, at the leader of ``__forwarding``, and runs the redrives.

The newest note of each name is in memory; the log is compacted. A save is answered when it is committed. When an append
fails, its outcome is not known, so the role reads its log again, as a new leader does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, ClassVar, Final

import msgspec

from raylog.actors.answering import answering
from raylog.actors.forwarding.kept import Kept
from raylog.actors.forwarding.places import until_committed
from raylog.actors.forwarding.redrives import PREFIX, Redrive, Redrives
from raylog.actors.roles.host import RoleHost
from raylog.actors.roles.proof import Proof
from raylog.actors.roles.role import Role
from raylog.core.errors import CoordinatorLoadInProgress, ForwarderFenced, NotLeaderOrFollower, RaylogError
from raylog.core.lane import Trouble, trouble_of
from raylog.protocol.forwarding import (
    CancelRedriveRequest,
    ListRedrivesRequest,
    LoadForwarderReply,
    LoadForwarderRequest,
    SaveForwarderRequest,
    StartRedriveRequest,
)
from raylog.protocol.message import Message
from raylog.rpc import Request
from raylog.storage.batch.header import BatchHeader, check_crc, iter_headers
from raylog.storage.batch.records import decode_batch, encode_batch
from raylog.storage.errors import CorruptBatch

logger = logging.getLogger(__name__)

AGAIN_S: Final = 0.2
LOADED_WITHIN_S: Final = 5.0
READ_BYTES: Final = 4 * 1024 * 1024

_FENCE: Final = "fence"
"""A name that no forwarder or redrive has, so its tombstone has no meaning; appended to prove the leadership."""

_decode_value = msgspec.msgpack.Decoder(tuple[int, bytes]).decode


class KeeperRole(Role):
    """The keeper of forwarders' notes in one leader epoch."""

    kind = "forwarding"
    requests: ClassVar[frozenset[type[Message]]] = frozenset(
        {
            LoadForwarderRequest,
            SaveForwarderRequest,
            StartRedriveRequest,
            ListRedrivesRequest,
            CancelRedriveRequest,
        }
    )

    def __init__(self, host: RoleHost) -> None:
        """Nothing is done before :meth:`begin`."""
        super().__init__(host)
        self.kept: dict[str, Kept] = {}
        """By name: what is stored and committed."""
        self._loaded = asyncio.Event()
        self._trouble: asyncio.Future[None] | None = None
        self._writing: dict[str, asyncio.Lock] = {}
        self._appends = 0
        self._unreadable = 0
        """How many rows the last load skipped because they cannot be read."""
        self._proof = Proof(lambda: self.save(_FENCE, None))
        self.redrives = Redrives(self)

    def begin(self) -> None:
        """Read the log, then serve."""
        self.host.spawn(self._live(), "forwarding")

    @property
    def is_busy(self) -> bool:
        """Whether the log is being read, something is being stored, or a redrive runs."""
        return not self._loaded.is_set() or self._appends > 0 or self.redrives.is_busy

    def receive(self, request: Request, args: Any) -> None:
        """Take a request of a forwarder or an administrator."""
        if args.current_leader_epoch not in (-1, self.host.leader_epoch):
            raise NotLeaderOrFollower(f"{self.host.partition} has leader epoch {self.host.leader_epoch}; look it up.")
        self.host.spawn(answering(self._answered(request, args), request), "forwarding request")

    async def _live(self) -> None:
        while not self.host.is_over:
            try:
                await self._load()
                self._trouble = asyncio.get_running_loop().create_future()
                self._loaded.set()
                self.redrives.resume()
                await self._trouble
            except (RaylogError, OSError) as trouble:
                logger.warning("%s: the keeper of forwarders begins again: %s", self.host.partition, trouble)
            self._loaded.clear()
            await asyncio.sleep(AGAIN_S)

    async def _load(self) -> None:
        end = await until_committed(self.host)
        kept: dict[str, Kept] = {}
        unreadable = 0
        offset = self.host.log.log_start_offset
        while offset < end:
            _, records = await self.host.fetch(offset, max_bytes=READ_BYTES, max_wait_ms=0)
            for position, header in iter_headers(records):
                unreadable += _take_batch(kept, records, position, header, self._name_unreadable)
                offset = max(offset, header.next_offset)
            await asyncio.sleep(0)  # so that heartbeats continue
        self.kept, self._unreadable = kept, unreadable

    def _name_unreadable(self, offset: int, error: Exception) -> None:
        logger.error(
            "%s: the row at offset %d cannot be read, and is passed over: %.300r", self.host.partition, offset, error
        )

    # ------------------------------------------------------------ requests

    async def _answered(self, request: Request, args: Any) -> None:
        try:
            await self._until_loaded()
            request.reply(await self._answer(args))
        except RaylogError as error:
            request.fail(error)
        except asyncio.CancelledError:
            request.fail(NotLeaderOrFollower(f"{self.host.partition} is led by another broker now; look it up."))
            raise

    async def _answer(self, args: Any) -> object:
        """Return the answer. If it states what is kept, a stored row proves that this leadership still holds.

        Raises RaylogError.
        """
        try:
            match args:
                case LoadForwarderRequest():
                    return await self._load_forwarder(args)
                case SaveForwarderRequest():
                    await self.save(args.forwarder, Kept(args.owner_epoch, args.note))
                    return []
                case StartRedriveRequest():
                    return await self.redrives.start(args)
                case ListRedrivesRequest():
                    await self._proof.stored()
                    return self.redrives.list(args.topic)
                case _:
                    await self._proof.stored()
                    return await self.redrives.cancel(args.redrive)
        except RaylogError as error:
            if not error.retriable:
                await self._proof.stored()
            raise

    async def _until_loaded(self) -> None:
        try:
            async with asyncio.timeout(LOADED_WITHIN_S):
                await self._loaded.wait()
        except TimeoutError:
            raise CoordinatorLoadInProgress(f"{self.host.partition} is reading its log; try again.") from None

    async def _load_forwarder(self, args: LoadForwarderRequest) -> LoadForwarderReply:
        self._check_epoch(args.forwarder, args.owner_epoch)
        known = self.kept.get(args.forwarder)
        if known is None or known.owner_epoch < args.owner_epoch:
            known = Kept(args.owner_epoch, b"" if known is None else known.data)
            await self.save(args.forwarder, known)
        else:
            await self._proof.stored()
        known = self.kept[args.forwarder]
        self._check_epoch(args.forwarder, args.owner_epoch)
        return LoadForwarderReply(known.data)

    def _check_epoch(self, name: str, owner_epoch: int) -> None:
        known = self.kept.get(name)
        if known is not None and owner_epoch < known.owner_epoch:
            raise ForwarderFenced(f"{name} is owned by epoch {known.owner_epoch}; epoch {owner_epoch} is over.")

    # ------------------------------------------------------------ the log

    async def save(self, name: str, kept: Kept | None) -> None:
        """Store something under a name, or delete it (None); returns when that is committed.

        Raises ForwarderFenced for an owner of an earlier epoch; CoordinatorLoadInProgress if the outcome is not known;
        RecordTooLarge and other refusals of the log, which a repetition would meet again.
        """
        lock = self._writing.setdefault(name, asyncio.Lock())
        async with lock:
            if kept is not None:
                self._check_epoch(name, kept.owner_epoch)
            value = None if kept is None else msgspec.msgpack.encode([kept.owner_epoch, kept.data])
            self._appends += 1
            try:
                await self.host.produce(encode_batch([name.encode()], [value], [self.host.wall_ms()]))
            except (RaylogError, OSError) as error:
                if trouble_of(error) is Trouble.REFUSED:  # nothing was stored, so what is in memory stays valid
                    raise
                self._failed(error)
                raise CoordinatorLoadInProgress(f"{self.host.partition} could not store {name}; try again.") from error
            finally:
                self._appends -= 1
            _take(self.kept, name.encode(), value)

    async def save_surely(self, name: str, kept: Kept | None) -> None:
        """As `save`, repeated until it is stored; storing the same twice does no harm."""
        while True:
            try:
                await self.save(name, kept)
                return
            except CoordinatorLoadInProgress:
                await self._loaded.wait()

    def _failed(self, error: BaseException) -> None:
        self._loaded.clear()
        if self._trouble is not None and not self._trouble.done():
            self._trouble.set_exception(error)

    def figures(self) -> dict[str, int]:
        """Return counters and gauges."""
        return {"forwarders": len(self.kept), "unreadable": self._unreadable, **self.redrives.figures()}


def _take_batch(
    kept: dict[str, Kept],
    records: bytes,
    position: int,
    header: BatchHeader,
    name_unreadable: Callable[[int, Exception], None],
) -> int:
    """Take the rows of a batch; returns how many of them cannot be read, and are skipped."""
    if header.is_control:
        return 0
    try:
        columns = decode_batch(records, position, header, verify=False)
    except CorruptBatch as error:
        check_crc(records, position, header)  # bytes that changed on the disk are read again, or repaired
        name_unreadable(header.base_offset, error)
        return 1
    found = 0
    values = columns.values or [None] * header.record_count
    for offset, key, value in zip(columns.offsets, columns.keys or (), values, strict=False):
        try:
            _take(kept, key, value)
        except Exception as error:  # any error: a foreign row must not keep the role from serving
            name_unreadable(offset, error)
            found += 1
    return found


def _take(kept: dict[str, Kept], key: bytes | None, value: bytes | None) -> None:
    """Take a row. Raises any error for a row that no keeper wrote."""
    if key is None:
        return
    name = key.decode()
    if value is None:
        kept.pop(name, None)
        return
    owner_epoch, data = _decode_value(value)
    if name.startswith(PREFIX) and name.count(":") == 1:
        Redrive.decode(data)
    kept[name] = Kept(owner_epoch, data)
