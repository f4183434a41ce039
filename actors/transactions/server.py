"""The shell of a transaction coordinator: the transactional ids that hash to one partition of `__transaction_state`.

Runs in a ``TransactionCoordinator`` actor. It starts, loads and ends like every coordinator
(``actors/coordinators/server.py``); besides, it sends markers (``markers.py``) and takes producer ids from the
controller.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from raylog.actors.actor_specs import CoordinatorSpec
from raylog.actors.controller_link import FindController
from raylog.actors.coordinators.server import REGISTER_TIMEOUT_S, CoordinatorServer
from raylog.actors.coordinators.stored_rows import ROW_HEAD_BYTES, EncodedRow
from raylog.actors.metrics.process import usage_of
from raylog.actors.naming import TRANSACTIONS_TOPIC
from raylog.actors.routes import Routes
from raylog.actors.settings import transaction_settings
from raylog.actors.transactions.markers import MarkerSender
from raylog.actors.transactions.runner import TransactionRunner
from raylog.base.errors import RaylogError
from raylog.core.transactions.coordinator import TransactionMachine
from raylog.core.transactions.events import EndTxn
from raylog.core.transactions.settings import TxnSettings
from raylog.core.transactions.waiting import Participant
from raylog.protocol.controller import ALLOCATE_PRODUCER_IDS, AllocateProducerIdsRequest
from raylog.protocol.method import Endpoint
from raylog.protocol.transactions import TRANSACTION_COORDINATOR, TRANSACTION_METRICS, TransactionMetricsReply
from raylog.rpc import Request

_Runner = TransactionRunner[Request, EncodedRow]


class TransactionCoordinatorServer(CoordinatorServer[_Runner]):
    """One transaction coordinator, from its start through any number of loads to its shutdown."""

    page: ClassVar[Endpoint] = TRANSACTION_COORDINATOR
    metrics_method: ClassVar[str] = TRANSACTION_METRICS.name

    def __init__(
        self, spec: CoordinatorSpec, *, find_controller: FindController, on_fatal: Callable[[str], None]
    ) -> None:
        """``on_fatal`` ends the process: a newer incarnation of this coordinator is registered."""
        super().__init__(spec, TRANSACTIONS_TOPIC, find_controller=find_controller, on_fatal=on_fatal)
        self._routes = Routes(self._metadata_of, spec.secret)
        self._markers = MarkerSender(
            self._routes, name=self.name, on_written=self._marker_written, on_fenced=self._end_process
        )
        self._fetching: asyncio.Task[None] | None = None
        self._counted: Counter[str] = Counter()
        """Sums of the counters of earlier loads."""

    async def stop(self) -> None:
        """Stop serving. The log has everything acknowledged, and the next incarnation sends the missing markers."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)
        await self._markers.stop()
        await super().stop()
        self._routes.close()

    def _settings(self) -> TxnSettings:
        return replace(
            transaction_settings(self._config, self._log.config),
            record_bytes_max=self._log.rows_bytes_max - ROW_HEAD_BYTES,
        )

    def _reconfigure(self, runner: _Runner) -> None:
        runner.reconfigure(self._settings())

    def new_runner(self) -> _Runner:
        """Return a runner with a new machine."""
        return _Runner(TransactionMachine(settings=self._settings(), share=self._log.share), self)

    def ended(self, runner: _Runner) -> None:
        """Send no more markers, and keep the counters."""
        super().ended(runner)
        self._markers.abandon()
        self._counted.update(runner.counters())

    def _metrics(self) -> TransactionMetricsReply:
        runner = self._runner
        counted = self._counted + Counter({} if runner is None else runner.counters())
        return TransactionMetricsReply(
            process=usage_of(self._server).to_wire(),
            loaded=runner is not None,
            states={} if runner is None else runner.census(),
            counters={**counted, **self._markers.counters},
            longest_open_ms=-1 if runner is None else runner.longest_open_ms(),
            rows_unreadable=self.runtime.rows_unreadable,
        )

    # ------------------------------------------------------------ the runner's ports

    def fatal(self, reason: str) -> None:
        """Send no more markers, and load the log again."""
        self._markers.abandon()
        super().fatal(reason)

    def end_transaction(self, effect: EndTxn) -> None:
        """Begin to send the markers of a transaction."""
        self._markers.send(effect, self.epoch)

    def request_producer_ids(self, count: int) -> None:
        """Request producer ids of the controller; the runner gets them, or 0, in any case."""
        self._fetching = asyncio.create_task(self._fetch_producer_ids(count), name=f"{self.name} producer ids")

    def _marker_written(self, effect: EndTxn, participant: Participant) -> None:
        if self._runner is not None:
            self._runner.marker_written(effect.transactional_id, effect.writer, participant)

    async def _fetch_producer_ids(self, count: int) -> None:
        runner = self._runner
        try:
            request = AllocateProducerIdsRequest(count)
            reply = await self._link.call(ALLOCATE_PRODUCER_IDS.name, request, timeout_s=REGISTER_TIMEOUT_S)
            granted = ALLOCATE_PRODUCER_IDS.read_reply(reply.args)
            first, given = granted.first, granted.count
        except (RaylogError, OSError):
            first = given = 0  # the state machine requests them again
        if runner is not None and runner is self._runner:
            runner.producer_ids(first, given)

    async def _metadata_of(self, names: list[str]) -> object:
        reply = await self._link.call("metadata", [names], timeout_s=REGISTER_TIMEOUT_S)
        return reply.args
