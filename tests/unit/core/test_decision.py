"""The decision of a step: a record applies at once, is stored first, and appears in a broken invariant's story."""

import pytest

from raylog.base.invariants import InvariantBroken
from raylog.core.decision import STORY_STEPS_MAX, Decision, LoggedDecision, Story


class Ledger(LoggedDecision[str, int]):
    """Stores numbers; effects are text."""

    def _store(self) -> str:
        return f"store {self.records}"


def test_a_record_holds_as_soon_as_it_is_written() -> None:
    held: list[int] = []
    decision = Ledger("test", 5, apply=held.append)
    decision.write(1)
    assert held == [1]
    assert decision.records == [1]


def test_records_are_stored_before_all_other_effects() -> None:
    decision = Ledger("test", 5, apply=lambda _: None)
    decision.now.append("refuse")
    decision.after_sync.append("answer")
    decision.write(1)
    decision.write(2)
    outbox = decision.finish()
    assert outbox.now == ["store [1, 2]", "refuse"]
    assert outbox.after_sync == ["answer"]


def test_a_step_without_records_stores_nothing() -> None:
    decision = Ledger("test", 5, apply=lambda _: None)
    decision.now.append("refuse")
    assert decision.finish().now == ["refuse"]


def test_a_record_that_cannot_be_applied_is_not_written() -> None:
    def apply(record: int) -> None:
        raise ValueError(record)

    decision = Ledger("test", 5, apply=apply)
    with pytest.raises(ValueError, match="7"):
        decision.write(7)
    assert decision.finish().now == []


def test_a_false_claim_shows_the_last_steps() -> None:
    story = Story()
    for number in range(STORY_STEPS_MAX + 1):
        story.append(f"step {number}")
    with pytest.raises(InvariantBroken) as broken:
        Decision[str]("test", 5, story).require(False, "the sky is up")
    assert broken.value.claim == "the sky is up"
    assert broken.value.story[0] == "step 1"
    assert broken.value.story[-1] == f"step {STORY_STEPS_MAX}"
