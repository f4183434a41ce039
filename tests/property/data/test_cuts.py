"""However many tasks are wanted, their ranges cover every offset exactly once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raylog.data.reads import _cut, in_groups
from tests.unit.data.ranges import piece

SIZES = st.lists(st.integers(min_value=1, max_value=3_000_000), min_size=0, max_size=6)


@given(sizes=SIZES, blocks=st.none() | st.integers(min_value=1, max_value=40), cpus=st.integers(1, 64))
def test_cut_ranges_cover_every_offset_once_in_order(sizes: list[int], blocks: int | None, cpus: int) -> None:
    whole = [piece(number, start=number * 7, end=number * 7 + size) for number, size in enumerate(sizes)]
    found = _cut(whole, blocks, cpus)
    for item in whole:
        parts = [part for part in found if part.partition == item.partition]
        assert [part.start for part in parts] == [item.start, *(part.end for part in parts[:-1])]
        assert parts[-1].end == item.end
        assert all(part.start < part.end for part in parts)
    groups = in_groups(found, blocks or max(1, len(found)))
    assert [part for group in groups for part in group] == found
    if blocks is not None and sum(sizes) >= blocks and sizes:
        assert len(groups) == blocks
