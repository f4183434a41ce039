"""The cluster's feature level: which brokers may register, and when it rises. Called by the controller's step."""

from __future__ import annotations

from raylog.base.errors import InvalidRequest, UnsupportedVersion
from raylog.base.features import SUPPORTED, LevelRange, misfit
from raylog.base.ids import NO_LEADER
from raylog.core.controller.decision import ControllerDecision
from raylog.core.metadata.records import FeatureLevelRaised
from raylog.core.received import Received
from raylog.protocol.admin import RaiseFeatureLevelRequest
from raylog.protocol.controller import RegisterBrokerRequest

NEWEST = -1
"""Requests the highest level that every broker knows."""


def check(message: RegisterBrokerRequest, levels: LevelRange, decision: ControllerDecision) -> None:
    """Refuse a broker whose release does not know the cluster's level: it could not read the metadata."""
    level = decision.image.feature_level
    if not levels.knows(level):
        whose = f"Broker {message.broker}" if message.broker != NO_LEADER else "The new broker"
        raise UnsupportedVersion(misfit(f"{whose} on node {message.node_id}", levels, level))


def raise_level(event: Received[RaiseFeatureLevelRequest], decision: ControllerDecision) -> None:
    """Raise the level as requested; answers [level, level before].

    Every broker counts that has not been stopped on purpose, whether it runs or not; so does the controller itself. A
    level never falls: what was written under it could not be read under a lower one. Raises InvalidRequest for a lower
    level, and UnsupportedVersion for one that is not known everywhere.
    """
    counted = [broker for _, broker in sorted(decision.image.brokers.items()) if not broker.stopped]
    known = min([SUPPORTED.highest, *(broker.levels.highest for broker in counted)])
    before = decision.image.feature_level
    level = max(before, known) if event.message.level == NEWEST else event.message.level
    if level < before:
        raise InvalidRequest(f"The cluster is at feature level {before}, which cannot fall to {level}.")
    if level > known:
        behind = [str(broker.broker) for broker in counted if broker.levels.highest < level]
        if not behind:
            raise UnsupportedVersion(f"The controller's release knows feature level {SUPPORTED}, not {level}.")
        raise UnsupportedVersion(
            f"Feature level {level} is not known to broker {', '.join(behind)}; upgrade these first, or stop for "
            "good those that do not come back (`raylog stop --broker N`).",
            brokers=behind,
        )
    if level > before:
        decision.write(FeatureLevelRaised(level=level))
    decision.reply(event.request, [level, before])
