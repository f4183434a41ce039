"""The sorted ranges agree with a plain list of cells, whatever is put into them."""

from hypothesis import given
from hypothesis import strategies as st

from raylog.core.queues.ranges import RangeMap

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 40), st.integers(0, 12), st.sampled_from("abc")),
        st.tuples(st.just("cut"), st.integers(0, 60), st.just(0), st.just("")),
    ),
    max_size=40,
)


@given(start=st.integers(0, 5), steps=STEPS)
def test_ranges_are_a_list_of_cells(start: int, steps: list[tuple[str, int, int, str]]) -> None:
    ranges: RangeMap[str] = RangeMap(start)
    cells: dict[int, str] = {}
    begin = end = start
    for what, place, length, cell in steps:
        if what == "cut":
            ranges.cut(place)
            if place > begin:
                cells = {offset: kept for offset, kept in cells.items() if offset >= place}
                begin, end = place, max(end, place)
        else:
            first = min(max(begin, place), end)
            ranges.put(first, first + length, cell)
            cells.update(dict.fromkeys(range(first, first + length), cell))
            end = max(end, first + length)
        ranges.validate()
        assert (ranges.start, ranges.end) == (begin, end)
        assert {offset: kept for low, high, kept in ranges for offset in range(low, high)} == cells
        assert [ranges.at(offset) for offset in range(-1, 70)] == [cells.get(offset) for offset in range(-1, 70)]


@given(start=st.integers(0, 5), steps=STEPS, first=st.integers(-2, 60), length=st.integers(0, 60))
def test_pieces_are_the_cells_between(
    start: int, steps: list[tuple[str, int, int, str]], first: int, length: int
) -> None:
    ranges: RangeMap[str] = RangeMap(start)
    for _, place, size, cell in steps:
        begin = min(max(ranges.start, place), ranges.end)
        ranges.put(begin, begin + size, cell)
    found = ranges.pieces(first, first + length)
    listed = {offset: cell for low, high, cell in found for offset in range(low, high)}
    wanted = {offset: ranges.at(offset) for offset in range(first, first + length) if ranges.at(offset) is not None}
    assert listed == wanted
    assert all(low < high for low, high, _ in found)
