"""The shipped shell of a replica around the log of the profile `storage`, for steps that are several calls.

How a log is cut is the shell's decision: what it notes of the watermark before, with which time it cuts, what it notes
behind. So the simulator has it done by :class:`ReplicaEffects`. Steps of one call are compared argument by argument in
tests/unit/actors/replica.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, Final

from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.replica.effects import ReplicaEffects
from raylog.actors.replica.tail_cache import TailCache
from raylog.actors.request_table import RequestTable
from raylog.actors.settings import FlushPolicy
from raylog.base.ids import Offset, TopicPartition
from raylog.core.replication.events import ResetLog, TruncateLog
from raylog.storage.log.kept_watermark import KeptWatermark
from raylog.storage.log.partition_log import PartitionLog

CAUSE: Final = "simulated"


class Shell:
    """Carries out the effects that cut a log. Raises the log's errors, for the simulator to explain them."""

    def __init__(self, log: PartitionLog, kept: KeptWatermark, now_ms: Callable[[], int]) -> None:
        """For one life of the log."""
        unused: Any = None
        clock: Any = SimpleNamespace(monotonic_ns=lambda: 1_000_000 * now_ms())
        sync: Any = SimpleNamespace(exclusive=nullcontext())
        keeper: Any = kept  # its shell hands these calls on
        self._effects = ReplicaEffects(
            TopicPartition("t", 0),
            log,
            clock=clock,
            time_of_day=now_ms,
            sync=sync,
            keeper=keeper,
            ports=unused,
            flush=FlushPolicy(messages=1, ms=1),
            requests=RequestTable(),
            tail=TailCache(log),
            counters=ReplicaCounters(),
            damage=unused,
            look_at_held=lambda now_ms: (-1, now_ms),
            log_start_moved=lambda: None,
        )

    def cut(self, to: int) -> None:
        """Cut everything at and above an offset."""
        self._effects._cut_log(TruncateLog(cause=CAUSE, to=Offset(to)))

    def begin_again(self, at: int) -> None:
        """Drop everything, and go on at an offset."""
        self._effects._cut_log(ResetLog(cause=CAUSE, start_offset=Offset(at)))
