"""Planted bugs in reassignments, eligible leader replicas and elections by command."""

from __future__ import annotations

from raylog.core.controller import leadership as election
from raylog.core.controller import moves, registrations
from raylog.core.replication.leader import Leader
from tests.simulation.partition.hosts import Hosts
from tests.simulation.planted.bugs import Edit, Planted


def remove_at_once(self: Hosts, broker: int) -> None:
    """The broker's own metadata counts as the newest."""
    self._newest[broker] = -1
    self._conclude(broker)


MOVE_BUGS = (
    Planted(
        "a move is complete before the whole target is in the ISR",
        "reassign",
        20,
        ("I10",),
        moves,
        "completed",
        Edit("not set(target) <= set(state.isr) - set(lost)", "not set(target) & set(state.isr) - set(lost)"),
    ),
    Planted(
        "a replica that is added counts as in sync",
        "reassign",
        20,
        ("I1", "I4", "I6", "I7", "I10"),
        moves,
        "_reshaped",
        Edit("isr = tuple(broker for broker in replicas if broker in state.isr)", "isr = replicas"),
    ),
    Planted("a folder is removed on the word of old metadata", "reassign", 40, ("I7",), Hosts, "_call", remove_at_once),
    Planted(
        "an eligible replica leads though it lost its log",
        "eligible",
        40,
        ("I1", "I2", "I6", "I7"),
        registrations,
        "without_eligible",
        lambda state, broker: state,
    ),
    Planted(
        "a replica stays eligible while records are committed without it",
        "eligible",
        20,
        ("I7",),
        election,
        "eligible",
        Edit("len(members) >= min_isr", "len(members) >= 99"),
    ),
    Planted(
        "records are committed beside eligible replicas",
        "eligible",
        40,
        ("I1", "I2", "I6", "I7"),
        Leader,
        "_earned_watermark",
        Edit("eligible=bool(self.isr.state.elr)", "eligible=False"),
    ),
)
