"""The text format, read back by a separate parser: for all values and labels, the page carries exactly these."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.core.metrics.exposition import Family, Kind, families_from_wire, merge, number, render
from raylog.core.metrics.histogram import LatencyHistogram

NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,20}", fullmatch=True)
LABELS = st.dictionaries(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,9}", fullmatch=True), st.text(), max_size=4)
VALUES = st.one_of(st.integers(-(2**70), 2**70), st.floats())
KINDS: tuple[Kind, ...] = ("counter", "gauge", "untyped")
FAMILIES = st.builds(
    lambda name, kind, text, samples: Family(name, kind, text, [("", labels, value) for labels, value in samples]),
    NAMES,
    st.sampled_from(KINDS),
    st.text(),
    st.lists(st.tuples(LABELS, VALUES), min_size=1, max_size=4),
)
LINE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)\Z", re.DOTALL)
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|\Z)', re.DOTALL)


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text, flags=re.DOTALL)


def read_value(text: str) -> float:
    return float(text.replace("Inf", "inf")) if not re.fullmatch(r"-?\d+", text) else int(text)


def read(page: str) -> list[tuple[str, str, str, list[tuple[dict[str, str], float]]]]:
    """Name, kind, help and samples of each family; only a line break ends a line."""
    families: list[tuple[str, str, str, list[tuple[dict[str, str], float]]]] = []
    assert page.endswith("\n")
    lines = page[:-1].split("\n")
    for line in lines:
        if line.startswith("# HELP "):
            name, _, text = line.removeprefix("# HELP ").partition(" ")
            families.append((name, "", unescaped(text), []))
        elif line.startswith("# TYPE "):
            name, _, kind = line.removeprefix("# TYPE ").partition(" ")
            last = families.pop()
            assert name == last[0]
            families.append((name, kind, last[2], last[3]))
        else:
            found = LINE.match(line)
            assert found is not None, line
            labels = {key: unescaped(value) for key, value in LABEL.findall(found["labels"] or "")}
            families[-1][3].append((labels, read_value(found["value"])))
    return families


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


@given(st.lists(FAMILIES, min_size=1, max_size=5, unique_by=lambda family: family.name))
def test_a_page_says_just_what_the_families_hold(families: list[Family]) -> None:
    found = read(render(families))
    assert [(name, kind, text) for name, kind, text, _ in found] == [
        (family.name, family.kind, family.help) for family in families
    ]
    for (_, _, _, samples), family in zip(found, families, strict=True):
        assert [labels for labels, _ in samples] == [dict(labels) for _, labels, _ in family.samples]
        pairs = zip(samples, family.samples, strict=True)
        assert all(same(value, wanted) for (_, value), (_, _, wanted) in pairs)


@given(FAMILIES)
def test_a_family_is_the_same_after_the_wire(family: Family) -> None:
    (found,) = families_from_wire([[*family.to_wire(), "of a later version"]])
    assert (found.name, found.kind, found.help) == (family.name, family.kind, family.help)
    assert [(suffix, dict(labels)) for suffix, labels, _ in found.samples] == [
        (suffix, dict(labels)) for suffix, labels, _ in family.samples
    ]


@given(st.lists(st.integers(0, 10**12), max_size=50))
def test_a_histograms_buckets_only_grow_and_end_with_its_count(durations: list[int]) -> None:
    histogram, family = LatencyHistogram(), Family("x_seconds", "histogram", "x")
    for duration in durations:
        histogram.observe_ns(duration)
    family.add_histogram(histogram, broker="1")
    buckets = [value for suffix, _, value in family.samples if suffix == "_bucket"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == len(durations) == family.samples[-1][2]


def test_each_name_has_its_help_and_type_once() -> None:
    pages = [Family("x", "gauge", "X.", [("", {"broker": number}, 1)]) for number in "123"]
    assert render(pages).count("# TYPE x gauge") == 1
    assert len(merge(pages)[0].samples) == 3
    assert len(pages[0].samples) == 1  # merging leaves its inputs unchanged


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (1.0, "1"), (0.25, "0.25"), (10**20, str(10**20))],
)
def test_numbers_are_written_as_prometheus_reads_them(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize("name", ["", "1x", "a-b", "a b", "x\n"])
def test_an_illegal_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no metric name"):
        Family(name, "gauge", "")
    with pytest.raises(ValueError, match="no label name"):
        render([Family("x", "gauge", "", [("", {name: "1"}, 1)])])


def test_families_without_samples_are_left_out() -> None:
    assert render([Family("x", "gauge", "")]) == ""


@pytest.mark.parametrize("row", [["x", "guess", "", []], ["x", "gauge", "", None], ["1", "gauge", "", []]])
def test_what_is_no_family_is_refused(row: list[object]) -> None:
    with pytest.raises(ValueError, match="no metric"):
        families_from_wire([row])
