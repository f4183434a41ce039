"""What a run notes of its files, and whose processor time it counts."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import durations
from tests.durations import Account, Row, Seen, unaccounted_s
from tests.unit.style.sources import ROOT
from tests.waiting import wait_for
from tests.watchdog import MARK

pytest_plugins = ["pytester"]

SPIN = "import time\nwhile time.process_time() < {}: pass\n"
"""A program that uses so many seconds of processor."""
LEAVES_ONE = f"""
import subprocess, sys
program = {SPIN.format(0.4)!r} + "time.sleep(60)"
print(subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, start_new_session=True).pid)
"""
"""A program that ends before its child does, whose number it prints."""
PR_SET_CHILD_SUBREAPER = 36


def test_rows_are_written_one_a_line_and_read_again(tmp_path: Path) -> None:
    rows = {"tests/b.py": Row(2.5, 1.0, 3), "tests/a.py": Row(0.1, 0.1, 1)}
    file = tmp_path / "noted.json"
    durations.write(rows, file=file)
    assert durations.read(file=file) == rows
    assert file.read_text().splitlines()[2] == '"tests/a.py": [0.1, 0.1, 1],'
    assert durations.read(file=tmp_path / "none.json") == {}


def test_what_make_test_long_runs_has_rows_of_its_own(tmp_path: Path) -> None:
    usual, long = {"tests/a.py": Row(1.0, 1.0, 1)}, {"tests/a.py": Row(60.0, 1.0, 9)}
    durations.write(usual, file=tmp_path / "noted.json")
    durations.write(long, "long", tmp_path / "noted.json")
    assert durations.read(file=tmp_path / "noted.json") == usual
    assert durations.read("long", tmp_path / "noted.json") == long


def test_a_run_keeps_the_rows_of_other_files_that_exist(tmp_path: Path) -> None:
    for name in ("kept.py", "again.py"):
        (tmp_path / name).touch()
    before = {name: Row(1.0, 1.0, 1) for name in ("kept.py", "again.py", "removed.py")}
    found = durations.merged(before, {"again.py": Row(9.0, 9.0, 9)}, tmp_path)
    assert found == {"kept.py": Row(1.0, 1.0, 1), "again.py": Row(9.0, 9.0, 9)}


def test_a_file_divided_among_workers_is_added_up_without_failed_ones() -> None:
    one = {"rows": {"a.py": [1.0, 0.5, 1], "b.py": [1.0, 1.0, 1]}, "ran": ["a.py", "b.py"], "failed": []}
    two = {"rows": {"a.py": [2.04, 0.5, 2], "b.py": [1.0, 1.0, 1]}, "ran": ["a.py"], "failed": ["b.py"]}
    assert durations.summed([one, two]) == {"a.py": Row(3.0, 1.0, 3)}


def test_the_noted_files_exist_and_most_files_are_noted() -> None:
    rows = durations.read()
    noted = {*rows, *durations.read("long")}
    assert [name for name in noted if not (ROOT / name).exists()] == []
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert len(files - noted) < len(files) / 5, "run `make test PYTEST_ARGS=--note-durations` once"


def test_seconds_that_a_parent_has_taken_over_are_counted_once() -> None:
    before = {1: Seen(0, 10, 5.0, 1.0), 2: Seen(1, 11, 2.0, 0.0), 3: Seen(1, 12, 4.0, 0.0)}
    waited = {1: Seen(0, 10, 7.5, 3.5), 3: Seen(1, 12, 4.0, 0.0)}
    assert unaccounted_s(before, waited) == 0.0
    not_waited = {1: Seen(0, 10, 5.0, 1.0), 3: Seen(1, 12, 4.0, 0.0)}
    assert unaccounted_s(before, not_waited) == 2.0
    another_with_its_number = {**not_waited, 2: Seen(1, 99, 0.1, 0.0)}
    assert unaccounted_s(before, another_with_its_number) == 2.0


@pytest.fixture
def adopting() -> Iterator[None]:
    """Orphans become children of this process, which can wait for their end, and not of one that may never do so."""
    library = ctypes.CDLL(None)
    assert library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    library.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def test_an_orphan_with_the_mark_counts_after_its_end(monkeypatch: pytest.MonkeyPatch, adopting: None) -> None:
    """As Ray's processes are: their parent has ended, and nothing of the run waits for them."""
    monkeypatch.setenv(MARK, "run-of-orphans")
    root = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    account = Account(root.pid, "run-of-orphans")
    try:
        ran = subprocess.run([sys.executable, "-c", LEAVES_ONE], check=True, stdout=subprocess.PIPE, text=True)
        wait_for(lambda: account.look() > 0.35, "the orphan has used its time", 60)
        os.kill(int(ran.stdout), signal.SIGKILL)
        os.waitpid(int(ran.stdout), 0)
        assert account.look() > 0.35  # the root has hardly used any
    finally:
        root.kill()
        root.wait()


def test_a_child_without_the_mark_counts_and_a_foreign_process_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MARK, raising=False)
    account = Account(os.getpid(), "no-such-run")
    before_s = account.look()
    subprocess.run([sys.executable, "-c", SPIN.format(0.4)], check=True)
    assert account.look() - before_s > 0.35  # ticks are a hundredth
    foreign = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        other = Account(foreign.pid, "no-such-run")
        other.look()
        subprocess.run([sys.executable, "-c", SPIN.format(0.4)], check=True)
        assert other.look() < 0.3
    finally:
        foreign.kill()
        foreign.wait()


INNER = {
    "tests/test_slow.py": "import time\ndef test_waits(): time.sleep(0.5)\ndef test_too(): pass\n",
    "tests/test_busy.py": "import time\ndef test_computes():\n"
    "    end = time.process_time() + 0.4\n    while time.process_time() < end: pass\n",
    "tests/test_bad.py": "def test_fails(): assert False\n",
    "tests/test_left_out.py": "import pytest\n@pytest.mark.skip\ndef test_skipped(): pass\n",
    "conftest.py": "from pathlib import Path\nfrom tests import durations\n"
    "durations.ROOT = Path(__file__).parent\ndurations.FILE = durations.ROOT / 'noted.json'\n",
}


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A small suite that notes into a file of its own."""
    (pytester.path / "tests").mkdir()
    for name, source in INNER.items():
        (pytester.path / name).write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return pytester


OPTIONS = ("-p", "tests.watchdog", "-p", "tests.durations", "--note-durations")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_with_the_option_notes_each_file_that_passed(inner: pytest.Pytester, workers: str) -> None:
    ran = inner.runpytest_subprocess(*OPTIONS, "-n", workers, "--dist", "loadfile")
    ran.assert_outcomes(passed=3, failed=1, skipped=1)
    rows = durations.read(file=inner.path / "noted.json")
    assert sorted(rows) == ["tests/test_busy.py", "tests/test_slow.py"]
    slow, busy = rows["tests/test_slow.py"], rows["tests/test_busy.py"]
    assert (slow.tests, busy.tests) == (2, 1)
    assert slow.wall_s >= 0.5 > slow.processor_s
    assert busy.processor_s >= 0.4


def test_a_run_without_the_option_notes_nothing(inner: pytest.Pytester) -> None:
    inner.runpytest_subprocess(*OPTIONS[:-1], "-n", "0").assert_outcomes(passed=3, failed=1, skipped=1)
    assert not (inner.path / "noted.json").exists()


def test_a_part_of_a_file_is_not_noted(inner: pytest.Pytester) -> None:
    for selection in (("-k", "waits"), ("tests/test_slow.py::test_waits",)):
        ran = inner.runpytest_subprocess(*OPTIONS, *selection)
        assert ran.ret == pytest.ExitCode.USAGE_ERROR
        assert re.search("notes whole files", "\n".join(ran.errlines))
    assert not (inner.path / "noted.json").exists()
