"""Bugs planted in the scheduler's machine: random histories notice each within a stated number of seeds."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from raylog.base.invariants import InvariantBroken
from raylog.core.lane import Lane
from raylog.core.scheduling import rounds, runs
from raylog.core.scheduling.halves import Halves
from raylog.core.scheduling.lanes import TargetLane
from raylog.core.scheduling.machine import SchedulerMachine
from raylog.core.scheduling.mover import Mover
from raylog.core.scheduling.names import Names
from raylog.core.scheduling.pending import Pending
from raylog.core.scheduling.places import Places
from raylog.core.scheduling.rounds import Rounds
from raylog.core.scheduling.space import Space
from tests.property.scheduling.test_halves import HalfStory
from tests.property.scheduling.test_scheduler import Story
from tests.property.scheduling.test_sizes import SizeStory
from tests.simulation.planted.bugs import Edit

SEEDS = 300
STEPS = 120
DELIVER = "from raylog.core.scheduling import events"
ROUND = "self._append(row, out)"
BUGS = {
    "a round is sent before it is committed": (
        SchedulerMachine,
        "_append_round",
        ROUND,
        f"{DELIVER}; out.now.extend(events.Deliver(batch=batch) for batch in row.batches); {ROUND}",
    ),
    "a sixth batch is opened": (Lane, "room", "BATCHES_MAX", "50"),
    "records are due too early": (Pending, "take_due", "first_after(now_ms)", "first_after(now_ms + 4)"),
    "what is parked is forgotten": (
        Rounds,
        "committed",
        "lane.parked(parked.keys, self._sizes, self._limits.get(lane.id, 0))",
        "pass",
    ),
    "a checkpoint leaves out what waits for a target": (TargetLane, "state", "Keys(self.waiting)", "Keys()"),
    "a checkpoint claims what came while it was appended": (
        SchedulerMachine,
        "checkpoint",
        "covers=self.read_end",
        "covers=self.read_end + 1",
    ),
    "a checkpoint leaves out what is fresh": (SchedulerMachine, "checkpoint", "Keys(sorted(pending.fresh))", "Keys()"),
    "a cancelled record stays in its run": (Pending, "cancel", "self.cut.add(key)", "pass"),
    "a moved record stays at its old time": (SchedulerMachine, "_move", "self._cancel(key)", "Outcome.DONE"),
    "a moved record is forgotten": (SchedulerMachine, "_move", "self.pending.add([key])", "pass"),
    "the frontier stays behind": (Pending, "_pop_before", "self.frontier = sealed", "pass"),
    "a batch is acknowledged that no target has": (
        TargetLane,
        "ack_due",
        "Acked(*self.id, self.epoch, delivered)",
        "Acked(*self.id, self.epoch, self.next_sequence)",
    ),
    "what waits for metadata waits for good": (Rounds, "take", "lane.id[1] == UNKNOWN_PARTITION", "False"),
    "the log is given back too far": (
        SchedulerMachine,
        "needed",
        "for key in self.pending.fresh",
        "for key in ()",
    ),
}
NAME_BUGS = {
    "a record with a name replaces nothing": (
        SchedulerMachine,
        "_named",
        "self._cancel(earlier) is Outcome.DONE",
        "False",
    ),
    "what was replaced while it was taken is sent": (
        Rounds,
        "committed",
        "each.without(cut) for each in row.batches",
        "each for each in row.batches",
    ),
    "what was replaced while it was taken is parked": (
        Rounds,
        "committed",
        "each.without(cut) for each in row.parked",
        "each for each in row.parked",
    ),
    "what is taken and in no row cannot be replaced": (Rounds, "cancel", "key in self.taken", "False"),
    "a name in a run is not found": (Names, "waiting", "self._in_runs(name)", "None"),
    "a moved record loses its name": (SchedulerMachine, "_move", "if name:", "if False:"),
    "a checkpoint leaves names out": (
        SchedulerMachine,
        "checkpoint",
        "named, replaced = self.names.state()",
        "named, replaced = (), ()",
    ),
    "a filter leaves names out": (runs, "encode_names", "for shift in _SHIFTS:", "for shift in _SHIFTS[:2]:"),
    "an exhausted run is forgotten before its round is stored": (
        Pending,
        "_step",
        "self._exhausted.append(offset)",
        "self.runs.pop(offset)",
    ),
    "a run that is moved counts as the newest": (
        Pending,
        "replace_run",
        "self.runs = {each.offset: each for each in runs}",
        "self.runs = {each.offset: each for each in runs if each is not run} | {run.offset: run}",
    ),
    "a parked record loses its name": (
        Rounds,
        "committed",
        "self._names.parked(parked.keys, parked.names)",
        "self._names.forget(parked.keys)",
    ),
}
SPACE_BUGS = {
    "a survey leaves out what is taken meanwhile": (Rounds, "take", "self._mover.kept(due)", "pass"),
    "a survey leaves runs out": (Mover, "_survey", "self._sealed.add(key)", "pass"),
    "a survey leaves lanes out": (
        Rounds,
        "needed",
        "for batch in lane.batches for key",
        "for batch in () for key",
    ),
    "a checkpoint does not know what was moved": (
        SchedulerMachine,
        "checkpoint",
        "space=self.space.state()",
        "space=type(self.space.state())()",
    ),
    "the log begins behind copies": (
        SchedulerMachine,
        "lowest_offset",
        "if space.places.lowest is not None",
        "if False",
    ),
    "the log begins behind a run": (SchedulerMachine, "lowest_offset", "places.append(run.offset)", "pass"),
    "an area counts as treated after its first row": (
        Mover,
        "_of_records",
        "end if len(offsets) <= self._row_records else offsets[self._row_records]",
        "end",
    ),
    "rows that were moved are known at their old places": (
        Space,
        "relocated",
        "self.places.treated(row.replaces, row.upto)",
        "pass",
    ),
    "a row is treated to its end though it has more": (
        Places,
        "treated",
        "if self._lasts[index] < upto:",
        "if True:",
    ),
}


SIZE_BUGS = {
    "what waits counts as nothing": (
        rounds,
        "_chosen",
        "if size is None:\n            break",
        "if size is None:\n            size = 0",
    ),
    "a batch is as large as the target allows": (
        rounds,
        "limit_of",
        "min(batch_bytes, target_bytes - BATCH_HEAD_BYTES)",
        "target_bytes",
    ),
    "the target's own limit is not looked up": (rounds, "limit_of", "stated_bytes or lane.limit_bytes", "0"),
    "what was refused goes behind what waits": (
        TargetLane,
        "_wait_first",
        "self.waiting.extendleft(reversed(keys))",
        "self.waiting.extend(keys)",
    ),
    "a refused batch is undeliverable as a whole": (
        TargetLane,
        "halve",
        "half := split_at(len(batch.keys))",
        "half := 0",
    ),
    "the one to blame is sent again": (SchedulerMachine, "_refused", "self.undeliverable.update(blamed)", "pass"),
    "the one to blame is dropped": (SchedulerMachine, "_refused", "self.pending.add(blamed)", "pass"),
    "what one turn did not read is forgotten": (Rounds, "resolved", "self._pending.add(left)", "pass"),
    "what stood behind a refused batch is dropped": (
        TargetLane,
        "halve",
        "parts.append(batch.keys)",
        "pass",
    ),
    "sizes are never read": (TargetLane, "unsized", "found.append(key)", "pass"),
    "a delivered batch is needed when the next one is refused": (
        SchedulerMachine,
        "_refused",
        "self._done(lane.done(row.delivered_sequence))",
        "lane.done(row.delivered_sequence)",
    ),
}
HALF_BUGS = {
    "a half message is visible at once": (SchedulerMachine, "_data_read", "if due < HELD_MS", "if True"),
    "commit after rollback wins": (
        Halves,
        "decide",
        "outcome, _, records = self.decided.get(name, (HalfOutcome.NOT_FOUND, 0, 0))",
        "records = 0; outcome = HalfOutcome('COMMITTED' if decision.verdict is Verdict.COMMIT else 'ROLLED_BACK')",
    ),
    "a decision is forgotten": (Halves, "decide", "self.decided[name] = (outcome, at_ms, len(half.offsets))", "pass"),
    "a commit releases the first record alone": (
        Halves,
        "decide",
        "tuple(half.offsets) if",
        "tuple(half.offsets[:1]) if",
    ),
    "a rollback releases what it should drop": (
        Halves,
        "decide",
        "if is_committed or is_dead else ()",
        "if True else ()",
    ),
    "a late record joins what was committed": (
        Halves,
        "prepared",
        "if name in self.decided:",
        "if self.decided.get(name, (None, 0))[0] is HalfOutcome.ROLLED_BACK:",
    ),
    "checkpoints leave half messages out": (SchedulerMachine, "checkpoint", "self.halves.state()", "()"),
    "the log is given back below a half message": (
        SchedulerMachine,
        "needed",
        "yield from self.halves.offsets",
        "pass",
    ),
    "a repeated answer counts as another check": (Halves, "_checked", "decision.check != half.checks", "False"),
    "it is never checked again": (Halves, "_checked", "self._schedule(half)", "pass"),
    "a member that does not answer is waited for": (Halves, "query", "now_ms + max(1, lease_ms)", "1 << 60"),
    "a new leader checks nothing": (Halves, "restore", "self._schedule(half)", "pass"),
    "it is queried about above the limit": (Halves, "next_check_ms", "and half.checks < self.policy.limit", ""),
    "nothing is settled by the policy": (Halves, "to_settle", "not self.worn or", "True or"),
}


def noticed(seed: int, kind: type[Story | HalfStory | SizeStory]) -> bool:
    """Whether a history shows that something is wrong."""
    try:
        story = kind(seed)
        for _ in range(STEPS):
            story.step()
        story.finish()
    except (AssertionError, InvariantBroken, KeyError, StopIteration):
        return True
    return False


PLANTED = [
    pytest.param(kind, bug, id=name)
    for kind, bugs in ((Story, BUGS | NAME_BUGS | SPACE_BUGS), (HalfStory, HALF_BUGS), (SizeStory, SIZE_BUGS))
    for name, bug in bugs.items()
]


@pytest.mark.parametrize(("kind", "bug"), PLANTED)
def test_a_planted_bug_is_noticed(kind: type[Story | HalfStory | SizeStory], bug: tuple[Any, ...]) -> None:
    target, attribute, *texts = bug
    changed: Any = Edit(*texts).of(getattr(target, attribute))
    with patch.object(target, attribute, changed):
        assert any(noticed(seed, kind) for seed in range(SEEDS)), f"{SEEDS} histories did not notice it"
