"""Many members of the client's machine against the coordinator's real machine, message by message, in any order.

Messages may be lost, members may fall silent, the coordinator may be rebuilt from its log. At every moment a partition
has one owner among those whose generation is the newest, and no member can commit for a generation that is over.
Cooperative members hold their partitions while they join, so that what they hold belongs to the next generation too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raylog.base.ids import TopicPartition
from raylog.client.group.assignors import strategies_of
from raylog.client.group.membership import GroupRequest, Membership
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.decision import Refuse, Reply
from raylog.core.groups.coordinator import GroupCoordinatorMachine
from raylog.core.groups.events import AppendRecords, Effect, Tick
from raylog.core.groups.settings import GroupSettings
from raylog.core.outbox import Outbox
from raylog.core.received import Received
from raylog.protocol.groups import (
    JOIN_GROUP,
    SYNC_GROUP,
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from raylog.protocol.message import Message

PARTITIONS = {"flights": 5, "trips": 2}
MEMBERS = 4


@dataclass
class Client:
    """One member, the request it waits for, and the partitions it reads."""

    member: Membership
    waiting: tuple[int, GroupRequest, int] | None = None
    owned: set[TopicPartition] = field(default_factory=set)
    is_silent: bool = False


class GroupOfMembers(RuleBasedStateMachine):
    """The world: clients, a coordinator, and the answers between them."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.requests = 0
        self.log: list[tuple[list[object], list[object] | None]] = []
        self.answers: dict[int, Any] = {}
        self.ids = 0
        self.clients: list[Client] = []
        self.committed: dict[TopicPartition, int] = {}
        self.coordinator = self._rebuilt()

    def _rebuilt(self) -> GroupCoordinatorMachine:
        machine = GroupCoordinatorMachine(
            settings=GroupSettings(initial_rebalance_delay_ms=0),
            share=EVERY_KEY,
            new_member_id=self._new_member_id,
        )
        for key, value in self.log:
            machine.replay(key, value)
        machine.loaded(self.now_ms)
        return machine

    def _new_member_id(self, client_id: str) -> str:
        self.ids += 1
        return f"{client_id}-{self.ids}"

    @initialize(
        assignors=st.sampled_from(
            [
                ("range",),
                ("roundrobin",),
                ("sticky",),
                ("sticky", "range"),
                ("cooperative-sticky",),
                ("cooperative-sticky",),
            ]
        ),
        # With the longer session a static member can be away while a round ends, and come back to a later generation.
        session_ms=st.sampled_from([1_000, 8_000]),
    )
    def begin(self, assignors: tuple[str, ...], session_ms: int) -> None:
        self.clients = [
            Client(
                Membership(
                    "board",
                    client_id=f"client{number}",
                    instance_id=f"static{number}" if number == 0 else None,
                    assignors=strategies_of(assignors),
                    session_timeout_ms=session_ms,
                    rebalance_timeout_ms=2_000,
                )
            )
            for number in range(MEMBERS)
        ]

    # What can happen

    @rule(number=st.integers(0, MEMBERS - 1))
    def act(self, number: int) -> None:
        """A member does what its poll() would do next."""
        client = self.clients[number]
        member = client.member
        if client.is_silent or client.waiting is not None:
            return
        if member.rejoin_reason is not None:
            if not member.is_cooperative or member.lost:
                client.owned.clear()  # given back before joining, as an eager rebalance demands
            self._send(client, GroupRequest.JOIN, member.join_request(["flights", "trips"]))
        else:
            self._send(client, GroupRequest.HEARTBEAT, member.heartbeat_request())

    @rule(number=st.integers(0, MEMBERS - 1), is_lost=st.sampled_from([False, False, False, True]))
    def receive(self, number: int, is_lost: bool) -> None:
        """A member gets the answer it waits for, or loses it with its connection."""
        client = self.clients[number]
        if client.waiting is None or client.waiting[0] not in self.answers:
            return
        request, call, generation = client.waiting
        answer = self.answers.pop(request)
        client.waiting = None
        if is_lost:
            if call in (GroupRequest.JOIN, GroupRequest.SYNC):
                client.member.need_rejoin("the connection broke")
            return
        if isinstance(answer, Refuse):
            client.member.failed(call, answer.error, generation=generation)
            if client.member.lost:
                client.owned.clear()
        elif call is GroupRequest.JOIN:
            rows = client.member.joined(JOIN_GROUP.read_reply(answer))
            subscriptions = client.member.subscriptions(rows)
            self._send(client, GroupRequest.SYNC, client.member.sync_request(subscriptions, PARTITIONS))
        elif call is GroupRequest.SYNC:
            client.owned = set(client.member.synced(SYNC_GROUP.read_reply(answer).assignment))
            client.member.taken_up()

    @rule(number=st.integers(0, MEMBERS - 1))
    def commit(self, number: int) -> None:
        """A member commits what it owns; an old generation is refused, and says so to the member."""
        client = self.clients[number]
        generation, member_id = client.member.commit_identity
        if not client.owned or generation < 0:
            return
        offsets = {each: self.committed.get(each, 0) + 1 for each in sorted(client.owned)}
        rows = [OffsetCommitPartition("id", *each, offset, -1, "") for each, offset in offsets.items()]
        self._request(OffsetCommitRequest("board", generation, member_id, rows))
        answer = self.answers.pop(self.requests)
        if isinstance(answer, Refuse):
            client.member.failed(GroupRequest.COMMIT, answer.error, generation=generation)
            if client.member.lost:
                client.owned.clear()
        else:
            newest = max(other.member.generation for other in self.clients)
            assert generation == newest or not self._newer_owners(generation), "a commit of a past generation was taken"
            self.committed |= offsets

    @rule(number=st.integers(0, MEMBERS - 1), is_silent=st.booleans())
    def fall_silent(self, number: int, is_silent: bool) -> None:
        self.clients[number].is_silent = is_silent

    @rule(number=st.integers(0, MEMBERS - 1))
    def leave(self, number: int) -> None:
        client = self.clients[number]
        request = client.member.leave_request()
        if request is None or client.waiting is not None or client.is_silent:
            return
        client.owned.clear()
        client.member.lose("it has left", member_too=True)
        client.member.lost = False
        self._request(request)

    @rule(step_ms=st.sampled_from([100, 900, 2_500]))
    def pass_time(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self._step(Tick(cause="tick", now_ms=self.now_ms))

    @rule()
    def restart_the_coordinator(self) -> None:
        """Its process dies: what was parked is refused by the connection's end, the log is replayed elsewhere."""
        self.coordinator = self._rebuilt()
        for client in self.clients:
            if client.waiting is not None and client.waiting[0] not in self.answers:
                if client.waiting[1] in (GroupRequest.JOIN, GroupRequest.SYNC):
                    client.member.need_rejoin("the coordinator went away")
                client.waiting = None

    # How messages travel

    def _send(
        self, client: Client, call: GroupRequest, request: JoinGroupRequest | SyncGroupRequest | HeartbeatRequest
    ) -> None:
        client.waiting = (self.requests + 1, call, client.member.generation)
        self._request(request)

    def _request(self, message: Message) -> None:
        self.requests += 1
        self._step(Received(message=message, cause="test", request=self.requests, now_ms=self.now_ms))

    def _step(self, event: Any) -> None:
        out: Outbox[Effect] = self.coordinator.step(event)
        self.coordinator.validate()
        for effect in [*out.now, *out.after_sync]:
            if isinstance(effect, AppendRecords):
                self.log += effect.records
            elif isinstance(effect, Reply):
                self.answers[effect.request] = effect.result
            elif isinstance(effect, Refuse):
                self.answers[effect.request] = effect

    def _newer_owners(self, generation: int) -> bool:
        return any(client.owned and client.member.generation > generation for client in self.clients)

    # What always holds

    @invariant()
    def a_partition_has_one_owner_in_a_generation(self) -> None:
        owners: dict[tuple[int, TopicPartition], int] = {}
        for number, client in enumerate(self.clients):
            for partition in client.owned:
                place = (client.member.generation, partition)
                assert owners.setdefault(place, number) == number, f"{partition} has two owners"

    @invariant()
    def an_owner_of_partitions_holds_a_generation(self) -> None:
        for client in self.clients:
            assert not client.owned or client.member.generation > 0

    def teardown(self) -> None:
        """Left in peace, the members that still live share everything among them."""
        for client in self.clients:
            client.is_silent = False
        for _ in range(60):
            self.pass_time(300)
            for number in range(len(self.clients)):
                self.receive(number, is_lost=False)
                self.act(number)
                self.receive(number, is_lost=False)
        if not self.clients:
            return
        everything = {TopicPartition(topic, each) for topic, count in PARTITIONS.items() for each in range(count)}
        owned = [partition for client in self.clients for partition in client.owned]
        assert sorted(owned) == sorted(everything)
        assert len({client.member.generation for client in self.clients}) == 1


GroupOfMembers.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestGroupOfMembers = GroupOfMembers.TestCase
