"""The fork server and its launcher with real processes, and a script in the place of Ray's worker."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from raylog.actors.broker.worker_logs import Limits, limits_here
from raylog.actors.processes.fork_server import chosen, find_raylet
from raylog.launch import forking
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked on Linux only")

DEADLINE_S = 60.0
METRICS, TASKS = "RAY_enable_metrics_collection", "RAY_task_events_max_num_task_in_gcs"
WORKER = """
import json, os, random, resource, signal, sys
print(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgid(0), "arguments": sys.argv[1:], "path": sys.path,
    "name": __name__, "streams": sorted(os.listdir("/proc/self/fd"))[:4], "random": random.random(),
    "child": signal.getsignal(signal.SIGCHLD), "colour": os.environ.get("COLOUR"), "job": os.environ["RAY_JOB_ID"],
    "folder": os.getcwd(), "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "ray": "ray" in sys.modules,
    "nice": os.getpriority(os.PRIO_PROCESS, 0)}), flush=True)
if "--stay" in sys.argv:
    signal.pause()
sys.exit(3)
"""
STAND_IN = "import sys; sys.stdin.read()"
"""In the place of a raylet: a process that is called so, names the folder, and ends when its input does."""


class Launching:
    """A launcher as Ray would use it, and a worker's script for it to launch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "here"
        self.folder.mkdir(mode=0o700)
        launcher = forking.write_launcher(self.folder)
        assert launcher is not None
        self.launcher = launcher
        self.script = folder / "ray" / "_private" / "workers" / "default_worker.py"
        self.script.parent.mkdir(parents=True)
        self.script.write_text(WORKER)

    def run(self, *words: str, **variables: str) -> list[str]:
        """Run the launcher like Python, in a process group of its own as raylets do; returns the lines printed."""
        with self.launch(*words, **variables) as process:
            return process.communicate(timeout=DEADLINE_S)[0].splitlines()

    def launch(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.launcher, *words], env={**os.environ, "RAY_JOB_ID": "01", **variables}, stdout=subprocess.PIPE,
            text=True, process_group=0, preexec_fn=_few_files, cwd=self.folder.parent,
        )  # fmt: skip

    def worker(self, *words: str, **variables: str) -> dict[str, Any]:
        """Launch a worker; returns its report about itself. (Its output is read until it has ended, too.)"""
        (line,) = self.run(str(self.script), *words, **variables)
        report: dict[str, Any] = json.loads(line)
        return report


def _few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (123, 1234))
    os.nice(1)


@pytest.fixture
def launching(tmp_path: Path) -> Launching:
    return Launching(tmp_path)


@contextmanager
def raylet(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = ["/somewhere/raylet", "-c", STAND_IN, f"--python_worker_command={folder}/launcher x"]
    with subprocess.Popen(command, executable=sys.executable, stdin=subprocess.PIPE) as process:
        wait_for(lambda: find_raylet(folder) == process.pid, "the raylet's stand-in is found")
        yield process
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()


@contextmanager
def server(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", forking._SERVE, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            wait_for((folder / "socket").exists, "the server listens")
            yield process
        finally:
            process.kill()


def test_without_a_server_the_launcher_is_plain_python(launching: Launching) -> None:
    assert launching.run("-c", "import sys; print(sys.executable, sys.argv)", "a", "b c") == [
        f"{sys.executable} ['-c', 'a', 'b c']"
    ]
    report = launching.worker("--flag")
    assert (report["arguments"], report["parent"], report["ray"]) == (["--flag"], os.getpid(), False)


def test_a_forked_worker_is_as_if_it_had_been_started(launching: Launching) -> None:
    with server(launching.folder) as served, raylet(launching.folder):
        first = launching.worker("--flag", "a b", COLOUR="red")
        second = launching.worker(RAY_JOB_ID="02")
    assert first["parent"] == second["parent"] == served.pid
    assert (first["ray"], first["name"], first["child"]) == (True, "__main__", 0)
    assert first["arguments"] == ["--flag", "a b"]
    assert str(launching.script.parent) in first["path"]
    assert (first["colour"], second["colour"]) == ("red", None)
    assert (first["job"], second["job"]) == ("01", "02")
    assert (first["folder"], first["files"]) == (str(launching.folder.parent), 123)
    assert first["nice"] == os.getpriority(os.PRIO_PROCESS, 0) + 1
    assert first["streams"] == ["0", "1", "2", "3"]  # the last is that of the listing
    assert first["group"] == first["pid"], "Ray ends the process group of a worker that has ended"
    assert first["random"] != second["random"]


def test_a_worker_with_another_interpreter_or_imports_is_not_forked(launching: Launching) -> None:
    with server(launching.folder) as served, raylet(launching.folder):
        assert launching.worker(PYTHONHASHSEED="7")["parent"] == os.getpid()
        assert launching.worker()["parent"] == served.pid
        assert launching.worker(RAY_event_stats="7")["parent"] == os.getpid()


def test_when_the_server_has_stopped_workers_start_normally(launching: Launching) -> None:
    with server(launching.folder) as served, raylet(launching.folder):
        assert launching.worker()["parent"] == served.pid
        served.kill()
        served.wait(DEADLINE_S)
        assert launching.worker()["parent"] == os.getpid()


def test_a_stopped_worker_outlives_the_server(launching: Launching) -> None:
    stay = (str(launching.script), "--stay")
    with server(launching.folder) as served, raylet(launching.folder), launching.launch(*stay) as launched:
        assert launched.stdout is not None
        worker = psutil.Process(json.loads(launched.stdout.readline())["pid"])
        try:
            assert worker.ppid() == served.pid
            worker.send_signal(signal.SIGSTOP)
            wait_for(lambda: worker.status() == psutil.STATUS_STOPPED, "the worker has stopped")
            served.kill()
            served.wait(DEADLINE_S)
            assert worker.status() == psutil.STATUS_STOPPED, "no SIGHUP, which comes with SIGCONT"
        finally:
            worker.kill()


def test_the_server_ends_with_its_raylet_and_leaves_nothing(launching: Launching) -> None:
    with server(launching.folder) as served:
        with raylet(launching.folder):
            launching.worker()
            assert served.poll() is None
        assert served.wait(DEADLINE_S) == 0
    assert not launching.folder.exists()


def test_variables_read_early_are_separated_from_those_of_each_worker() -> None:
    variables = {"RAY_JOB_ID": "1", "RAY_x": "2", "PYTHONPATH": "3", "HOME": "4"}
    assert chosen(variables, ("RAY_", "PYTHON")) == {"RAY_x": "2", "PYTHONPATH": "3"}


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(forking.SWITCH, "0")
    before = sys.executable
    with forking.forked_workers():
        assert sys.executable == before


def test_a_ray_of_ours_keeps_little_of_workers_that_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(forking.SWITCH, "0")
    for name in forking.OWN_RAY:
        monkeypatch.setenv(name, "taken back at the end")
        monkeypatch.delenv(name)
    monkeypatch.setenv(TASKS, "7")
    with forking.forked_workers():
        assert os.environ[METRICS] == "0"
        assert os.environ[TASKS] == "7", "the operator's"
        assert limits_here() == Limits(86_400, files=5_000, size=100_000_000)


SHOW_LEVEL = "import os; print(os.environ.get('RAY_BACKEND_LOG_LEVEL'))"


def level_of(environment: dict[str, str] | None) -> str:
    """Return the level that a process has which is started here: with an environment, as Ray does, or without."""
    return subprocess.run(
        [sys.executable, "-c", SHOW_LEVEL], env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_rays_processes_log_warnings_and_this_one_is_not_concerned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(forking.SWITCH, "0")
    monkeypatch.delenv(forking.LEVEL, raising=False)
    with forking.forked_workers():
        assert level_of(os.environ.copy()) == "warning"
        assert level_of(None) == "None", "Ray's part of this process would print that it is set"
    assert forking.LEVEL not in os.environ


def test_a_level_that_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(forking.SWITCH, "0")
    monkeypatch.setenv(forking.LEVEL, "debug")
    with forking.forked_workers():
        assert level_of(os.environ.copy()) == level_of(None) == "debug"
    assert os.environ[forking.LEVEL] == "debug"


def test_a_python_whose_path_no_script_can_name_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/with a space/python")
    assert forking.write_launcher(tmp_path) is None
    monkeypatch.setattr(sys, "executable", "/long" * 40)
    assert forking.write_launcher(tmp_path) is None


def test_a_ray_that_does_not_start_leaves_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(ConnectionError), forking.forked_workers():
        raise ConnectionError
    assert list(tmp_path.iterdir()) == []


def test_a_raylet_later_than_the_servers_patience_still_gets_workers(launching: Launching) -> None:
    serve = forking._SERVE.replace("main()", "fork_server.NO_RAYLET_S = 0; fork_server.main()").replace(
        "import main;", "import main; from raylog.actors.processes import fork_server;"
    )
    done = subprocess.run([sys.executable, "-c", serve, str(launching.folder)], timeout=DEADLINE_S, check=False)
    assert done.returncode == 0
    assert not (launching.folder / "socket").exists()
    with raylet(launching.folder):
        assert launching.worker("--late")["arguments"] == ["--late"]
