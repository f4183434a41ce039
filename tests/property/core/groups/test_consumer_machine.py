"""The laws of groups whose coordinator assigns (KIP-848), under any order of what members, topics and time may do.

Members do what their assignment says, at any time: they join, follow late or not at all, lose answers, leave, die and
return under their instance ids; requests come again when they are old; topics grow, are made again and deleted; the
coordinator dies and reads its log. After every step: a partition is held by one member at most, epochs do not fall, a
refused request has changed nothing, a member that was not removed is not fenced, and a machine that replays the log is
equal. Once all is quiet, all members have their targets and each partition is read.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raylog.base.errors import FencedInstanceId, FencedMemberEpoch, UnknownMemberId
from raylog.base.invariants import InvariantBroken
from raylog.core.groups import heartbeats
from raylog.core.groups.consumer_group import LEAVE_EPOCH, ConsumerGroup
from raylog.core.groups.consumer_groups import ConsumerGroups
from raylog.core.groups.consumer_records import (
    CurrentChanged,
    EpochsChanged,
    MemberChanged,
    Place,
    grouped,
)
from raylog.core.groups.coordinator import GroupSettings
from raylog.core.groups.events import TopicsSeen
from raylog.core.groups.records import GROUP_ROWS
from raylog.core.groups.states import AWAY_EPOCH
from raylog.core.received import Received
from raylog.protocol.groups import ConsumerGroupHeartbeatRequest
from raylog.protocol.rows import Tombstone
from tests.simulation.planted.bugs import Edit
from tests.unit.core.groups.context import GROUP, Groups, message_of

TOPICS = ("flights", "planes")
SESSION_MS, REBALANCE_MS, WAIT_MS = 3_000, 5_000, 500
SETTINGS = GroupSettings(topics_check_ms=200)
PLACES = st.integers(0, 3)
Heartbeat = Received[ConsumerGroupHeartbeatRequest]
QUIET_ROUNDS = 60
"""Rounds of heartbeats after which a group is at its target; each lets 200 ms pass."""


@dataclass
class Client:
    """One process of a member."""

    instance_id: str | None
    member_id: str
    topics: tuple[str, ...] = TOPICS
    epoch: int = 0
    sequence: int = 0
    assigned: frozenset[Place] = frozenset()
    owned: frozenset[Place] = frozenset()
    waiting: Heartbeat | None = None
    says_all: bool = True
    """An answer may have been lost, or its topics have changed: the next heartbeat says everything."""
    is_removed: bool = False
    """The log says that it is no member any more, and it does not know yet."""
    sent: list[Heartbeat] = field(default_factory=list)

    @property
    def holds(self) -> frozenset[Place]:
        """What it may read as a member."""
        return frozenset() if self.is_removed else self.owned


class ConsumerGroupLaws(RuleBasedStateMachine):
    """Four processes, of which two are static members, and the topics that they read."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = Groups(SETTINGS)
        self.topics = {name: (f"{name}-1", 3) for name in TOPICS}
        self.processes = 0
        self.clients = [self.process(instance) for instance in (None, None, "i1", "i2")]
        self.checked = 0
        self.epochs = (0, 0)
        self.members: dict[str, int] = {}

    def process(self, instance_id: str | None) -> Client:
        self.processes += 1
        return Client(instance_id, f"m{self.processes}")

    @property
    def group(self) -> ConsumerGroup | None:
        return self.groups.machine._consumers.get(GROUP)

    # ------------------------------------------------------------ requests and answers

    def heartbeat(self, client: Client, epoch: int) -> Heartbeat:
        client.sequence += 1
        says_all = client.says_all or epoch == 0
        message = message_of(
            ConsumerGroupHeartbeatRequest,
            member_id=client.member_id,
            member_epoch=epoch,
            sequence=client.sequence,
            client_id="client",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            max_wait_ms=WAIT_MS if epoch > 0 else 0,
            subscribed_topics=client.topics if says_all else None,
            server_assignor=None,
            owned=grouped(client.owned) if epoch >= 0 else None,
            group_instance_id=client.instance_id,
        )
        return Received(message=message, cause="test", request=0, now_ms=self.groups.now_ms)

    def send(self, event: Heartbeat) -> Heartbeat:
        """Send a heartbeat; a refused one has changed nothing."""
        groups = self.groups
        groups.request += 1
        event = replace(event, request=groups.request, now_ms=groups.now_ms)
        log, sessions = len(groups.log), self.sessions()
        groups.step(event)
        if groups.code(event.request) not in (None, 0):
            assert len(groups.log) == log, "a refused request has left records"
            assert self.sessions() == sessions, "a refused request counts as a sign of life"
        self.follow_log()
        return event

    def sessions(self) -> object:
        return None if self.group is None else deepcopy(self.group.sessions)

    def collect(self) -> None:
        """Let every client read the answer to its heartbeat."""
        for client in self.clients:
            event = client.waiting
            if event is None or (code := self.groups.code(event.request)) is None:
                continue
            client.waiting = None
            if code == 0:
                _, epoch, rows = cast(
                    "tuple[str, int, list[tuple[str, str, list[int]]] | None]", self.groups.reply(event.request)
                )
                client.epoch, client.says_all = epoch, False
                if self.group is not None and client.member_id in self.group.members:
                    client.is_removed = False  # a heartbeat that came twice has made it a member again
                if rows is not None:
                    client.assigned = frozenset(
                        Place(topic_id, topic, number) for topic_id, topic, numbers in rows for number in numbers
                    )
                continue
            client.says_all = True
            if code in (FencedMemberEpoch.code, UnknownMemberId.code, FencedInstanceId.code):
                assert client.is_removed or event.message.member_epoch == 0, f"{client.member_id} was not removed"
                client.epoch, client.is_removed = 0, False
                client.assigned = client.owned = frozenset()
            if code == FencedInstanceId.code:
                self.clients[self.clients.index(client)] = self.process(client.instance_id)

    def follow_log(self) -> None:
        """Epochs do not fall; a client whose member was removed holds nothing as a member."""
        for key, value in self.groups.log[self.checked :]:
            record = GROUP_ROWS.read(key, value)
            if isinstance(record, Tombstone) and record.kind is EpochsChanged:
                self.epochs = (0, 0)
            elif isinstance(record, EpochsChanged):
                assert record.epoch >= self.epochs[0], "the group's epoch falls"
                assert record.target_epoch >= self.epochs[1], "the target's epoch falls"
                self.epochs = record.epoch, record.target_epoch
            elif isinstance(record, CurrentChanged) and record.epoch != AWAY_EPOCH:
                assert record.epoch >= self.members.get(record.member_id, 0), "a member's epoch falls"
                self.members[record.member_id] = record.epoch
            elif isinstance(record, Tombstone) and record.kind is MemberChanged:
                member_id = str(record.key[1])
                self.members.pop(member_id, None)
                for client in self.clients:
                    client.is_removed |= client.member_id == member_id and client.epoch > 0
        self.checked = len(self.groups.log)

    # ------------------------------------------------------------ what members do

    @rule(place=PLACES)
    def beat(self, place: int) -> None:
        """Join, or report what is held; a heartbeat that is still waited for is given up."""
        client = self.clients[place]
        client.says_all |= client.waiting is not None
        client.waiting = self.send(self.heartbeat(client, client.epoch))
        client.sent = [*client.sent[-5:], client.waiting]
        self.collect()

    @rule(place=PLACES)
    def follow(self, place: int) -> None:
        """Give up what the assignment does not list, and take what it does."""
        client = self.clients[place]
        if client.epoch > 0:
            client.owned = client.assigned

    @rule(places=st.sets(PLACES, min_size=1))
    def take_part(self, places: set[int]) -> None:
        """Some members do what their poll loops do, for a while."""
        for _ in range(2):
            for place in sorted(places):
                self.beat(place)
                self.follow(place)
            self.tick(150)

    @rule(place=PLACES)
    def lose_answer(self, place: int) -> None:
        """The connection breaks: what was decided for its heartbeat is lost, or will be."""
        client = self.clients[place]
        waiting, client.waiting = client.waiting, None
        if waiting is not None:
            self.groups.drop(waiting.request)
        event = self.send(self.heartbeat(client, client.epoch))
        self.groups.drop(event.request)
        client.says_all = True
        self.collect()

    @precondition(lambda self: any(client.sent for client in self.clients))
    @rule(place=PLACES, back=st.integers(0, 5))
    def repeat(self, place: int, back: int) -> None:
        """A heartbeat comes again, from a connection that was given up; the member does not see its answer."""
        client = self.clients[place]
        if client.sent:
            before = client.waiting
            self.send(client.sent[back % len(client.sent)])
            client.waiting = before
            client.says_all = True
            self.collect()

    @rule(place=PLACES, topics=st.sets(st.sampled_from(TOPICS), min_size=1))
    def subscribe(self, place: int, topics: set[str]) -> None:
        client = self.clients[place]
        client.topics, client.says_all = tuple(sorted(topics)), True

    @rule(place=PLACES, for_good=st.booleans())
    def leave(self, place: int, for_good: bool) -> None:
        """It gives everything up and leaves; of a static member the place may stay."""
        client = self.clients[place]
        if client.epoch > 0:
            client.owned = frozenset()
            stays = client.instance_id is not None and not for_good
            self.send(self.heartbeat(client, AWAY_EPOCH if stays else LEAVE_EPOCH))
        self.clients[place] = self.process(client.instance_id)

    @rule(place=PLACES)
    def die(self, place: int) -> None:
        """A process is killed, and started again."""
        client = self.clients[place]
        if client.waiting is not None:
            self.groups.drop(client.waiting.request)
        self.clients[place] = self.process(client.instance_id)

    @rule(place=PLACES)
    def remove(self, place: int) -> None:
        """An administrator removes a member."""
        if self.group is not None:
            self.groups.leave((self.clients[place].member_id, self.clients[place].instance_id))
            self.follow_log()
            self.collect()

    # ------------------------------------------------------------ topics, time, the coordinator

    @rule(topic=st.sampled_from(TOPICS), change=st.sampled_from(["grow", "make again", "delete"]))
    def change_topic(self, topic: str, change: str) -> None:
        topic_id, count = self.topics.get(topic, (f"{topic}-0", 0))
        if change == "delete":
            self.topics.pop(topic, None)
        elif change == "grow":
            self.topics[topic] = topic_id, min(8, count + 1)
        else:
            self.topics[topic] = f"{topic}-{self.groups.request + 2}", 3

    @rule()
    def look_up(self) -> None:
        found = {name: facts for name, facts in self.topics.items() if facts[1]}
        self.groups.notice(TopicsSeen, requested=list(TOPICS), topics=found)
        self.follow_log()
        self.collect()

    @rule(after_ms=st.sampled_from([0, 50, 150, 600, 2_000, 6_000]))
    def tick(self, after_ms: int) -> None:
        self.groups.tick(after_ms)
        self.follow_log()
        self.collect()

    @rule()
    def restart_coordinator(self) -> None:
        """The coordinator dies, and with it the heartbeats that wait there or are on their way to it."""
        before = self.groups
        self.groups = before.restarted(now_ms=before.now_ms + 1)
        self.groups.request = before.request
        for client in self.clients:
            client.says_all |= client.waiting is not None
            client.waiting = None
            client.sent = []

    # ------------------------------------------------------------ laws

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        held = [place for client in self.clients for place in client.holds]
        assert len(held) == len(set(held)), f"two members hold {sorted(x for x in held if held.count(x) > 1)}"

    @invariant()
    def replaying_the_log_gives_an_equal_machine(self) -> None:
        assert self.groups.restarted().machine.hard_state() == self.groups.machine.hard_state()

    def teardown(self) -> None:
        """Once all members beat in time and nothing else happens, all have their targets and all is read."""
        for _ in range(QUIET_ROUNDS):
            self.look_up()
            for place in range(len(self.clients)):
                self.beat(place)
                self.follow(place)
            self.tick(200)
            self.a_partition_has_one_owner()
        group = self.group
        assert group is not None
        assert group.state == "Stable"
        for client in self.clients:
            assert client.owned == group.target(client.member_id), f"{client.member_id} is not at its target"
        wanted = {topic for client in self.clients for topic in client.topics}
        every = [
            Place(topic_id, name, number)
            for name, (topic_id, count) in self.topics.items()
            if name in wanted
            for number in range(count)
        ]
        assert sorted(place for client in self.clients for place in client.holds) == sorted(every)


TestConsumerGroupLaws = ConsumerGroupLaws.TestCase
TestConsumerGroupLaws.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def shares_late(laws: ConsumerGroupLaws) -> None:
    """A member joins, and the one that had everything is slow to give its share up."""
    laws.look_up()
    laws.take_part({0})
    laws.take_part({1})


def loses_an_answer(laws: ConsumerGroupLaws) -> None:
    """The answer with a member's next epoch is lost, and it repeats the last one that it knows."""
    laws.look_up()
    laws.take_part({0})
    laws.lose_answer(0)
    laws.change_topic("flights", "grow")
    laws.look_up()
    laws.tick(150)
    laws.lose_answer(0)
    laws.beat(0)


def confirms_late(laws: ConsumerGroupLaws) -> None:
    """A heartbeat from before a member held anything comes again while it has to give partitions up."""
    laws.look_up()
    laws.take_part({1})
    laws.beat(0)
    laws.beat(0)
    laws.take_part({0, 1})
    laws.follow(0)
    laws.beat(2)
    laws.tick(150)
    laws.repeat(0, 1)
    laws.beat(2)
    laws.follow(2)


Story = Callable[[ConsumerGroupLaws], None]


def play(story: Story) -> None:
    laws = ConsumerGroupLaws()
    story(laws)
    laws.a_partition_has_one_owner()
    laws.teardown()


STORIES: dict[str, tuple[Story, object, str, tuple[str, str]]] = {
    "a partition goes on before its owner has given it up": (
        shares_late,
        heartbeats,
        "next_current",
        ("owners.get(place, current.member_id) == current.member_id", "True"),
    ),
    "a heartbeat that says nothing confirms": (
        shares_late,
        heartbeats,
        "_still_holds",
        ("owned is None or any", "owned is not None and any"),
    ),
    "a lost answer costs the membership": (
        loses_an_answer,
        heartbeats,
        "epoch_error",
        ("message.member_epoch == current.previous_epoch", "False"),
    ),
    "an old heartbeat counts": (
        confirms_late,
        ConsumerGroups,
        "_member_error",
        ("message.sequence <= group.sessions[message.member_id].sequence", "False"),
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_the_laws_hold_in_each_story_and_catch_its_planted_bug(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    story, target, attribute, texts = STORIES[name]
    play(story)
    monkeypatch.setattr(target, attribute, Edit(*texts).of(getattr(target, attribute)))
    with pytest.raises((AssertionError, InvariantBroken)):
        play(story)
