"""The command line from `raylog start` to `raylog stop`, in processes of its own, with a Ray that it starts and ends.

`--address local` isolates it from any other Ray on the machine.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

COMMAND_TIMEOUT_S = 120
MANY = 24
"""Partitions whose processes start and end for longer than a second, which is when commands show how far they are."""
PROGRAM = [sys.executable, "-c", "from raylog.cli import main; main()"]


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs commands in a folder, as a user does."""

    folder: Path

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAYLOG_", "RAY_ADDRESS"))}
        return {**kept, **more}

    def run(self, *words: str, stdin: str = "", expect: int = 0, env: dict[str, str] | None = None) -> str:
        """Run one command to its end; returns what it printed."""
        return self.outcome(*words, stdin=stdin, expect=expect, env=env)[0 if expect == 0 else 1]

    def outcome(
        self, *words: str, stdin: str = "", expect: int = 0, env: dict[str, str] | None = None
    ) -> tuple[str, str]:
        """Run one command to its end; returns its standard output and standard error."""
        done = subprocess.run(
            [*PROGRAM, *words],
            cwd=self.folder,
            env=self.environment(**(env or {})),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == expect, f"raylog {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A folder to work in; everything a test leaves running is stopped."""
    shell = Shell(tmp_path)
    yield shell
    if (tmp_path / "raylog-data" / "ray.json").exists():
        shell.run("stop")


def counted(shown: str, total: int, what: str) -> list[int]:
    """The counts in the lines "N of TOTAL WHAT"; all other lines are Ray's, or are about the command's steps."""
    found = [re.fullmatch(rf"([\d,]+) of {total:,} {what}", line) for line in shown.splitlines()]
    return [int(match[1].replace(",", "")) for match in found if match]


def processes_of(session: int) -> list[int]:
    """The processes of one session, which distinguishes this test's Ray node from others."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


def test_commands_that_take_long_show_how_far_they_are(shell: Shell) -> None:
    shell.run("start", "--address", "local", "--brokers", "1")
    awake = ("--partitions", str(MANY), "--config", "replica.sleep.after.ms=-1")
    printed, shown = shell.outcome("topic", "create", "many", *awake)
    assert f"Topic many created: {MANY} partitions, replication factor 1.\n" in printed  # beside Ray's own warnings
    led = counted(shown, MANY, "partitions have a leader")
    assert led
    assert led == sorted(set(led))
    printed, shown = shell.outcome("stop")
    assert "Raylog has stopped" in printed
    asleep = counted(shown, MANY, "partitions asleep")
    assert asleep == sorted(set(asleep))
    printed, shown = shell.outcome("start", "--address", "local")
    assert "Raylog runs" in printed
    assert not counted(shown, MANY, "replicas ready"), "they wake later, for a use or in the background"


def test_a_cluster_from_start_to_stop_and_back_again(shell: Shell) -> None:
    output = shell.run("start", "--address", "local", "--brokers", "2")
    assert "broker 2: 127.0.0.1:" in output
    secret = (shell.folder / "raylog-data" / "secret").read_text().strip()
    assert secret not in output
    ray_pid = json.loads((shell.folder / "raylog-data" / "ray.json").read_text())["pid"]
    assert processes_of(ray_pid)

    shell.run("topic", "create", "flights", "--partitions", "2", "--replication-factor", "2")
    assert shell.run("topic", "list") == "flights\n"
    lines = "".join(f"{number % 7}:{number}\n" for number in range(1000))
    shell.run("produce", "--topic", "flights", "--key-separator", ":", stdin=lines)

    driver = "import raylog\nwith raylog.Admin() as admin: print(admin.list_topics())"
    found = subprocess.run(
        [sys.executable, "-c", driver], env=shell.environment(), capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout == "['flights']\n", "a Python process on this machine finds the cluster by itself"

    # The rest uses address and secret: no Ray in these processes.
    bootstrap = next(line for line in output.splitlines() if "RAYLOG_BOOTSTRAP=" in line).partition("=")[2]
    away = {"RAYLOG_BOOTSTRAP": bootstrap, "RAYLOG_SECRET": secret}
    wanted = ["--topic", "flights", "--from-beginning", "--max-messages", "1000"]
    read = shell.run("consume", *wanted, "--group", "board", "--timeout-ms", "30000", env=away)
    assert sorted(map(int, read.split())) == list(range(1000))
    group = json.loads(shell.run("group", "describe", "board", "--json", env=away))
    assert [(row["committed"], row["lag"]) for row in group["partitions"]] == [
        (row["end"], 0) for row in group["partitions"]
    ]
    assert sum(row["end"] for row in group["partitions"]) == 1000
    assert "did you mean 'flights'?" in shell.run("consume", "--topic", "flihgts", expect=1, env=away)

    status = json.loads(shell.run("status", "--json"))
    assert {len(flight["isr"]) for flight in status["topics"]["flights"]} == {2}
    assert status["offline_brokers"] == []
    assert "online" in shell.run("status", env=away)

    load = "perf produce --topic flights --num-records 20000 --record-size 100 --throughput -1"
    assert "20000 records sent, " in shell.run(*load.split(), "--producer-props", "acks=all", env=away)
    reading = "perf consume --topic flights --messages 21000 --timeout 30000"
    row = shell.run(*reading.split(), env=away).splitlines()[1]
    assert int(row.split(", ")[4]) == 21000

    dump = shell.run("log", "dump", "raylog-data/broker-1/flights-0", "--records", "--offset", "0")
    assert "key " in dump

    assert "has ended" in shell.run("stop")
    wait_for(lambda: not processes_of(ray_pid), "the Ray node has ended, with all of its processes")
    assert "raylog start" in shell.run("status", "--address", "local", expect=1)

    again = started_in_json(shell)
    assert again["bootstrap"] == bootstrap, "what a service was configured with stays true"
    assert shell.run("topic", "list", env=away) == "flights\n"
    assert shell.run("topic", "list") == "flights\n"
    back = shell.run("consume", "--topic", "flights", "--from-beginning", "--max-messages", "21000", "--format", "%o ")
    assert len(back.split()) == 21000
    look_into_the_logs(shell)
    ended = json.loads(shell.run("stop", "--json"))
    assert list(ended) == ["stopped", "data_dir", "ray_pid", "machines_ended"]
    assert (ended["stopped"], ended["ray_pid"]) == (True, again["ray_pid"])


def started_in_json(shell: Shell) -> dict[str, Any]:
    """Start two brokers again; what the command prints, which Ray's own warnings must not be between."""
    again: dict[str, Any] = json.loads(shell.run("start", "--address", "local", "--json"))
    assert [broker["state"] for broker in again["brokers"]] == ["online"] * 2
    assert set(again["metrics"]) == {"served", "taken"}
    assert again["secret_file"] == str(shell.folder / "raylog-data" / "client-secret")
    assert json.loads(shell.run("topic", "create", "more", "--json"))["created"]
    shell.run("topic", "delete", "more")
    return again


def look_into_the_logs(shell: Shell) -> None:
    """Find the logs of a cluster whose topic `flights` is in use."""
    names = [row["actor"] for row in json.loads(shell.run("logs", "--json"))]
    assert {"controller", "broker-1", "broker-2"} <= set(names)
    assert any(name.startswith("replica:flights-0:broker-1:") for name in names), names
    assert "flights-0" in shell.run("logs", "--partition", "flights-0")


def test_a_cluster_that_a_python_process_started_is_found(shell: Shell) -> None:
    """As in a notebook: `ray.init()` leaves no address for other processes, the data directory does."""
    program = "import raylog\nwith raylog.start('here', address='local'): print('ready', flush=True); input()"
    with tempfile.TemporaryDirectory(prefix="rl", dir="/tmp") as home:  # no other Ray is recorded there
        apart = {"RAY_TMPDIR": home}
        notebook = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=shell.folder,
            env=shell.environment(**apart),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert notebook.stdout is not None
        try:
            assert notebook.stdout.readline() == "ready\n"
            shell.run("topic", "create", "flights", "--data-dir", "here", env=apart)
            assert "flights" in shell.run("status", "--data-dir", "here", env=apart)
        finally:
            notebook.communicate("\n", timeout=COMMAND_TIMEOUT_S)
        assert notebook.returncode == 0
        assert "raylog start" in shell.run("status", "--data-dir", "here", expect=1, env=apart)


def test_in_the_foreground_a_signal_stops_cluster_and_ray(shell: Shell) -> None:
    with (shell.folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*PROGRAM, "start", "--address", "local", "--foreground"],
            cwd=shell.folder,
            env=shell.environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: "Running in the foreground" in (shell.folder / "output").read_text(), "it runs")
        ray_pid = json.loads((shell.folder / "raylog-data" / "ray.json").read_text())["pid"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(COMMAND_TIMEOUT_S) == 0
        assert "SIGTERM received" not in (shell.folder / "output").read_text(), "Ray's trace of C++ frames"
        wait_for(lambda: not processes_of(ray_pid), "the Ray node has ended")
        assert not (shell.folder / "raylog-data" / "ray.json").exists()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(COMMAND_TIMEOUT_S)


def test_a_start_that_fails_leaves_no_ray_behind(shell: Shell) -> None:
    output = shell.run("start", "--address", "local", "--config", "default.replication.factr=2", expect=1)
    assert "did you mean 'default.replication.factor'?" in output
    for broker in (1, 2):
        (shell.folder / "raylog-data" / f"broker-{broker}").mkdir(parents=True)
    output = shell.run("start", "--address", "local", "--brokers", "1", expect=1)
    assert "holds the data of 2 brokers" in output, "which is found out when Ray has been started"
    assert not (shell.folder / "raylog-data" / "ray.json").exists()
