"""Durations and back-offs in words: `30s`, `1m`, `10s 1m 10m`, `exponential(1s, 2, 10m, 0.2)`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from raylog.base.errors import InvalidConfig

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_EXPONENTIAL: Final = re.compile(r"exponential\(([^()]*)\)")
STEPS_MAX: Final = 100
_SPREAD: Final = 1_000


def duration_ms(text: str, what: str = "A duration") -> int:
    """Return a duration in milliseconds; a number without unit is milliseconds. Raises InvalidConfig."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise InvalidConfig(f"{what} is written as 500ms, 30s, 5m, 2h or 1d, not {text!r:.100}.")
    return round(float(found[1]) * _UNITS[found[2] or "ms"])


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a record waits before it is handed out again, by how often it was handed out.

    ``steps_ms``: the pauses after the first hand-out, the second, and so on; the last one repeats. ``jitter``: the
    share of a pause by which it may be shorter or longer. ``is_list``: whether the pauses were listed one by one.
    """

    steps_ms: tuple[int, ...] = (0,)
    jitter: float = 0.0
    is_list: bool = False

    def after_ms(self, count: int, seed: int) -> int:
        """Return the pause after hand-out ``count`` (from 1). ``seed`` spreads records that failed together."""
        step = self.steps_ms[min(max(count, 1), len(self.steps_ms)) - 1]
        if not self.jitter:
            return step
        # A hash of both in [-_SPREAD, _SPREAD]: the pause can be computed again.
        place = (seed * 2_654_435_761 + count * 40_503) % (2 * _SPREAD + 1) - _SPREAD
        return max(0, round(step * (1 + self.jitter * place / _SPREAD)))

    @property
    def limit(self) -> int | None:
        """The delivery limit that follows from a list: the first try, and one after each pause; None for others."""
        return len(self.steps_ms) + 1 if self.is_list else None

    @classmethod
    def parse(cls, text: str) -> Backoff:
        """Read a back-off; an empty text means no pause. Raises InvalidConfig."""
        text = text.strip()
        exponential = _EXPONENTIAL.fullmatch(text)
        if exponential is not None:
            return cls._exponential(text, [part.strip() for part in exponential[1].split(",")])
        parts = text.replace(",", " ").split()
        if not parts:
            return cls()
        if len(parts) > STEPS_MAX:
            raise InvalidConfig(f"queue.retry.backoff has at most {STEPS_MAX} steps, not {len(parts)}.")
        return cls(tuple(duration_ms(part, "A step of queue.retry.backoff") for part in parts), is_list=True)

    @classmethod
    def _exponential(cls, text: str, parts: list[str]) -> Backoff:
        try:
            first, factor, most = duration_ms(parts[0]), float(parts[1]), duration_ms(parts[2])
            jitter = float(parts[3].removeprefix("jitter").strip()) if len(parts) > 3 else 0.0
        except (IndexError, ValueError):
            first, factor, most, jitter = 0, 0.0, 0, 0.0
        if first < 1 or factor < 1 or most < first or not 0 <= jitter <= 1 or len(parts) > 4:
            raise InvalidConfig(
                "A back-off that grows is written as exponential(first, factor, most[, jitter]), such as "
                f"exponential(1s, 2, 10m, 0.2), not {text!r:.100}."
            )
        steps = [first]
        while steps[-1] < most and factor > 1 and len(steps) < STEPS_MAX:
            steps.append(min(most, round(steps[-1] * factor)))
        return cls(tuple(steps), jitter)
