"""Planted bugs: each breaks one rule of the protocol by patching one method, and names the checker that must catch it.

A checker that has never fired, or a profile that finds none of these, proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from raylog.actors.replica.runner import ReplicaRunner
from raylog.base.ids import NO_LEADER
from raylog.core.controller import isr_changes, liveness, registrations
from raylog.core.outbox import Outbox
from raylog.core.partition import PartitionState
from raylog.core.replication import leader as leader_module
from raylog.core.replication.events import Effect, TruncateLog
from raylog.core.replication.follower import Follower
from raylog.core.replication.isr import InSyncSet
from raylog.core.replication.leader import Leader
from raylog.core.replication.parked import ParkedProduces
from raylog.core.replication.replica import ReplicaMachine
from tests.simulation.checks.checkers import CommittedOnce
from tests.simulation.consumers.planted import CONSUMER_BUGS
from tests.simulation.groups.planted import GROUP_BUGS
from tests.simulation.groups.planted_cooperative import COOPERATIVE_BUGS
from tests.simulation.groups.transactions.planted import PENDING_BUGS
from tests.simulation.outbox.planted import OUTBOX_BUGS
from tests.simulation.partition.controller import ControllerNode
from tests.simulation.partition.disk import VirtualLog
from tests.simulation.partition.replica import ReplicaProcess
from tests.simulation.planted import noticed
from tests.simulation.planted.bugs import STORY, Edit, Planted
from tests.simulation.planted.planted_admin import ADMIN_BUGS
from tests.simulation.planted.planted_mends import MENDED_BUGS
from tests.simulation.planted.planted_metadata import METADATA_BUGS
from tests.simulation.planted.planted_moves import MOVE_BUGS
from tests.simulation.planted.planted_quorum import QUORUM_BUGS
from tests.simulation.planted.planted_replica import REPLICA_BUGS
from tests.simulation.planted.planted_survivor import SURVIVOR_BUGS
from tests.simulation.planted.planted_vouching import VOUCHING_BUGS
from tests.simulation.runs import run_seed
from tests.simulation.storage.planted import STORAGE_BUGS
from tests.simulation.storage.planted_calls import CALL_BUGS
from tests.simulation.storage.planted_cleaner import CLEANER_BUGS
from tests.simulation.storage.transactions.planted import TRANSACTION_BUGS
from tests.simulation.stories.stories import STORY_OF, play
from tests.simulation.world import Violation


def truncate_to_watermark(original: Callable[..., None]) -> Callable[..., None]:
    """A new follower cuts what is above its own high watermark."""

    def enter(self: ReplicaMachine, state: PartitionState, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        if state.leader not in (self.broker, NO_LEADER):
            out.now.append(TruncateLog(cause=cause, to=self._log.high_watermark))
        original(self, state, cause, now_ms, out)

    return enter


PLANTED = (
    Planted(
        "high watermark is the log end on election",
        "swarm",
        20,
        ("I2", "I4", "I7"),
        ReplicaMachine,
        "_lead",
        Edit("self._leader = Leader(", "self._log.high_watermark = self._log.durable_end\n    self._leader = Leader("),
    ),
    Planted(
        "acks=all is answered on append",
        "swarm",
        20,
        ("I1", "I11"),
        ParkedProduces,
        "complete",
        Edit("(self._by_watermark, watermark)", "(self._by_watermark, 1 << 60)"),
    ),
    Planted(
        "a follower acknowledges before its sync",
        "reboot",
        20,
        ("I4",),
        Follower,
        "fetch",
        Edit("out.after_sync", "out.now"),
    ),
    Planted(
        "a new follower truncates to its high watermark",
        "swarm",
        20,
        ("I4", "I9", "I1", "I7"),
        ReplicaMachine,
        "_enter",
        truncate_to_watermark(ReplicaMachine._enter),
    ),
    Planted(
        "the high watermark counts the ISR, not the maximal ISR",
        "controller",
        40,
        ("I4", "I7"),
        InSyncSet,
        "maximal",
        Edit("self._maximal", "self.state.isr"),
    ),
    Planted(
        "a leaving member stops counting when it is proposed",
        "last-man",
        40,
        ("I4", "I7"),
        InSyncSet,
        "maximal",
        Edit("self._maximal", "tuple(dict(self.pending.members)) if self.pending else self.state.isr"),
    ),
    Planted(
        "the controller changes the ISR without compare-and-set",
        "controller",
        40,
        ("I10", "I7"),
        isr_changes,
        "checked_proposal",
        Edit("message.partition_epoch > state", "0 > state", "message.partition_epoch < state", "0 > state"),
    ),
    Planted(
        "a follower joins the ISR below the start of the epoch",
        "eligible",
        150,
        ("I7",),
        leader_module,
        "may_join",
        Edit("and progress.durable_end >= epoch_start", ""),
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
        "a replica obeys states sent to its earlier lives",
        "reboot",
        40,
        ("I5", "I10", "machine"),
        ReplicaProcess,
        "notified",
        Edit("if not", "if self.machine is None:\n        self.registered(incarnation, state)\n    elif not"),
    ),
    Planted(
        "records are committed below min.insync.replicas",
        "last-man",
        20,
        ("I4", "I7"),
        leader_module,
        "committed_end",
        Edit("if eligible or isr_size < min_insync_replicas:", "if False:"),
    ),
    Planted(
        "the high watermark is shown before it reaches the epoch's start",
        "swarm",
        40,
        ("I3",),
        Leader,
        "_expose",
        Edit("if self._log.high_watermark >= self.epoch_start:", "if True:"),
    ),
    Planted(
        "any replica may lead when no ISR member is there",
        "last-man",
        20,
        ("I1", "I2", "I6", "I7"),
        liveness,
        "settle",
        Edit("if unclean and hopeless and online:", "if online:"),
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
        Edit("(leader_epoch != NO_EPOCH or is_follower)", "leader_epoch != NO_EPOCH and not is_follower"),
    ),
    Planted(
        "producer state is forgotten at a leader change",
        "swarm",
        20,
        ("I11",),
        VirtualLog,
        "assign_epoch",
        Edit("self._assigned.add(epoch)", "self._assigned.add(epoch)\n    self.producers.clear()"),
    ),
    Planted(
        "a sync is reported before it is done",
        "reboot",
        20,
        ("I1", "I4", "I7"),
        ReplicaRunner,
        "synced",
        Edit("synced_end_offset", "log_end_offset"),
    ),
    Planted(
        "the controller speaks before its log is synced",
        "controller",
        40,
        ("I5", "I7", "I10", "machine"),
        ControllerNode,
        "committed_offset",
        Edit("self.durable", "len(self.records)"),
    ),
    Planted(
        "a lost log is ignored",
        "disk",
        20,
        ("I3", "I1", "I6", "I7"),
        registrations.Registrations,
        "_is_log_lost",
        lambda self, member, message, decision: False,
    ),
    Planted(
        "a lost log is known from the life that made the new one only",
        "disk",
        60,
        ("I3", "I1", "I6", "I7"),
        registrations.Registrations,
        "_is_log_lost",
        lambda self, member, message, decision: message.log_lost,
    ),
    Planted(
        "the last ISR member leads although its log is lost",
        "disk",
        20,
        ("I3", "I1", "I2", "I6", "I7", "controller"),
        liveness,
        "settle",
        Edit("isr = _settled_isr(", "lost = ()\n    isr = _settled_isr("),
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
        Edit("shared.epoch == last_epoch and ", ""),
    ),
    Planted(
        "a checker requires of a zombie what later epochs committed",
        STORY,
        1,
        ("I6",),
        CommittedOnce,
        "led",
        Edit("if earlier < epoch", "if earlier <= 1 << 60"),
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
        "_fetch_refusal",
        Edit("fetch.incarnation < progress.incarnation", "False"),
    ),
    Planted(
        "an ISR change does not say which life of a member it means",
        STORY,
        1,
        ("I4", "I7", "I1", "I6"),
        isr_changes.IsrChanges,
        "change_isr",
        Edit("found.incarnation != incarnation or not", "not"),
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
    + VOUCHING_BUGS
    + QUORUM_BUGS
    + CONSUMER_BUGS
    + GROUP_BUGS
    + COOPERATIVE_BUGS
    + PENDING_BUGS
    + STORAGE_BUGS
    + CALL_BUGS
    + CLEANER_BUGS
    + TRANSACTION_BUGS
    + OUTBOX_BUGS
    + MENDED_BUGS
    + TOO_DEEP
)


def bug(name: str) -> Planted:
    """Return the planted bug of that name; raises KeyError."""
    return {planted.name: planted for planted in EVERY_BUG}[name]


def catch(planted: Planted) -> tuple[int, Violation | None]:
    """Plant a bug and run its profile, or its story, until it is noticed; return the last seed and the violation.

    The seed that is noted for the bug runs first. The machines' own checks are off: the external checkers are under
    test.
    """
    with planted.applied():
        if planted.profile == STORY:
            return 1, play(*STORY_OF[planted.name])
        for seed in noticed.seeds_of(planted, noticed.notes()):
            violation = run_seed(seed, planted.profile, validate=False).violation
            if violation is not None:
                return seed, violation
    return planted.seeds, None
