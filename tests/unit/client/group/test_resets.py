"""An operator's side of groups, from Admin and from the command line: resets, deleted offsets, removed members."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from raylog.base.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    NonEmptyGroup,
    NoOffsetForPartition,
    ResetOutdated,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import Admin, AsyncAdmin
from raylog.client.admin.reset_plan import Clamp
from raylog.protocol.groups import OFFSET_RESET, OffsetResetRequest
from tests.unit.cli.support import Outcome, raylog, refusal
from tests.unit.client.consumer_support import Member, fill, numbers, with_coordinator
from tests.unit.client.toy_coordinator import ToyCoordinator
from tests.unit.client.toy_server import SECRET, ToyCluster
from tests.waiting import wait_for

FIRST, SECOND, OTHER = TopicPartition("flights", 0), TopicPartition("flights", 1), TopicPartition("planes", 0)


class Board:
    """A toy cluster with group "board", which has read two topics: offsets 40 and 7 of flights, 5 of planes."""

    def __init__(self, cluster: ToyCluster) -> None:
        self.cluster = cluster
        self.coordinator: ToyCoordinator = with_coordinator(cluster)
        cluster.create_topic("flights", partitions=2)
        cluster.create_topic("planes", partitions=1)
        fill(cluster, "flights", 0, numbers(0, 100))
        fill(cluster, "flights", 1, numbers(0, 10))
        fill(cluster, "planes", 0, numbers(0, 10))
        self.admin = Admin(**cluster.options)
        self.admin.alter_group_offsets("board", {FIRST: 40, SECOND: 7, OTHER: 5})
        self.members: list[Member] = []

    def offsets(self) -> dict[TopicPartition, int]:
        return self.admin.describe_group("board").offsets

    def join(self, name: str, *topics: str, **options: Any) -> Member:
        member = Member(self.cluster, name, *(topics or ("flights",)), **options)
        self.members.append(member)
        wait_for(lambda: self.cluster.do(lambda: self.coordinator.members("board")) == len(self.members), "joined", 20)
        return member

    def leave_all(self) -> None:
        for member in self.members:
            member.stop()
        self.members = []

    def run(self, *words: str) -> Outcome:
        return raylog("group", *words, "--bootstrap", self.cluster.bootstrap, RAYLOG_SECRET=SECRET.hex())


@pytest.fixture
def board(cluster: ToyCluster) -> Iterator[Board]:
    made = Board(cluster)
    yield made
    made.leave_all()
    made.admin.close()


def test_all_offsets_of_a_group_go_to_one_end_of_the_log(board: Board) -> None:
    board.admin.delete_records({FIRST: 20})
    assert board.admin.reset_offsets("board", to="earliest").is_done
    assert board.offsets() == {FIRST: 20, SECOND: 0, OTHER: 0}
    board.admin.reset_offsets("board", to="latest")
    assert board.offsets() == {FIRST: 100, SECOND: 10, OTHER: 10}


def test_a_dry_run_shows_the_plan_and_changes_nothing(board: Board) -> None:
    plan = board.admin.reset_offsets("board", by=-30, dry_run=True)
    assert not plan.is_done
    rows = {each.partition: (each.before, each.after, each.clamp) for each in plan.offsets}
    assert rows == {FIRST: (40, 10, None), SECOND: (7, 0, Clamp.BELOW_START), OTHER: (5, 0, Clamp.BELOW_START)}
    assert [each.read_again for each in plan.offsets] == [30, 7, 5]
    assert board.offsets() == {FIRST: 40, SECOND: 7, OTHER: 5}


def test_offsets_outside_the_log_are_clamped_to_it(board: Board) -> None:
    plan = board.admin.reset_offsets("board", to=50, partitions=["flights"])
    assert [(each.after, each.clamp) for each in plan.offsets] == [(50, None), (10, Clamp.BEYOND_END)]
    assert board.offsets() == {FIRST: 50, SECOND: 10, OTHER: 5}


def test_a_time_is_looked_up_in_each_partition(board: Board) -> None:
    """The records' timestamps are their offsets."""
    plan = board.admin.reset_offsets("board", time=datetime.fromtimestamp(0.03, UTC))
    assert [(each.after, each.clamp) for each in plan.offsets] == [
        (30, None),
        (10, Clamp.NO_SUCH_TIME),
        (10, Clamp.NO_SUCH_TIME),
    ]
    assert board.admin.reset_offsets("board", time=6, partitions=[OTHER]).offsets[0].after == 6


def test_only_the_partitions_that_are_named_move(board: Board) -> None:
    board.admin.reset_offsets("board", to="latest", partitions=["flights:1"])
    assert board.offsets() == {FIRST: 40, SECOND: 10, OTHER: 5}
    with pytest.raises(UnknownTopicOrPartition, match="no partition 2, only 0 to 1"):
        board.admin.reset_offsets("board", to="latest", partitions=["flights:2"])


def test_a_group_that_has_read_nothing_gets_offsets_by_name_alone(board: Board) -> None:
    with pytest.raises(GroupIdNotFound, match="'new'"):
        board.admin.reset_offsets("new", to="earliest")
    with pytest.raises(NoOffsetForPartition, match="flights-0, flights-1"):
        board.admin.reset_offsets("new", by=1, partitions=["flights"])
    board.admin.reset_offsets("new", to="latest", partitions=["flights"])
    assert board.admin.describe_group("new").offsets == {FIRST: 100, SECOND: 10}


def test_offsets_of_a_deleted_topic_are_left_out_and_named(board: Board) -> None:
    board.cluster.delete_topic("planes")
    board.cluster.create_topic("planes", partitions=1)
    plan = board.admin.reset_offsets("board", to="latest")
    assert [each.partition for each in plan.offsets] == [FIRST, SECOND]
    assert plan.left_out == (OTHER,)


def test_a_group_in_use_is_not_reset_and_its_members_are_named(board: Board) -> None:
    board.join("anna")
    assert board.admin.reset_offsets("board", to="latest", dry_run=True).members[0].startswith("anna (")
    with pytest.raises(NonEmptyGroup, match=r"in use \(Stable\), by anna .* stop these consumers") as refused:
        board.admin.reset_offsets("board", to="latest")
    assert refused.value.details["state"] == "Stable"
    board.leave_all()
    board.admin.reset_offsets("board", to="latest")
    assert board.offsets()[FIRST] == 100


@pytest.mark.parametrize("user", ["a member that came and left", "a commit from outside"])
def test_a_group_that_was_used_after_the_plan_is_not_reset(
    board: Board, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race: the plan is made, the group is used, and then the reset arrives."""

    async def reset() -> None:
        async with AsyncAdmin(**board.cluster.options) as admin:
            call = admin.cluster.call_coordinator

            async def later(key: str, method: Any, request: Any, **options: Any) -> Any:
                if method is OFFSET_RESET:
                    assert isinstance(request, OffsetResetRequest)
                    await asyncio.to_thread(use)
                return await call(key, method, request, **options)

            monkeypatch.setattr(admin.cluster, "call_coordinator", later)
            await admin.reset_offsets("board", by=-30)

    def use() -> None:
        if user == "a commit from outside":
            board.admin.alter_group_offsets("board", {SECOND: 8})
        else:
            board.join("bert")
            board.leave_all()
            wait_for(lambda: board.admin.describe_group("board").state == "Empty", "bert has left")

    with pytest.raises(ResetOutdated, match="plan it again"):
        asyncio.run(reset())
    assert board.offsets()[OTHER] == 5, "none of the offsets has moved"


def test_a_repeated_reset_is_no_error(board: Board) -> None:
    for _ in range(2):
        board.admin.reset_offsets("board", to="earliest")
    assert board.offsets()[FIRST] == 0


def test_offsets_of_topics_that_members_read_stay(board: Board) -> None:
    board.join("anna", "flights")
    with pytest.raises(GroupSubscribedToTopic, match=r"flights-0 .* subscribe"):
        board.admin.delete_offsets("board", [FIRST])
    board.admin.delete_offsets("board", [OTHER])
    assert OTHER not in board.offsets()
    assert FIRST in board.offsets()


def test_members_are_removed_by_id_by_instance_or_all_at_once(board: Board) -> None:
    board.join("anna", group_instance_id="i1", session_timeout_ms=60_000)
    board.join("bert", session_timeout_ms=60_000)
    bert = next(each for each in board.admin.describe_group("board").members if each.client_id == "bert")
    for member in board.members:
        member.stop(crash=True)
    board.members = []
    results = board.admin.remove_members("board", [bert.member_id, "stranger"])
    assert results[bert.member_id] is None
    assert isinstance(results["stranger"], UnknownMemberId)
    assert board.admin.remove_members("board", instances=["i1"]) == {"i1": None}
    assert board.admin.remove_members("board", all_members=True) == {}
    wait_for(lambda: board.admin.describe_group("board").state == "Empty", "no member is left")


def test_groups_are_listed_by_state(board: Board) -> None:
    board.cluster.create_topic("__consumer_offsets", partitions=1)
    fill(board.cluster, "__consumer_offsets", 0, [b"written to"])
    board.admin.alter_group_offsets("idle", {FIRST: 1})
    board.join("anna")
    names = {state: [each.group_id for each in board.admin.list_groups([state])] for state in ("Stable", "empty")}
    assert names == {"Stable": ["board"], "empty": ["idle"]}
    assert [each.group_id for each in board.admin.list_groups()] == ["board", "idle"]


def test_groups_are_listed_by_type_and_an_unknown_name_is_refused(board: Board) -> None:
    board.cluster.create_topic("__consumer_offsets", partitions=1)
    fill(board.cluster, "__consumer_offsets", 0, [b"written to"])
    assert [each.group_type for each in board.admin.list_groups(types=["Classic"])] == ["classic"]
    assert board.admin.list_groups(types=["consumer"]) == []
    with pytest.raises(ValueError, match="valid are classic, consumer"):
        board.admin.list_groups(types=["share"])
    with pytest.raises(ValueError, match="'Assigning'; valid are Empty, PreparingRebalance"):
        board.admin.list_groups(["Assigning"], types=["classic"])
    assert "board" in board.run("list", "--type", "classic").out
    assert (
        board.run("list", "--type", "consumer", "--state", "assigning").out == "No group is assigning and consumer.\n"
    )
    assert "valid are classic, consumer" in refusal(board.run("list", "--type", "share"), 2)
    assert "Assigning, Reconciling" in refusal(board.run("list", "--state", "Dead"), 2)
    assert "valid are Empty, Assigning" in refusal(
        board.run("list", "--type", "consumer", "--state", "PreparingRebalance"), 2
    )


def test_the_command_line_plans_and_resets(board: Board) -> None:
    shown = board.run("reset-offsets", "board", "--by", "-30", "--topic", "flights:1", "--dry-run").out
    assert "the log starts there" in shown
    assert "with --execute" in shown
    done = json.loads(board.run("reset-offsets", "board", "--to", "3", "--json", "--execute").out)
    assert done["done"] is True
    assert [(row["committed"], row["new"]) for row in done["offsets"]] == [(40, 3), (7, 3), (5, 3)]
    assert (
        "continues there" in board.run("reset-offsets", "board", "--time", "1970-01-01T00:00:00.030Z", "--execute").out
    )
    assert board.offsets() == {FIRST: 30, SECOND: 10, OTHER: 10}


def test_the_command_line_names_the_members_that_are_in_the_way(board: Board) -> None:
    board.join("anna")
    assert "in use, by anna" in board.run("reset-offsets", "board", "--to", "latest", "--dry-run").out
    assert "anna" in refusal(board.run("reset-offsets", "board", "--to", "latest", "--execute"), 1)
    assert "subscribe" in refusal(board.run("delete-offsets", "board", "flights"), 1)
    assert "was removed" in board.run("remove-members", "board", "--all").out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "Give one of --to, --time and --by"),
        (("--to", "latest", "--by", "1"), "Give one of --to, --time and --by"),
        (("--to", "newest"), "--to is 'earliest', 'latest' or an offset"),
        (("--time", "2026-03-01T12:00:00"), "has no zone"),
        (("--time", "noon"), "is no time"),
        (("--to", "latest", "--topic", "flights:x"), "such as `flights:0,2`"),
    ],
)
def test_a_reset_that_makes_no_sense_is_refused(words: tuple[str, ...], says: str) -> None:
    assert says in refusal(raylog("group", "reset-offsets", "board", *words), 2)


@pytest.mark.parametrize("words", [(), ("m1", "--all")])
def test_removing_members_takes_names_or_all(words: tuple[str, ...]) -> None:
    assert "or give --all" in refusal(raylog("group", "remove-members", "board", *words), 2)


def test_a_group_is_described_with_its_coordinator_and_members(board: Board) -> None:
    board.join("anna", group_instance_id="i1")
    found = board.admin.describe_group("board")
    assert found.coordinator.startswith("127.0.0.1:")
    assert found.protocol
    (anna,) = found.members
    assert (anna.client_id, anna.instance_id, anna.client_host) == ("anna", "i1", "127.0.0.1")
    assert anna.assignment == (FIRST, SECOND)
    shown = board.run("describe", "board").out
    assert f"coordinator at {found.coordinator}" in shown
    assert "flights:0,1" in shown
    assert json.loads(board.run("describe", "board", "--json").out)["coordinator"] == found.coordinator
    assert "consumer protocol, epoch" in board.run("describe", "board", "--state").out
    assert "anna" not in board.run("describe", "board", "--state").out
    assert "committed" not in board.run("describe", "board", "--members").out
    assert "coordinator at" not in board.run("describe", "board", "--offsets").out
