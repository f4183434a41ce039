"""Turns among the topics of a queue's consumer: strict ones never step back, weights hold, and nothing starves."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from raylog.client.queues.priorities import RATIO_MAX, Standing, StrictTurns, WeightedTurns

STANDINGS = st.sampled_from(list(Standing))
WEIGHTS = st.lists(
    st.one_of(st.integers(1, 20), st.floats(0.5, 20, allow_nan=False, allow_infinity=False)), min_size=2, max_size=5
)


@given(st.lists(STANDINGS, min_size=2, max_size=6))
def test_a_strict_lane_is_next_when_those_in_front_have_none(standings: list[Standing]) -> None:
    turns = StrictTurns(len(standings))
    lane = turns.next(standings)
    assert turns.is_ready(standings) == (lane is not None)
    if lane is not None:
        assert standings[lane] is Standing.AT_HAND
        assert all(standing is Standing.NONE for standing in standings[:lane])
    else:
        first = next((standing for standing in standings if standing is not Standing.NONE), Standing.NONE)
        assert first is not Standing.AT_HAND, "what may be handed out is not held up"


@given(st.data())
def test_strict_turns_empty_lanes_in_their_order_whatever_comes_meanwhile(data: st.DataObject) -> None:
    left = data.draw(st.lists(st.integers(0, 4), min_size=2, max_size=4), label="records of each lane")
    turns, taken = StrictTurns(len(left)), 0
    arrivals = 0
    while any(left):
        if arrivals < 10 and data.draw(st.booleans(), label="one more comes"):
            left[data.draw(st.integers(0, len(left) - 1), label="to")] += 1
            arrivals += 1
        lane = turns.next([Standing.AT_HAND if count else Standing.NONE for count in left])
        assert lane is not None, "nothing idles while there are records"
        assert not any(left[:lane]), "a lower record is not taken while a higher one is at hand"
        left[lane] -= 1
        taken += 1
    assert taken >= arrivals


@given(st.data(), WEIGHTS)
def test_lanes_with_records_hand_out_in_proportion_to_their_weights(data: st.DataObject, weights: list[float]) -> None:
    turns, quanta = WeightedTurns(weights), [weight / min(weights) for weight in weights]
    # Some time before, in which lanes come and go, must not count in what follows.
    for standings in data.draw(
        st.lists(st.lists(STANDINGS, min_size=len(weights), max_size=len(weights)), max_size=20)
    ):
        turns.next(standings)
    counts = [0] * len(weights)
    for _ in range(data.draw(st.integers(1, 300), label="window")):
        lane = turns.next([Standing.AT_HAND] * len(weights))
        assert lane is not None
        counts[lane] += 1
        # Of two lanes one is a round ahead at most, and each has carried less than a record into or out of the window.
        rounds = [count / quantum for count, quantum in zip(counts, quanta, strict=True)]
        for (ahead, quantum), (behind, other) in permutations(zip(rounds, quanta, strict=True), 2):
            assert ahead - behind <= 1 + 1 / quantum + 1 / other + 1e-6


@given(st.data(), WEIGHTS)
def test_weights_idle_never_and_starve_no_lane(data: st.DataObject, weights: list[float]) -> None:
    turns = WeightedTurns(weights)
    patience = sum(weight / min(weights) for weight in weights) + len(weights)
    waited = [0] * len(weights)
    for standings in data.draw(
        st.lists(st.lists(STANDINGS, min_size=len(weights), max_size=len(weights)), min_size=1, max_size=200)
    ):
        lane = turns.next(standings)
        assert (lane is not None) == (Standing.AT_HAND in standings) == turns.is_ready(standings)
        if lane is None:
            continue
        assert standings[lane] is Standing.AT_HAND
        for place, standing in enumerate(standings):
            waited[place] = waited[place] + 1 if standing is Standing.AT_HAND and place != lane else 0
            assert waited[place] <= patience, "a lane that has records is served within a round"


@given(st.integers(1, 5_000), WEIGHTS)
def test_what_is_locked_ahead_is_shared_by_weight(most: int, weights: list[float]) -> None:
    shares = [WeightedTurns(weights).share(lane, most) for lane in range(len(weights))]
    assert all(share >= 1 for share in shares)
    assert sum(shares) <= most + len(weights)
    assert StrictTurns(len(weights)).share(0, most) == max(1, most // len(weights))


def test_the_lightest_lane_gets_its_record_within_a_round() -> None:
    turns = WeightedTurns([RATIO_MAX, 1])
    taken = [turns.next([Standing.AT_HAND] * 2) for _ in range(RATIO_MAX + 1)]
    assert taken.count(1) == 1
