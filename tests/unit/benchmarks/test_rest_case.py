"""The measures of one peer at rest: their order, what a measure that fails or is late leaves out, and the end."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers.processes import ServerProcess, Unavailable
from benchmarks.rest.case import AFTER, BEFORE, Case, Plan
from benchmarks.rest.peer import Deadline, Request, Writer

PLAN = Plan(partitions=5, replication=1, deadline_s=60.0, quiet_s=0.0, window_s=0.01)
ALL = ["start", "create", "serve", "status", "create", "serve", "write 0", "write 1", "write 2", "write 3", "write 4",
       "stop", "start", "read", "write 0", "end"]  # fmt: skip


class Pretended:
    """A server that notes what happens to it, and fails where it is meant to."""

    name = "pretended"
    notes: list[str] = []  # noqa: RUF012  # as the interface has it

    def __init__(self, fails: str = "", kept: bytes = BEFORE) -> None:
        self.log: list[str] = []
        self.values: list[bytes] = []
        self.sizes: list[int] = []
        self._fails = fails
        self._kept = kept

    def _note(self, what: str) -> None:
        self.log.append(what)
        if what == self._fails:
            raise Unavailable(f"no {what} today")

    def start(self, deadline: Deadline) -> None:
        self._note("start")

    def stop(self, deadline: Deadline) -> None:
        self._note("stop")

    def end(self) -> None:
        self.log.append("end")

    def not_servers(self) -> set[int]:
        return set()

    def create(self, topic: str, partitions: int, replication: int, deadline: Deadline) -> None:
        self.sizes.append(partitions)
        self._note("create")

    def serve(self, topic: str, partitions: int, deadline: Deadline) -> bool:
        self._note("serve")
        return False

    def requests(self, topic: str, partitions: int) -> Mapping[str, Request]:
        def status(_: Deadline) -> float:
            if self.log[-1] != "status":
                self._note("status")
            return 0.25

        return {"status": status}

    def writer(self, topic: str) -> Writer:
        return PretendedWriter(self)

    def first_value(self, topic: str, deadline: Deadline) -> bytes:
        self._note("read")
        return self._kept

    def describe(self) -> dict[str, str]:
        return {}


class PretendedWriter:
    """Notes the partitions, and keeps the values."""

    def __init__(self, server: Pretended) -> None:
        self._server = server

    def send(self, partition: int, value: bytes, timeout_s: float) -> None:
        self._server.values.append(value)
        self._server._note(f"write {partition}")

    def send_later(self, partition: int, value: bytes, done: Callable[[str], None]) -> None:
        self.send(partition, value, 0)
        done("")

    def wait_until(self, moment_s: float) -> None:
        pass

    def flush(self, timeout_s: float) -> None:
        pass

    def close(self) -> None:
        pass


def run(server: Pretended, plan: Plan = PLAN) -> Case:
    case = Case(server, plan, lambda _: None)
    case.run()
    return case


def test_every_measure_is_taken_in_order() -> None:
    server = Pretended()
    case = run(server)
    assert server.log == ALL
    assert not case.left_out
    assert server.sizes == [5, 30]
    assert {
        "create_s",
        "memory_mb",
        "cpu_cores",
        "status_ms",
        "more_s",
        "first_p99_ms",
        "stop_s",
        "start_s",
    } <= case.outcome.keys()
    assert "serve_s" not in case.outcome
    assert case.outcome["status_ms"] == 250.0
    assert case.outcome["first_records"] == 4


def test_the_record_after_the_start_is_a_new_one() -> None:
    server = Pretended()
    run(server)
    assert server.values == [*[BEFORE] * 5, AFTER]


@pytest.mark.parametrize(
    ("fails", "name"),
    [("create", "create"), ("status", "status"), ("write 2", "first record"), ("stop", "stop"), ("read", "start")],
)
def test_what_comes_after_a_measure_that_fails_is_left_out(fails: str, name: str) -> None:
    server = Pretended(fails)
    case = run(server)
    assert case.left_out == {name: f"no {fails} today"}
    assert server.log == [*ALL[: ALL.index(fails) + 1], "end"]


def test_a_measure_that_fails_late_did_not_finish_in_time() -> None:
    assert run(Pretended("start"), replace(PLAN, deadline_s=0.0)).left_out == {"first start": ">0 s"}


def test_a_start_without_the_record_of_before_fails() -> None:
    (reason,) = run(Pretended(kept=b"another")).left_out.values()
    assert "b'another' instead of" in reason


def test_with_a_trickle_every_partition_is_written_to_in_the_window() -> None:
    server = Pretended()
    case = run(server, replace(PLAN, per_minute=6_000.0, window_s=0.02))
    assert case.outcome["trickle_records"] == 10
    assert server.log[3:14] == ["write 0", *(f"write {number % 5}" for number in range(10))]
    assert "first_p50_ms" not in case.outcome
    assert not case.left_out


def test_a_process_that_does_not_end_in_time_is_killed_and_named(tmp_path: Path) -> None:
    script = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True)\nwhile True: signal.pause()"
    server = ServerProcess("a server", [sys.executable, "-c", script], tmp_path / "out")
    server.start()
    server.wait_until(lambda: server.last_words() == "ready", 30)
    with pytest.raises(Unavailable, match="a server did not end within 0 s and was killed"):
        server.stop_within(0.1)
    assert not server.runs()
    server.stop_within(0.1)
