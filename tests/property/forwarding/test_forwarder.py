"""Whatever owners, targets and the network do: each record arrives once, in order, and not before its time.

An owner is replaced at any moment, its last progress stored or not; what it sent arrives late, twice or never. Topics
are deleted and created again, targets are away, and refuse records.
"""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.core.forwarding import events as ev
from raylog.core.forwarding.machine import ForwarderSettings
from raylog.core.lane import Trouble
from tests.unit.core.forwarding.desk import Desk, size_of

TOPICS = ("a", "b")
LIMITS = (5, 14, 30, 1_000)
"""Of targets: below some records, above each, above some pieces, above all."""


class Story:
    """One random history, and what has to be true of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.desk = Desk(ForwarderSettings(rate=self.random.choice([0, 0, 50])))
        for name in TOPICS:
            self.desk.add_topic(name).limit = self.random.choice(LIMITS)
        self.desk.targets["dead"].limit = self.random.choice(LIMITS)
        self.strays: list[ev.Parcel] = []
        self.due_ms: dict[int, int] = {}
        self.seen: dict[str, int] = {}
        self.generation = 0
        self.deleted: list[list[int]] = []
        self.desk.begin()

    def step(self) -> None:
        desk, chance = self.desk, self.random
        match chance.randrange(14):
            case 0 | 1 | 2:
                self.add()
            case 3 | 4 | 5 | 6 | 7:
                if desk.todo:
                    self.work()
            case 8:
                desk.now_ms += chance.randrange(200)
                due_ms = desk.machine.next_ms()
                if due_ms is not None and due_ms <= desk.now_ms:
                    desk.feed(ev.Tick(now_ms=desk.now_ms))
            case 9:
                desk.begin()
            case 10:
                self.stray()
            case 11:
                desk.targets[desk.topics.get((chance.choice(TOPICS), 0), "dead")].is_reachable = chance.random() < 0.6
            case 12 if chance.random() < 0.15:
                self.recreate(chance.choice(TOPICS))
            case 13:
                target = desk.targets[desk.topics.get((chance.choice(TOPICS), 0), "dead")]
                if target is not desk.targets["dead"] and chance.random() < 0.2:
                    target.refuses |= {desk.log_end + chance.randrange(5)}

    def add(self) -> None:
        desk, chance = self.desk, self.random
        due_ms = desk.now_ms + chance.randrange(150)
        names = chance.choice([(), ("a",), ("b",), ("a", "b"), ("a", "gone"), ("__undeliverable", "gone", "b")])
        first = desk.log_end
        desk.add_piece(chance.choice((1, 1, 2, 3, 8)), *names, due_ms=due_ms if names else 0)
        for offset in range(first, desk.log_end):
            self.due_ms[offset] = due_ms

    def work(self) -> None:
        """Carry out one effect of any that are to be done, as the network has it."""
        desk, chance = self.desk, self.random
        desk.todo.rotate(-chance.randrange(len(desk.todo)))
        effect = desk.todo[0]
        if isinstance(effect, ev.Save) and chance.random() < 0.1:
            desk.progress = effect.progress  # it is stored, and the owner dies before it knows
            desk.begin()
        elif isinstance(effect, ev.Send) and chance.random() < 0.4:
            desk.todo.popleft()
            parcel = effect.parcel
            if chance.random() < 0.5:
                desk.append(parcel)
            self.strays.append(parcel)
            desk.feed(ev.NotSent(now_ms=desk.now_ms, route=parcel.route, trouble=Trouble.UNREACHABLE))
        else:
            desk.work()
        self.check_new()

    def stray(self) -> None:
        if self.strays:
            parcel = self.random.choice(self.strays)
            self.desk.append(parcel)
            self.check_new()

    def recreate(self, name: str) -> None:
        self.deleted.append(list(self.desk.holds(self.desk.topics[name, 0])))
        self.desk.delete_topic(name)
        self.generation += 1
        self.desk.add_topic(name, f"{name}{self.generation}").limit = self.random.choice(LIMITS)

    def check_new(self) -> None:
        for topic_id, target in self.desk.targets.items():
            for offset in target.records[self.seen.get(topic_id, 0) :]:
                assert self.due_ms[offset] <= self.desk.now_ms, f"{offset} came before it was due"
            self.seen[topic_id] = len(target.records)

    def finish(self) -> None:
        desk = self.desk
        for target in desk.targets.values():
            target.is_reachable = True
        desk.begin()
        desk.pass_time(10_000_000)
        for _ in range(20):
            self.stray()
        self.check_new()

    def check(self) -> None:
        """Each record that does not stay is in one target, once; those of a deleted topic may be anywhere."""
        expected = {offset for piece in self.desk.pieces for _, offsets in piece.parts for offset in offsets}
        held = [offset for target in self.desk.targets.values() for offset in target.records]
        assert len(held) == len(set(held)) or self.deleted, "a record arrived twice"
        lost = {offset for records in self.deleted for offset in records}
        assert set(held) | lost == expected, f"missing {sorted(expected - set(held) - lost)}"
        if not self.deleted:
            self.check_dead()
        for topic_id, target in self.desk.targets.items():
            assert len(target.records) == len(set(target.records)), f"{topic_id} has a record twice"
            if topic_id != "dead":
                assert target.records == sorted(target.records), f"{topic_id} is out of order"

    def check_dead(self) -> None:
        """What its target takes alone is there; what ``__undeliverable`` takes has its body there."""
        dead = self.desk.targets["dead"]
        for piece in self.desk.pieces:
            for (name, _), offsets in piece.parts:
                target = self.desk.targets.get(name)
                for offset in set(dead.records).intersection(offsets):
                    size = size_of(offset)
                    assert target is None or size > target.limit or offset in target.refuses, f"{offset} was refused"
                    assert (offset in dead.bare) == (size > dead.limit), f"{offset} lost its body, or keeps it"


def play(seed: int, steps: int = 250) -> None:
    """Play one history, and check it."""
    story = Story(seed)
    for _ in range(steps):
        story.step()
    story.finish()
    story.check()


@given(seed=st.integers(0, 1 << 40))
@settings(max_examples=200, deadline=None)
def test_each_record_arrives_once_in_order_and_in_time(seed: int) -> None:
    play(seed)
