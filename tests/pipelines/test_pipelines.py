"""Each pipeline of the examples gives what pandas finds in the files, though actors are killed while it runs."""

from __future__ import annotations

import pytest

from examples.pipelines import oracle
from examples.pipelines.run import Run

pytestmark = [
    *(pytest.mark.long, pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray[.]data"),  # Ray warns of what it sets by itself
]


def failed(ran: Run, *words: str) -> list[str]:
    """The checks that failed, of those whose names hold one of the words; there is at least one check of each."""
    claims = {word: [claim for claim in ran.checks.claims if word in claim.name] for word in words}
    assert all(claims.values()), f"no check is about {[word for word, found in claims.items() if not found]}"
    return [str(claim) for found in claims.values() for claim in found if not claim.holds]


def test_delays_are_joined_with_the_weather_by_event_time(ran: Run) -> None:
    assert failed(ran, "hours") == []
    assert len(ran.hours) > 100


def test_rotations_of_aircraft_survive_restarts(ran: Run) -> None:
    assert failed(ran, "rotations") == []
    assert ran.rotations["flights"].max() > 1


def test_flights_meet_the_table_as_it_is_when_they_arrive(ran: Run) -> None:
    assert failed(ran, "plane") == []
    assert len(oracle.retired(ran.tables)) > 0


def test_history_is_followed_by_live_records_without_gap_or_repeat(ran: Run) -> None:
    assert failed(ran, "backfill, then live", "one stream", "acknowledged") == []


def test_ray_data_learns_from_what_spark_wrote(ran: Run) -> None:
    assert failed(ran, "prediction", "model") == []


def test_actors_were_killed_while_the_pipelines_ran(ran: Run) -> None:
    assert failed(ran, "killed") == []
    assert any(name.startswith("leader of ") for name in ran.kills.done)
    assert any("-coordinator-" in name for name in ran.kills.done)
