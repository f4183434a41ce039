"""How long each file of tests takes: a run with `--note-durations` writes it down, all runs read it.

`tests/durations.json` has a row for each file: seconds of wall clock, seconds of processor, number of tests. What
`make test-long` runs has rows of its own, since a file may have tests of both.

- **Wall clock** is the time of the file's tests with their fixtures. Imports are not in it. A fixture of the session,
  such as Spark, counts for the file that is the first to use it.
- **Processor** is the time of the worker and of all processes that come from it, in user mode and in the kernel. Ray's
  processes end without a parent that waits for them, so the worker's own account (`os.times`) never has their time.
  Each process of a run carries the worker's mark in its environment (`tests/watchdog.py`), or has a parent that does.
  Those are looked up in /proc twice a second, and their last figures are kept. What a process uses after the last look
  is missing, unless its parent waits for it: the sum is a little too low, by less than half a second a process.

A file in which a test failed, or none ran, keeps its row: a timeout is no duration. A file without a row counts as
middling. What the rows are for: `tests/workers.py`.

A plugin of the tests (`tests/conftest.py`). May touch: `tests/durations.json`, with the option.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.watchdog import MARK

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_suffix(".json")
USUAL, LONG = "usual", "long"
"""The parts of the file; `long` is the marker of what `make test-long` runs."""
LOOK_S = 0.5
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Row(NamedTuple):
    """What is noted of a file."""

    wall_s: float
    processor_s: float
    tests: int


def part_of(config: pytest.Config) -> str:
    """Return which of the parts of the file is about this run."""
    return LONG if config.getoption("markexpr") == LONG else USUAL


def read(part: str = USUAL, file: Path | None = None) -> dict[str, Row]:
    """Return the rows of a part by file, such as ``tests/unit/test_a.py``; none if nothing was noted."""
    return {name: Row(*row) for name, row in _parts(file or FILE).get(part, {}).items()}


def write(rows: Mapping[str, Row], part: str = USUAL, file: Path | None = None) -> None:
    """Write the rows of a part, one a line, so that a difference shows which files have changed."""
    file = file or FILE
    parts = {**_parts(file), part: rows}
    texts = []
    for name, found in sorted(parts.items()):
        lines = [f"{json.dumps(each)}: {json.dumps(row)}" for each, row in sorted(found.items())]
        texts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    file.write_text("{\n" + ",\n".join(texts) + "\n}\n")


def _parts(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    return found


def merged(before: Mapping[str, Row], noted: Mapping[str, Row], root: Path | None = None) -> dict[str, Row]:
    """Return the rows with those of a run; files that are no more have none."""
    return {name: row for name, row in {**before, **noted}.items() if ((root or ROOT) / name).exists()}


def middling_s(rows: Mapping[str, Row]) -> float:
    """Return what a file without a row counts as: the mean, which few files reach, so that no long one comes last."""
    return sum(row.wall_s for row in rows.values()) / len(rows) if rows else 0.0


class Seen(NamedTuple):
    """A process at one look."""

    parent: int
    began: int
    used_s: float
    """By itself and by the children that it has waited for."""
    waited_s: float
    """The latter alone."""


class Account:
    """The processor seconds of a process and of all that come from it, by looks at /proc."""

    def __init__(self, root: int, mark: str) -> None:
        self._root, self._mark = root, f"{MARK}={mark}".encode()
        self._living: dict[int, Seen] = {}
        self._foreign: dict[int, int] = {}
        self._ended_s = 0.0
        self._lock = threading.Lock()

    def look(self) -> float:
        """Look at all processes and return the seconds until now."""
        with self._lock:
            found = self._ours(dict(_processes()))
            self._ended_s += unaccounted_s(self._living, found)
            self._living = found
            return self._ended_s + sum(seen.used_s for seen in found.values())

    def _ours(self, processes: Mapping[int, Seen]) -> dict[int, Seen]:
        """Those with the mark, and all below them; an environment is read once for each process."""
        self._foreign = {pid: began for pid, began in self._foreign.items() if _is_same(processes.get(pid), began)}
        ours = {self._root} | {pid for pid, seen in self._living.items() if _is_same(processes.get(pid), seen.began)}
        for pid, seen in processes.items():
            if pid not in ours and pid not in self._foreign:
                if self._mark in _environment(pid):
                    ours.add(pid)
                else:
                    self._foreign[pid] = seen.began
        children: dict[int, list[int]] = {}
        for pid, seen in processes.items():
            children.setdefault(seen.parent, []).append(pid)
        waiting = list(ours)
        while waiting:
            below = [pid for pid in children.get(waiting.pop(), ()) if pid not in ours]
            ours.update(below)
            waiting += below
        return {pid: processes[pid] for pid in ours if pid in processes}


def unaccounted_s(before: Mapping[int, Seen], now: Mapping[int, Seen]) -> float:
    """Return the seconds of processes that have ended since, as far as no parent has them in its own figures."""
    ended: dict[int, float] = {}
    for pid, seen in before.items():
        if not _is_same(now.get(pid), seen.began):
            ended[seen.parent] = ended.get(seen.parent, 0.0) + seen.used_s
    missing_s = 0.0
    for parent, used_s in ended.items():
        was, still = before.get(parent), now.get(parent)
        taken_s = still.waited_s - was.waited_s if was and still and still.began == was.began else 0.0
        missing_s += max(0.0, used_s - taken_s)
    return missing_s


def _is_same(seen: Seen | None, began: int) -> bool:
    return seen is not None and seen.began == began


def _processes() -> Iterator[tuple[int, Seen]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            user, kernel, user_below, kernel_below = (int(ticks) * TICK_S for ticks in fields[11:15])
            waited_s = user_below + kernel_below
            yield int(folder.name), Seen(int(fields[1]), int(fields[19]), user + kernel + waited_s, waited_s)


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return []


@dataclass(slots=True)
class Notes:
    """What one process has measured of the files that it ran."""

    account: Account
    rows: dict[str, list[float]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    ran: set[str] = field(default_factory=set)
    counted_s: float = 0.0

    def add(self, file: str, wall_s: float) -> None:
        """Note a test of a file."""
        row = self.rows.setdefault(file, [0.0, 0.0, 0])
        row[0] += wall_s
        row[2] += 1

    def close(self, file: str) -> None:
        """Note the processor time since the last file."""
        until_s = self.account.look()
        self.rows[file][1] += until_s - self.counted_s
        self.counted_s = until_s

    def as_sent(self) -> dict[str, Any]:
        """As a worker hands it over."""
        return {"rows": self.rows, "ran": sorted(self.ran), "failed": sorted(self.failed)}


def summed(notes: Iterable[Mapping[str, Any]]) -> dict[str, Row]:
    """Return the rows of a run from what its processes have measured: files may be divided among them."""
    notes = list(notes)
    totals: dict[str, list[float]] = {}
    for name, row in ((name, row) for each in notes for name, row in each["rows"].items()):
        totals[name] = [sum(pair) for pair in zip(totals.get(name, (0, 0, 0)), row, strict=True)]
    failed = {name for each in notes for name in each["failed"]}
    ran = {name for each in notes for name in each["ran"]}
    return {
        name: Row(round(wall_s, 1), round(processor_s, 1), int(tests))
        for name, (wall_s, processor_s, tests) in totals.items()
        if name in ran and name not in failed
    }


class Noting:
    """The plugin of a run with the option: in its workers, and in the process that has them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._notes: Notes
        self._of_workers: list[Mapping[str, Any]] = []
        self._over = threading.Event()
        self._looks = threading.Thread(target=self._look, name="note-durations", daemon=True)

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            self._notes.account.look()

    def pytest_sessionstart(self) -> None:
        """Begin to look, once `tests.watchdog` has made the mark; what was used until now belongs to no file."""
        account = Account(os.getpid(), os.environ[MARK])
        self._notes = Notes(account, counted_s=account.look())
        self._looks.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Measure a test, and the file with its last one."""
        file, began_s = _file(item.nodeid), time.monotonic()
        try:
            return (yield)
        finally:
            self._notes.add(file, time.monotonic() - began_s)
            if nextitem is None or _file(nextitem.nodeid) != file:
                self._notes.close(file)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep which files ran, and in which a test failed."""
        if report.failed:
            self._notes.failed.add(_file(report.nodeid))
        elif report.when == "call" and report.passed:
            self._notes.ran.add(_file(report.nodeid))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker has measured; one that crashed hands nothing over."""
        measured = getattr(node, "workeroutput", {}).get("durations")
        if measured is not None:
            self._of_workers.append(measured)

    def pytest_sessionfinish(self) -> None:
        """Hand the rows over, or write them."""
        self._over.set()
        self._looks.join()
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["durations"] = self._notes.as_sent()
        else:
            part = part_of(self._config)
            write(merged(read(part), summed([self._notes.as_sent(), *self._of_workers])), part)


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--note-durations", action="store_true", help="write how long each file takes to tests/durations.json"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Take part in a run with the option."""
    if not config.getoption("note_durations"):
        return
    if config.getoption("keyword") or any("::" in each for each in config.args):
        raise pytest.UsageError("--note-durations notes whole files: run it without -k, and without names of tests")
    config.pluginmanager.register(Noting(config))
