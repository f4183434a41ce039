"""Of the log files of ended workers the newest are kept, for a time; those that run, and others, lose none."""

import os
from pathlib import Path

import pytest

from raylog.actors.broker.worker_logs import (
    BYTES_VARIABLE,
    FILES_VARIABLE,
    KEPT_VARIABLE,
    Limits,
    LogFile,
    WorkerLogs,
    excess,
    is_running,
    limits_here,
    remove_excess,
)
from raylog.actors.logs import NAMED

WORKER = "ab" * 28
ENDED, RUNS = 4_000_001, 4_000_002
LIMIT_S = 1_000_000.0
A_DAY = Limits(86_400)


def files_of(pid: int) -> list[str]:
    """The files that Ray keeps of a worker, including those that it has rotated."""
    return [
        f"worker-{WORKER}-01000000-{pid}.out",
        f"worker-{WORKER}-ffffffff-{pid}.err",
        f"python-core-worker-{WORKER}_{pid}.log",
        f"python-core-worker-{WORKER}_{pid}.1.log",
        f"worker-{WORKER}-01000000-{pid}.out.1",
        f"old/worker-{WORKER}-01000000-{pid}.out",
        f"old/worker-{WORKER}-01000000-{pid}.err",
        f"events/event_CORE_WORKER_{pid}.log",
        f"export_events/event_EXPORT_TASK_{pid}.log",
    ]


OTHERS = [
    *(f"events/event_RAYLET_{ENDED}.log", "events/event_GCS.log", "export_events/event_EXPORT_NODE.log"),
    *("raylet.out", "gcs_server.err", "monitor.log", "log_monitor.log", f"runtime_env_setup-{ENDED}.log"),
    *(f"worker-{WORKER}-01000000-{ENDED}", f"python-core-driver-{WORKER}_{ENDED}.log", f"x-{files_of(ENDED)[0]}"),
]


def write(folder: Path, names: list[str], written_s: float) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("a line")
        os.utime(folder / name, (written_s, written_s))


def listed(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def test_what_ended_workers_wrote_before_the_limit_is_removed(tmp_path: Path) -> None:
    write(tmp_path, [*files_of(ENDED), *files_of(RUNS), *OTHERS], LIMIT_S - 1)
    young = f"worker-{WORKER}-02000000-{ENDED}.out"
    write(tmp_path, [young], LIMIT_S)
    assert remove_excess(tmp_path, LIMIT_S, A_DAY, is_running=lambda pid: pid == RUNS) == 9
    assert listed(tmp_path) == sorted([*files_of(RUNS), *OTHERS, young])


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    (tmp_path / files_of(ENDED)[0]).symlink_to(other)
    remove_excess(tmp_path, 2**40, A_DAY, is_running=lambda pid: False)
    assert other.read_text() == "kept"


def file(number: int, size: int = 4096) -> LogFile:
    """One of a worker that has ended; a higher number was written later."""
    return LogFile(LIMIT_S + number, f"{number}.log", size)


def test_the_newest_files_are_kept_up_to_a_number() -> None:
    files = [file(2), file(0), file(3), file(1)]
    assert excess(files, LIMIT_S, Limits(86_400, files=3)) == [file(0)]
    assert excess(files, LIMIT_S, Limits(86_400, files=1)) == [file(0), file(1), file(2)], "the oldest is the first"
    assert excess(files, LIMIT_S, Limits(86_400, files=4)) == []
    assert len(excess(files, LIMIT_S, Limits(86_400, files=0))) == 4


def test_the_newest_files_are_kept_up_to_a_size() -> None:
    files = [file(0, 10), file(1, 100), file(2, 1)]
    assert excess(files, LIMIT_S, Limits(86_400, size=111)) == []
    assert excess(files, LIMIT_S, Limits(86_400, size=110)) == [file(0, 10)]
    assert excess(files, LIMIT_S, Limits(86_400, size=50)) == [file(0, 10), file(1, 100)], "not a newer one's place"


def test_what_is_few_and_old_goes_all_the_same() -> None:
    assert excess([file(-1), file(0)], LIMIT_S, Limits(86_400, files=10, size=2**20)) == [file(-1)]


def test_files_of_running_workers_count_for_no_limit(tmp_path: Path) -> None:
    write(tmp_path, files_of(RUNS), LIMIT_S + 2)
    write(tmp_path, files_of(ENDED), LIMIT_S)
    newest = f"worker-{WORKER}-02000000-{ENDED}.err"
    write(tmp_path, [newest], LIMIT_S + 1)
    limits = Limits(86_400, files=1)
    assert remove_excess(tmp_path, LIMIT_S, limits, is_running=lambda pid: pid == RUNS) == 9
    assert listed(tmp_path) == sorted([*files_of(RUNS), newest])


@pytest.mark.parametrize(
    ("given", "expected"), [("", None), ("-1", None), ("a day", None), ("86400", Limits(86_400)), ("0", Limits(0))]
)
def test_the_time_is_set_where_ray_is_started(
    given: str, expected: Limits | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (FILES_VARIABLE, BYTES_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(KEPT_VARIABLE, given)
    assert limits_here() == expected


def test_so_are_the_number_and_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEPT_VARIABLE, "60")
    monkeypatch.setenv(FILES_VARIABLE, "5000")
    monkeypatch.setenv(BYTES_VARIABLE, "-1")
    assert limits_here() == Limits(60, files=5_000)


def test_a_process_is_found_by_its_number() -> None:
    assert is_running(os.getpid())
    assert is_running(1), "of another user"
    assert not is_running(ENDED)


async def test_a_broker_removes_by_the_time_of_day(tmp_path: Path) -> None:
    write(tmp_path, files_of(ENDED), 1_000.0)
    logs = WorkerLogs(tmp_path, Limits(60))
    assert await logs.check(tmp_path, Limits(60)) == 9
    assert await logs.check(tmp_path / "missing", Limits(60)) == 0
    (tmp_path / "file").write_text("no folder")
    assert await logs.check(tmp_path / "file", Limits(60)) == 0, "logged, and tried again"


async def test_a_ray_of_others_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, files_of(ENDED), 1_000.0)
    for logs in (WorkerLogs(None, Limits(60)), WorkerLogs(tmp_path, None)):
        logs.start()
        await logs.stop()
    assert len(listed(tmp_path)) == 9


def test_the_names_of_removed_logs_are_removed(tmp_path: Path) -> None:
    names = [f"worker-{WORKER}-01000000-{pid}.err" for pid in (ENDED, RUNS)]
    write(tmp_path, names, LIMIT_S - 1)
    (tmp_path / NAMED).mkdir()
    for pid, name in zip((ENDED, RUNS), names, strict=True):
        (tmp_path / NAMED / f"broker-1.{pid}").symlink_to(f"../{name}")
    assert remove_excess(tmp_path, LIMIT_S, A_DAY, is_running=lambda pid: pid == RUNS) == 1
    assert [each.name for each in (tmp_path / NAMED).iterdir()] == [f"broker-1.{RUNS}"]
