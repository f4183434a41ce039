"""Records that expire: into a topic of dead letters, and out of the sight of a reader that skips them.

May touch: threads, the network through Raylog's clients.
"""

from __future__ import annotations

import random
from typing import Final

import raylog
from tests.chaos.everything.claims.expiry import EXPIRED, OFFERS, WAITING
from tests.chaos.everything.guests.base import Guest, Scene
from tests.chaos.everything.guests.watcher import Watcher, poll, reader_of
from tests.chaos.everything.journal import Sent

TTL_MS: Final = 3_000
"""Of the topic whose records become dead letters."""
SHORT_MS: Final = (50, 3_000)
LASTING_MS: Final = 86_400_000
PAUSE_S: Final = (0.0, 1.5)
"""Between two polls of the reader that skips, so that some records expire before it gets to them."""
LINGERS_S: Final = 0.3
SKIPPER: Final = "skipper"


class Expiry(Guest):
    """Two producers, and the reader that skips."""

    def __init__(self, scene: Scene, watcher: Watcher) -> None:
        """``watcher`` reads the dead letters."""
        super().__init__(scene)
        self._waits = self._offers = 0
        watcher.watch(EXPIRED, self.awaited.came)
        self.sends("waits", self._produce_waits)
        self.sends("offers", self._produce_offers)
        self.reads(SKIPPER, self._skip)

    def prepare(self, admin: raylog.Admin) -> None:
        """Create the topics, the one of dead letters first."""
        self.scene.create(admin, EXPIRED)
        self.scene.create(admin, WAITING, config={"ttl.ms": TTL_MS, "dead.letter.topic": EXPIRED})
        self.scene.create(admin, OFFERS)

    def _produce_waits(self, rng: random.Random) -> None:
        self.producers(rng, self._send_wait)

    def _send_wait(self, producer: raylog.Producer, _: random.Random) -> None:
        sent = Sent(WAITING, f"{WAITING}/{self._waits}", "ok", key=f"k{self._waits % 7}")
        self._waits += 1
        self.send(producer, WAITING, sent, ttl_ms=TTL_MS, on_stored=self.expects)

    def _produce_offers(self, rng: random.Random) -> None:
        self.producers(rng, self._send_offer)

    def _send_offer(self, producer: raylog.Producer, rng: random.Random) -> None:
        """Half of them last."""
        is_lasting = rng.random() < 0.5
        ttl_ms = LASTING_MS if is_lasting else rng.randint(*SHORT_MS)
        sent = Sent(OFFERS, f"{OFFERS}/{self._offers}", "ok", key=f"k{self._offers % 7}")
        self._offers += 1
        self.send(producer, OFFERS, sent, ttl_ms=ttl_ms, on_stored=self.expects if is_lasting else None, ttl=ttl_ms)

    def _skip(self, rng: random.Random) -> None:
        place = raylog.TopicPartition(OFFERS, 0)
        with reader_of(self.scene, SKIPPER, skip_expired=True) as consumer:
            consumer.assign([place])
            consumer.seek(place, 0)
            while not self.scene.over.is_set():
                for seen in poll(self.scene, consumer, SKIPPER):
                    self.awaited.came(seen.name)
                self.scene.over.wait(rng.uniform(*PAUSE_S) if rng.random() < LINGERS_S else 0.0)
