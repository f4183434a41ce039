"""One relay's hold on one shard, from taking the lease to giving it back: the loop around a `Session`.

The session makes all decisions. Its transactions run in a thread of their own. Answers of leaders are collected, and
given to the session between two transactions, so it is never used from two threads at once. May touch: the network,
the user's database.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from raylog.base.errors import ConnectionFailed, OutboxLeaseLost, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.cluster.backoff import as_raylog_error
from raylog.client.producer.resumed import KnownSequence, ResumedProducer
from raylog.client.producer.sizes import MESSAGE_BYTES_DEFAULT
from raylog.client.scheduling import DELAY_MAX_MS
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.outbox.model import Limits, OutboxBatch, TopicView
from raylog.outbox.session import Session
from raylog.outbox.store import Lease, OutboxStore
from raylog.outbox.threads import DatabaseThread

logger = logging.getLogger(__name__)

GATHER_S = 0.003
"""Answers that come within this time are marked in one transaction."""
LAST_ANSWERS_S = 2.0
"""How long the end of a holder waits for requests that are on their way."""
ABSENT_TOPIC_S = 1.0
"""Pause between two look-ups of a topic that does not exist."""
CLEAN_EVERY_S = 10.0
"""Pause after a look for old finished rows that found none."""
Answer = tuple[OutboxBatch, "int | RaylogError"]
Verification = tuple[TopicPartition, "KnownSequence | RaylogError | None"]


class Relay(Protocol):
    """What a holder needs of its relay."""

    counters: Counter[str]
    limits: Limits
    lease_ms: int
    polls_ms: tuple[int, int]
    keep_finished_ms: int

    @property
    def is_stopping(self) -> bool:
        """Whether the relay is to end."""

    def failed(self, sentence: str) -> None:
        """Raise the alarm for an event that its topic refuses for good."""

    def new_thread(self) -> DatabaseThread:
        """A thread for the calls of the database."""

    async def wait_for(self, event: asyncio.Event, limit_s: float) -> None:
        """Wait for an event, until the relay is to end, or until the limit."""


class Holder:
    """Takes a shard's lease, relays its events, and gives the lease back."""

    def __init__(self, relay: Relay, shard: int, store: OutboxStore, producer: ResumedProducer) -> None:
        self.session: Session | None = None
        self.has_finished = False
        """Whether this session has marked an event as sent."""
        self._relay = relay
        self._shard = shard
        self._store = store
        self._producer = producer
        self._thread = relay.new_thread()
        self._held: Lease | None = None
        self._payloads: dict[OutboxBatch, bytes] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._answers: list[Answer] = []
        self._verifications: list[Verification] = []
        self._queried: set[TopicPartition] = set()
        self._absent_until_s: dict[str, float] = {}
        self._views: dict[str, int] = {}
        """By topic: the version of the metadata that the session's view was made from."""
        self._woken = asyncio.Event()
        self._is_ending = False
        self._renew_at_s = 0.0
        self._clean_at_s = 0.0
        self._poll_s = 0.0

    async def take(self) -> bool:
        """Take the shard's lease, if it is free."""
        self._held = await self._thread.run(self._store.take, self._shard)
        return self._held is not None

    async def work(self) -> None:
        """Relay until the relay is to end, or an error. Raises OutboxLeaseLost, SQLAlchemyError, RaylogError."""
        relay, held = self._relay, self._lease
        producer_id = held.producer_id
        if producer_id is None:
            producer_id = await self._new_producer_id()
        session = self.session = Session(producer_id, relay.limits)
        self._payloads = await self._thread.run(self._store.load, held, session)
        self._noted_renewal()
        while not relay.is_stopping:
            await self._step(session)
        await self._finish(session)

    async def close(self) -> None:
        """Cancel what is on its way, and try to give the lease back; the thread ends in any case."""
        self._is_ending = True
        for task in self._tasks:
            task.cancel()
        try:
            if self._tasks:
                await asyncio.wait(list(self._tasks), timeout=LAST_ANSWERS_S)
            if self._held is not None:
                try:
                    await self._thread.run(self._store.release, self._held)
                except Exception as error:  # it runs out by itself
                    logger.info("The lease of outbox shard %s was not given back: %s", self._shard, error)
        finally:
            self._thread.close()

    # ------------------------------------------------------------ one round

    async def _step(self, session: Session) -> None:
        self._take_answers(session)
        await self._learn_topics(session)
        self._query_leaders(session)
        if session.wants_producer_id:
            session.producer_id = await self._new_producer_id()
        is_full = await self._turn(session)
        now_ms = _now_ms()
        for batch in session.sendable(now_ms):
            self._relay.counters["batches"] += 1
            self._spawn(self._send(batch, self._payloads[batch]), partial(self._not_answered, batch))
        if not is_full:
            await self._wait(session)

    async def _turn(self, session: Session) -> bool:
        """Run this round's transaction, if there is something to write; True when more rows may be ready at once."""
        store, held = self._store, self._lease
        changes = session.take_changes()
        if not changes and not await self._thread.run(store.has_work, held, session.full()):
            if _now_s() >= self._renew_at_s:
                await self._thread.run(store.renew, held)
                self._noted_renewal()
            await self._clean(held)
            self._poll_s = min(max(2 * self._poll_s, self._relay.polls_ms[0] / 1000), self._relay.polls_ms[1] / 1000)
            return False
        done = await self._thread.run(store.turn, held, session, changes)
        self._noted_renewal()
        for batch, _ in changes.finished:
            self._relay.counters["finished"] += len(batch.rows)
            self._payloads.pop(batch, None)
            self.has_finished = True
        for batch, _ in changes.dissolved:
            self._payloads.pop(batch, None)
        for row_id, reason in (*changes.failed, *done.plan.refused):
            self._relay.failed(
                f"Event {row_id} of the outbox was refused for good, and the later events of its key wait: {reason}. "
                "Then: `raylog outbox retry` or `raylog outbox discard`."
            )
        self._payloads.update(done.batches)
        for name in sorted(done.plan.unknown_topics - self._absent_until_s.keys()):
            self._absent_until_s[name] = 0.0
        self._poll_s = self._relay.polls_ms[0] / 1000
        is_sure = await self._confirm(session, sorted(done.plan.doubted_topics))
        learns = is_sure or bool(done.plan.unknown_topics) or bool(session.unverified(_now_ms()))
        return learns or done.plan.rows >= session.limits.rows

    async def _wait(self, session: Session) -> None:
        """Wait for an answer, for the end of a pause, or until it is time to look into the table again."""
        limit_s = self._poll_s
        due_ms = session.due_ms()
        if due_ms is not None:
            limit_s = min(limit_s, max(0.0, (due_ms - _now_ms()) / 1000))
        await self._relay.wait_for(self._woken, limit_s)
        if self._woken.is_set() and self._tasks:
            await asyncio.wait(list(self._tasks), timeout=GATHER_S)
        self._woken.clear()

    async def _finish(self, session: Session) -> None:
        """Mark the batches whose answers come within `LAST_ANSWERS_S`; the next holder sends the rest again."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=LAST_ANSWERS_S)
        self._take_answers(session)
        changes = session.take_changes()
        if changes:
            await self._thread.run(self._store.mark, self._lease, changes)
            self._relay.counters["finished"] += sum(len(batch.rows) for batch, _ in changes.finished)

    async def _clean(self, held: Lease) -> None:
        if _now_s() >= self._clean_at_s:
            deleted = await self._thread.run(self._store.clean, held, self._relay.keep_finished_ms)
            self._relay.counters["cleaned"] += deleted
            self._clean_at_s = _now_s() + (0 if deleted else CLEAN_EVERY_S)

    # ------------------------------------------------------------ topics

    async def _learn_topics(self, session: Session) -> None:
        """Bring the session's views of topics up to date with the metadata; look absent topics up again when due."""
        cluster, now_s = self._producer.cluster, _now_s()
        for name in sorted(session.used_topics - session.topics.keys() - self._absent_until_s.keys()):
            self._absent_until_s[name] = 0.0
        for name, until_s in list(self._absent_until_s.items()):
            if until_s > now_s:
                continue
            cluster.watch((name,))
            try:
                if name == SCHEDULED_TOPIC:
                    await self._producer.make_scheduled_topic()
                await cluster.refresh((name,))
            except RaylogError as error:
                logger.warning("Topic %r could not be looked up for the outbox: %s", name, error.message)
            if cluster.metadata.topic(name) is None:
                if name not in session.absent:
                    logger.error("Topic %r does not exist; its events wait in the outbox until it does.", name)
                self._absent_until_s[name] = now_s + ABSENT_TOPIC_S
                session.learn_topic(name, None)
            else:
                del self._absent_until_s[name]
                self._views.pop(name, None)
                self._view(session, name)
        for name in list(session.topics):
            self._view(session, name)

    async def _confirm(self, session: Session, names: Sequence[str]) -> bool:
        """Fetch the limits of topics again, so that no row fails by outdated ones; True when all of them are confirmed.

        False as well where there are none.
        """
        try:
            for name in names:
                await self._producer.cluster.refresh((name,))
                self._view(session, name)
                session.confirm_topic(name)
        except RaylogError as error:
            logger.warning("Limits of a topic could not be fetched for the outbox: %s", error.message)
            return False
        return bool(names)

    def _view(self, session: Session, name: str) -> None:
        info = self._producer.cluster.metadata.topic(name)
        if info is None:
            session.learn_topic(name, None)
            self._absent_until_s[name] = 0.0
        elif self._views.get(name) != info.version or name not in session.topics:
            self._views[name] = info.version
            most = int(info.config.get("max.message.bytes", MESSAGE_BYTES_DEFAULT))
            is_delayed = str(info.config.get("delay.enable", "true")).lower() == "true"
            longest_ms = int(info.config.get("delay.max.ms", DELAY_MAX_MS)) if is_delayed else -1
            session.learn_topic(name, TopicView(info.topic_id, len(info.partitions), most, longest_ms))

    # ------------------------------------------------------------ leaders

    def _query_leaders(self, session: Session) -> None:
        for where, producer_id in session.unverified(_now_ms()):
            if where not in self._queried and where.topic in session.topics:
                self._queried.add(where)
                self._spawn(self._query(where, producer_id), partial(self._not_verified, where))

    async def _query(self, where: TopicPartition, producer_id: int) -> None:
        answer: KnownSequence | RaylogError | None
        try:
            answer = await self._producer.known_sequence(where, producer_id)
        except Exception as error:  # any error: without an answer the lane would stand still for good
            answer = as_raylog_error(error)
        self._verifications.append((where, answer))
        self._woken.set()

    async def _send(self, batch: OutboxBatch, payload: bytes) -> None:
        outcome: int | RaylogError
        try:
            outcome = await self._producer.send(batch.where, batch.topic_id, payload)
        except Exception as error:  # any error: a batch without an outcome would hold its lane up for good
            outcome = as_raylog_error(error)
            await self._find_leader(batch, outcome)
        self._answers.append((batch, outcome))
        self._woken.set()

    async def _find_leader(self, batch: OutboxBatch, error: RaylogError) -> None:
        self._relay.counters["retries"] += 1
        try:
            await self._producer.find_leader_again(batch.where, error)
        except Exception as failure:  # the next attempt meets it again, and reports it
            logger.info("The leader of %s was not found: %s", batch.where, failure)

    def _take_answers(self, session: Session) -> None:
        answers, self._answers = self._answers, []
        for batch, outcome in answers:
            if isinstance(outcome, RaylogError):
                self._report(session, batch.where, outcome)
                session.failed(batch, outcome, _now_ms())
            else:
                session.stored(batch, outcome)
        found, self._verifications = self._verifications, []
        for where, known in found:
            self._queried.discard(where)
            if isinstance(known, RaylogError):
                self._report(session, where, known)
                session.unreachable(where, known, _now_ms())
            else:
                session.verified(where, known, _now_ms())

    def _report(self, session: Session, where: TopicPartition, error: RaylogError) -> None:
        """Log an error, unless the lane's last one was of the same type."""
        before = session.lanes[where].last_error
        if type(before) is not type(error):
            logger.warning("Outbox events for %s wait: %s: %s", where, type(error).__name__, error.message)

    # ------------------------------------------------------------ inside

    @property
    def _lease(self) -> Lease:
        if self._held is None:
            raise OutboxLeaseLost()
        return self._held

    async def _new_producer_id(self) -> int:
        producer_id = await self._producer.new_producer_id()
        await self._thread.run(self._store.keep_producer_id, self._lease, producer_id)
        return producer_id

    def _noted_renewal(self) -> None:
        self._renew_at_s = _now_s() + self._relay.lease_ms / 3_000  # a third of the lease, in seconds

    def _not_answered(self, batch: OutboxBatch) -> None:
        self._answers.append((batch, cancelled_outside()))

    def _not_verified(self, where: TopicPartition) -> None:
        self._verifications.append((where, cancelled_outside()))

    def _spawn(self, work: Coroutine[Any, Any, None], on_lost: Callable[[], None]) -> None:
        """Begin a task. `on_lost` gives its lane an outcome where a framework cancels the task: none would come."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.pop(task)
            if task.cancelled() and not self._is_ending:
                on_lost()
                self._woken.set()

        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(ended)


def cancelled_outside() -> ConnectionFailed:
    """The outcome of a request whose task was cancelled by other code: not known, so the request is sent again."""
    return ConnectionFailed("The relay's task that sent the request was cancelled from outside.")


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _now_ms() -> int:
    return int(_now_s() * 1000)
