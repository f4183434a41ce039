"""Whatever sizes records have and whatever targets refuse: nothing waits for good, is lost, or overtakes.

Rules D3, D4, D12 and D13 (docs/adr/0096). Sizes are drawn up to each limit and past it: that of a batch,
that of a target's topic, what one turn reads. Some records are refused for good by their targets. Owners are replaced,
targets are away, and everything may be due in one millisecond.
"""

import random

from raylog.core.scheduling.machine import EPOCHS
from raylog.core.scheduling.rows import LaneId
from tests.unit.core.scheduling.desk import Desk, Partition, with_settings

BATCH_BYTES = 400
LANES: tuple[LaneId, ...] = (("tttt", 0), ("tttt", 1), ("oooo", 0))
DEAD: LaneId = ("undeliverable", 0)


class SizeStory:
    """One random history, and what has to be true of it."""

    def __init__(self, seed: int) -> None:
        self.random = chance = random.Random(seed)
        self.desk = desk = with_settings(
            batch_bytes=BATCH_BYTES, batch_keys=chance.choice((4, 16)), round_keys=chance.choice((8, 40))
        )
        desk.targets = {lane: Partition(limit_bytes=chance.choice((100, 350, 5_000))) for lane in LANES}
        desk.targets[DEAD] = Partition()
        desk.read_bytes = chance.choice((1, 300, 2_000, 1 << 20))
        desk.holds = True
        self.has_poison = seed % 3 != 0
        self.poison: set[int] = set()
        self.due: dict[int, int] = {}
        self.replacements = 0

    def step(self) -> None:
        desk, chance = self.desk, self.random
        match chance.randrange(8):
            case 0 | 1 | 2:
                self.schedule()
            case 3:
                desk.tick(chance.choice((1, 10, 60)))
            case 4 | 5:
                desk.release(chance.choice((1, 2, None)))
            case 6:
                target = desk.targets[chance.choice(LANES)]
                target.is_up = not target.is_up
            case _ if chance.random() < 0.3:
                desk.replace_owner()
                self.replacements += 1
            case _:
                desk.release()

    def schedule(self) -> None:
        desk, chance = self.desk, self.random
        lane = chance.choice(LANES)
        target = desk.targets[lane]
        due = desk.now_ms + chance.choice((0, 0, 30))
        count = chance.choice((1, 5, 30))
        near = (1, 30, target.limit_bytes // 2, target.limit_bytes, BATCH_BYTES, target.limit_bytes + 1)
        for offset in range(desk.end, desk.end + count):
            size = max(1, chance.choice(near) - chance.choice((0, 0, 1)))
            desk.size_of[offset] = size if self.has_poison else min(size, target.limit_bytes)
            if self.has_poison and chance.random() < 0.05:
                target.refuses.add(offset)
            if offset in target.refuses or desk.size_of[offset] > target.limit_bytes:
                self.poison.add(offset)
            self.due[offset] = due
        desk.schedule(*[due] * count, to=lane)

    def finish(self) -> None:
        desk = self.desk
        for target in desk.targets.values():
            target.is_up = True
        desk.holds = False
        while desk.held:
            desk.release()
        desk.run(60_000)
        found = desk.everywhere()
        assert len(found) == len(set(found)), "D4: a record came twice"
        assert set(found) == set(self.due), "D3: a record never came"
        assert set(desk.got(DEAD)) == self.poison, "D13: others than those to blame are undeliverable"
        for batch in desk.batches:
            assert len(batch.keys) == 1 or desk.bytes_of(batch) <= BATCH_BYTES, "D12: a batch is too large"
        for lane in LANES:
            got = [(due, offset) for offset, due in desk.targets[lane].records]
            late = [offset for _, offset in got]
            assert all(self.due[offset] == due for due, offset in got)
            self.check_order(late)
        refusals = sum(target.refusals for target in desk.targets.values())
        most = (len(self.poison) + self.replacements) * 12 if self.has_poison else 0
        assert refusals <= most, f"D13: {refusals} refusals for {len(self.poison)} records to blame"
        assert desk.machine.pending.count == 0
        assert all(lane.is_done and not lane.parts and not lane.sizes for lane in desk.machine.lanes.values())

    def check_order(self, offsets: list[int]) -> None:
        """What was due in one millisecond and stored in order arrives in order."""
        last: dict[int, int] = {}
        for offset in offsets:
            due = self.due[offset]
            assert last.get(due, -1) < offset, "D13: a record has overtaken another"
            last[due] = offset


def test_sizes_refusals_and_order() -> None:
    for seed in range(400):
        story = SizeStory(seed)
        try:
            for _ in range(60):
                story.step()
            story.finish()
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken


def test_epochs_that_are_used_up_are_followed_by_another_producer() -> None:
    desk = Desk()
    target = desk.targets[("tttt", 0)]
    desk.schedule(1_000, 1_001)
    desk.run(1_000)
    lane = desk.machine.lanes[("tttt", 0)]
    lane.epoch = target.epoch = before = EPOCHS - 1
    poison = desk.end + 1
    target.refuses.add(poison)
    desk.schedule(*[desk.now_ms] * 4)
    desk.run(5_000)
    assert lane.epoch > before
    assert desk.machine.writer(before) == (7, EPOCHS - 1)
    assert desk.machine.writer(EPOCHS) == (8, 0)
    assert desk.got(DEAD) == [poison]
    while desk.machine._checkpoint_number == 0:
        desk.schedule(desk.now_ms)
        desk.run(1_000)
    desk.replace_owner()
    assert desk.machine.producer_ids == [7, 8], "a checkpoint knows both"
