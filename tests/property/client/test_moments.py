"""Timestamps: however the moments lie, each becomes its own millisecond."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.client.batch import NS_PER_MS, in_milliseconds

MOMENTS = st.lists(
    st.integers(-(10**9), 10**9) | st.integers(1_700_000_000 * 10**9, 1_700_000_001 * 10**9), max_size=60
)


@settings(max_examples=100, deadline=None)
@given(moments_ns=MOMENTS, is_rising=st.booleans())
def test_each_moment_becomes_its_millisecond(moments_ns: list[int], is_rising: bool) -> None:
    if is_rising:
        moments_ns.sort()
    assert in_milliseconds(moments_ns) == [moment // NS_PER_MS for moment in moments_ns]
