"""Whatever owners, senders, checkers and targets do: a half message has one outcome, and is checked until it has one.

Rules H1 to H4 (docs/protocol.md, W60 to W63). Owners are replaced at any moment, with their last row committed or lost;
decisions are repeated, contradicted, and answered late.
"""

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.core.scheduling.envelope import HalfOutcome
from raylog.core.scheduling.events import Append, Deliver
from raylog.core.scheduling.halves import HalfPolicy, Unresolved
from raylog.core.scheduling.rows import HalfDecision, Verdict
from tests.unit.core.scheduling.desk import Desk, Partition

LANES = (("tttt", 0), ("tttt", 1), ("oooo", 0))
GROUP = "g"
POLICIES = (
    HalfPolicy(100, 3, Unresolved.HOLD),
    HalfPolicy(100, 2, Unresolved.ROLLBACK),
    HalfPolicy(100, 2, Unresolved.DEAD_LETTER),
)
VERDICTS = (Verdict.COMMIT, Verdict.ROLLBACK)


@dataclass
class Known:
    """One half message, as its sender knows it."""

    txid: str
    offsets: list[int] = field(default_factory=list)
    outcome: HalfOutcome | None = None
    """What was answered first."""
    wanted: set[Verdict] = field(default_factory=set)
    """What was ever stated about it."""
    queried: set[int] = field(default_factory=set)
    """The checks that a member was queried for."""

    @property
    def name(self) -> tuple[str, str]:
        return GROUP, self.txid


class HalfStory:
    """One random history, and what has to be true of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.policy = self.random.choice(POLICIES)
        self.desk = Desk(targets={lane: Partition() for lane in LANES}, policy=self.policy)
        self.desk.holds = True
        self.strays: list[Deliver] = []
        self.halves: list[Known] = []
        self.requested: dict[int, tuple[Known, Verdict]] = {}
        self.queried: list[tuple[Known, int]] = []
        self.late: dict[int, Known] = {}
        """Records that came after an answered decision."""

    def step(self) -> None:
        desk, chance = self.desk, self.random
        match chance.randrange(12):
            case 0 | 1:
                known = Known(f"t{len(self.halves)}")
                self.halves.append(known)
                self.prepare(known)
            case 2 if self.halves:
                self.prepare(chance.choice(self.halves))
            case 3 | 4 if self.halves:
                self.say(chance.choice(self.halves), chance.choice(VERDICTS))
            case 5:
                desk.tick(chance.choice((1, 30, 200)))
            case 6:
                self.query()
            case 7 if self.queried:
                known, check = self.queried.pop(chance.randrange(len(self.queried)))
                self.say(known, Verdict.UNKNOWN, check)
                if chance.random() < 0.3:
                    self.queried.append((known, check))  # the answer is sent once more
            case 8:
                desk.schedule(desk.now_ms + chance.choice((0, 50)), to=chance.choice(LANES))
            case 9:
                target = desk.targets[chance.choice(LANES)]
                target.is_up = not target.is_up
            case 10 if chance.random() < 0.5:
                self.replace_owner()
            case _:
                self.network()
        self.check()

    def prepare(self, known: Known) -> None:
        offsets = self.desk.prepare(known.name, check_after_ms=50, records=self.random.randint(1, 2))
        for offset in offsets:
            self.desk.to[offset] = self.random.choice(LANES)
        if known.outcome is None and known.name in self.desk.machine.halves.held:
            known.offsets += offsets
        else:
            self.late |= dict.fromkeys(offsets, known)

    def say(self, known: Known, verdict: Verdict, check: int = -1) -> None:
        known.wanted.add(verdict)
        self.requested[self.desk.requests + 1] = (known, verdict)
        self.desk.decide(HalfDecision(*known.name, verdict, check))

    def query(self) -> None:
        for half in self.desk.machine.halves.query(GROUP, self.desk.now_ms, 2, 50):
            known = next(known for known in self.halves if known.name == half.id)
            assert known.outcome is None, "H4: it was decided, and is queried about"
            assert half.checks < self.policy.limit, "H4: it is queried about too often"
            self.queried.append((known, half.checks))
            known.queried.add(half.checks)

    def network(self) -> None:
        desk, chance = self.desk, self.random
        if self.strays and chance.random() < 0.3:
            desk.targets[(stray := chance.choice(self.strays)).batch.lane].produce(stray.batch)
        if desk.held:
            if isinstance(desk.held[0], Deliver) and chance.random() < 0.2:
                self.strays.append(desk.held[0])
            desk.release(chance.choice((1, 3)))

    def replace_owner(self) -> None:
        desk, chance = self.desk, self.random
        for effect in desk.held:
            if isinstance(effect, Deliver):
                self.strays.append(effect)
            elif isinstance(effect, Append) and chance.random() < 0.5:
                desk.machine._is_loaded = False
                desk.append(effect.row, effect.value)
        self.requested.clear()
        desk.replace_owner()

    def check(self) -> None:
        """Nothing arrives before it is committed, and every answer says the same."""
        for number, (outcome,) in self.desk.standings.items():
            known, verdict = self.requested.pop(number)
            assert outcome is not HalfOutcome.NOT_FOUND
            if outcome is HalfOutcome.HELD:
                assert verdict is Verdict.UNKNOWN
                assert known.outcome is None
                continue
            assert known.outcome in (None, outcome), f"H2: {known} is {outcome} now"
            known.outcome = outcome
            if outcome is HalfOutcome.COMMITTED:
                assert Verdict.COMMIT in known.wanted
        self.desk.standings.clear()
        arrived = set(self.desk.everywhere())
        for known in self.halves:
            if Verdict.COMMIT not in known.wanted or known.outcome is HalfOutcome.ROLLED_BACK:
                seen = arrived.intersection(known.offsets)
                dead = {offset for offset, _ in self.desk.targets["undeliverable", 0].records}
                assert seen <= dead, f"H1: {known} is visible"
        assert not arrived.intersection(self.late), "H1: a record that came after the decision is visible"

    def finish(self) -> None:
        """Let everything heal, answer every check, and count."""
        desk = self.desk
        for target in desk.targets.values():
            target.is_up = True
        desk.holds = False
        while desk.held:
            desk.release()
        self.queried.clear()  # the members that were queried have stopped
        verdict = self.random.choice((Verdict.COMMIT, Verdict.UNKNOWN))
        for _ in range(20 + 5 * len(self.halves)):
            desk.run(200)
            self.query()
            while self.queried:
                known, check = self.queried.pop()
                self.say(known, verdict, check)
            self.check()
        desk.run(10_000)
        self.check()
        found = desk.everywhere()
        assert len(found) == len(set(found)), "H3: a record came twice"
        for known in self.halves:
            outcome = desk.machine.halves.outcome(known.name)
            if outcome is HalfOutcome.HELD:
                half = desk.machine.halves.held[known.name]
                assert self.policy.on_unresolved is Unresolved.HOLD, "H4: the policy decides"
                assert half.checks >= self.policy.limit, "H4: it was not checked to the end"
                assert half.offsets == known.offsets
                assert half.checks == len(known.queried), "H4: a check was counted that no member was queried for"
            elif outcome is HalfOutcome.COMMITTED:
                assert set(known.offsets) <= set(found), f"H3: {known} was committed"
        assert desk.machine.pending.count == 0


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1 << 40))
def test_a_half_message_has_one_outcome(seed: int) -> None:
    story = HalfStory(seed)
    for _ in range(story.random.choice((20, 60, 150))):
        story.step()
    story.finish()


def test_many_histories_of_half_messages() -> None:
    for seed in range(300):
        story = HalfStory(seed)
        try:
            for _ in range(120):
                story.step()
            story.finish()
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
