"""Prometheus' text format, version 0.0.4: families of samples in, bytes of a page out. Pure.

Source of the rules: the section "Text-based format" of Prometheus' exposition formats.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from raylog.core.metrics.histogram import LatencyHistogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Kind: TypeAlias = Literal["counter", "gauge", "summary", "histogram", "untyped"]
KINDS: Final[tuple[Kind, ...]] = ("counter", "gauge", "summary", "histogram", "untyped")
QUANTILES: Final = (0.5, 0.99, 0.999)

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_VALUE_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_HELP_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})

Sample: TypeAlias = tuple[str, Mapping[str, str], float]
"""Suffix of the family's name ("" for most), labels, value."""


@dataclass(slots=True)
class Family:
    """All samples of one metric name. The kind and the help text are those of the name."""

    name: str
    kind: Kind
    help: str
    samples: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raise ValueError for a name or a kind that Prometheus does not know."""
        if not _NAME.match(self.name):
            raise ValueError(f"{self.name!r} is no metric name: letters, digits, _ and : only, no digit in front.")
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is no kind of metric; one of {', '.join(KINDS)}.")

    def add(self, value: float, /, **labels: str) -> None:
        """Add a sample."""
        self.samples.append(("", labels, value))

    def add_histogram(self, histogram: LatencyHistogram, /, **labels: str) -> None:
        """Add a histogram's buckets, sum (seconds) and count."""
        count = histogram.count
        for edge, below in histogram.cumulative():
            self.samples.append(("_bucket", {**labels, "le": number(edge)}, below))
        self.samples.append(("_bucket", {**labels, "le": "+Inf"}, count))
        self.samples.append(("_sum", labels, histogram.sum_us / 1_000_000))
        self.samples.append(("_count", labels, count))

    def add_summary(self, recent: LatencyHistogram, all_time: LatencyHistogram, /, **labels: str) -> None:
        """Add quantiles of ``recent`` in milliseconds, sum (milliseconds) and count of all."""
        for quantile in QUANTILES:
            value = recent.quantile_us(quantile) / 1000
            self.samples.append(("", {**labels, "quantile": number(quantile)}, value))
        self.samples.append(("_sum", labels, all_time.sum_us / 1000))
        self.samples.append(("_count", labels, all_time.count))

    def to_wire(self) -> list[object]:
        """Return the msgpack form, read by :func:`families_from_wire`."""
        samples = [[suffix, dict(labels), value] for suffix, labels, value in self.samples]
        return [self.name, self.kind, self.help, samples]


def families_from_wire(rows: Sequence[Sequence[object]]) -> list[Family]:
    """Read families of another process; fields after the known ones are ignored. Raises ValueError for other rows."""
    families = []
    for row in rows:
        name, kind, text, samples = row[:4]
        known = [item for item in KINDS if item == kind]
        if not known or not isinstance(samples, list):
            raise ValueError(f"{name!r} is no metric family.")
        family = Family(str(name), known[0], str(text))
        family.samples = [
            (str(sample[0]), {str(key): str(value) for key, value in sample[1].items()}, float(sample[2]))
            for sample in samples
        ]
        families.append(family)
    return families


def merge(families: Iterable[Family]) -> list[Family]:
    """Return one family for each name, in the order in which names first occur; the first help text holds."""
    by_name: dict[str, Family] = {}
    for family in families:
        known = by_name.get(family.name)
        if known is None:
            by_name[family.name] = Family(family.name, family.kind, family.help, list(family.samples))
        else:
            known.samples.extend(family.samples)
    return list(by_name.values())


def render(families: Iterable[Family]) -> str:
    """Return the page: HELP and TYPE once for each name, then its samples; families without samples are left out.

    Raises ValueError for an illegal label name.
    """
    lines: list[str] = []
    texts: dict[int, str] = {}  # by identity: the samples of a partition share their labels
    whole = merge(families)  # holds on to the labels, so that no two have one identity
    for family in whole:
        if not family.samples:
            continue
        lines.append(f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for suffix, labels, value in family.samples:
            text = texts.get(id(labels))
            if text is None:
                text = texts[id(labels)] = _labels(labels)
            lines.append(f"{family.name}{suffix}{text} {number(value)}")
    return "\n".join(lines) + "\n" if lines else ""


def number(value: float) -> str:
    """Return a value as Prometheus reads it."""
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    parts = []
    for name, value in labels.items():
        if name not in _checked:
            if not _LABEL.match(name):
                raise ValueError(f"{name!r} is no label name: letters, digits and _ only, no digit in front.")
            if len(_checked) < 1000:
                _checked.add(name)
        if not value.isalnum():
            value = value.translate(_VALUE_ESCAPES)
        parts.append(f'{name}="{value}"')
    return "{" + ",".join(parts) + "}"


_checked: Final[set[str]] = set()
"""Label names that were found legal: a page has few names and thousands of labels."""
