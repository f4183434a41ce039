"""The command: its parts, their shares of the time, and what they come to together."""

import json
import signal
from pathlib import Path

import pytest

from tests.chaos import __main__ as command
from tests.chaos.evidence.checker import Analysis, Verdict
from tests.chaos.evidence.history import Fault, History, Send
from tests.chaos.evidence.report import Result, as_plain


@pytest.fixture(autouse=True)
def _leave_signals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)


def option(line: list[str], name: str) -> str:
    return line[len(line) - 1 - line[::-1].index(name) + 1]


def test_the_parts_share_the_time_and_one_that_cannot_run_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    minutes = {}

    def run(line: list[str]) -> int:
        part = option(line, "--only")
        minutes[part] = float(option(line, "--minutes"))
        history = History(operations=[Send("p", 0, "a", "ok"), Fault("kill-leader", "t-0", 1.0, 1.0, 2.0)])
        plain = as_plain(Result(Verdict.PASSED, Analysis(), history, part=part))
        left_out = {"part": part, "left_out": "the network part was left out: no root."}
        Path(option(line, "--json")).write_text(json.dumps(left_out if part == "network" else plain))
        return 0

    monkeypatch.setattr(command, "_wait", run)
    report = tmp_path / "report.json"
    assert command.main(["--minutes", "10", "--seed", "7", "--json", str(report)]) == 0
    assert minutes == {"processes": 3.0, "nodes": 1.5, "network": 1.5, "copies": 2.0, "spark": 2.0}
    output = capsys.readouterr().out
    for words in ("processes 3.0 min", "left out: no root", "4 records acknowledged", "4 faults of 4 kinds", "PASSED"):
        assert words in output
    found = json.loads(report.read_text())
    assert (found["verdict"], found["seed"], len(found["parts"])) == ("PASSED", 7, 5)


def test_a_part_that_ends_without_a_report_is_not_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_wait", lambda line: 1)
    assert command.main(["--minutes", "1"]) == 1


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["--only", "network", "--faults", "kill-leader"], "known are isolate-leader"),
        (["--faults", "kill-leader"], "say which with --only"),
    ],
)
def test_faults_belong_to_a_part(arguments: list[str], output: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert output in capsys.readouterr().err
