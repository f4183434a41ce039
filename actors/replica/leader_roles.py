"""Begins and ends a replica's roles with its leaderships, and passes requests to them. Owned by the replica's shell.

The only place that lists the kinds of roles (:func:`roles_of`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from raylog.actors.actor_specs import ReplicaSpec
from raylog.actors.naming import FORWARDING_TOPIC, INTERNAL_PREFIX, SHARE_STATE_TOPIC, UNDELIVERABLE_TOPIC
from raylog.actors.roles.host import CONTROLLER_TIMEOUT_S, ControllerCalls, OwnLog, RoleHost
from raylog.actors.roles.local import LocalRequest
from raylog.actors.roles.role import Role
from raylog.actors.roles.targets import Targets
from raylog.actors.routes import Routes
from raylog.base.errors import NotLeaderOrFollower
from raylog.base.ids import TopicPartition
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.protocol.broker import METADATA, MetadataRequest
from raylog.protocol.message import Message
from raylog.rpc import Request

logger = logging.getLogger(__name__)


def roles_of(topic: str) -> tuple[type[Role], ...]:
    """Return the roles that begin with each leadership of a partition of this topic.

    Their modules are imported on first use, since otherwise every replica's process would pay for all of them.
    """
    if topic == SCHEDULED_TOPIC:
        from raylog.actors.scheduling.role import SchedulerRole

        return (SchedulerRole,)
    if topic == SHARE_STATE_TOPIC:
        from raylog.actors.queues.share_states import ShareStateRole

        return (ShareStateRole,)
    if topic == FORWARDING_TOPIC:
        from raylog.actors.forwarding.forwarder_states import ForwarderStateRole

        return (ForwarderStateRole,)
    if topic.startswith(INTERNAL_PREFIX) and topic != UNDELIVERABLE_TOPIC:
        return ()
    from raylog.actors.queues.role import QueuesRole

    if topic == UNDELIVERABLE_TOPIC:
        return (QueuesRole,)
    from raylog.actors.forwarding.expiry import ExpiryRole

    return (QueuesRole, ExpiryRole)


class LeaderRoles:
    """The roles of one replica. Those of one leadership end before those of the next begin."""

    def __init__(
        self,
        spec: Callable[[], ReplicaSpec],
        kinds: Sequence[type[Role]],
        *,
        log: Callable[[], OwnLog],
        trusted_ms: Callable[[], int],
        receive: Callable[[LocalRequest], None],
        controller: ControllerCalls,
        on_failed: Callable[[str], None],
    ) -> None:
        """``spec``, ``log`` and ``trusted_ms`` return the replica's.

        ``receive`` takes a request as if it had come over the network. ``on_failed`` must end the
        process: a role's task has failed.
        """
        self._spec = spec
        self._partition = TopicPartition(spec().topic, spec().partition)
        self._kinds = kinds
        self._log = log
        self._trusted_ms = trusted_ms
        self._receive = receive
        self._controller = controller
        self._on_failed = on_failed
        self._host: RoleHost | None = None
        self._roles: list[Role] = []
        self._by_request: dict[type[Message], Role] = {}
        self._ending: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a role needs the process awake."""
        return self._ending is not None or any(role.is_busy for role in self._roles)

    @property
    def needed_from(self) -> int | None:
        """The lowest offset that a role has still to copy elsewhere; None = none."""
        return min((each for role in self._roles if (each := role.needed_from) is not None), default=None)

    def lead(self, leader_epoch: int) -> None:
        """Begin a leadership; an earlier one ends."""
        if not self._kinds:
            return
        self.follow()
        host = self._host = self._new_host(leader_epoch)
        self._roles = [kind(host) for kind in self._kinds]
        self._by_request = {request: role for role in self._roles for request in role.requests}
        for role in self._roles:
            role.begin()

    def follow(self) -> None:
        """End the leadership, if there is one; returns at once."""
        host, roles = self._host, self._roles
        self._host, self._roles, self._by_request = None, [], {}
        if host is not None:
            host.close()
            self._ending = asyncio.create_task(_end(self._ending, host, roles), name=f"{self._partition} roles end")
            self._ending.add_done_callback(self._ended)

    def reconfigured(self) -> None:
        """Let the roles apply the topic's changed settings."""
        for role in self._roles:
            role.reconfigured()

    def receive(self, request: Request, args: Message) -> None:
        """Pass a request to its role. Raises NotLeaderOrFollower if there is no such role."""
        role = self._by_request.get(type(args))
        if role is None:
            raise NotLeaderOrFollower(f"{self._partition} does not lead here; refresh the metadata.")
        role.receive(request, args)

    def figures(self) -> dict[str, dict[str, int]]:
        """Return the metrics of the roles, by kind."""
        return {role.kind: role.figures() for role in self._roles}

    async def stop(self) -> None:
        """End the leadership, and wait until the roles have ended."""
        self.follow()
        if self._ending is not None:
            await asyncio.gather(self._ending, return_exceptions=True)

    def _new_host(self, leader_epoch: int) -> RoleHost:
        spec = self._spec()
        return RoleHost(
            partition=self._partition,
            topic_id=spec.topic_id,
            broker=spec.broker,
            leader_epoch=leader_epoch,
            log=self._log(),
            config=lambda: self._spec().topic_config,
            trusted_ms=self._trusted_ms,
            receive=self._receive,
            controller=self._controller,
            targets=Targets(Routes(self._metadata, spec.secret)),
            on_failed=self._on_failed,
        )

    async def _metadata(self, topics: list[str]) -> object:
        reply = await self._controller.call(METADATA.name, MetadataRequest(topics), timeout_s=CONTROLLER_TIMEOUT_S)
        return reply.args

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._ending is task:
            self._ending = None


async def _end(before: asyncio.Task[None] | None, host: RoleHost, roles: Sequence[Role]) -> None:
    if before is not None:
        await asyncio.gather(before, return_exceptions=True)
    await host.end()
    for role in roles:
        try:
            await role.end()
        except Exception:  # the other roles have to end as well
            logger.exception("%s: the role %s did not end cleanly", host.partition, role.kind)
