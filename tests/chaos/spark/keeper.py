"""Keeps a driver of the query running: starts it, starts it again when it has ended, and knows its processes.

May touch: processes. Signals go only to descendants of the drivers that it has started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import psutil

from tests.chaos.arena import NoTarget
from tests.chaos.spark.query import QuerySpec

ROOT: Final = Path(__file__).resolve().parents[3]
QUERY: Final = "tests.chaos.spark.query"
AGAIN_S: Final = 0.5
END_S: Final = 90.0
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
JVM: Final = "org.apache.spark.deploy.SparkSubmit"
PYTHON_WORKERS: Final = ("pyspark.daemon", "pyspark/daemon")


class Keeper:
    """One query's drivers, one after the other."""

    def __init__(self, spec: Callable[[int], QuerySpec], log: Path) -> None:
        """``spec`` makes what the driver of a life needs; it may raise while the cluster does not answer."""
        self._spec = spec
        self._log = log
        self._over = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._seen: dict[int, float] = {}
        """Every process of any driver, with its time of creation: a killed driver leaves executors."""
        self.life = 0
        self.batches = 0
        """Micro-batches with rows, of all lives."""
        self.in_life = 0
        """Of the present life."""
        self.rows = 0
        """Rows that the micro-batches reported; a batch that is done again counts again."""
        self.failures: list[str] = []
        """Why drivers ended that were not killed."""
        self._killed: set[int] = set()
        self._thread = threading.Thread(target=self._keep, name="driver", daemon=True)

    def start(self) -> None:
        """Begin with the first life."""
        self._thread.start()

    def _keep(self) -> None:
        while not self._over.is_set():
            try:
                spec = self._spec(self.life + 1)
            except Exception as error:  # the cluster does not answer at the moment, in whatever way
                print(f"        the driver has to wait: {error!r}", flush=True)
                self._over.wait(AGAIN_S)
                continue
            self.life, self.in_life = self.life + 1, 0
            self._live(spec)
            self._over.wait(AGAIN_S)

    def _live(self, spec: QuerySpec) -> None:
        """One life, from start to end."""
        command = [sys.executable, "-m", QUERY, msgspec.json.encode(spec).decode()]
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"life {spec.life}\n")
            log.flush()
            where = log.tell()
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True,
            )  # fmt: skip
        self._process = process
        for line in process.stdout or ():
            report = json.loads(line)
            self.batches, self.in_life, self.rows = self.batches + 1, self.in_life + 1, self.rows + report["rows"]
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        if process.pid not in self._killed and not self._over.is_set():
            self.failures.append(f"life {spec.life}: {self._reason(where)}")

    def _reason(self, where: int) -> str:
        """The last line of a Python error in a life's output."""
        text = self._log.read_text(encoding="utf-8", errors="replace")[where:]
        lines = [line.strip() for line in text.splitlines() if "Error: " in line or "Exception: " in line]
        return lines[-1][:300] if lines else "no reason in its output"

    # Its processes

    def processes(self) -> list[psutil.Process]:
        """The driver and its descendants; remembered, so that none is left at the end."""
        process = self._process
        if process is None or process.poll() is not None:
            return []
        try:
            here = psutil.Process(process.pid)
            found = [here, *here.children(recursive=True)]
            self._seen |= {item.pid: item.create_time() for item in found}
        except psutil.NoSuchProcess:
            return []
        return found

    def like(self, *words: str) -> list[psutil.Process]:
        """Its processes with one of these words in their command."""
        return [item for item in self.processes() if any(word in _command(item) for word in words)]

    def python_workers(self) -> list[psutil.Process]:
        """Python processes that run tasks, without the daemons that they were forked from."""
        daemons = self.like(*PYTHON_WORKERS)
        pids = {item.pid for item in daemons}
        return [item for item in daemons if _parent(item) in pids]

    def executors(self) -> list[psutil.Process]:
        """The JVMs of the executors."""
        return self.like(EXECUTOR)

    def kill(self, process: psutil.Process) -> None:
        """SIGKILL one of its processes. Raises NoTarget when it has ended."""
        try:
            process.send_signal(signal.SIGKILL)  # compares the time of creation first
        except psutil.NoSuchProcess:
            raise NoTarget(f"process {process.pid} has ended") from None

    def kill_driver(self) -> int:
        """SIGKILL the driver, its JVM first; its executors stay, as on other machines. Returns its life."""
        process, life = self._process, self.life
        jvms = self.like(JVM)
        if process is None or process.poll() is not None or not jvms:
            raise NoTarget("no driver runs")
        self._killed.add(process.pid)
        for jvm in jvms:
            self.kill(jvm)
        process.kill()
        return life

    def works_again(self, life: int) -> bool:
        """Whether a later life than this one has done a micro-batch."""
        return self.life > life and self.in_life > 0

    def works_since(self, life: int, batches: int) -> bool:
        """Whether a micro-batch is done: more than so many, or by a later life than this one."""
        return self.works_again(life) or (self.life == life and self.batches > batches)

    def end(self, timeout_s: float = END_S) -> bool:
        """End the query and everything that its drivers started; returns whether the last one ended by itself."""
        self.processes()
        self._over.set()
        process = self._process
        by_itself = True
        if process is not None and process.poll() is None:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                by_itself = False
                process.kill()
        self._thread.join(END_S)
        self._kill_the_rest()
        return by_itself

    def _kill_the_rest(self) -> None:
        for pid, created_s in self._seen.items():
            try:
                item = psutil.Process(pid)
                if item.create_time() == created_s:
                    os.kill(pid, signal.SIGKILL)
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.Error:
        return 0
