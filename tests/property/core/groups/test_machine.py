"""The laws of the coordinator under any order of requests, drops, silence and restarts.

The members are honest clients that act at any time, also late: they join, sync with the answer they received, send
heartbeats, commit and leave. After every step: each request is answered at most once, generations do not fall, only the
current generation's members hold partitions, each partition has one holder, and a machine that replays the log is
equal.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raylog.core.groups.coordinator import GroupSettings
from raylog.core.groups.group import Group
from raylog.core.groups.records import GROUP_ROWS, GroupChanged
from raylog.core.groups.states import GroupState
from raylog.protocol.rows import Tombstone
from tests.unit.core.groups.context import Groups

PARTITIONS = range(6)
PLACES = st.integers(0, 3)
SETTINGS = GroupSettings(initial_rebalance_delay_ms=50, offsets_retention_ms=60_000, offsets_retention_check_ms=20_000)


@dataclass
class Client:
    """The state of one client process; ``instance_id`` makes it a static member."""

    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    is_leader: bool = False
    peers: list[str] = field(default_factory=list)
    waiting: int | None = None
    purpose: str = ""
    holds: dict[int, bytes] = field(default_factory=dict)
    """Assignment by generation, as sent to members."""

    def reset(self) -> None:
        self.member_id, self.generation, self.is_leader, self.peers = "", -1, False, []


class CoordinatorLaws(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.groups = Groups(SETTINGS)
        self.clients = [Client(None), Client(None), Client("i1"), Client("i2")]
        self.handed_out: dict[int, dict[str, bytes]] = {}
        self.checked = 0
        self.last_generation = 0
        """Last generation in the checked part of the log."""

    # ------------------------------------------------------------ clients

    def collect(self) -> None:
        """Let every client read the answer to its request."""
        for client in self.clients:
            if client.waiting is None:
                continue
            code = self.groups.code(client.waiting)
            if code is None:
                continue
            request, client.waiting = client.waiting, None
            if code == 79:
                client.member_id = str(self.groups.refusals[request].details["member_id"])
            elif code in (25, 82):
                client.reset()
            elif code == 0 and client.purpose == "join":
                generation, _, leader, member_id, rows, skip = self.groups.reply(request)
                assert isinstance(generation, int)
                assert isinstance(rows, list)
                client.generation, client.member_id = generation, str(member_id)
                client.is_leader = leader == member_id and not skip
                client.peers = [str(row[0]) for row in rows]
            elif code == 0 and client.purpose == "sync":
                (assignment,) = self.groups.reply(request)
                assert isinstance(assignment, bytes)
                assert assignment == self.written_assignment(client), "what is handed out is what was written for it"
                client.holds[client.generation] = assignment

    def written_generation(self) -> int:
        """Return the group's generation as the log has it."""
        written = next((value for key, value in reversed(self.groups.log) if key[0] == "group"), None)
        return 0 if written is None else int(str(written[1]))

    def written_assignment(self, client: Client) -> bytes | None:
        """Return this member's assignment in the log for its generation; None when the log has none."""
        found: bytes | None = None
        for key, value in self.groups.log:
            record = GROUP_ROWS.read(key, value)
            if isinstance(record, GroupChanged) and record.generation == client.generation:
                member = record.member(client.member_id)
                found = member.assignment if member is not None else None
        return found

    @rule(place=PLACES, metadata=st.sampled_from([b"x", b"y"]))
    def join(self, place: int, metadata: bytes) -> None:
        client = self.clients[place]
        client.purpose = "join"
        # The session outlives a round, so that a static member can be away for one.
        client.waiting = self.groups.join(
            client.member_id,
            group_instance_id=client.instance_id,
            protocols=[("range", metadata)],
            session_ms=30_000,
            rebalance_ms=15_000,
        )
        self.collect()

    @rule(place=PLACES)
    def sync(self, place: int) -> None:
        client = self.clients[place]
        plan: dict[str, bytes] = {}
        if client.is_leader:
            for partition in PARTITIONS:
                peer = client.peers[partition % len(client.peers)]
                plan[peer] = plan.get(peer, b"") + bytes([partition])
        client.purpose = "sync"
        client.waiting = self.groups.sync(
            client.member_id, client.generation, plan, group_instance_id=client.instance_id
        )
        self.collect()

    @rule(places=st.sets(PLACES, min_size=1))
    def take_part(self, places: set[int]) -> None:
        """Some clients do what a poll loop does: join until all are in one generation, then sync."""
        for _ in range(3):
            for place in sorted(places):
                if self.clients[place].waiting is None:
                    self.join(place, b"x")
        self.tick(50)
        self.tick(50)
        for place in sorted(places):
            if self.clients[place].waiting is None:
                self.sync(place)

    @rule(place=PLACES)
    def sleep_through_a_round(self, place: int) -> None:
        """One client hangs while the others begin and end a round, and then resumes with its old state."""
        places = set(range(len(self.clients)))
        self.take_part(places)
        self.take_part(places)
        self.take_part(places - {place})
        self.tick(16_000)
        self.heartbeat(place)
        self.sync(place)

    @rule(place=PLACES)
    def restart_process(self, place: int) -> None:
        """The process dies and restarts with only its instance id."""
        client = self.clients[place]
        if client.waiting is not None:
            self.groups.drop(client.waiting)
        self.clients[place] = Client(client.instance_id)

    @rule(place=PLACES)
    def heartbeat(self, place: int) -> None:
        client = self.clients[place]
        request = self.groups.heartbeat(client.member_id, client.generation, group_instance_id=client.instance_id)
        if self.groups.code(request) == 0:
            assert client.generation == self.written_generation(), "only the current generation may go on"

    @rule(place=PLACES)
    def leave(self, place: int) -> None:
        client = self.clients[place]
        self.groups.leave((client.member_id, client.instance_id))
        client.reset()
        self.collect()

    @rule(place=PLACES, offset=st.integers(0, 9), partition=st.sampled_from(PARTITIONS))
    def commit(self, place: int, offset: int, partition: int) -> None:
        client = self.clients[place]
        request = self.groups.commit(
            offset, member_id=client.member_id, generation=client.generation, partition=partition
        )
        if self.groups.code(request) == 0 and self.groups.reply(request)[0] == ["flights", partition, 0]:
            assert client.generation in (-1, self.written_generation()), "only the current generation commits"
            (row,) = self.groups.reply(self.groups.fetch(("id1", "flights", partition)))
            assert row == ["id1", "flights", partition, offset, 3, ""]

    @rule(after_ms=st.sampled_from([0, 50, 1_000, 5_000, 16_000, 70_000]))
    def tick(self, after_ms: int) -> None:
        self.groups.tick(after_ms)
        self.collect()

    @rule()
    def delete_group(self) -> None:
        self.groups.delete()

    @precondition(lambda self: self.groups.log)
    @rule()
    def restart_coordinator(self) -> None:
        """The coordinator dies: open requests are lost with it."""
        before = self.groups
        self.groups = before.restarted(now_ms=before.now_ms + 1)
        for client in self.clients:
            client.waiting = None

    # ------------------------------------------------------------ laws

    @invariant()
    def generations_do_not_fall_and_each_is_assigned_once(self) -> None:
        for key, value in self.groups.log[self.checked :]:
            record = GROUP_ROWS.read(key, value)
            if isinstance(record, Tombstone) and record.kind is GroupChanged:
                # Generations of a deleted group start over, and so does this record of them.
                self.last_generation = 0
                self.handed_out.clear()
                for client in self.clients:
                    client.holds.clear()
            if isinstance(record, GroupChanged):
                assert record.generation >= self.last_generation
                if record.state is not GroupState.STABLE:
                    assert record.generation == self.last_generation + 1
                self.last_generation = record.generation
        self.checked = len(self.groups.log)

    @invariant()
    def each_partition_has_at_most_one_owner_in_a_generation(self) -> None:
        for generation in {number for client in self.clients for number in client.holds}:
            owned = [
                partition
                for client in self.clients
                if client.member_id != "" and generation == client.generation
                for partition in client.holds.get(generation, b"")
            ]
            assert len(owned) == len(set(owned)), f"two owners in generation {generation}"

    @invariant()
    def replaying_the_log_gives_an_equal_machine(self) -> None:
        again = self.groups.restarted()
        assert again.machine.hard_state() == self.groups.machine.hard_state()

    def teardown(self) -> None:
        """Parked requests are answered once all other members stay silent long enough; finally the group is empty."""
        for _ in range(3):
            self.groups.tick(70_000)
        assert self.groups.machine.parked_requests() == []
        for _ in range(3):
            self.groups.tick(70_000)
        assert self.groups.state == "Dead"


TestCoordinatorLaws = CoordinatorLaws.TestCase
TestCoordinatorLaws.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("place", range(4))
def test_a_client_that_sleeps_through_a_round_may_not_go_on(place: int) -> None:
    CoordinatorLaws().sleep_through_a_round(place)


def test_the_laws_catch_a_coordinator_that_does_not_check_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    fence = Group.fence
    monkeypatch.setattr(Group, "fence", lambda group, member, instance, generation=None: fence(group, member, instance))
    with pytest.raises(AssertionError, match="only the current generation"):
        CoordinatorLaws().sleep_through_a_round(3)


def test_a_waiting_member_is_answered_though_all_others_are_silent() -> None:
    groups = Groups(SETTINGS)
    first, second = groups.stable()
    request = groups.join(first)
    groups.tick(20_000)
    assert groups.code(request) == 0
    parked = groups.sync(second, 2)
    assert groups.code(parked) == 25
