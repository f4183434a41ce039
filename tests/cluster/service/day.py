"""The services of a day, as their tests start, watch and judge them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import raylog
from tests.cluster.service import programs
from tests.cluster.service.programs import JOBS, ORDERS
from tests.waiting import wait_for

SERVICES: Final = ("producer", "group", "queue")
PARTITIONS: Final = 3
GOES_ON_S: Final = 90.0
"""How long after an event each service has to be at work again."""
LINES: Final = 2
"""What an event may leave in a service's log: that no broker is reached, and that one is again."""
LOCK: Final = "The lock on offset"
"""Beside these: work that was in hand may be done again, and the line names it."""
SETTLED: Final = 10
"""After so many seconds of work a service uses what it uses."""
RSS_KIB: Final = 12 << 10
"""What a process may have grown: metadata, and the buffers of connections that broke."""
SOCKETS: Final = 8
"""Beside those at the beginning: a leader that moved may have no partition at its new place yet."""


class Day:
    """Three services, and what they have noted. They are given a file of their secret, which may be replaced."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        folder.mkdir()
        self.folder, self.bootstrap = folder, bootstrap
        self.secret_file = folder / "client-secret"
        self.goes_on_s = GOES_ON_S
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._began_s = time.monotonic()
        self._first: dict[str, dict[str, Any]] = {}

    def give(self, secret: str) -> None:
        """Replace the services' secret, as an operator or Kubernetes does."""
        fresh = self.secret_file.with_name("fresh")
        fresh.write_text(f"{secret}\n")
        fresh.chmod(0o600)
        fresh.replace(self.secret_file)

    def start(self, what: str) -> None:
        """Start a service, or start it again where it ended."""
        first = len(self.done("producer"))
        with (self.folder / f"{what}.err").open("ab") as errors:
            self._processes[what] = self._run(what, first, errors)

    def _run(self, what: str, first: int, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        variables = {"RAYLOG_BOOTSTRAP": self.bootstrap, "RAYLOG_SECRET_FILE": str(self.secret_file)}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAYLOG_", "RAY_"))}
        return subprocess.Popen(
            [sys.executable, "-m", programs.__name__, what, str(self.folder), str(first)],
            env={**kept, **variables},
            stderr=errors,
        )

    def _terminate(self, what: str, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)

    def end(self, what: str) -> None:
        """End a service as systemd and Kubernetes do."""
        process = self._processes.pop(what)
        self._terminate(what, process)
        assert process.wait(60) == 0, (self.folder / f"{what}.err").read_text()

    def kill(self) -> None:
        """End what still runs, after a failure."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def done(self, what: str) -> list[int]:
        """What a service has noted, in its order."""
        return [int(line) for line in self._lines(f"{what}.done")]

    def used(self, what: str) -> list[dict[str, Any]]:
        """What a service uses, second by second."""
        return [json.loads(line) for line in self._lines(f"{what}.used")]

    def _lines(self, name: str) -> list[str]:
        file = self.folder / name
        text = file.read_text() if file.exists() else ""
        return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def _all_live(self) -> bool:
        """Raise when a service has ended by itself."""
        for what, process in self._processes.items():
            assert process.poll() is None, (self.folder / f"{what}.err").read_text()
        return True

    def logged(self) -> dict[str, int]:
        """How many lines each service has in its log."""
        return {service: len(self._lines(f"{service}.log")) for service in SERVICES}

    def times_logged(self, part: str) -> dict[str, int]:
        """How many lines of each service have this in them."""
        return {service: sum(part in line for line in self._lines(f"{service}.log")) for service in SERVICES}

    def wait_until_lost(self, marks: Mapping[str, int]) -> None:
        """Wait until each service has logged that it reaches no broker, in lines behind these."""

        def is_lost(service: str) -> bool:
            return any("has reached no broker" in line for line in self._lines(f"{service}.log")[marks[service] :])

        wait_for(lambda: self._all_live() and all(map(is_lost, SERVICES)), "each service reports that it is alone")

    @contextmanager
    def event(self, what: str, lines_max: int = LINES) -> Iterator[None]:
        """Something happens to the cluster; afterwards every service goes on, with a line or two in its log."""
        used = {service: len(self.used(service)) for service in SERVICES}
        before = self.logged()
        began_s = time.monotonic()
        yield
        over_s = time.monotonic()
        marks = {service: len(self.done(service)) for service in SERVICES}
        waits = {}
        for service in SERVICES:
            self.wait_for_more(service, marks[service], what)
            waits[service] = f"{time.monotonic() - over_s:.1f} s"
        lines = {service: self._lines(f"{service}.log")[before[service] :] for service in SERVICES}
        print(f"{began_s - self._began_s:6.1f} s  {what} ({over_s - began_s:.1f} s), then {waits}", flush=True)
        marks = {service: len(self.used(service)) for service in SERVICES}
        wait_for(lambda: all(len(self.used(each)) > marks[each] for each in SERVICES), "they note what they use")
        idle = {each: max(row["idle_s"] for row in self.used(each)[used[each] + 1 :]) for each in SERVICES}
        print(f"          longest time without work: {idle}", flush=True)
        for service, found in lines.items():
            for line in found:
                print(f"          {service}: {line.strip():.300}", flush=True)
        failures = [file.read_text() for file in self.folder.glob("*.failed")]
        assert not failures, failures
        for found in lines.values():
            assert sum(LOCK not in line for line in found) <= lines_max, lines

    def wait_for_more(self, service: str, mark: int, what: str) -> None:
        """Wait until a service has done a second's work."""
        wait_for(
            lambda: self._all_live() and len(self.done(service)) > mark + 20,
            f"{service} goes on after: {what}",
            self.goes_on_s,
        )

    def wait_for_all(self, service: str, numbers: set[int]) -> None:
        """Wait until a service has handled all of them."""
        wait_for(lambda: numbers <= set(self.done(service)), f"{service} has handled everything", 60)

    def begin(self) -> None:
        """Start all services, and note what they use once they have settled."""
        for service in SERVICES:
            self.start(service)
        with self.event("the beginning"):
            wait_for(
                lambda: self._all_live() and all(len(self.used(service)) >= SETTLED for service in SERVICES),
                "services have settled",
            )
        self._first = {service: self.used(service)[-1] for service in SERVICES}

    def uses_no_more(self) -> None:
        """Compare what each service uses with what it used at first."""
        for service in SERVICES:
            first, last = self._first[service], self.used(service)[-1]
            print(f"{service}: {first} at first, {last} now", flush=True)
            assert last["rss_kib"] <= first["rss_kib"] + RSS_KIB, service
            assert last["threads"] == first["threads"], service
            assert last["sockets"] <= first["sockets"] + SOCKETS, service

    def finish(self) -> None:
        """End the services: nothing is lost, nothing is stored twice; what was handled twice is printed."""
        self.end("producer")
        sent = self.done("producer")
        assert sent == list(range(len(sent)))
        for topic in (ORDERS, JOBS):
            assert self._stored(topic) == Counter(sent), topic
        for service in ("group", "queue"):
            self.wait_for_all(service, set(sent))
            self.end(service)
            handled = Counter(self.done(service))
            twice = sum(count - 1 for count in handled.values())
            print(f"{service}: {len(sent)} records, {twice} of them handled once more", flush=True)

    def _stored(self, topic: str) -> Counter[int]:
        """How often each number is in a topic."""
        found: Counter[int] = Counter()
        access: dict[str, Any] = {"bootstrap": self.bootstrap, "secret_file": self.secret_file}
        with raylog.Consumer(**access, enable_auto_commit=False) as consumer:
            places = [raylog.TopicPartition(topic, number) for number in range(PARTITIONS)]
            ends = consumer.end_offsets(places)
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            while any(consumer.position(place) < ends[place] for place in places):
                for records in consumer.poll(timeout_ms=500).values():
                    found.update(int(record.value or b"") for record in records)
        return found
