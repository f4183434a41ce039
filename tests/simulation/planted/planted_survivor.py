"""Planted bugs around the last replica of a partition, the persisted high watermark (ADR 0025), and disks that hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raylog.core.ids import Offset
from raylog.core.outbox import Outbox
from raylog.core.replication import leader as leader_module
from raylog.core.replication import watermark as watermark_module
from raylog.core.replication.disk import DiskHealth
from raylog.core.replication.events import Effect
from raylog.core.replication.leader import Leader
from tests.simulation.partition.disk import VirtualLog
from tests.simulation.planted.bugs import Planted

Rule = Callable[..., Offset]


def _never_claim(self: Leader, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
    """A last replica waits until others return, as the leaders of Kafka do."""


def _beside_eligible(original: Rule) -> Rule:
    def committed_end(**known: Any) -> Offset:
        return original(**(known | {"eligible": False}))

    return committed_end


def _whatever_comes(original: Rule) -> Rule:
    def committed_end(**known: Any) -> Offset:
        return original(**(known | {"epoch_start": Offset(1 << 60)}))

    return committed_end


def _keep_log_end(self: VirtualLog, watermark: int) -> None:
    self.kept_watermark = self.end


SURVIVOR_BUGS = (
    Planted(
        "the last replica does not ask to be the only one that may lead",
        "survivor",
        20,
        ("L4",),
        Leader,
        "claim",
        _never_claim,
    ),
    Planted(
        "what the last replica has is shown while others may lead",
        "survivor",
        20,
        ("I7",),
        leader_module,
        "committed_end",
        _beside_eligible(watermark_module.committed_end),
    ),
    Planted(
        "the last replica commits what comes in",
        "survivor",
        20,
        ("I4",),
        leader_module,
        "committed_end",
        _whatever_comes(watermark_module.committed_end),
    ),
    Planted(
        "a leader does not mind that its disk hangs",
        "hanging",
        20,
        ("L5",),
        DiskHealth,
        "look",
        lambda self, now_ms, sync_since_ms, limit_ms: None,
    ),
    Planted(
        "the log end is kept for the high watermark",
        "reboot",
        20,
        ("I2", "I4"),
        VirtualLog,
        "keep_watermark",
        _keep_log_end,
    ),
)
