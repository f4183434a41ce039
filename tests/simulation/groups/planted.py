"""Bugs on purpose in consumer groups, all caught by the profile ``rebalance-storm``."""

from __future__ import annotations

from raylog.core.groups import offsets
from raylog.core.groups.coordinator import CoordinatorMachine
from raylog.core.groups.decision import GroupDecision
from raylog.core.groups.group import Group
from raylog.core.groups.rewriting import Rewriting
from raylog.core.groups.writing import RowQueue
from tests.simulation.bugs import Planted
from tests.simulation.groups import sabotage
from tests.simulation.groups.coordinator import Coordinator
from tests.simulation.groups.topic import OffsetsTopic

STORM = "rebalance-storm"
SEEDS = 30

GROUP_BUGS = (
    Planted(
        "the coordinator loads half its log",
        STORM,
        SEEDS,
        ("I15",),
        OffsetsTopic,
        "read",
        sabotage.load_half_the_log(OffsetsTopic.read),
    ),
    Planted(
        "a commit of an old generation is accepted",
        STORM,
        SEEDS,
        ("I15",),
        offsets,
        "commit_error",
        sabotage.commits_of_any_generation(offsets.commit_error),
    ),
    Planted(
        "a commit of one who is no member is accepted",
        STORM,
        SEEDS,
        ("I15",),
        offsets,
        "commit_error",
        sabotage.commits_of_anybody(offsets.commit_error),
    ),
    Planted(
        "a commit of a replaced static member is not fenced",
        STORM,
        SEEDS,
        ("I15",),
        offsets,
        "commit_error",
        sabotage.commits_without_instance(offsets.commit_error),
    ),
    Planted(
        "partitions are assigned before all have given theirs back",
        STORM,
        SEEDS,
        ("I15",),
        Group,
        "everybody_joined",
        property(sabotage.somebody_joined),
    ),
    Planted(
        "the generation starts again after a failover",
        STORM,
        SEEDS,
        ("I15",),
        Group,
        "replay",
        sabotage.forget_generation(Group.replay),
    ),
    Planted(
        "a generation is not written before members hear of it",
        STORM,
        SEEDS,
        ("I15",),
        CoordinatorMachine,
        "_apply",
        sabotage.generation_unwritten(CoordinatorMachine._apply),
    ),
    Planted(
        "a member id is given again",
        STORM,
        SEEDS,
        ("I15",),
        Coordinator,
        "_new_member_id",
        lambda self, client_id: client_id,
    ),
    Planted(
        "a commit is acknowledged before it is stored",
        STORM,
        SEEDS,
        ("I15",),
        GroupDecision,
        "finish",
        sabotage.answer_at_once(GroupDecision.finish),
    ),
    Planted(
        "batches are not split by the log's limit",
        STORM,
        SEEDS,
        ("B1",),
        RowQueue,
        "take",
        sabotage.batches_of_any_size(RowQueue.take),
    ),
    Planted(
        "a split step is answered with its first batch",
        STORM,
        SEEDS,
        ("I15",),
        RowQueue,
        "stored",
        sabotage.answers_of_half_steps(RowQueue.stored),
    ),
    Planted(
        "an older coordinator goes on writing",
        STORM,
        SEEDS,
        ("I15",),
        OffsetsTopic,
        "_is_fenced",
        lambda self, epoch: False,
    ),
    Planted(
        "members are thrown out when their coordinator moves",
        STORM,
        SEEDS,
        ("I15",),
        Group,
        "restore",
        sabotage.sessions_end_with_the_coordinator(Group.restore),
    ),
    Planted(
        "the offsets of a group go with its last member",
        STORM,
        SEEDS,
        ("I15",),
        CoordinatorMachine,
        "_apply",
        sabotage.offsets_of_the_lost(CoordinatorMachine._apply),
    ),
    Planted(
        "a member without partitions gets the leader's",
        STORM,
        SEEDS,
        ("I15",),
        Group,
        "assignment",
        sabotage.assign_twice(Group.assignment),
    ),
    Planted(
        "the log is cut before what holds is stored again",
        STORM,
        SEEDS,
        ("B2",),
        Rewriting,
        "go_on",
        sabotage.trim_before_stored(Rewriting.go_on),
    ),
    Planted(
        "the log is cut where a round ended instead of where it began",
        STORM,
        SEEDS,
        ("B2",),
        CoordinatorMachine,
        "step",
        sabotage.trim_to_the_end(CoordinatorMachine.step),
    ),
    Planted(
        "groups are not written again",
        STORM,
        SEEDS,
        ("B2",),
        Rewriting,
        "begin",
        sabotage.rewrite_offsets_only(Rewriting.begin),
    ),
    Planted(
        "an old offset is written again over a newer one",
        STORM,
        SEEDS,
        ("I15",),
        CoordinatorMachine,
        "_live_record",
        sabotage.rewrite_what_held_once(CoordinatorMachine._live_record),
    ),
    Planted(
        "the log is never cut",
        STORM,
        SEEDS,
        ("L2",),
        GroupDecision,
        "trim",
        lambda self, before_offset: None,
    ),
)
