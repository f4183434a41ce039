"""Figures of a process beside its counters: memory, CPU time, connections, refusals. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resource usage of one process, and its refusals since its start."""

    figures: Mapping[str, float] = field(default_factory=dict)
    """``cpu_seconds``, ``resident_memory_bytes``, ``open_fds``, ``connections``, ``unsent_bytes``: the known ones."""
    refusals: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Requests that were answered with an error, by method and error code."""

    def to_wire(self) -> dict[str, object]:
        """Return the msgpack form, read by :func:`usage_from_wire`."""
        refusals = [[method, code, count] for (method, code), count in self.refusals.items()]
        return {"figures": dict(self.figures), "refusals": refusals}


def usage_from_wire(row: object) -> Usage:
    """Read the usage of another process; unknown fields are ignored. Raises ValueError for another shape."""
    try:
        if not isinstance(row, dict):
            raise TypeError(f"{row!r:.80} is no mapping")
        return Usage(
            figures={str(name): float(value) for name, value in row["figures"].items()},
            refusals={(str(refusal[0]), int(refusal[1])): int(refusal[2]) for refusal in row["refusals"]},
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"no figures of a process: {error!r}") from None
