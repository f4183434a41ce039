"""Three services without Ray: a producer, a member of a group and a worker of a queue, each a process of its own.

``python programs.py WHAT FOLDER FIRST``: each notes what it has done in FOLDER/WHAT.done, one number a line, once a
second in FOLDER/WHAT.used what it uses and its longest time without work, and logs warnings to FOLDER/WHAT.log. It goes
on until SIGTERM.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

import raylog

ORDERS: Final = "orders"
JOBS: Final = "jobs"
GROUP: Final = "board"
QUEUE: Final = "workers"
PAUSE_S: Final = 0.05
DELIVERY_MS: Final = 900_000
"""Longer than a full stop and start of all hosts may take: no record fails meanwhile."""
SAMPLE_S: Final = 1.0


class Service:
    """The files of one service, and whether it is to go on."""

    def __init__(self, what: str, folder: Path) -> None:
        self._what, self._folder = what, folder
        self._done: TextIO = (folder / f"{what}.done").open("a", buffering=1)
        self._used: TextIO = (folder / f"{what}.used").open("a", buffering=1)
        self._sampled_s = 0.0
        self._done_s = time.monotonic()
        self._idle_s = 0.0
        self.goes_on = True
        (folder / f"{what}.pid").write_text(str(os.getpid()))

    def end(self, *_: object) -> None:
        """SIGTERM: leave the loop."""
        self.goes_on = False

    def done(self, numbers: Iterable[object]) -> None:
        """Note what counts as done, in one write: a process that ends amid it would leave half a line otherwise."""
        text = "".join(f"{number}\n" for number in numbers)
        if text:
            now_s = time.monotonic()
            self._idle_s, self._done_s = max(self._idle_s, now_s - self._done_s), now_s
            self._done.write(text)

    def failed(self, error: BaseException) -> None:
        """Note what must not happen."""
        with (self._folder / f"{self._what}.failed").open("a") as file:
            file.write(f"{type(error).__name__}: {error}\n")

    def sample(self) -> None:
        """Note once a second what the process uses."""
        now_s = time.monotonic()
        if now_s - self._sampled_s < SAMPLE_S:
            return
        self._sampled_s = now_s
        opened = []
        for name in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # the one with which the list was read
                opened.append(os.readlink(f"/proc/self/fd/{name}"))
        lines = Path("/proc/self/status").read_text().splitlines()
        used = {
            "rss_kib": next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")),
            "threads": threading.active_count(),
            "sockets": sum(name.startswith("socket:") for name in opened),
            "cpu_s": round(sum(os.times()[:2]), 2),
            "idle_s": round(max(self._idle_s, now_s - self._done_s), 2),
        }
        self._idle_s = 0.0
        self._used.write(json.dumps(used) + "\n")


def produce(service: Service, first: int) -> None:
    """Send numbered records to both topics; done is what was acknowledged in both."""
    waiting: deque[tuple[int, raylog.RecordMetadata | object, object]] = deque()
    number = first
    with raylog.Producer(acks="all", client_id="producer", delivery_timeout_ms=DELIVERY_MS) as producer:
        while service.goes_on:
            text = str(number).encode()
            sent = (number, producer.send(ORDERS, text, key=text[-1:]), producer.send(JOBS, text, key=text[-1:]))
            waiting.append(sent)
            number += 1
            service.done(acknowledged(waiting, service))
            service.sample()
            time.sleep(PAUSE_S)
        producer.flush(timeout=120)
        service.done(acknowledged(waiting, service))


def acknowledged(waiting: deque[tuple[int, object, object]], service: Service) -> list[int]:
    """Take the numbers that are acknowledged, in order."""
    found = []
    while waiting and all(future.done() for future in waiting[0][1:]):  # type: ignore[attr-defined]
        number, *futures = waiting.popleft()
        try:
            for future in futures:
                future.result()  # type: ignore[attr-defined]
            found.append(number)
        except raylog.RaylogError as error:
            service.failed(error)
    return found


def consume(service: Service, _: int) -> None:
    """Read orders as a member of a group."""
    with raylog.Consumer(ORDERS, group_id=GROUP, auto_offset_reset="earliest", client_id="group") as consumer:
        while service.goes_on:
            for records in consumer.poll(timeout_ms=500).values():
                service.done(int(record.value) for record in records)
            service.sample()


def work(service: Service, _: int) -> None:
    """Take jobs from a queue and acknowledge each."""
    with raylog.QueueConsumer(JOBS, group_id=QUEUE, client_id="queue") as consumer:
        while service.goes_on:
            for message in consumer.poll(timeout_ms=500):
                service.done([int(message.record.value)])
                message.ack()
            service.sample()


def main() -> None:
    """Run one of them."""
    what, folder, first = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    logging.basicConfig(filename=folder / f"{what}.log", level=logging.WARNING, format="%(levelname)s %(message)s")
    known: dict[str, Callable[[Service, int], None]] = {"producer": produce, "group": consume, "queue": work}
    service = Service(what, folder)
    signal.signal(signal.SIGTERM, service.end)
    try:
        known[what](service, first)
    except BaseException as error:
        service.failed(error)
        raise


if __name__ == "__main__":
    main()
