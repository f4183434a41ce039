"""Planted bugs: each breaks one rule of the protocol by patching one method, and names the checker that must catch it.

A checker that has never fired, or a profile that finds none of these, proves nothing. ``sabotage.py`` has the patches.
"""

from __future__ import annotations

from raylog.actors.replica.runner import ReplicaRunner
from raylog.core.controller import isr_changes, liveness, registrations
from raylog.core.controller import leadership as election
from raylog.core.replication import leader as leader_module
from raylog.core.replication import watermark as watermark_module
from raylog.core.replication.follower import Follower
from raylog.core.replication.isr import InSyncSet
from raylog.core.replication.leader import Leader
from raylog.core.replication.parked import ParkedProduces
from raylog.core.replication.replica import ReplicaMachine
from tests.simulation.checks.checkers import CommittedOnce
from tests.simulation.groups.planted import GROUP_BUGS
from tests.simulation.partition.controller import ControllerNode
from tests.simulation.partition.disk import VirtualLog
from tests.simulation.partition.replica import ReplicaProcess
from tests.simulation.planted import sabotage
from tests.simulation.planted.bugs import STORY, Planted
from tests.simulation.planted.planted_admin import ADMIN_BUGS
from tests.simulation.planted.planted_metadata import METADATA_BUGS
from tests.simulation.planted.planted_moves import MOVE_BUGS
from tests.simulation.planted.planted_quorum import QUORUM_BUGS
from tests.simulation.planted.planted_replica import REPLICA_BUGS
from tests.simulation.planted.planted_survivor import SURVIVOR_BUGS
from tests.simulation.runs import run_seed
from tests.simulation.storage.planted import STORAGE_BUGS
from tests.simulation.stories.stories import STORY_OF, play
from tests.simulation.world import Violation

PLANTED = (
    Planted(
        "high watermark is the log end on election",
        "swarm",
        20,
        ("I2", "I4", "I7"),
        ReplicaMachine,
        "_lead",
        sabotage.watermark_is_log_end_on_election(ReplicaMachine._lead),
    ),
    Planted(
        "acks=all is answered on append",
        "swarm",
        20,
        ("I1", "I11"),
        ParkedProduces,
        "complete",
        sabotage.ack_on_append(ParkedProduces.complete),
    ),
    Planted(
        "a follower acknowledges before its sync",
        "reboot",
        20,
        ("I4",),
        Follower,
        "fetch",
        sabotage.acknowledge_before_sync(Follower.fetch),
    ),
    Planted(
        "a new follower truncates to its high watermark",
        "swarm",
        20,
        ("I4", "I9", "I1", "I7"),
        ReplicaMachine,
        "_enter",
        sabotage.truncate_to_watermark(ReplicaMachine._enter),
    ),
    Planted(
        "the high watermark counts the ISR, not the maximal ISR",
        "controller",
        40,
        ("I4", "I7"),
        InSyncSet,
        "maximal",
        property(lambda self: self.state.isr),
    ),
    Planted(
        "a leaving member stops counting when it is proposed",
        "last-man",
        40,
        ("I4", "I7"),
        InSyncSet,
        "maximal",
        property(sabotage.count_pending_shrink),
    ),
    Planted(
        "the controller changes the ISR without compare-and-set",
        "controller",
        40,
        ("I10", "I7"),
        isr_changes.IsrChanges,
        "change_isr",
        sabotage.no_compare_and_set(isr_changes.IsrChanges.change_isr),
    ),
    Planted(
        "a follower joins the ISR below the start of the epoch",
        "eligible",
        150,
        ("I7",),
        leader_module,
        "may_join",
        sabotage.may_join_below_epoch_start,
    ),
    Planted(
        "fetch answers are not matched to the request",
        "stale",
        40,
        ("I3", "I8", "I9", "machine"),
        Follower,
        "_expects",
        lambda self, request: True,
    ),
    Planted(
        "a replica obeys what was told to its earlier lives",
        "reboot",
        40,
        ("I5", "I10", "machine"),
        ReplicaProcess,
        "told",
        sabotage.start_as_an_earlier_life(ReplicaProcess.told),
    ),
    Planted(
        "records are committed below min.insync.replicas",
        "last-man",
        20,
        ("I4", "I7"),
        leader_module,
        "committed_end",
        sabotage.ignore_min_insync_replicas(watermark_module.committed_end),
    ),
    Planted(
        "the high watermark is shown before it reaches the epoch's start",
        "swarm",
        40,
        ("I3",),
        Leader,
        "_expose",
        sabotage.expose_at_once(Leader._expose),
    ),
    Planted(
        "anybody may lead when no ISR member is there",
        "last-man",
        20,
        ("I1", "I2", "I6", "I7"),
        liveness,
        "settle",
        sabotage.unclean_election(election.settle),
    ),
    Planted(
        "producer state is forgotten",
        "swarm",
        20,
        ("I11",),
        VirtualLog,
        "check_producer",
        lambda self, producer, sequence: None,
    ),
    Planted(
        "a leader takes fetches of other epochs",
        "sticky-lag",
        40,
        ("I4", "I7", "I8"),
        ReplicaMachine,
        "leadership_error",
        sabotage.fetches_of_any_epoch(ReplicaMachine.leadership_error),
    ),
    Planted(
        "producer state is forgotten at a leader change",
        "swarm",
        20,
        ("I11",),
        VirtualLog,
        "assign_epoch",
        sabotage.forget_producers(VirtualLog.assign_epoch),
    ),
    Planted(
        "a sync is reported before it is done",
        "reboot",
        20,
        ("I1", "I4", "I7"),
        ReplicaRunner,
        "synced",
        sabotage.report_what_is_written,
    ),
    Planted(
        "the controller speaks before its log is synced",
        "controller",
        40,
        ("I5", "I7", "I10", "machine"),
        ControllerNode,
        "committed_offset",
        property(lambda self: self.log_end_offset),
    ),
    Planted(
        "a lost log is ignored",
        "disk",
        20,
        ("I1", "I6", "I7"),
        registrations.Registrations,
        "_is_log_lost",
        lambda self, event, decision: False,
    ),
    Planted(
        "a lost log is known from the life that made the new one only",
        "disk",
        60,
        ("I3", "I1", "I6", "I7"),
        registrations.Registrations,
        "_is_log_lost",
        lambda self, event, decision: event.log_lost,
    ),
    Planted(
        "the last ISR member leads although its log is lost",
        "disk",
        20,
        ("I3", "I1", "I2", "I6", "I7", "controller"),
        liveness,
        "settle",
        sabotage.lost_logs_lead(election.settle),
    ),
)

TOO_DEEP = (
    Planted(
        "histories are compared by their ends alone",
        STORY,
        1,
        ("I8", "I7", "I4"),
        Leader,
        "_answer_divergence",
        sabotage.compare_ends_alone(Leader._answer_divergence),
    ),
    Planted(
        "a checker asks a zombie for what later epochs committed",
        STORY,
        1,
        ("I6",),
        CommittedOnce,
        "led",
        sabotage.ask_for_everything(CommittedOnce.led),
    ),
    Planted(
        "histories are compared beyond what retention left",
        STORY,
        1,
        ("I1", "I2", "I6", "I7", "I8"),
        Leader,
        "_cannot_compare",
        lambda self, event: False,
    ),
    Planted(
        "a leader takes fetches of a follower's earlier lives",
        STORY,
        1,
        ("I4", "I7"),
        Leader,
        "on_fetch",
        sabotage.fetches_of_any_life(Leader.on_fetch),
    ),
    Planted(
        "an ISR change does not say which life of a member it means",
        STORY,
        1,
        ("I4", "I7", "I1", "I6"),
        isr_changes.IsrChanges,
        "change_isr",
        sabotage.members_of_any_life(isr_changes.IsrChanges.change_isr),
    ),
)
"""Too rare for a profile: ``stories.py`` scripts them."""


EVERY_BUG = (
    PLANTED
    + REPLICA_BUGS
    + MOVE_BUGS
    + SURVIVOR_BUGS
    + ADMIN_BUGS
    + METADATA_BUGS
    + QUORUM_BUGS
    + GROUP_BUGS
    + STORAGE_BUGS
    + TOO_DEEP
)


def bug(name: str) -> Planted:
    """Return the planted bug of that name; raises KeyError."""
    return {planted.name: planted for planted in EVERY_BUG}[name]


def catch(planted: Planted) -> tuple[int, Violation | None]:
    """Plant a bug and run its profile, or its story, until it is noticed; return the last seed and the violation.

    The machines' own checks are off: the external checkers are under test.
    """
    with planted.applied():
        if planted.profile == STORY:
            return 1, play(*STORY_OF[planted.name])
        for seed in range(1, planted.seeds + 1):
            violation = run_seed(seed, planted.profile, validate=False).violation
            if violation is not None:
                return seed, violation
    return planted.seeds, None
