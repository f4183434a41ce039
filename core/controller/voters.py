"""Which brokers keep the metadata log: up to ``metadata.voters.max``, without brokers that stay offline.

Decides on brokers only; the quorum (``core/quorum``) brings new voters up to date and makes one change at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from raylog.base.ids import BrokerId
from raylog.core.configuration.config_keys import CLUSTER_KEYS
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.events import WantVoters
from raylog.core.controller.sessions import BrokerMember

KEY = "metadata.voters.max"


class Voters:
    """Requests the set of voters that the brokers and the configuration allow."""

    def __init__(self) -> None:
        """Start without a request."""
        self._wanted: tuple[BrokerId, ...] = ()

    def time_passed(self, given_up: Collection[BrokerId], decision: ControllerDecision) -> None:
        """Compare the voters with the brokers that run; ``given_up`` are those that have been offline for too long."""
        current = sorted(BrokerId(int(number)) for number in decision.image.voters)
        if not current:
            return
        able = {
            broker.broker: broker.node_id
            for broker in decision.image.online_brokers()
            if not broker.stopped and decision.sessions.of(BrokerMember(broker.broker)) is not None
        }
        wanted = target_voters(current, able, given_up, voters_max(decision.image.config))
        if wanted != self._wanted:
            self._wanted = wanted
            decision.after_sync.append(WantVoters(cause=decision.cause, voters=wanted))


def voters_max(config: Mapping[str, str]) -> int:
    """Return how many brokers keep the metadata log at most."""
    return int(config.get(KEY, CLUSTER_KEYS[KEY].default))


def target_voters(
    current: Sequence[BrokerId], able: Mapping[BrokerId, str], given_up: Collection[BrokerId], most: int
) -> tuple[BrokerId, ...]:
    """Return the target voters: an odd number, because an even one tolerates no more losses. Pure.

    ``able`` are the brokers that run, with their nodes. A voter keeps its place until it is given up and another broker
    is free; then new nodes come first. The number falls only when ``most`` does, or when it is even.
    """
    kept = sorted(
        (broker for broker in current if broker not in given_up), key=lambda broker: (broker not in able, broker)
    )
    size = max(_odd(min(len({*kept, *able}), most)), _odd(min(len(current), most)))
    chosen = kept[:size]
    free = sorted(set(able) - set(chosen))
    while len(chosen) < size and free:
        used = Counter(able[broker] for broker in chosen if broker in able)
        best = min(free, key=lambda broker: (used[able[broker]], broker))
        free.remove(best)
        chosen.append(best)
    chosen += sorted(broker for broker in current if broker in given_up)[: size - len(chosen)]
    return tuple(sorted(chosen))


def _odd(count: int) -> int:
    return count if count % 2 else count - 1
