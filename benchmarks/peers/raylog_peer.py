"""Raylog on its own Ray, three brokers on this machine, held by a process of `raylog_host`."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from benchmarks.optional import version_of
from benchmarks.peers.processes import Unavailable, line_within
from raylog import compiled
from raylog.client.admin.admin import Admin

ANSWER_TIMEOUT_S = 120.0
HEAL_TIMEOUT_S = 60.0
NEVER = 2**63 - 1


def _wait_until(condition: Callable[[], bool], complaint: str) -> None:
    deadline_s = time.monotonic() + HEAL_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise Unavailable(f"{complaint} within {HEAL_TIMEOUT_S:.0f} s")
        time.sleep(0.1)


def topic_config(replication: int, *, fsync: bool) -> dict[str, int]:
    """A topic's settings, with acknowledgements from the page cache, or from the disk."""
    return {"flush.messages": 1 if fsync else NEVER, "min.insync.replicas": replication // 2 + 1}


class Raylog:
    """A Raylog cluster."""

    def __init__(
        self,
        root: Path,
        brokers: int,
        *,
        spares: int = 0,
        timeout_s: float = ANSWER_TIMEOUT_S,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """`spares`: processes that each broker keeps ready to become replicas; `timeout_s`: to start, stop, answer.

        `config`: further settings of the cluster.
        """
        self.name = f"raylog with {spares} spares" if spares else "raylog"
        self._parent = root
        self._root = root / self.name.replace(" ", "-")
        self._brokers = brokers
        self._spares = spares
        self._config = {"replica.spares": str(spares), **(config or {})}
        self._timeout_s = timeout_s
        self._host: subprocess.Popen[str] | None = None
        self._found: dict[str, Any] = {}

    def with_spares(self, spares: int) -> Raylog:
        """Another cluster of as many brokers, on its own Ray, not started."""
        config = {name: value for name, value in self._config.items() if name != "replica.spares"}
        return Raylog(self._parent, self._brokers, spares=spares, timeout_s=self._timeout_s, config=config)

    def start(self) -> None:
        """Start Ray and the cluster."""
        self._root.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-m", "benchmarks.peers.raylog_host",
            str(self._root / "data"), str(self._brokers), json.dumps(self._config), str(self._timeout_s),
        ]  # fmt: skip
        with (self._root / "host.out").open("ab") as errors:
            self._host = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
        self._found = self._answer()

    def _request(self, command: str) -> dict[str, Any]:
        if self._host is None or self._host.stdin is None:
            raise Unavailable("Raylog does not run")
        try:
            self._host.stdin.write(command + "\n")
            self._host.stdin.flush()
        except BrokenPipeError:
            raise Unavailable(f"Raylog's process has ended: {self._last_words()}") from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """One line of the host, which is killed after a timeout, so that reading returns."""
        if self._host is None:
            raise Unavailable("Raylog does not run")
        line = line_within(self._host, self._timeout_s)
        if not line:
            raise Unavailable(f"Raylog's process ended or did not answer: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise Unavailable(answer["failed"])
        return answer

    def _last_words(self) -> str:
        lines = (self._root / "host.out").read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        return " / ".join(lines)

    def host_pid(self) -> int:
        """The process that holds the cluster, the parent of all others. Raises Unavailable when it does not run."""
        if self._host is None:
            raise Unavailable("Raylog does not run")
        return self._host.pid

    def status(self) -> dict[str, Any]:
        """The seconds that `Cluster.status` takes, and the partitions in it."""
        return self._request("status")

    def runs(self) -> bool:
        """Whether the process that holds the cluster runs."""
        return self._host is not None and self._host.poll() is None

    def _refreshed(self) -> dict[str, Any]:
        self._found = self._request("describe")
        return self._found

    def address(self) -> dict[str, str]:
        """Bootstrap, secret, and Ray's address."""
        return {name: self._found[name] for name in ("bootstrap", "secret", "ray")}

    def _admin(self) -> Admin:
        return Admin(bootstrap=self._found["bootstrap"], secret=self._found["secret"])

    def create_topic(self, name: str, partitions: int, replication: int, *, fsync: bool) -> None:
        """Create a topic."""
        config = topic_config(replication, fsync=fsync)
        with self._admin() as admin:
            admin.create_topic(name, partitions=partitions, replication_factor=replication, config=config, timeout_s=60)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until its processes have ended."""
        pids = [int(replica["pid"]) for replica in self._refreshed()["replicas"] if replica["topic"] == name]
        with self._admin() as admin:
            admin.delete_topic(name, timeout_s=60)
        _wait_until(
            lambda: all(replica["topic"] != name for replica in self._refreshed()["replicas"]),
            f"{name} was not taken away",
        )
        _wait_until(lambda: not any(map(psutil.pid_exists, pids)), f"the processes of {name} did not end")

    def wait_for_spares(self) -> None:
        """Wait until every broker has its spares, and none is starting."""
        wanted = self._brokers * self._spares
        _wait_until(lambda: self._request("spares")["ready"] == wanted, f"there were not {wanted} spares")

    def pids(self) -> list[int]:
        """Every process of Ray and Raylog."""
        return [int(pid) for pid in self._refreshed()["pids"]]

    def replica_pids(self) -> list[int]:
        """The replicas' processes."""
        return [int(replica["pid"]) for replica in self._refreshed()["replicas"]]

    def kill_leader(self, topic: str) -> None:
        """Kill the leader's process."""
        if self._request(f"kill {topic}")["killed"] is None:
            raise Unavailable(f"no replica of {topic} reported that it leads")

    def heal(self) -> None:
        """Wait until Ray has restarted the killed process and every replica is in sync again."""
        with self._admin() as admin:

            def in_sync() -> bool:
                described = admin.describe_topics(admin.list_topics()).values()
                states = [partition for topic in described for partition in topic.partitions]
                return all(set(state.isr) == set(state.replicas) for state in states)

            _wait_until(in_sync, "not every replica was in sync again")

    def folder(self) -> Path:
        """The folders of the logs."""
        return self._root / "data"

    def stop(self) -> None:
        """Stop the cluster and Ray."""
        with contextlib.suppress(Unavailable):
            self.stop_within(self._timeout_s)

    def stop_within(self, timeout_s: float) -> None:
        """As `stop`, with its own timeout; raises Unavailable when the cluster did not stop cleanly."""
        if self._host is None:
            return
        host, self._host = self._host, None
        if host.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                host.stdin.write("stop\n")
                host.stdin.close()
        try:
            host.wait(timeout_s)
        except subprocess.TimeoutExpired:
            host.kill()
            host.wait(ANSWER_TIMEOUT_S)
        if host.stdout is not None:
            host.stdout.close()
        if host.returncode:
            raise Unavailable(f"Raylog did not stop cleanly within {timeout_s:.0f} s: {self._last_words()}")

    def describe(self) -> dict[str, str]:
        """Version and settings."""
        return {
            "version": version_of("raylog"),
            "Ray": version_of("ray"),
            "modules": "compiled" if compiled.in_use() else "interpreted",
            "processes": f"{self._brokers} brokers, a controller, and a process for each replica",
        }
