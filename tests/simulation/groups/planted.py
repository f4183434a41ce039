"""Planted bugs in consumer groups, all caught by the profile ``rebalance-storm``."""

from __future__ import annotations

from typing import Any

from raylog.actors.request_table import RequestTable
from raylog.base.errors import FencedInstanceId
from raylog.client.group import membership
from raylog.client.group.membership import Membership
from raylog.core.coordinators.writing import RowQueue
from raylog.core.groups import offsets, rebalance, resets, use
from raylog.core.groups.coordinator import GroupCoordinatorMachine
from raylog.core.groups.decision import GroupDecision
from raylog.core.groups.group import Group, Member
from raylog.core.groups.offsets import OffsetStore
from raylog.core.groups.use import GroupUse
from tests.simulation.groups import sabotage
from tests.simulation.groups.coordinator import Coordinator
from tests.simulation.groups.topic import OffsetsTopic
from tests.simulation.planted.bugs import Edit, Planted

STORM = "rebalance-storm"
SEEDS = 30


MACHINE_OR_ANSWER = "machine I15"
"""Either the machine's own check or that of the answers comes first; which one depends on the order of a set."""


def _bug(name: str, rules: str, target: Any, attribute: str, substitute: Any, seeds: int = SEEDS) -> Planted:
    return Planted(name, STORM, seeds, tuple(rules.split()), target, attribute, substitute)


GROUP_BUGS = (
    _bug(
        "the coordinator loads half its log",
        "I15",
        OffsetsTopic,
        "read",
        sabotage.load_half_the_log(OffsetsTopic.read),
    ),
    _bug(
        "a commit of an old generation is accepted",
        "I15",
        offsets,
        "commit_error",
        sabotage.commits_of_any_generation(offsets.commit_error),
    ),
    _bug(
        "a commit of a sender that is no member is accepted",
        "I15",
        offsets,
        "commit_error",
        sabotage.commits_of_strangers(offsets.commit_error),
    ),
    _bug(
        "a commit of a replaced static member is not fenced",
        "I15",
        offsets,
        "commit_error",
        sabotage.commits_without_instance(offsets.commit_error),
    ),
    _bug(
        "partitions are assigned before all have given theirs back",
        "I15",
        Group,
        "all_joined",
        property(sabotage.any_joined),
    ),
    _bug(
        "the generation starts again after a failover",
        "I15",
        Group,
        "replay",
        sabotage.forget_generation(Group.replay),
    ),
    _bug(
        "a generation is not written before members receive it",
        "I15",
        GroupCoordinatorMachine,
        "_apply",
        sabotage.generation_unwritten(GroupCoordinatorMachine._apply),
    ),
    _bug(
        "a member id is given again",
        MACHINE_OR_ANSWER,
        Coordinator,
        "_new_member_id",
        lambda self, client_id: client_id,
    ),
    _bug(
        "a commit is acknowledged before it is stored",
        "I15",
        GroupDecision,
        "finish",
        sabotage.answer_at_once(GroupDecision.finish),
    ),
    _bug(
        "batches are not split by the log's limit",
        "B1",
        RowQueue,
        "take",
        sabotage.batches_of_any_size(RowQueue.take),
    ),
    _bug(
        "a split step is answered with its first batch",
        "I15",
        RowQueue,
        "stored",
        sabotage.answers_of_half_steps(RowQueue.stored),
    ),
    _bug(
        "an older coordinator goes on writing",
        "I15",
        OffsetsTopic,
        "_is_fenced",
        lambda self, epoch: False,
    ),
    _bug(
        "members are thrown out when their coordinator moves",
        "I15",
        Group,
        "restore",
        sabotage.sessions_end_with_the_coordinator(Group.restore),
    ),
    _bug(
        "the offsets of a group go with its last member",
        "I15",
        GroupCoordinatorMachine,
        "_apply",
        sabotage.offsets_of_the_lost(GroupCoordinatorMachine._apply),
    ),
    _bug(
        "a member without partitions gets the leader's",
        "I15",
        Group,
        "assignment",
        sabotage.assign_twice(Group.assignment),
    ),
    # ------------------------------------------------------------ answers to members
    _bug(
        "a generation number is used twice", "I15", Group, "next_image", sabotage.numbers_used_twice(Group.next_image)
    ),
    _bug("no generation is fenced", "I15", Group, "fence", sabotage.fence_no_generation(Group.fence)),
    _bug(
        "strangers are refused with an old generation",
        "I15",
        Group,
        "fence",
        sabotage.old_rather_than_unknown(Group.fence),
    ),
    _bug("heartbeats of removed members succeed", "I15", rebalance, "heartbeat", sabotage.every_heartbeat_succeeds),
    _bug(
        "the assignment of an earlier round is given",
        "I15",
        Group,
        "next_image",
        sabotage.assignments_of_an_earlier_round(Group.next_image),
    ),
    _bug(
        "a static successor joins no round",
        "I15",
        rebalance,
        "_replace_static",
        sabotage.successors_join_no_round(rebalance._replace_static),
        seeds=60,
    ),
    _bug(
        "a static successor keeps an assignor that is voted down",
        "I15",
        Group,
        "select_protocol",
        sabotage.successors_keep_the_assignor(Group.select_protocol),
    ),
    _bug(
        "a static successor begins a round without a reason",
        "I15",
        Group,
        "select_protocol",
        sabotage.successors_begin_a_round(Group.select_protocol),
    ),
    _bug(
        "a replaced process is not fenced while it waits",
        "I15",
        rebalance,
        "_answer_parked",
        sabotage.predecessors_are_sent_to_join(rebalance._answer_parked),
    ),
    _bug(
        "a successor has its predecessor's timeout",
        "I15",
        rebalance,
        "_update",
        sabotage.timeouts_of_the_predecessor(rebalance._update),
    ),
    _bug(
        "a static leader that returns assigns again",
        "I15",
        rebalance,
        "_join_reply",
        sabotage.leaders_assign_again(rebalance._join_reply),
    ),
    _bug("a group has more members than it may", "I15", rebalance, "_is_full", lambda *_: False),
    _bug(
        "members that are late take a place in a full group",
        "I15",
        rebalance,
        "_is_full",
        sabotage.late_members_have_a_place(rebalance._is_full),
    ),
    _bug("members without a common assignor are taken", MACHINE_OR_ANSWER, Group, "supports", lambda *_, **__: True),
    _bug("a member that leaves begins no round", MACHINE_OR_ANSWER, rebalance, "after_removal", lambda *_, **__: None),
    _bug("silent members are kept", "L2 I15", Member, "restart_session", sabotage.sessions_never_end),
    _bug(
        "a sync before the leader's is answered at once",
        "I15",
        rebalance,
        "sync",
        sabotage.syncs_wait_for_nothing(rebalance.sync),
    ),
    _bug(
        "syncs are forgotten when another round begins",
        "I15 L1",
        rebalance,
        "_begin_round",
        sabotage.forget_syncs(rebalance._begin_round),
    ),
    _bug(
        "the leader receives itself as the only member",
        "I15",
        rebalance,
        "_join_reply",
        sabotage.leaders_alone(rebalance._join_reply),
    ),
    # ------------------------------------------------------------ deadlines and places
    _bug(
        "unused member ids have no bound", "I15", rebalance, "_is_full", Edit("len(group.pending) >=", "False and 0 >=")
    ),
    _bug(
        "unused member ids never expire",
        "I15 L2",
        rebalance,
        "tick",
        Edit("if deadline_ms <= now_ms]", "if False]"),
    ),
    _bug(
        "a member id that has left may still be used",
        "I15",
        rebalance,
        "leave",
        Edit("del group.pending[member_id]", "pass"),
    ),
    _bug(
        "a round does not wait for member ids that were given",
        "I15",
        Group,
        "all_joined",
        Edit("not self.pending and all", "all"),
    ),
    _bug(
        "a static member that is away loses its place at the end of a round",
        "I15",
        rebalance,
        "_end_round",
        Edit("is None and member.instance_id is None", "is None"),
        seeds=60,
    ),
    _bug(
        "the sessions of static members never end",
        "I15",
        rebalance,
        "tick",
        Edit("(not member.parked and", "(not member.parked and member.instance_id is None and"),
    ),
    _bug(
        "a member that does not sync is kept",
        "I15",
        rebalance,
        "tick",
        Edit("(sync_ended and member.sync_due)", "False"),
    ),
    _bug(
        "a request whose connection closes does not count as a heartbeat",
        "I15",
        rebalance,
        "drop_request",
        Edit("member.join_request = None\n            member.restart_session(now_ms)", "member.join_request = None"),
    ),
    _bug(
        "a round lasts beyond its deadline",
        "I15 L1",
        rebalance,
        "_begin_round",
        Edit("= decision.now_ms + longest", "= decision.now_ms + 10 * longest"),
    ),
    _bug(
        "a round takes the shortest rebalance timeout",
        "I15",
        Group,
        "rebalance_timeout_ms",
        Edit("max(", "min("),
    ),
    _bug(
        "a leader that is away leads on",
        "I15",
        rebalance,
        "_end_round",
        Edit("in joined}", "in group.members.values()}"),
    ),
    _bug("the first round does not wait", "I15", rebalance, "_begin_round", Edit("was_empty and", "False and")),
    _bug(
        "members commit while nothing is assigned",
        "I15",
        offsets,
        "commit_error",
        Edit("if error is None and group", "if False and group"),
    ),
    _bug(
        "a static member leaves when it stops",
        "I15",
        Membership,
        "leave_request",
        Edit(" or self.instance_id is not None", ""),
    ),
    _bug("a member does not leave when it stops", "I15", Membership, "leave_request", lambda self: None),
    _bug(
        "a fenced process joins again",
        "I15",
        membership,
        "REACTIONS",
        {**membership.REACTIONS, (membership.GroupRequest.HEARTBEAT, FencedInstanceId): membership._UNKNOWN},
    ),
    # ------------------------------------------------------------ expiry and deletion
    _bug(
        "the offsets of a group with members expire",
        "I15",
        offsets,
        "expired",
        sabotage.expire_the_living(offsets.expired),
    ),
    _bug(
        "offsets expire as soon as their group is empty",
        "I15",
        offsets,
        "expired",
        sabotage.expire_when_empty(offsets.expired),
    ),
    _bug("offsets never expire", "L2", GroupCoordinatorMachine, "_expire", lambda self, decision: None),
    _bug("stamps are of the host's clock", "I15", GroupCoordinatorMachine, "_wall_ms", lambda self, now_ms: now_ms),
    _bug(
        "a deleted group leaves its offsets",
        MACHINE_OR_ANSWER,
        GroupCoordinatorMachine,
        "_delete",
        sabotage.delete_the_group_alone,
    ),
    _bug("a group with members is deleted", "I15", GroupCoordinatorMachine, "_delete", sabotage.delete_at_once),
    _bug(
        "the offset of a deleted topic counts for its successor",
        "I15",
        OffsetStore,
        "get",
        sabotage.topics_of_one_name(OffsetStore.get),
    ),
    _bug(
        "notes beside offsets are lost in a failover",
        "I15",
        GroupCoordinatorMachine,
        "replay",
        sabotage.notes_are_lost(GroupCoordinatorMachine.replay),
    ),
    _bug("deleting an offset deletes all of its group", "I15", offsets, "delete", sabotage.delete_all_offsets),
    _bug(
        "a group without members and offsets is kept",
        "I15 L2",
        GroupDecision,
        "write",
        sabotage.keep_empty_groups(GroupDecision.write),
    ),
    # ------------------------------------------------------------ an operator's changes
    _bug("the offsets of a group in use are reset", "I15", GroupUse, "active_error", lambda self: None),
    _bug(
        "a reset overlooks that the group was used",
        "I15",
        resets,
        "_outdated",
        Edit("if message.generation_id not in (-1, use.generation):", "if False:"),
        seeds=200,
    ),
    _bug(
        "a reset overlooks what was committed since",
        "I15",
        resets,
        "_outdated",
        Edit("if planned.planned_from not in (ANY, offset) and", "if False and"),
    ),
    _bug("a reset skips its last partition", "I15", resets, "reset", Edit("for row in rows:", "for row in rows[:-1]:")),
    _bug(
        "a reset that is repeated is refused",
        "I15",
        resets,
        "_outdated",
        Edit(" and offset != row.offset", ""),
        seeds=200,
    ),
    _bug(
        "a reset is stored in parts",
        "I15",
        RowQueue,
        "take",
        Edit("whole <= bytes_max and whole > left", "False"),
        seeds=200,
    ),
    _bug("offsets that members read are deleted", "I15", GroupUse, "reads", lambda self, topic: False),
    _bug(
        "no offset of a group with members is deleted",
        "I15 L2",
        use,
        "subscribed_topics",
        lambda group: None,
        seeds=100,
    ),
    _bug(
        "offsets without subscribers are kept while a group reads",
        "L2",
        use,
        "_use_of_classic",
        Edit("elif is_empty or group.state is GroupState.STABLE:", "elif is_empty:"),
        seeds=100,
    ),
    # ------------------------------------------------------------ the runner
    _bug("the rows of a batch are swapped", "I15", RowQueue, "take", sabotage.swap_rows(RowQueue.take)),
    _bug("rows that do not fit are lost", "I15 L1", RowQueue, "take", sabotage.lose_what_does_not_fit(RowQueue.take)),
    _bug("rows count as stored when they are decided", "I15", RowQueue, "durable_end", lambda self: self._end),
    _bug("requests of closed connections stay parked", "L1", RequestTable, "take_deserted", lambda self: []),
    _bug("an answer goes to an earlier request", "I15", RequestTable, "pop", sabotage.pop_an_earlier_one),
    _bug(
        "requests are not answered when groups are loaded again",
        "L1",
        RequestTable,
        "fail_all",
        lambda self, error: None,
    ),
    _bug(
        "a read does not wait for the rows before it",
        "I15",
        RowQueue,
        "end",
        lambda self: self._stored + self._under_way,
    ),
)
