"""A queue whose jobs two groups work on, one in the order of keys; some are retried, some rejected.

May touch: threads, the network through Raylog's clients.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any, Final

import raylog
from raylog.base.errors import RaylogError
from tests.chaos.everything.claims.queues import FEATURE, FREE, GROUPS, KEYED, letters_of
from tests.chaos.everything.guests.base import LIFE_S, Guest, Scene
from tests.chaos.everything.guests.watcher import Watcher
from tests.chaos.everything.journal import Awaited, Handed, Kept, Ruled, Sent, Verdict, now_ms, number_of
from tests.chaos.workload import CALL_TIMEOUT_MS, POLL_MS, RETRY_S, in_words

MEMBERS: Final = 2
KEYS: Final = 16
JOBS_AT_ONCE: Final = 50
PAUSE_MS: Final = 500
RETRIED: Final = (20, 3)
REJECTED: Final = (50, 7)
"""Numbers with this rest, divided by that, are retried once, or rejected."""
COMMIT_S: Final = 20.0


class Queues(Guest):
    """The producer and both groups."""

    def __init__(self, scene: Scene, watcher: Watcher) -> None:
        """``watcher`` reads dead letters."""
        super().__init__(scene)
        self._number = 0
        self._open = {group: Awaited() for group in GROUPS}
        self._tried: dict[str, set[str]] = {group: set() for group in GROUPS}
        self.sends("jobs", self._produce)
        for group in GROUPS:
            watcher.watch(letters_of(group), self._open[group].came)
            for member in range(MEMBERS):
                self.reads(f"{group}-{member}", partial(self._work, group, f"{group}-{member}"))

    def prepare(self, admin: raylog.Admin) -> None:
        """Create the topic of jobs, and those of dead letters."""
        self.scene.create(admin, FEATURE, self.scene.partitions)
        for group in GROUPS:
            self.scene.create(admin, letters_of(group))

    def _produce(self, rng: random.Random) -> None:
        self.producers(rng, self._send)

    def _send(self, producer: raylog.Producer, rng: random.Random) -> None:
        sent = Sent(FEATURE, f"{FEATURE}/{self._number}", "ok", key=f"k{rng.randrange(KEYS)}")
        self._number += 1
        self.send(producer, FEATURE, sent, on_stored=self._stored)

    def _stored(self, sent: Sent, _: raylog.RecordMetadata) -> None:
        for awaited in self._open.values():
            awaited.expect(sent.name)

    # Members

    def _work(self, group: str, member: str, rng: random.Random) -> None:
        life = 0
        while not self.scene.over.is_set():
            life += 1
            ends_s = time.monotonic() + rng.uniform(*LIFE_S)
            options: dict[str, Any] = {"order": "key" if group == KEYED else "none"}
            try:
                queue = raylog.QueueConsumer(
                    FEATURE, group_id=group, dead_letter_topic=letters_of(group), delivery_limit=10, lock="10s",
                    max_poll_records=JOBS_AT_ONCE, request_timeout_ms=CALL_TIMEOUT_MS, session_timeout_ms=6_000,
                    heartbeat_interval_ms=500, **options, **self.scene.clients(),
                )  # fmt: skip
            except RaylogError as error:
                self.scene.remark(f"{member}: {in_words(error)}")
                self.scene.over.wait(RETRY_S)
                continue
            try:
                while not self.scene.over.is_set() and (time.monotonic() < ends_s or self.scene.no_more.is_set()):
                    self._work_once(queue, group, f"{member}.{life}", rng)
            finally:
                self._close(queue, member)

    def _close(self, queue: raylog.QueueConsumer, member: str) -> None:
        try:
            queue.close()
        except RaylogError as error:
            self.scene.remark(f"{member} did not close: {in_words(error)}")

    def _work_once(self, queue: raylog.QueueConsumer, group: str, member: str, rng: random.Random) -> None:
        """Work on what comes, and wait until the verdicts are stored."""
        done: list[str] = []
        try:
            for message in queue.poll(POLL_MS):
                if message.is_settled:
                    continue  # an earlier one of its key is retried
                name = bytes(message.value).decode()
                key = bytes(message.key).decode()
                self.journal.add(Handed(group, member, message.partition, message.offset, name, key, now_ms()))
                self._rule(message, group, name, rng)
                done.append(name)
            if done:
                queue.commit(COMMIT_S)
        except (RaylogError, TimeoutError) as error:
            self.scene.remark(f"{member}, of {len(done)}: {in_words(error)}")
            self.scene.over.wait(RETRY_S)
            return
        if done:
            self.journal.add(Kept(group, tuple(done)))

    def _rule(self, message: raylog.QueueMessage, group: str, name: str, rng: random.Random) -> None:
        verdict = self._verdict(group, name)
        pause_ms = PAUSE_MS if verdict == "retry" else 0
        self.journal.add(Ruled(group, name, verdict, now_ms(), pause_ms))
        if verdict == "retry":
            self._tried[group].add(name)
            message.retry(delay=pause_ms)
        elif verdict == "reject":
            message.reject("it is one of those")
        else:
            message.ack()
            self._open[group].came(name)
        if group == FREE and rng.random() < 0.01:
            self.scene.over.wait(rng.uniform(0.0, 1.0))  # a handler that takes longer

    def _verdict(self, group: str, name: str) -> Verdict:
        number = number_of(name)
        if number % REJECTED[0] == REJECTED[1]:
            return "reject"
        if number % RETRIED[0] == RETRIED[1] and name not in self._tried[group]:
            return "retry"
        return "ack"

    # The end

    def behind(self) -> str:
        """What is not finished in a group."""
        for group, awaited in self._open.items():
            if missing := awaited.missing():
                return f"{len(missing)} jobs are not done in {group}, such as {missing[0]}"
        try:
            with raylog.Admin(**self.scene.clients()) as admin:
                for group in GROUPS:
                    rows = admin.describe_queue(group, FEATURE)
                    left = sum(row.backlog + row.acquired + row.waiting + row.archiving for row in rows)
                    if left or len(rows) < self.scene.partitions:
                        return f"{left} jobs are not finished in {group}"
        except RaylogError as error:
            return f"the queue is not described: {in_words(error)}"
        return ""
