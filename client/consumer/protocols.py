"""Chooses a consumer's group protocol, and makes its session in it (ADR 0076). Owned by `engine.py`, on its loop.

`group_protocol` decides, if it is set. Otherwise a setting that only one protocol has decides, and otherwise the group:
a member joins with the consumer protocol, and changes to the classic one when the coordinator says that the group has
classic members, or that the coordinator does not know the consumer protocol yet. It changes back when the group did.
A member changes the protocol only while it has no partitions, inside poll(), before it has joined.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from raylog.base.errors import InconsistentGroupProtocol, RaylogError
from raylog.client.assignor import PartitionAssignor
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.consumer_session import ConsumerSession, new_membership
from raylog.client.consumer.group_session import GroupSession
from raylog.client.group.assignors import RangeAssignor, rebalance_protocol_of, strategies_of
from raylog.client.group.membership import Membership

logger = logging.getLogger(__name__)

Session = GroupSession | ConsumerSession

CHANGES_MAX: Final = 5
"""After so many changes of the protocol without a successful join between them, the error is raised."""


class SessionMaker:
    """Makes the sessions of one consumer, in the protocol that its configuration or its group requires."""

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        assignment: Assignment,
        *,
        commit_positions: Callable[[], Awaitable[None]],
        on_assignment: Callable[[], None],
        notify: Callable[[], None],
    ) -> None:
        """`commit_positions` reads the positions at once when it is called, and commits them.

        Raises InvalidConfig for an unknown assignor, and for assignors without a rebalance protocol in common.
        """
        self._cluster = cluster
        self._config = config
        self._assignment = assignment
        self._commit_positions = commit_positions if config.enable_auto_commit else None
        self._on_assignment = on_assignment
        self._notify = notify
        self._assignors = _assignors_of(config)
        self._changes = 0

    @property
    def is_free(self) -> bool:
        """Whether the group decides on the protocol, because no setting does."""
        config = self._config
        settings = (config.group_protocol, config.partition_assignment_strategy, config.group_remote_assignor)
        return settings == (None, None, None)

    def first(self, group: str) -> Session:
        """The first session of a consumer that has just subscribed."""
        self._changes = 0
        config = self._config
        is_classic = config.group_protocol == "classic" or config.partition_assignment_strategy is not None
        return self._classic(group) if is_classic else self._consumer(group)

    def instead(self, session: Session, error: RaylogError) -> Session | None:
        """A session in the other protocol, if the error of a join says that the group uses that one; else None."""
        group = session.membership.group
        if session.membership.has_joined:
            self._changes = 0
        if not self.is_free or session.membership.is_stable or self._changes >= CHANGES_MAX:
            self._changes = 0
            return None
        if isinstance(session, ConsumerSession):
            if not isinstance(error, InconsistentGroupProtocol):
                return None
            found: Session = self._classic(group)
        elif isinstance(error, InconsistentGroupProtocol) and error.details.get("group_protocol") == "consumer":
            found = self._consumer(group)
        else:
            return None
        self._changes += 1
        logger.info("Group %s: this member goes over to the other protocol: %s", group, error.message)
        return found

    def _classic(self, group: str) -> GroupSession:
        config = self._config
        membership = Membership(
            group,
            client_id=config.client_id,
            instance_id=config.group_instance_id,
            assignors=self._assignors,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
        )
        return GroupSession(
            self._cluster,
            config,
            membership,
            self._assignment,
            commit_positions=self._commit_positions,
            on_assignment=self._on_assignment,
            notify=self._notify,
        )

    def _consumer(self, group: str) -> ConsumerSession:
        return ConsumerSession(
            self._cluster,
            self._config,
            new_membership(group, self._config),
            self._assignment,
            commit_positions=self._commit_positions,
            on_assignment=self._on_assignment,
            notify=self._notify,
        )


def _assignors_of(config: ConsumerConfig) -> Sequence[PartitionAssignor]:
    if config.partition_assignment_strategy is None:
        return (RangeAssignor(),)
    found = strategies_of(config.partition_assignment_strategy)
    rebalance_protocol_of(found)
    return found
