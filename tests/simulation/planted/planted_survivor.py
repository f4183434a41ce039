"""Planted bugs around the last replica of a partition, the persisted high watermark (ADR 0025), and disks that hang."""

from __future__ import annotations

from raylog.core.replication import leader as leader_module
from raylog.core.replication.disk import DiskHealth
from raylog.core.replication.leader import Leader
from tests.simulation.partition.disk import VirtualLog
from tests.simulation.planted.bugs import Edit, Planted, nothing

SURVIVOR_BUGS = (
    Planted(
        "the last replica does not claim to be the only one that may lead",
        "survivor",
        20,
        ("L4",),
        Leader,
        "drop_eligible",
        nothing,
    ),
    Planted(
        "what the last replica has is shown while others may lead",
        "survivor",
        20,
        ("I7",),
        leader_module,
        "committed_end",
        Edit("lowest = own_durable_end", "lowest, eligible = own_durable_end, False"),
    ),
    Planted(
        "the last replica commits what comes in",
        "survivor",
        20,
        ("I4",),
        leader_module,
        "committed_end",
        Edit("lowest = own_durable_end", "lowest, epoch_start = own_durable_end, 1 << 60"),
    ),
    Planted("a leader does not mind that its disk hangs", "hanging", 20, ("L5",), DiskHealth, "note_tick", nothing),
    Planted(
        "the log end is kept for the high watermark",
        "reboot",
        20,
        ("I2", "I4"),
        VirtualLog,
        "keep_watermark",
        Edit("= watermark", "= self.end"),
    ),
)
