"""The log output of a process, and its warning about an unknown format."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.actors.logs import NAMED, SPEAKER, JsonFormatter, Speaker, log_format, name_log, set_up_logging
from raylog.base.errors import InvalidConfig


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, which is afterwards as it was before."""
    logger = logging.getLogger()
    handlers, level, actor = list(logger.handlers), logger.level, SPEAKER.actor
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)
    SPEAKER.actor = actor


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("raylog.actors.x", logging.WARNING, "x.py", 1, message, (), None)
    made.created = 1_700_000_000.25
    for name, value in extra.items():
        setattr(made, name, value)
    return made


def test_a_json_line_has_the_fields_of_its_actor() -> None:
    speaker = Speaker(actor="replica:t-3:broker-1:ab", topic="t", partition=3, epoch=lambda: 7)
    line = JsonFormatter(speaker).format(record('a "quoted"\nmessage'))
    assert "\n" not in line
    assert json.loads(line) == {
        "ts": "2023-11-14T22:13:20.250000Z",
        "level": "WARNING",
        "actor": "replica:t-3:broker-1:ab",
        "topic": "t",
        "partition": 3,
        "epoch": 7,
        "event": 'a "quoted"\nmessage',
        "logger": "raylog.actors.x",
    }


def test_extra_fields_go_before_the_actors_own_and_missing_ones_are_null() -> None:
    line = json.loads(JsonFormatter(Speaker(actor="broker-1")).format(record("x", topic="t", partition=0)))
    assert (line["topic"], line["partition"], line["epoch"]) == ("t", 0, None)


def test_a_traceback_is_one_field() -> None:
    made = record("failed")
    try:
        raise OSError("no disk")
    except OSError:
        made.exc_info = sys.exc_info()
    line = json.loads(JsonFormatter(Speaker(actor="x")).format(made))
    assert line["event"] == "failed"
    assert line["error"].endswith("OSError: no disk")


@pytest.mark.parametrize(("value", "found"), [("", "text"), ("text", "text"), (" JSON ", "json")])
def test_the_format_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, value: str, found: str) -> None:
    monkeypatch.setenv("RAYLOG_LOG_FORMAT", value)
    assert log_format() == found


def test_an_unknown_format_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYLOG_LOG_FORMAT", "yaml")
    with pytest.raises(InvalidConfig, match=r"RAYLOG_LOG_FORMAT=yaml: the log format is one of text, json\."):
        log_format()


def test_an_actor_logs_json_when_configured_to(
    monkeypatch: pytest.MonkeyPatch, root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    root.handlers.clear()  # pytest's own, of this phase
    monkeypatch.setenv("RAYLOG_LOG_FORMAT", "json")
    set_up_logging("broker-4")
    logging.getLogger("raylog.somewhere").warning("%d left", 3)
    line = json.loads(capsys.readouterr().err)
    assert (line["actor"], line["event"], line["level"]) == ("broker-4", "3 left", "WARNING")


def test_an_actor_with_an_unknown_format_logs_text_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    root.handlers.clear()
    monkeypatch.setenv("RAYLOG_LOG_FORMAT", "xml")
    set_up_logging("broker-4")
    assert capsys.readouterr().err.count("one of text, json. Logging as text.") == 1


def test_a_log_is_found_under_its_actors_name(tmp_path: Path) -> None:
    log = tmp_path / "worker-ab-01000000-7.err"
    log.write_text("a line\n")
    (tmp_path / "2").symlink_to(log)
    name_log("broker-1", tmp_path / "2")
    name_log("broker-1", tmp_path / "2")  # a second time changes nothing
    (link,) = (tmp_path / NAMED).iterdir()
    assert link.name == f"broker-1.{os.getpid()}"
    assert link.read_text() == "a line\n"


@pytest.mark.parametrize("name", ["worker-ab.out", "terminal"])
def test_a_process_without_a_log_of_rays_has_no_link(tmp_path: Path, name: str) -> None:
    (tmp_path / "2").symlink_to(tmp_path / name)
    name_log("broker-1", tmp_path / "2")
    name_log("broker-1", tmp_path / "nothing")
    assert not (tmp_path / NAMED).exists()
