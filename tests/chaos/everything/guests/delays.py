"""Delayed records, some of which are cancelled. May touch: threads, the network through Raylog's clients."""

from __future__ import annotations

import queue
import random
from typing import Final

import raylog
from raylog.base.errors import RaylogError
from raylog.client.admin.schedules import ScheduleOutcome
from tests.chaos.everything.claims.delays import FEATURE, TOPIC
from tests.chaos.everything.guests.base import Guest, Scene
from tests.chaos.everything.guests.watcher import Watcher
from tests.chaos.everything.journal import Sent, Withdrawn, now_ms
from tests.chaos.workload import RETRY_S, in_words

DELAY_MS: Final = (1_000, 20_000)
CANCELLED_SHARE: Final = 0.03
CANCEL_S: Final = 15.0


class Delays(Guest):
    """The producer, and an administrator that cancels."""

    def __init__(self, scene: Scene, watcher: Watcher) -> None:
        """``watcher`` reads the target."""
        super().__init__(scene)
        self._number = 0
        self._to_cancel: queue.Queue[tuple[str, str]] = queue.Queue(maxsize=100)
        watcher.watch(TOPIC, self.awaited.came, scene.partitions)
        self.sends("delays", self._produce)
        self.sends("cancels", self._cancel)

    def prepare(self, admin: raylog.Admin) -> None:
        """Create the target."""
        self.scene.create(admin, TOPIC, self.scene.partitions)

    def _produce(self, rng: random.Random) -> None:
        self.producers(rng, self._send)

    def _send(self, producer: raylog.Producer, rng: random.Random) -> None:
        due_ms = now_ms() + rng.randint(*DELAY_MS)
        sent = Sent(FEATURE, f"{FEATURE}/{self._number}", "ok", key=f"k{self._number % 10}", due_ms=due_ms)
        self._number += 1
        is_cancelled = rng.random() < CANCELLED_SHARE

        def stored(found: Sent, metadata: raylog.RecordMetadata) -> None:
            self.awaited.expect(found.name)
            if is_cancelled and not self._to_cancel.full():
                self._to_cancel.put_nowait((found.name, metadata.schedule))

        self.send(producer, TOPIC, sent, on_stored=stored, deliver_at=due_ms)

    def _cancel(self, _: random.Random) -> None:
        while not self.scene.no_more.is_set():
            try:
                with raylog.Admin(**self.scene.clients()) as admin:
                    while not self.scene.no_more.is_set():
                        self._cancel_next(admin)
            except RaylogError as error:
                self.scene.remark(f"no administrator: {in_words(error)}")
                self.scene.no_more.wait(RETRY_S)

    def _cancel_next(self, admin: raylog.Admin) -> None:
        try:
            name, handle = self._to_cancel.get(timeout=RETRY_S)
        except queue.Empty:
            return
        try:
            outcome = admin.cancel_scheduled(handle, timeout_s=CANCEL_S)
        except RaylogError as error:
            self.scene.remark(f"{name} may be cancelled: {in_words(error)}")
            self.journal.add(Withdrawn(FEATURE, name, is_sure=False))
            self.awaited.drop(name)
            return
        if outcome in (ScheduleOutcome.CANCELLED, ScheduleOutcome.ALREADY_CANCELLED):  # by a request that was repeated
            self.journal.add(Withdrawn(FEATURE, name))
            self.awaited.drop(name)
