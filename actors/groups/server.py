"""The shell of a group coordinator: the groups that hash to one partition of the offsets topic.

Runs in a ``GroupCoordinator`` actor. Its life is that of every coordinator (``actors/coordinators/server.py``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from raylog.actors.actor_specs import CoordinatorSpec
from raylog.actors.controller_link import FindController
from raylog.actors.coordinators.server import CoordinatorServer
from raylog.actors.coordinators.state_log import ROW_HEAD_BYTES, EncodedRow
from raylog.actors.groups.runner import GroupCoordinatorRunner
from raylog.actors.metrics.process import usage_of
from raylog.actors.naming import OFFSETS_TOPIC
from raylog.actors.settings import group_settings
from raylog.core.groups.coordinator import CoordinatorMachine
from raylog.protocol.groups import COORDINATOR_METRICS, GROUP_COORDINATOR
from raylog.protocol.method import Endpoint
from raylog.rpc import Request

_Runner = GroupCoordinatorRunner[Request, EncodedRow]


class GroupCoordinatorServer(CoordinatorServer[_Runner]):
    """One group coordinator, through as many loads as it takes, to shutdown."""

    page: ClassVar[Endpoint] = GROUP_COORDINATOR
    metrics_method: ClassVar[str] = COORDINATOR_METRICS.name

    def __init__(
        self, spec: CoordinatorSpec, *, find_controller: FindController, on_fatal: Callable[[str], None]
    ) -> None:
        """``on_fatal`` ends the process: a newer incarnation of this coordinator is registered."""
        super().__init__(spec, OFFSETS_TOPIC, find_controller=find_controller, on_fatal=on_fatal)

    def _new_runner(self) -> _Runner:
        settings = replace(
            group_settings(self.spec.cluster_config, self._log.config),
            record_bytes_max=self._log.rows_bytes_max - ROW_HEAD_BYTES,
        )
        return _Runner(CoordinatorMachine(settings=settings, new_member_id=_new_member_id), self)

    def _metrics(self) -> dict[str, object]:
        groups = [] if self._runner is None else self._runner.census()
        return {"process": usage_of(self._server).to_wire(), "loaded": self._runner is not None, "groups": groups}


def _new_member_id(client_id: str) -> str:
    return f"{client_id}-{secrets.token_hex(8)}"
