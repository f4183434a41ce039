"""`OutboxRelay`: stores committed events from the table in their topics, each once, whatever crashes.

Per shard, the relay takes the lease (a). In one transaction it puts rows into batches, and writes partition and
sequence into the rows (b). It sends exactly these batches (c), and marks them in the transaction of the next turn (d).
If it ends anywhere in between, the next holder of the lease finds the same batches in the table and sends them again,
and the leaders answer with the offsets of the first time.

`session.py` decides, `store.py` has the SQL, `holder.py` sends for a shard; the leases and their tasks are here. May
touch: the network, the user's database, the clock.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Unpack

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from raylog.base.errors import InvalidConfig, OutboxLeaseLost, RaylogError
from raylog.client.cluster.backoff import Backoff
from raylog.client.config import ProducerConfig, load, show_keys
from raylog.client.guard import NotPickled, Turn
from raylog.client.keywords import ProducerKeywords
from raylog.client.producer.resumed import ResumedProducer
from raylog.client.tasks import LastingTask
from raylog.outbox.holder import Holder
from raylog.outbox.model import Limits
from raylog.outbox.store import OutboxStore
from raylog.outbox.threads import DatabaseThread

logger = logging.getLogger(__name__)

LEASE_MS = 10_000
DAY_MS = 86_400_000
FIRST_PAUSE_MS = 100
LONGEST_PAUSE_MS = 5_000
REQUEST_TIMEOUT_MS = 10_000
NAME_LENGTH = 400


class OutboxRelay(NotPickled):
    """Relays the outbox of one database. `run()` blocks until `stop()`; several relays may run, one works per shard.

    `producer_name` names the outbox for good: a relay with another name is refused. `shards`: those to work on, all by
    default. `lease_ms`: how long after a crash another relay takes over (10 s by default). `poll_ms` and `poll_max_ms`:
    the pause between two looks at an empty table grows from the first to the second (50 ms, 1 s). `keep_finished_ms`:
    how long finished rows stay (a day by default); once a row is deleted, its txid may be used again. `on_failed` is
    called with a sentence for each event that its topic refuses for good; such a row is FAILED, and later events of its
    key wait. `rebind`: accept that the outbox has moved to another name or cluster. Further keyword arguments are those
    of a producer: `bootstrap`, `secret`, `compression_type`, `request_timeout_ms` (10 s by default).
    """

    def __init__(
        self,
        engine: Engine,
        producer_name: str,
        *,
        shards: Iterable[int] | None = None,
        lease_ms: int = LEASE_MS,
        poll_ms: int = 50,
        poll_max_ms: int = 1_000,
        keep_finished_ms: int = DAY_MS,
        on_failed: Callable[[str], object] | None = None,
        rebind: bool = False,
        limits: Limits | None = None,
        config: Mapping[str, Any] | None = None,
        **keywords: Unpack[ProducerKeywords],
    ) -> None:
        """Raises InvalidConfig; connects when it runs."""
        keywords.setdefault("request_timeout_ms", REQUEST_TIMEOUT_MS)
        self.config = load(ProducerConfig, config, keywords)
        if not 0 < len(producer_name) <= NAME_LENGTH or producer_name.endswith(" "):
            raise InvalidConfig(
                f"The name of an outbox has 1 to {NAME_LENGTH} characters and no blank at its end, not "
                f"{producer_name[:40]!r}: MySQL takes names for the same that differ in such blanks."
            )
        self.producer_name = producer_name
        self.owner = f"{socket.gethostname()[:100]}/{os.getpid()}/{uuid.uuid4().hex}"
        self.counters: Counter[str] = Counter()
        """What happened since this relay was made: `finished`, `failed`, `batches`, `retries`, `sessions`."""
        self.holders: dict[int, Holder] = {}
        """By shard: the holders of the shards that this relay holds now."""
        self.lease_ms = lease_ms
        self.polls_ms = (poll_ms, poll_max_ms)
        self.keep_finished_ms = keep_finished_ms
        self.limits = limits or Limits()
        self.chance = random.Random()  # spreads load, no security purpose
        self._on_failed = on_failed
        self._engine = engine
        self._shards = None if shards is None else sorted(set(shards))
        self._rebind = rebind
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._is_stopped = False
        self._turn = Turn(_refusal)

    # ------------------------------------------------------------ the user's calls

    def run(self) -> None:
        """Relay until `stop()` is called, or Ctrl-C.

        Waits through every outage of the database and of the cluster. Raises OutboxNotInitialized,
        OutboxVersionMismatch, OutboxBoundElsewhere, AuthenticationFailed.
        """
        asyncio.run(self.run_async())

    async def run_async(self) -> None:
        """As `run`, on the caller's loop; may be cancelled."""
        with self._turn:
            await self._relay()

    async def _relay(self) -> None:
        self.prepare()
        producer = ResumedProducer(self.config)
        await self._patiently(producer.start, "connect to the cluster")
        try:
            if not self.is_stopping:
                await self.relay_through(producer)
        finally:
            await producer.close()

    def stop(self) -> None:
        """Let `run()` return once answered batches are marked; may be called from any thread or signal handler."""
        self._is_stopped = True
        if self._loop is not None and self._stopping is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)

    def failed(self, sentence: str) -> None:
        """Raise the alarm for an event that its topic refuses for good."""
        self.counters["failed"] += 1
        logger.error("%s", sentence)
        if self._on_failed is not None:
            try:
                self._on_failed(sentence)
            except Exception:  # the user's callback must not end the relay
                logger.exception("The callback on_failed of an outbox relay raised an error.")

    # ------------------------------------------------------------ inside

    @property
    def is_stopping(self) -> bool:
        """Whether the relay is to end."""
        return self._stopping is not None and self._stopping.is_set()

    def prepare(self) -> None:
        """Remember the running loop, on which the relay will run."""
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        if self._is_stopped:
            self._stopping.set()

    async def relay_through(self, producer: ResumedProducer) -> None:
        """Relay through a started producer, until `stop()` or an error."""
        cluster_id = producer.cluster.metadata.cluster_id or ""
        store = self._new_store()
        thread = self.new_thread()
        try:
            bound = await self._patiently(
                lambda: thread.run(store.bind, self.producer_name, cluster_id, rebind=self._rebind), "open the outbox"
            )
        finally:
            thread.close()
        if not bound:
            return
        await self._keep_shards(range(store.shards) if self._shards is None else self._shards, producer)

    async def _keep_shards(self, shards: Iterable[int], producer: ResumedProducer) -> None:
        """Keep shards until the end, or until one of them fails. A task that a framework cancels begins again."""
        working, is_over = set(shards), asyncio.Event()
        failures: list[BaseException] = []

        async def keep(shard: int) -> None:
            try:
                await self._keep_shard(shard, producer)
            except asyncio.CancelledError:
                raise  # cancelled by the relay, or by a framework: then LastingTask begins it again
            except BaseException as failure:  # whatever ends a shard ends the relay, which raises it
                failures.append(failure)
            working.discard(shard)
            if failures or not working:
                is_over.set()

        tasks = [LastingTask(partial(keep, shard), f"raylog-outbox-{shard}") for shard in sorted(working)]
        try:
            await is_over.wait()
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.wait([each.task for each in tasks])
        if failures:
            raise failures[0]

    def new_thread(self) -> DatabaseThread:
        """A thread for the calls of the database."""
        return DatabaseThread()

    def _new_store(self) -> OutboxStore:
        return OutboxStore(
            self._engine, self.owner, lease_ms=self.lease_ms, compression_type=self.config.compression_type
        )

    async def _keep_shard(self, shard: int, producer: ResumedProducer) -> None:
        """Hold one shard, or wait for it, until the end."""
        backoff = Backoff(FIRST_PAUSE_MS, LONGEST_PAUSE_MS, self.chance)
        while not self.is_stopping:
            holder = Holder(self, shard, self._new_store(), producer)
            try:
                if await holder.take():
                    self.counters["sessions"] += 1
                    self.holders[shard] = holder
                    await holder.work()
                    backoff.reset()
                else:
                    await self.pause(self.lease_ms / 3_000)
            except OutboxLeaseLost as error:
                logger.warning("%s", error.message)
            except (SQLAlchemyError, RaylogError, TimeoutError) as error:
                if isinstance(error, RaylogError) and not error.retriable:
                    raise
                logger.warning("The outbox relay of shard %s begins again: %s", shard, _sentence(error))
                if holder.has_finished:
                    backoff.reset()  # it worked until now: this outage is not the one before
                await self.pause(backoff.next_s())
            finally:
                self.holders.pop(shard, None)
                await holder.close()

    async def _patiently(self, work: Callable[[], Coroutine[Any, Any, object]], what: str) -> bool:
        """Repeat until it succeeds, through every outage; False when the relay is to end before."""
        backoff = Backoff(FIRST_PAUSE_MS, LONGEST_PAUSE_MS, self.chance)
        while not self.is_stopping:
            try:
                await work()
                return True
            except (SQLAlchemyError, RaylogError, TimeoutError) as error:
                if isinstance(error, RaylogError) and not error.retriable:
                    raise
                logger.warning("The outbox relay could not %s, and tries again: %s", what, _sentence(error))
                await self.pause(backoff.next_s())
        return False

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the relay is to end."""
        assert self._stopping is not None  # set before anything pauses
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass  # the pause is over

    async def wait_for(self, event: asyncio.Event, limit_s: float) -> None:
        """Wait for an event, until the relay is to end, or until the limit."""
        assert self._stopping is not None  # set before anything waits
        if limit_s <= 0 or event.is_set() or self._stopping.is_set():
            await asyncio.sleep(0)
            return
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._stopping.wait())]
        try:
            await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def metrics(self) -> dict[str, float]:
        """The counters, plus `shards` that this relay holds and `unmarked` rows that are in batches now."""
        rows = sum(holder.session.unmarked_rows for holder in self.holders.values() if holder.session is not None)
        return {**self.counters, "shards": len(self.holders), "unmarked": rows}


def _sentence(error: BaseException) -> str:
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0] if first else ''}"


def _refusal(_: bool) -> str:
    return "This relay runs already; one call of run() at a time. Several relays may run: one works for each shard."


show_keys(ProducerConfig, OutboxRelay)
