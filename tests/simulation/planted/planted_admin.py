"""Planted bugs in the deletion of records and in resignations after a disk failure."""

from __future__ import annotations

from raylog.core.controller.isr_changes import IsrChanges
from raylog.core.replication.deletions import Deletions
from raylog.core.replication.leader import Leader
from tests.simulation.planted.bugs import STORY, Edit, Planted

_COUNTED = "if broker in self._isr.maximal or broker in state.elr or places.get(broker, 0)"
_SETTLE = "self._liveness.settle(state.partition, decision, leaving=place.broker)"
_STAY = """
        after = decision.image.partition(state.partition)
        self._liveness.commit(after, with_isr(after, state.isr), decision)"""

ADMIN_BUGS = (
    Planted(
        "the low watermark does not wait for the ISR",
        "eligible",
        20,
        ("I16",),
        Deletions,
        "_low_watermark",
        Edit(_COUNTED, "if False"),
    ),
    Planted(
        "the low watermark does not wait for eligible replicas",
        "eligible",
        40,
        ("I16",),
        Deletions,
        "_low_watermark",
        Edit(_COUNTED, "if broker in self._isr.maximal"),
    ),
    Planted(
        "a follower joins the ISR with an older log start",
        STORY,
        1,
        ("I16",),
        Leader,
        "_may_join",
        Edit("progress.log_start < self._log.start or ", ""),
    ),
    Planted(
        "the log start moves beyond the high watermark",
        "retention",
        20,
        ("I16",),
        Deletions,
        "on_request",
        Edit("to=before", "to=self._log.durable_end"),
    ),
    Planted(
        "more records are deleted than were requested",
        "retention",
        20,
        ("I16",),
        Deletions,
        "on_request",
        Edit("to=before", "to=min(before + 1, self._log.high_watermark)"),
    ),
    Planted(
        "a leader that resigned stays in the ISR",
        "disk",
        20,
        ("L4",),
        IsrChanges,
        "resign",
        Edit(_SETTLE, _SETTLE + _STAY),
    ),
    Planted(
        "a resignation from an earlier epoch counts",
        STORY,
        1,
        ("L4",),
        IsrChanges,
        "resign",
        Edit("state.leader == place.broker and state.leader_epoch == message.leader_epoch", "len(state.isr) > 1"),
    ),
)
