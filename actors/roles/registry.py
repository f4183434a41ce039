"""The roles of a leader, by its topic. The only place that lists the kinds of roles."""

from __future__ import annotations

from raylog.actors.naming import FORWARDING_TOPIC, INTERNAL_PREFIX, SHARE_STATE_TOPIC, UNDELIVERABLE_TOPIC
from raylog.actors.roles.role import Role
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC


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
