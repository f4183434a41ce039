"""Sends the outcome of transactions to their participants, until all of them have it. Owned by the coordinator's shell.

A participant that cannot be reached delays only its own transaction: after :data:`IN_ROOM_S`, its request no longer
counts for the limit of open requests. No participant is given up, because a decided transaction has to end; when a
coordinator ends, the next incarnation sends the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

from raylog.actors.routes import Routes
from raylog.base.errors import GroupIdNotFound, InvalidProducerEpoch, RaylogError, TransactionCoordinatorFenced
from raylog.core.transactions.events import EndTxn
from raylog.core.transactions.waiting import Participant
from raylog.protocol.groups import END_TXN_OFFSETS, EndTxnOffsetsRequest
from raylog.protocol.replica import WRITE_TXN_MARKERS, WriteTxnMarkersRequest
from raylog.rpc.occasional import OccasionalWarning

logger = logging.getLogger(__name__)

UNDER_WAY_MAX: Final = 200
"""Most open requests to participants, not counting those that have waited for IN_ROOM_S."""
IN_ROOM_S: Final = 0.5
"""Time for which an open request counts for UNDER_WAY_MAX, so that participants that hang do not block others."""
MARKER_TIMEOUT_MS: Final = 5_000
RETRY_FIRST_S: Final = 0.02
RETRY_LAST_S: Final = 1.0


class MarkerSender:
    """Sends markers: each participant without its marker has a task that tries until it has it."""

    def __init__(
        self,
        routes: Routes,
        *,
        name: str,
        on_written: Callable[[EndTxn, Participant], None],
        on_fenced: Callable[[str], None],
    ) -> None:
        """``on_written`` gets each participant once; ``on_fenced`` gets the reason why this coordinator has to end."""
        self._routes = routes
        self._name = name
        self._on_written = on_written
        self._on_fenced = on_fenced
        self._room = asyncio.Semaphore(UNDER_WAY_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._troubled = OccasionalWarning(logger)
        self.counters: Counter[str] = Counter()
        """``markers_written``, and ``markers_repeated``: failed requests."""

    def send(self, effect: EndTxn, coordinator_epoch: int) -> None:
        """Begin to send an outcome to all participants of its transaction; returns at once."""
        participants: list[Participant] = [*effect.partitions, *effect.groups]
        for participant in participants:
            work = self._keep_trying(effect, participant, coordinator_epoch)
            task = asyncio.create_task(work, name=f"{self._name} marker")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def abandon(self) -> None:
        """Stop sending; after the next load of the log, the missing markers are sent."""
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Stop sending, and wait for the tasks."""
        self.abandon()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep_trying(self, effect: EndTxn, participant: Participant, coordinator_epoch: int) -> None:
        pause_s = RETRY_FIRST_S
        while True:
            try:
                await self._in_room(self._try(effect, participant, coordinator_epoch))
            except TransactionCoordinatorFenced as fenced:
                self._on_fenced(f"a newer coordinator has taken over: {fenced}")
                return
            except (RaylogError, OSError) as trouble:
                self.counters["markers_repeated"] += 1
                shown = participant if isinstance(participant, str) else f"{participant.topic}-{participant.partition}"
                self._troubled.warn("%s: %s does not have its marker yet: %s", self._name, shown, trouble)
            else:
                self.counters["markers_written"] += 1
                self._on_written(effect, participant)
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_LAST_S)

    async def _in_room(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a request when fewer than UNDER_WAY_MAX are open; wait for it, after IN_ROOM_S outside that limit."""
        attempt: asyncio.Task[None] | None = None
        try:
            async with self._room:
                attempt = asyncio.create_task(work, name=f"{self._name} marker request")
                await asyncio.wait([attempt], timeout=IN_ROOM_S)
            await attempt
        finally:
            if attempt is None:
                work.close()
            else:
                attempt.cancel()
                await asyncio.gather(attempt, return_exceptions=True)

    async def _try(self, effect: EndTxn, participant: Participant, coordinator_epoch: int) -> None:
        """Send the outcome once; returns when the participant has ended the transaction, or does not exist any more."""
        if isinstance(participant, str):
            route = await self._routes.group_coordinator(participant)
            method = END_TXN_OFFSETS.name
            request: object = EndTxnOffsetsRequest(
                participant, effect.writer.producer_id, effect.marker_epoch, coordinator_epoch, effect.committed
            )
        else:
            found = await self._routes.leader(participant)
            if found is None:
                return  # the topic was deleted
            route, method = found, WRITE_TXN_MARKERS.name
            request = WriteTxnMarkersRequest(
                participant.topic_id,
                participant.partition,
                route.leader_epoch,
                effect.writer.producer_id,
                effect.marker_epoch,
                coordinator_epoch,
                effect.committed,
                MARKER_TIMEOUT_MS,
            )
        try:
            await route.connection.call(method, request, timeout_s=MARKER_TIMEOUT_MS / 1000 + 1)
        except InvalidProducerEpoch as newer:
            if not newer.is_remote:
                raise
            # The participant has a newer marker of this producer, so the transaction has ended there.
        except GroupIdNotFound:
            if not isinstance(participant, str):
                raise
        except BaseException:  # also a cancellation: the connection may be dead
            route.forget()
            raise
