"""Whatever leaders, targets and the network do: each record that was not cancelled arrives once, not before its time.

Rules D1, D3 to D7, D9 and D11 of the scheduler (docs/protocol.md). An owner is replaced at any moment, its last row
committed or lost; what it sent arrives late, twice or never. Records with a name replace each other; what is needed of
the oldest log is moved, and the rest deleted.
"""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.core.scheduling.envelope import name_of
from raylog.core.scheduling.events import Append, Deliver, Outcome
from raylog.core.scheduling.keys import due_of, offset_of
from tests.unit.core.scheduling.desk import RECORD_BYTES, Desk, Partition

NAMES = tuple(name_of("tttt", b"%d" % number) for number in range(12))
LANES = (("tttt", 0), ("tttt", 1), ("oooo", 0))


class Story:
    """One random history, and what has to be true of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.desk = Desk(targets={lane: Partition() for lane in LANES})
        if seed % 10 == 0:
            self.desk.part_bytes = 300  # then most checkpoints have several rows
        self.desk.holds = True
        self.strays: list[Deliver] = []
        self.due: dict[int, int] = {}
        """When the record at an offset is due, by what was answered."""
        self.keys: dict[int, int] = {}
        self.unsure: set[int] = set()
        """Offsets with a request that was never answered."""
        self.requested: dict[int, tuple[str, int]] = {}
        self.cancelled: set[int] = set()
        self.last: dict[int, int] = {}
        """The offset that was sent last under a name."""
        self.replaced: set[int] = set()
        self.delays = self.random.choice(((-5, 0, 3, 20, 200, 2_000), (0, 3, 3, 3, 3, 20, 200, 30_000)))
        self.is_calm = self.random.random() < 0.5
        self.seen = dict.fromkeys(LANES, 0)

    def check_new(self) -> None:
        """Nothing arrives before it is due."""
        for lane, target in self.desk.targets.items():
            for offset, due in target.records[self.seen.get(lane, 0) :]:
                assert due <= self.desk.now_ms, f"D1: {offset} came before it was due"
                assert offset not in self.cancelled, f"D6: {offset} was cancelled"
                assert offset not in self.replaced, f"D7: {offset} was replaced"
            self.seen[lane] = len(target.records)
        for number, outcomes in self.desk.answers.items():
            self.answered(number, outcomes)
        self.desk.answers.clear()

    def answered(self, number: int, outcomes: tuple[tuple[Outcome, int], ...]) -> None:
        kind, offset = self.requested.pop(number)
        ((outcome, key),) = outcomes
        if outcome is Outcome.DONE and kind == "cancel":
            assert offset not in self.desk.everywhere()
            assert offset not in self.replaced, f"D6: {offset} was replaced before"
            self.cancelled.add(offset)
        elif outcome is Outcome.DONE:
            assert offset_of(key) == offset
            self.keys[offset], self.due[offset] = key, due_of(key)

    def step(self) -> None:
        desk, chance = self.desk, self.random
        match chance.randrange(12):
            case 0 | 1 | 2:
                lane = chance.choice(LANES)
                dues = [desk.now_ms + chance.choice(self.delays) for _ in range(chance.randint(1, 6))]
                named = {index: chance.choice(NAMES) for index in range(len(dues)) if chance.random() < 0.3}
                for key in desk.schedule(*dues, to=lane, names=named):
                    self.due[offset_of(key)], self.keys[offset_of(key)] = due_of(key), key
                    self.stored(offset_of(key))
            case 3:
                desk.tick(chance.choice((1, 10, 60)))
            case 4 | 5:
                self.network()
            case 6 if self.keys:
                offset = chance.choice(list(self.keys))
                self.requested[desk.requests + 1] = ("cancel", offset)
                desk.cancel(self.keys[offset])
            case 7 if self.keys:
                offset = chance.choice(list(self.keys))
                self.requested[desk.requests + 1] = ("move", offset)
                desk.move(self.keys[offset], desk.now_ms + chance.choice((0, 5, 500)))
            case 8:
                target = desk.targets[chance.choice(LANES)]
                target.is_up = not target.is_up
            case 9:
                lane = chance.choice(LANES)
                desk.unplaced.symmetric_difference_update({lane})
            case 10:
                self.replace_owner()
            case _:
                self.calm()
        if self.is_calm and chance.random() < 0.5:
            self.calm()
        self.check_new()

    def calm(self) -> None:
        """Let everything be carried out for a while: then there is time to move records."""
        desk = self.desk
        desk.holds = False
        for _ in range(5):
            desk.release()
        desk.run(self.random.choice((1, 40)))
        desk.holds = True

    def stored(self, offset: int) -> None:
        """A record was acknowledged; under a name it may have replaced the last one."""
        name = self.desk.name_of.get(offset)
        if name is None:
            return
        before, self.last[name] = self.last.get(name), offset
        if before is not None and self.certainly_waits(before):
            assert self.desk.machine.names.replaced[offset], f"D7: {before} waits, and {offset} did not replace it"
        if self.desk.machine.names.replaced[offset]:
            assert before is not None, "D7: something was replaced that was never sent"
            assert before not in self.desk.everywhere(), f"D7: {before} was replaced after it had arrived"
            assert before not in self.cancelled, f"D7: {before} was cancelled, and replaced after that"
            self.replaced.add(before)

    def certainly_waits(self, offset: int) -> bool:
        """Whether a record is not due, and no request about it is open."""
        unsure = self.unsure | {each for _, each in self.requested.values()}
        return self.due[offset] > self.desk.now_ms and offset not in self.cancelled | self.replaced | unsure

    def network(self) -> None:
        """One thing that is held is carried out; a delivery may be lost on the way there or on the way back."""
        desk, chance = self.desk, self.random
        if self.strays and chance.random() < 0.3:
            desk.targets[(stray := chance.choice(self.strays)).batch.lane].produce(stray.batch)
        if not desk.held:
            return
        effect = desk.held[0]
        if isinstance(effect, Deliver) and chance.random() < 0.2:
            self.strays.append(effect)
        desk.release(1)

    def replace_owner(self) -> None:
        desk, chance = self.desk, self.random
        for effect in desk.held:
            if isinstance(effect, Deliver):
                self.strays.append(effect)
            elif isinstance(effect, Append) and chance.random() < 0.5:
                desk.machine._is_loaded = False  # it decides nothing any more
                desk.dies_at_piece = len(desk.log) % 4
                desk.append(effect.row, effect.value)
                desk.dies_at_piece = -1
        for _, offset in self.requested.values():
            self.unsure.add(offset)
            self.keys.pop(offset, None)
        self.requested.clear()
        desk.replace_owner()

    def finish(self) -> None:
        """Let everything heal, and count."""
        desk = self.desk
        for target in desk.targets.values():
            target.is_up = True
        desk.unplaced.clear()
        desk.holds = False
        while desk.held:
            desk.release()
        desk.run(40_000)
        self.check_new()
        found = desk.everywhere()
        assert len(found) == len(set(found)), "D4: a record came twice"
        missing = set(self.due) - set(found) - self.cancelled - self.replaced - self.unsure
        assert not missing, f"D3: {sorted(missing)} never came"
        assert not (self.cancelled | self.replaced) & set(found)
        for target in desk.targets.values():
            for offset, due in target.records:
                if offset not in self.unsure:
                    assert due == self.due[offset], "D7: the last time counts"
        assert all(lane.is_done for lane in desk.machine.lanes.values()), "D3: something waits for its target"
        self.check_space()
        assert desk.machine.pending.count == 0

    def check_space(self) -> None:
        """What no record needs is given back, and no more was copied than that and what the log may have."""
        desk, settings = self.desk, self.desk.settings
        freed, size = RECORD_BYTES * desk.start, desk.machine.space.size
        assert desk.copied_bytes <= freed + settings.space_min_bytes, "D11: more is copied than given back"
        most = settings.space_min_bytes + settings.checkpoint_bytes + 2 * settings.stretch_bytes
        most += 3 * desk.machine._checkpoint_bytes  # it is there, and is not written again for less than twice its size
        assert size <= most, f"D11: nothing waits, and the log has {size} bytes"


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 40))
def test_every_record_arrives_once_at_its_time(seed: int) -> None:
    story = Story(seed)
    for _ in range(story.random.choice((20, 60, 150))):
        story.step()
    story.finish()


def test_many_histories() -> None:
    """More of them, without what finding a smaller example costs."""
    for seed in range(400):
        story = Story(seed)
        try:
            for _ in range(120):
                story.step()
            story.finish()
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
