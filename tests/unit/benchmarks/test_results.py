"""What a run keeps, and what it compares."""

from pathlib import Path

import pytest

from benchmarks.bench import with_costs
from benchmarks.goals import verdicts
from benchmarks.job import Job
from benchmarks.report.document import DOCS, document
from benchmarks.report.plots import PLOTTED
from benchmarks.report.results import Measured, Results, ratio_to
from benchmarks.report.tables import as_markdown, markdown

CASE = "100 B, 6 partitions, RF 3, acks=all"


def rows(**rates: list[float]) -> list[Measured]:
    return [
        Measured("produce", CASE, name.replace("_", " ", 1), "rate", [{"rate": rate} for rate in found])
        for name, found in rates.items()
    ]


def results(*measured: Measured) -> Results:
    settings = {"quick": True, "rounds": 2, "seconds": 1.5}
    return Results(
        {"cores": "2", "load average at the beginning": "7.5"},
        {"python": "3.11"},
        settings,
        list(measured),
        {"nats": "it is not installed"},
    )


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    kept = results(*rows(raylog_send=[1.0, 2.0]))
    kept.write(tmp_path / "deep" / "results.json")
    assert Results.read(tmp_path / "deep" / "results.json") == kept


def test_a_ratio_compares_medians() -> None:
    ours, theirs = rows(raylog_send=[300, 100, 200], confluent=[100, 50, 40])
    assert ratio_to(ours, theirs) == 4.0


def test_there_is_no_ratio_to_what_was_not_measured() -> None:
    ours, theirs = rows(raylog_send=[1.0], confluent=[])
    assert ratio_to(ours, theirs) is None
    assert ratio_to(None, ours) is None


def test_losing_and_missing_rows_stay_in_the_table() -> None:
    ours, better, missing = rows(raylog_send=[100.0], confluent=[200.0], aiokafka=[])
    missing.left_out = "it is not installed"
    text = as_markdown(results(ours, better, missing))
    assert "0.50 x, slower" in text
    assert "| aiokafka | left out | it is not installed |" in text


def test_records_that_do_not_add_up_are_named() -> None:
    wrong = Measured("produce", CASE, "raylog send", "rate", [{"rate": 1.0, "records": 10, "stored": 9}])
    assert results(wrong).miscounts() == [f"produce, {CASE}, raylog send: 10 by the client, 9 stored"]


def test_goals_are_reached_or_missed_or_not_measured() -> None:
    measured = rows(**{"raylog_send": [400.0], "confluent-kafka": [100.0], "kafka-python": [100.0]})
    found = {verdict.goal: verdict for verdict in verdicts(results(*measured))}
    goal = "produce 100 B, RF 3, acks=all: "
    assert found[goal + "3 x confluent-kafka"].reached is True
    assert found[goal + "20 x kafka-python"].reached is False
    assert found[goal + "1.5 x kafka java tool"].reached is None


def test_a_topic_has_a_goal_cold_and_one_with_spares() -> None:
    cold = [{"seconds": seconds, "created_s": 1.0} for seconds in (2.5, 9.0, 2.0)]
    spared = [{"seconds": seconds, "created_s": 0.1} for seconds in (0.9, 0.25, 0.2)]
    found = {
        verdict.goal: (verdict.found, verdict.reached)
        for verdict in verdicts(
            results(
                Measured("create", "6 partitions, RF 3, cold", "raylog send", "seconds", cold),
                Measured("create", "6 partitions, RF 3, with spares", "raylog send", "seconds", spared),
            )
        )
    }
    goal = "topic of 6 partitions, RF 3, created and written to: under"
    assert found[f"{goal} 0.5 s cold"] == ("2.50 s", False)
    assert found[f"{goal} 0.5 s with spares"] == ("0.25 s", True)


def test_costs_are_microseconds_a_record() -> None:
    found = with_costs({"records": 1_000, "client_cpu_s": 0.5, "server_cpu_s": 1.0, "bytes": 2 * 10**6, "seconds": 2})
    assert (found["client_cpu_us"], found["server_cpu_us"], found["rate_mb"]) == (500.0, 1000.0, 1.0)


def test_a_cell_cannot_break_its_table() -> None:
    assert "a\\|b" in markdown(["x"], [["a|b"]])


def test_a_job_survives_its_line() -> None:
    job = Job(load="produce", client="raylog", topic="t", address={"bootstrap": "here"}, server_pids=[1])
    assert Job.of_line(job.line()) == job


def grown(load: str, contestant: str, rates: dict[str, float], cpu_us: float = 1.0) -> list[Measured]:
    return [
        Measured("growth", f"{load}, 1,000 B, RF 1, {size}", contestant, "rate", [{"rate": rate, "cpu_us": cpu_us}])
        for size, rate in rates.items()
    ]


def test_growth_is_flat_when_the_worst_case_is_within_a_fifth_of_the_best() -> None:
    flat = grown("produce", "raylog send", {"1 partition": 100.0, "24 partitions": 81.0})
    steep = grown("consume", "raylog records", {"1 partition": 100.0, "6 partitions": 90.0, "24 partitions": 79.0})
    found = {verdict.goal: verdict for verdict in verdicts(results(*flat, *steep))}
    goal = "growth, 1 to 24 partitions: {}, rate within 20 % of the best"
    assert found[goal.format("produce")].reached is True
    assert found[goal.format("consume")].reached is False
    assert found[goal.format("consume")].found == "0.79 of the best (raylog records, 24 partitions)"


def test_growth_compares_each_form_with_itself_and_each_axis_alone() -> None:
    partitions = grown("produce", "raylog send", {"1 partition": 100.0, "24 partitions": 100.0})
    batches = grown("produce", "raylog send_batch", {"1 partition": 900.0, "24 partitions": 900.0})
    data = grown("produce", "raylog send", {"6 partitions, 1 GB on disk": 10.0, "6 partitions, 20 GB on disk": 9.0})
    found = {verdict.goal: verdict.found for verdict in verdicts(results(*partitions, *batches, *data))}
    assert found["growth, 1 to 24 partitions: produce, rate within 20 % of the best"].startswith("1.00 of the best")
    assert found["growth, 1 to 20 GB on disk: produce, rate within 20 % of the best"].startswith("0.90 of the best")


def test_the_cost_of_growth_is_that_of_client_and_server_together() -> None:
    cheap = grown("produce", "raylog send", {"1 partition": 100.0}, cpu_us=2.0)
    dear = grown("produce", "raylog send", {"24 partitions": 100.0}, cpu_us=4.0)
    found = {verdict.goal: verdict for verdict in verdicts(results(*cheap, *dear))}
    verdict = found["growth, 1 to 24 partitions: produce, CPU time a record within 20 % of the best"]
    assert (verdict.reached, verdict.found) == (False, "0.50 of the best (raylog send, 24 partitions)")


def test_a_disk_too_small_for_the_last_case_leaves_the_goal_open() -> None:
    data = grown("produce", "raylog send", {"6 partitions, 1 GB on disk": 10.0, "6 partitions, 5 GB on disk": 10.0})
    assert {verdict.reached for verdict in verdicts(results(*data))} == {None}


def test_a_run_that_grew_a_part_of_the_way_says_how_far_it_came() -> None:
    data = grown("produce", "raylog send", {"6 partitions, 1 GB on disk": 10.0, "6 partitions, 4 GB on disk": 9.0})
    found = {verdict.goal: verdict for verdict in verdicts(results(*data))}
    verdict = found["growth, 1 to 20 GB on disk: produce, rate within 20 % of the best"]
    assert verdict.found == "not to the end: until 4 GB on disk 0.90 of the best (raylog send, 4 GB on disk)"
    assert verdict.reached is None


def test_a_single_case_has_no_slope() -> None:
    found = verdicts(results(*grown("produce", "raylog send", {"1 partition": 100.0})))
    assert {entry.reached for entry in found} == {None}


def test_records_that_do_not_add_up_are_named_in_growth_too() -> None:
    wrong = grown("produce", "raylog send", {"1 partition": 1.0})
    wrong[0].rounds = [{"rate": 1.0, "records": 10, "stored": 9}]
    assert len(results(*wrong).miscounts()) == 1


def test_a_later_run_replaces_the_scenarios_that_it_has_and_is_named() -> None:
    first = results(*rows(raylog_send=[1.0]), Measured("small", "50", "raylog send", "rate", [{"rate": 5.0}]))
    first.left_out["scenario growth"] = "there was no time"
    later = results(*rows(raylog_send=[2.0]), *grown("produce", "raylog send", {"1 partition": 1.0}))
    whole = Results.merged([first, later])
    assert [(row.scenario, row.rounds[0]["rate"]) for row in whole.measured] == [
        ("small", 5.0),
        ("produce", 2.0),
        ("growth", 1.0),
    ]
    assert "scenario growth" not in whole.left_out
    assert "run of its own: growth, produce" in whole.settings
    assert "Measured in separate runs, whose settings are below: growth, produce." in document(whole, [])


def test_a_later_run_replaces_an_aborted_one_and_names_what_it_lacks() -> None:
    first = results(*rows(raylog_send=[1.0]))
    first.left_out = {"the rest of produce": "the time was over", "scenario restart": "the time was over"}
    later = results(*rows(raylog_send=[2.0]))
    later.left_out = {"the rest of produce": "it was over again"}
    later.machine["load average at the end"] = "2.5"
    assert Results.merged([first, later]).left_out == {
        "scenario restart": "the time was over",
        "the rest of produce": "it was over again",
    }


def test_one_run_is_shown_as_it_is() -> None:
    only = results(*rows(raylog_send=[1.0]))
    assert Results.merged([only]) == only


def test_runs_of_other_versions_are_not_put_together() -> None:
    first, later = results(), results()
    later.versions = {"python": "3.12"}
    with pytest.raises(ValueError, match="different machines or versions"):
        Results.merged([first, later])


def test_the_published_page_is_what_its_results_make() -> None:
    pictures = [DOCS / "img" / f"{name}.svg" for name in PLOTTED]
    page = document(Results.read(DOCS / "performance.json"), pictures)
    assert (DOCS / "performance.md").read_text(encoding="utf-8") == page, "run `python -m benchmarks document ...`"


def test_goals_of_scenarios_that_did_not_run_are_not_listed() -> None:
    assert {verdict.goal.split()[0] for verdict in verdicts(results(*rows(raylog_send=[1.0])))} == {"produce"}
