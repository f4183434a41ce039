"""Bugs planted in the forwarder's machine: random histories notice each within a stated number of seeds."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from raylog.base.invariants import InvariantBroken
from raylog.core.forwarding import machine, plan
from raylog.core.forwarding.machine import ForwarderMachine
from tests.property.forwarding.test_forwarder import Story
from tests.simulation.planted.bugs import Edit

SEEDS = 300
STEPS = 200
BUGS = {
    "a decision is sent before it is stored": (
        ForwarderMachine,
        "_save",
        "self._out.now.append(ev.Save(self.progress))",
        "self._out.now.append(ev.Save(self.progress)); self._send_all(0); self.stage = Stage.SAVING",
    ),
    "a sixth piece is sent in a turn": (ForwarderMachine, "_due", "PIECES_MAX", "50"),
    "records go before they are due": (
        ForwarderMachine,
        "_due",
        "max(piece.due_ms, self._allowed_ms) > now_ms",
        "max(piece.due_ms, self._allowed_ms) > now_ms + 4",
    ),
    "a successor begins behind what was decided": (
        ForwarderMachine,
        "_loaded",
        "self.progress = self._saved = event.progress",
        "self.progress = self._saved = replace(event.progress, position=event.progress.decided_end)",
    ),
    "only the first parcel of a deleted topic is sent another way": (
        ForwarderMachine,
        "_other_way",
        "for parcel in others:",
        "for parcel in ():",
    ),
    "a parcel in trouble is done with": (
        ForwarderMachine,
        "_not_arrived",
        "lane.failed(parcel.base_sequence, trouble, event.now_ms)",
        "lane.stored(parcel.base_sequence)",
    ),
    "sequences begin again in each turn": (
        plan,
        "after",
        "behind = sequence_after(parcel.base_sequence, len(parcel.offsets))",
        "behind = found[parcel.route].next_sequence",
    ),
    "a refused parcel condemns all its records": (machine, "_refused", "if not half:", "if True:"),
    "the second half of a refused parcel is left out": (machine, "_refused", "span in halves", "span in halves[:1]"),
    "what is to be sent later is forgotten": (
        ForwarderMachine,
        "_finish_turn",
        "in self._later.get(route, ())",
        "in ()",
    ),
    "what is sent another way is not stored": (
        ForwarderMachine,
        "_finish_turn",
        "self._resolve()",
        "self._send_all(now_ms)",
    ),
}


def noticed(seed: int) -> bool:
    """Whether a history shows that something is wrong."""
    try:
        story = Story(seed)
        for _ in range(STEPS):
            story.step()
        story.finish()
        story.check()
    except (AssertionError, InvariantBroken, KeyError, IndexError, RuntimeError):
        return True
    return False


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(name: str) -> None:
    target, attribute, *texts = BUGS[name]
    changed: Any = Edit(*texts).of(getattr(target, attribute))
    with patch.object(target, attribute, changed):
        if target is plan:
            with patch.object(machine, attribute, changed):
                assert any(noticed(seed) for seed in range(SEEDS)), f"{SEEDS} histories did not notice that {name}"
            return
        assert any(noticed(seed) for seed in range(SEEDS)), f"{SEEDS} histories did not notice that {name}"
