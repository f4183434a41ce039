"""Bugs in reading a leader's files, seen by clients on the hosts of brokers with virtual disks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.actors.replica.consumer_reads import ConsumerReads
from raylog.client.reading.local_files import Place
from raylog.storage.log.partition_log import PartitionLog
from tests.simulation.planted.bugs import Edit
from tests.simulation.whole.plan import EVERYTHING
from tests.simulation.whole.planted.bugs import Bug


def _to_the_end(original: Callable[..., Any]) -> Callable[..., Any]:
    """A leader names places beyond the high watermark."""
    return lambda self, offset, most_bytes, upper: original(self, offset, most_bytes, self.log_end_offset)


def _one_batch_late(original: Callable[..., Any]) -> Callable[..., Any]:
    """A client goes on one batch behind the one that it has read."""

    def read(self: Place, most_bytes: int, offset: int, times: Any = None) -> Any:
        batches, left = original(self, most_bytes, offset, times)
        return (batches[:-1], left) if len(batches) > 2 else (batches, left)

    return read


def _bug(
    name: str, rules: tuple[str, ...], target: Any, attribute: str, patch: Callable[[Any], Any], *besides: str
) -> Bug:
    return Bug(name, target, attribute, patch, rules, 8, EVERYTHING, 1, ("near-reads", *besides))


NEAR_BUGS: Final = (
    _bug(
        "a leader names places in its files beyond the high watermark",
        ("W17", "W4", "W3", "W5"),
        PartitionLog,
        "slices",
        _to_the_end,
    ),
    _bug(
        "a leader names places in its files beyond the last stable offset",
        ("W24",),
        ConsumerReads,
        "_try_fetch",
        Edit("self._places(offset, upper)", "self._places(offset, effect.upper)").of,
        "transactions",
    ),
    _bug("a client leaves batches of a file out", ("W5", "W9"), Place, "read", _one_batch_late),
)
