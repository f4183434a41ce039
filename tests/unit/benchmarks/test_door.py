"""The one door to the benchmarks: each command is there, and a name that is wrong gets one line."""

import importlib
import subprocess
import sys

import pytest

from benchmarks.__main__ import COMMANDS, main
from benchmarks.page import arguments
from benchmarks.scenarios.registry import SCENARIOS
from tests.unit.style.sources import ROOT, files_in, module_name


def refused(capsys: pytest.CaptureFixture[str], *given: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    about = importlib.import_module(f"benchmarks.{COMMANDS[name].module}").__doc__
    assert text.startswith("usage: python -m benchmarks ")
    assert (about or "no words").splitlines()[0] in text


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["delay"], "there is no 'delay'; did you mean 'delays'?"),
        (["produce"], "'produce' is a scenario: python -m benchmarks run --only produce"),
        (["zzz"], "there is no 'zzz'; there are run, document"),
        (["delays", "togeter"], "there is no 'togeter'; did you mean 'together'?"),
        (["queues", "outages"], "there is no 'outages'; did you mean 'outage'?"),
        (["--only", "produce,laetncy"], "there is no 'laetncy'; did you mean 'latency'?"),
        (["run", "--peers", "kafak"], "there is no 'kafak'; did you mean 'kafka'?"),
    ],
)
def test_a_wrong_name_gets_one_line(given: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = refused(capsys, *given)
    assert complaint in text
    assert text.count("\n") == 1


def test_options_without_a_command_are_those_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr("benchmarks.page.main", lambda rest: given.append(list(rest)))
    for arguments_ in ([], ["--quick"], ["run", "--quick"], ["rebalances", "--rounds", "1"]):
        main(arguments_)
    assert given == [[], ["--quick"], ["--quick"], ["--only", "rebalance", "--rounds", "1"]]


def test_the_environment_can_select_a_quick_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUICK", "1")
    assert arguments([]).quick
    assert set(arguments([]).only) < set(SCENARIOS)
    monkeypatch.setenv("QUICK", "0")
    assert not arguments([]).quick


def test_there_is_no_other_door() -> None:
    doors = [path.relative_to(ROOT).as_posix() for path in files_in("benchmarks") if path.name == "__main__.py"]
    assert doors == ["benchmarks/__main__.py"]


WORKERS = {"delays.pending", "scrape", "pairs.worker", "clients.worker", "peers.raylog_host"}
"""Modules that a benchmark starts as processes of their own; those of analytics end in `serve`."""


def test_what_else_can_be_started_is_a_worker() -> None:
    found = {
        module_name(path).removeprefix("benchmarks.")
        for path in files_in("benchmarks")
        if path.name != "__main__.py" and 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
    }
    assert {name for name in found if not name.endswith("_worker")} == WORKERS


def test_the_door_opens_without_what_it_measures() -> None:
    program = "import sys, benchmarks.__main__; print('ray' in sys.modules or 'raylog' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
