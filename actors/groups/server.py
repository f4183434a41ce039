"""The shell of a group coordinator: the groups that hash to one partition of the offsets topic.

Runs in a ``GroupCoordinator`` actor. Its life cycle is that of every coordinator (``actors/coordinators/server.py``).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from raylog.actors.actor_specs import CoordinatorSpec
from raylog.actors.controller_link import FindController
from raylog.actors.coordinators.server import CoordinatorServer
from raylog.actors.coordinators.stored_rows import ROW_HEAD_BYTES, EncodedRow
from raylog.actors.groups.runner import GroupCoordinatorRunner
from raylog.actors.metrics.process import usage_of
from raylog.actors.naming import OFFSETS_TOPIC
from raylog.actors.settings import group_settings
from raylog.base.errors import RaylogError
from raylog.core.groups.coordinator import GroupCoordinatorMachine
from raylog.core.groups.settings import GroupSettings
from raylog.protocol.broker import METADATA, MetadataRequest
from raylog.protocol.groups import COORDINATOR_METRICS, GROUP_COORDINATOR
from raylog.protocol.message import NAMES_MAX
from raylog.protocol.method import Endpoint
from raylog.rpc import Request

logger = logging.getLogger(__name__)

LOOK_UP_TIMEOUT_S: Final = 5.0
_Runner = GroupCoordinatorRunner[Request, EncodedRow]


class GroupCoordinatorServer(CoordinatorServer[_Runner]):
    """One group coordinator, from its start through any number of loads to its end."""

    page: ClassVar[Endpoint] = GROUP_COORDINATOR
    metrics_method: ClassVar[str] = COORDINATOR_METRICS.name

    def __init__(
        self, spec: CoordinatorSpec, *, find_controller: FindController, on_fatal: Callable[[str], None]
    ) -> None:
        """``on_fatal`` ends the process, for example if a newer incarnation of this coordinator is registered."""
        super().__init__(spec, OFFSETS_TOPIC, find_controller=find_controller, on_fatal=on_fatal)
        self._wanted_topics: set[str] = set()
        self._looking: asyncio.Task[None] | None = None

    def _settings(self) -> GroupSettings:
        return replace(
            group_settings(self._config, self._log.config),
            record_bytes_max=self._log.rows_bytes_max - ROW_HEAD_BYTES,
        )

    def _reconfigure(self, runner: _Runner) -> None:
        runner.reconfigure(self._settings())

    def new_runner(self) -> _Runner:
        """Return a runner with a new machine."""
        machine = GroupCoordinatorMachine(
            settings=self._settings(), share=self._log.share, new_member_id=_new_member_id
        )
        return _Runner(machine, self)

    def look_up_topics(self, topics: Sequence[str]) -> None:
        """Fetch metadata for the runner; one look-up at a time, and topics of later calls wait for the next one."""
        self._wanted_topics.update(topics)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_up(), name=f"{self.spec.kind} topics")

    async def _look_up(self) -> None:
        while self._wanted_topics and (runner := self._runner) is not None:
            requested = sorted(self._wanted_topics)[:NAMES_MAX]
            self._wanted_topics.difference_update(requested)
            try:
                reply = await self._link.call(METADATA.name, MetadataRequest(requested), timeout_s=LOOK_UP_TIMEOUT_S)
                found = METADATA.read_reply(reply.args)
            except RaylogError as trouble:
                # The machine repeats it at its next check.
                logger.debug("group coordinator %d: topics were not looked up: %s", self.spec.index, trouble)
                continue
            facts = {row.topic: (row.topic_id, len(row.partitions)) for row in found.topics if row.error_code == 0}
            if runner is self._runner:
                runner.topics_seen(requested, facts, self.now_ms())

    async def stop(self) -> None:
        """Stop serving; everything acknowledged is in the log."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await super().stop()

    def _metrics(self) -> dict[str, object]:
        groups = [] if self._runner is None else self._runner.census()
        return {
            "process": usage_of(self._server).to_wire(),
            "loaded": self._runner is not None,
            "groups": groups,
            "rows_unreadable": self.runtime.rows_unreadable,
        }


def _new_member_id(client_id: str) -> str:
    return f"{client_id}-{secrets.token_hex(8)}"
