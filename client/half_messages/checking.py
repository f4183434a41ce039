"""The checker of a group, which decides about undecided half messages. Owned by a half message producer.

One task for each partition of ``__scheduled`` polls its leader for half messages to check, calls the user's function
with them, and sends the verdicts. Belongs to the client's loop. May touch: the network through `ClusterClient`; a
thread for each call of a function that is no coroutine function.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from raylog.base.errors import HalfMessageDecided, RaylogError, UnknownHalfMessage
from raylog.client.cluster.backoff import Backoff, as_raylog_error
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import Deadline
from raylog.client.tasks import LastingTask
from raylog.client.types import Header
from raylog.client.user_code import USER_ERRORS
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC, HalfOutcome
from raylog.protocol.admin import ENSURE_INTERNAL_TOPIC, EnsureInternalTopicRequest
from raylog.protocol.halves import (
    DECIDE_HALVES,
    POLL_HALVES,
    DecideHalvesReply,
    DecideHalvesRequest,
    HalfQuestion,
    PollHalvesRequest,
)

logger = logging.getLogger(__name__)

POLL_MS: Final = 20_000
"""How long the leader may wait for half messages to check."""
ANSWER_EXTRA_S: Final = 10.0
"""Added to `POLL_MS` as the timeout of a poll; also the timeout of other requests."""
HALVES_MAX: Final = 20
"""The most half messages in the answer to one poll."""
LEASE_MS: Final = 30_000
"""How long a checker has for the half messages of one poll, before they may go to another checker."""
THREADS_MAX: Final = 8
"""While so many calls of the checker have not returned, no further one begins."""
LOOK_S: Final = 60.0
"""How often the number of partitions of ``__scheduled`` is looked up."""


class HalfVerdict(StrEnum):
    """A checker's verdict: what to do with a half message, by the outcome of its local transaction."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"
    """The outcome is not known yet: check again later."""


@dataclass(frozen=True, slots=True)
class PreparedRecord:
    """One record of a half message. `partition` None = chosen by the key, when the half message is committed."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class UndecidedHalf:
    """A half message that a checker is to decide about.

    `prepared_ms`: when it was prepared, in milliseconds since 1970. `checks`: earlier checks without a decision.
    """

    group: str
    txid: str
    prepared_ms: int
    checks: int
    records: tuple[PreparedRecord, ...]


Checker = Callable[[UndecidedHalf], "HalfVerdict | str | Awaitable[HalfVerdict | str | None] | None"]
"""Called with a half message; returns the verdict. None, or an exception, counts as UNKNOWN."""


async def decide(
    cluster: ClusterClient,
    shard: int,
    group: str,
    verdicts: Sequence[tuple[str, HalfVerdict, int]],
    timeout_s: float,
) -> DecideHalvesReply:
    """Send verdicts as (txid, verdict, earlier checks); the reply says what is decided now. Raises RaylogError."""
    txids, words, checks = zip(*verdicts, strict=True)
    reply, _ = await cluster.call_leader(
        SCHEDULED_TOPIC,
        shard,
        DECIDE_HALVES,
        lambda topic_id, number, epoch: DecideHalvesRequest(
            topic_id, number, epoch, group, txids, [word.value for word in words], checks
        ),
        timeout_s=timeout_s,
    )
    return reply


class GroupChecker:
    """Checks the half messages of a group until it is closed."""

    def __init__(self, cluster: ClusterClient, group: str, checker: Checker, lease_ms: int = LEASE_MS) -> None:
        self._cluster = cluster
        self._group = group
        self._checker = checker
        self._lease_ms = lease_ms
        self._in_turn = asyncio.Lock()
        """Serializes the calls of a function that is no coroutine function; a call that timed out is not waited for."""
        self._threads = 0
        """How many calls have not returned."""
        self._tasks: dict[int, LastingTask] = {}
        self._main: LastingTask | None = None

    def start(self) -> None:
        """Begin to poll for half messages to check."""
        self._main = LastingTask(self._run, f"half messages of {self._group}")

    async def close(self) -> None:
        """Stop. A check in progress is abandoned, and its half message is checked again elsewhere or later."""
        tasks = [task for task in (self._main, *self._tasks.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait([task.task for task in tasks])

    async def _run(self) -> None:
        backoff = Backoff(100, 2_000)
        while True:
            try:
                made = await self._cluster.call_broker(
                    ENSURE_INTERNAL_TOPIC, EnsureInternalTopicRequest(SCHEDULED_TOPIC), timeout_s=ANSWER_EXTRA_S
                )
            except (RaylogError, OSError) as error:
                logger.info("half messages of %s are not checked yet: %s", self._group, error)
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            for shard in range(made.partitions):
                if shard not in self._tasks:
                    self._tasks[shard] = LastingTask(partial(self._watch, shard), f"half messages {shard}")
            await asyncio.sleep(LOOK_S)

    async def _watch(self, shard: int) -> None:
        backoff = Backoff(100, 2_000)
        while True:
            try:
                await self._poll(shard)
                backoff.reset()
            except (RaylogError, OSError) as error:
                logger.info("half messages of %s in shard %d: %s", self._group, shard, as_raylog_error(error))
                await asyncio.sleep(backoff.next_s())

    async def _poll(self, shard: int) -> None:
        reply, _ = await self._cluster.call_leader(
            SCHEDULED_TOPIC,
            shard,
            POLL_HALVES,
            lambda topic_id, number, epoch: PollHalvesRequest(
                topic_id, number, epoch, self._group, POLL_MS, HALVES_MAX, self._lease_ms
            ),
            timeout_s=POLL_MS / 1000 + ANSWER_EXTRA_S,
        )
        deadline = Deadline(self._lease_ms / 1000)
        for question in reply.halves:
            if deadline.is_over or self._threads >= THREADS_MAX:
                return  # after the lease other checkers get the rest
            try:
                async with asyncio.timeout(max(0.0, deadline.left_s)):
                    verdict = await self._verdict(question)
            except TimeoutError:  # no verdict is sent: a check counts only with one
                logger.error(
                    "the checker of %s has not answered about %s in %d ms; it is queried again",
                    self._group,
                    question.txid,
                    self._lease_ms,
                )
                return
            found = await decide(
                self._cluster, shard, self._group, [(question.txid, verdict, question.checks)], ANSWER_EXTRA_S
            )
            if verdict is not HalfVerdict.UNKNOWN and found.standings[0] not in (_STANDS[verdict], "NOT_FOUND"):
                logger.error(
                    "the checker of %s says %s of %s, which was decided otherwise before: %s",
                    self._group,
                    verdict.value,
                    question.txid,
                    found.standings[0],
                )

    async def _verdict(self, question: HalfQuestion) -> HalfVerdict:
        half = UndecidedHalf(
            self._group,
            question.txid,
            question.prepared_ms,
            question.checks,
            tuple(
                PreparedRecord(
                    record.topic,
                    None if record.partition < 0 else record.partition,
                    record.key,
                    record.value,
                    tuple((header.name, header.value) for header in record.headers),
                )
                for record in question.records
            ),
        )
        try:
            if inspect.iscoroutinefunction(self._checker):
                stated = self._checker(half)
            else:
                async with self._in_turn:
                    stated = await self._in_thread(half)
            if inspect.isawaitable(stated):
                stated = await stated
            return HalfVerdict.UNKNOWN if stated is None else HalfVerdict(stated)
        except asyncio.CancelledError:
            raise
        except USER_ERRORS:  # the user's function may raise anything: the half message is checked again
            logger.exception("the checker of %s failed for %s, which is queried about again", self._group, half.txid)
            return HalfVerdict.UNKNOWN

    async def _in_thread(self, half: UndecidedHalf) -> Any:
        """Call the checker in a new thread, since it may block: one that never returns blocks nothing else."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def finish(outcome: Any, error: Exception | None) -> None:
            self._threads -= 1
            if answer.done():
                return
            if error is None:
                answer.set_result(outcome)
            else:
                answer.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)

        def work() -> None:
            outcome: Any = None
            failed: Exception | None = None
            try:
                outcome = self._checker(half)
            except Exception as error:  # the caller, on the loop, raises it
                failed = error
            except BaseException as error:  # SystemExit, say, ends only this thread, not the loop
                failed = RuntimeError(f"the checker ended its thread: {error!r}")
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(finish, outcome, failed)

        self._threads += 1
        threading.Thread(target=work, name="half-checker", daemon=True).start()
        return await answer


_STANDS: Final = {HalfVerdict.COMMIT: "COMMITTED", HalfVerdict.ROLLBACK: "ROLLED_BACK"}


def check_stands(name: tuple[str, str], verdict: HalfVerdict, standing: str, there: int, records: int | None) -> None:
    """Raise unless the half message is decided as requested: `standing` is what the leader reported.

    ``there``: how many records it had; ``records``: how many a commit must have had, None = any number. Raises
    UnknownHalfMessage, HalfMessageDecided.
    """
    group, txid = name
    if standing == HalfOutcome.NOT_FOUND:
        raise UnknownHalfMessage(
            f"No half message {txid!r} of group {group!r} is held: it was never prepared, or decided so long ago that "
            "that is forgotten. `raylog half list` shows those without decision."
        )
    wanted = HalfOutcome.COMMITTED if verdict is HalfVerdict.COMMIT else HalfOutcome.ROLLED_BACK
    if standing != wanted:
        raise HalfMessageDecided(
            f"Half message {txid!r} of group {group!r} is {standing} by a checker, an administrator or a limit, before "
            f"{verdict.value} came; what the local transaction did has to be put right."
        )
    if wanted is HalfOutcome.COMMITTED and records is not None and there < records:
        raise HalfMessageDecided(
            f"Half message {txid!r} of group {group!r} was committed before with {there} of its {records} records."
        )
