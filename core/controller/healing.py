"""Healing: replicas on brokers that stay offline are rebuilt on others (``auto.heal.after.ms``). Called at each tick.

A broker counts as offline from the moment this incarnation of the controller first saw it offline, whether it died or
was stopped. Only offline replicas are replaced, only where a leader runs to copy from, and only where another broker is
free. A replica that returns before its replacement is complete keeps its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from raylog.base.ids import NO_LEADER, BrokerId, TopicPartition
from raylog.core.configuration.config_keys import CLUSTER_KEYS
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.moves import Moves
from raylog.core.partition import PartitionState

KEY = "auto.heal.after.ms"
LOOK_EVERY_MS = 1_000
MOVES_AT_ONCE = 50
"""Healing begins no move while so many partitions move, for whatever reason: starting replicas costs CPU."""


class Healing:
    """Decides which offline replicas are replaced, and on which brokers."""

    def __init__(self, moves: Moves) -> None:
        """``moves`` carries out the replacements."""
        self._moves = moves
        self._away_since_ms: dict[BrokerId, int] = {}
        self._begun: dict[TopicPartition, tuple[tuple[BrokerId, ...], tuple[BrokerId, ...]]] = {}
        """(adding, removing) of the moves begun here; a move that another request changes is dropped."""
        self._next_look_ms = 0

    def time_passed(self, decision: ControllerDecision) -> None:
        """Replace replicas that have been offline for too long, and keep those that returned."""
        for broker in decision.image.brokers.values():
            if broker.online:
                self._away_since_ms.pop(broker.broker, None)
            else:
                self._away_since_ms.setdefault(broker.broker, decision.now_ms)
        if decision.now_ms < self._next_look_ms:
            return
        self._next_look_ms = decision.now_ms + LOOK_EVERY_MS
        self._let_be(decision)
        given_up = self.given_up(decision)
        if given_up:
            self._replace(given_up, decision)

    def given_up(self, decision: ControllerDecision) -> set[BrokerId]:
        """Return the brokers that have been offline for longer than ``auto.heal.after.ms``."""
        patience_ms = int(decision.image.config.get(KEY, CLUSTER_KEYS[KEY].default))
        if patience_ms < 0:
            return set()
        return {broker for broker, since in self._away_since_ms.items() if decision.now_ms - since >= patience_ms}

    def _let_be(self, decision: ControllerDecision) -> None:
        """Cancel the moves of replicas that run again."""
        for partition, begun in sorted(self._begun.items()):
            state = decision.image.partition(partition)
            if state is None or (state.adding, state.removing) != begun:
                del self._begun[partition]
                continue
            back = set(self._moves.online(state)) & set(state.removing)
            if back and self._moves.cancel(state, decision):
                del self._begun[partition]

    def _replace(self, given_up: Collection[BrokerId], decision: ControllerDecision) -> None:
        image = decision.image
        nodes = {broker.broker: broker.node_id for broker in image.online_brokers() if not broker.stopped}
        load = Counter(broker for state in image.partitions() for broker in state.replicas)
        for state in list(image.partitions()):
            if self._moves.count >= MOVES_AT_ONCE:
                return
            dead = [place.broker for place in state.places if place.broker in given_up and not place.port]
            if not dead or state.leader == NO_LEADER or state.is_moving:
                continue
            target = _without(state, dead, nodes, load)
            if target != state.replicas and self._moves.begin(state, target, decision):
                moved = image.partition(state.partition)
                if moved is not None:
                    self._begun[state.partition] = moved.adding, moved.removing
                    load.update(moved.adding)


def _without(
    state: PartitionState, dead: Collection[BrokerId], nodes: dict[BrokerId, str], load: Counter[BrokerId]
) -> tuple[BrokerId, ...]:
    """Return the replicas with each offline one replaced, if a broker is free.

    The broker is on the node that has the fewest of the partition's replicas; of equals, the one with the least load.
    """
    target = list(state.replicas)
    for broker in dead:
        used = Counter(nodes[held] for held in target if held in nodes)
        free = [node for node in sorted(nodes) if node not in target]
        if free:
            heir = min(free, key=lambda broker: (used[nodes[broker]], load[broker], broker))
            target[target.index(broker)] = heir
    return tuple(target)
