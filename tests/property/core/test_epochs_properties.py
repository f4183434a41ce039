"""Leader epoch history against a dumb twin that remembers the epoch of every offset."""

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.base.epochs import EpochHistory
from raylog.base.ids import LeaderEpoch, Offset

steps = st.lists(
    st.tuples(st.sampled_from(["append", "elect", "cut"]), st.integers(1, 4), st.integers(0, 30)), max_size=40
)


@settings(max_examples=100, deadline=None)
@given(steps)
def test_the_history_agrees_with_a_list_of_epochs_by_offset(plan: list[tuple[str, int, int]]) -> None:
    epochs, current = EpochHistory(), 0
    twin: list[int] = []
    for verb, size, where in plan:
        if verb == "append":
            epochs.assign(current, len(twin))
            twin += [current] * size
        elif verb == "elect":
            current += size
        else:
            del twin[where:]
            epochs.truncate_end(len(twin))
        epochs.validate(len(twin))
        assert [epochs.epoch_for(offset) for offset in range(len(twin))] == twin
        for wanted in range(current + 2):
            below = [epoch for epoch in twin if epoch <= wanted]
            if below:
                found = epochs.end_for(LeaderEpoch(wanted), Offset(len(twin)))
                assert found == (below[-1], len(below))
