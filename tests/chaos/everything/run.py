"""One run of everything: copies in transactions, and beside them every other feature's clients, under faults.

Called by the command. The arena, the schedule of faults, the copies and the report are those of the other runs.
"""

from __future__ import annotations

import logging
import random
import time
from dataclasses import replace
from functools import partial
from typing import Final

import raylog
from raylog.base.errors import RaylogError
from tests.chaos.arena import Injected, Strike
from tests.chaos.copies.run import CopiesRun, Records
from tests.chaos.copies.workload import CopiesWorkload
from tests.chaos.everything.claims import churn
from tests.chaos.everything.claims.book import Claim, Spans
from tests.chaos.everything.claims.verdict import find_claims
from tests.chaos.everything.guests.base import Guest, Scene
from tests.chaos.everything.guests.churn import Churn
from tests.chaos.everything.guests.delays import Delays
from tests.chaos.everything.guests.expiry import Expiry
from tests.chaos.everything.guests.outbox import Outbox
from tests.chaos.everything.guests.queues import Queues
from tests.chaos.everything.guests.watcher import Watcher
from tests.chaos.everything.strikes import faults_of
from tests.chaos.evidence.checker import Anomaly
from tests.chaos.evidence.history import Fault
from tests.chaos.evidence.report import Result
from tests.chaos.injuries.faults import Nemesis
from tests.chaos.run import END_S, START_S, Options
from tests.chaos.sight import wait_until
from tests.chaos.workload import DELIVERY_TIMEOUT_MS

DRAIN_S: Final = 180.0
BEFORE_MS: Final = 1_000
"""A fault is noted behind its strike."""
AFTERMATH_MS: Final = 5_000
"""After a fault and its repair: clients have found the new leaders by then."""
CALM_PAUSE_S: Final = (5.0, 20.0)
"""Between two faults: what is claimed where nothing is broken needs such times."""
SOURCE_PAUSE_S: Final = (0.05, 0.6)
WORKERS: Final = 2
UNDELIVERABLE: Final = "__undeliverable"
BASE: Final = "base_ms"
"""The file with the time at which the history begins, in milliseconds since 1970."""
RESTART: Final = "restart-all"


class EverythingRun(CopiesRun):
    """State of one run."""

    workers = WORKERS
    copier_pause_s = 0.3
    fills_disk = False
    calm_pause_s = CALM_PAUSE_S
    kills_relays = True

    def __init__(self, options: Options) -> None:
        """Make the folder; nothing is started yet. Raises :class:`LeftOut` where this part cannot run."""
        super().__init__(replace(options, table=True))
        self._scene = Scene(
            self._folder,
            seed=options.seed,
            rate=options.rate,
            brokers=options.brokers,
            partitions=options.partitions,
            clients=self._arena.clients,
            config=self.topic_config,
        )
        self._arena.forks_workers = True  # type: ignore[attr-defined]  # this part's arena is one in Ray
        watcher = Watcher(self._scene)
        self._outbox = Outbox(
            self._scene,
            watcher,
            bootstrap=self._arena.bootstrap,  # type: ignore[attr-defined]  # this part's arena is one in Ray
            secret=self._arena.secret,
            kills=self.kills_relays,
        )
        self._churn = Churn(self._scene)
        self._guests: dict[str, Guest] = {
            "watcher": watcher,
            "queues": Queues(self._scene, watcher),
            "delays": Delays(self._scene, watcher),
            "TTL": Expiry(self._scene, watcher),
            "outbox": self._outbox,
            "churn": self._churn,
        }
        self._base_ms = time.time() * 1000 - self._history.now_s() * 1000
        (self._folder / BASE).write_text(f"{self._base_ms:.0f}\n")
        self._calm_ms = 0
        self._undeliverable: list[Anomaly] = []

    def run(self) -> Result:
        """Do the whole run; no client and no relay outlives it."""
        log = logging.FileHandler(self._folder / "clients.log")
        log.setFormatter(logging.Formatter("%(asctime)s %(threadName)s %(levelname)s %(message)s"))
        logger = logging.getLogger("raylog")
        logger.addHandler(log)
        logger.propagate = False
        try:
            return super().run()
        finally:
            self._scene.no_more.set()
            self._scene.over.set()
            for guest in self._guests.values():
                guest.end_senders(END_S)
                guest.end_readers(END_S)
            self._scene.close()
            logger.removeHandler(log)
            log.close()

    def _new_workload(self) -> CopiesWorkload:
        options = self._options
        return CopiesWorkload(
            self._history,
            seed=options.seed,
            partitions=options.partitions,
            sources=1,
            clients=self._arena.clients,
            pause_s=SOURCE_PAUSE_S,
        )

    def _prepare_faults(self) -> None:
        faults = faults_of(self._arena)  # type: ignore[arg-type]  # this part's arena is one in Ray
        self._arena.faults = faults | {RESTART: partial(self._restart_all, faults[RESTART])}

    def _restart_all(self, strike: Strike, rng: random.Random) -> Injected:
        """Stop the whole cluster and start it again; the copiers first: a stop ends all actors of its namespace."""
        struck = strike(rng)

        def heal() -> None:
            self._hangs += [f"{name} did not end" for name in self._end_workers()]
            self._workers.clear()
            struck.heal()
            self._start_workers()

        return replace(struck, heal=heal)

    # Guests

    def _prepare_guests(self, admin: raylog.Admin) -> None:
        for guest in self._guests.values():
            guest.prepare(admin)

    def _start_guests(self) -> None:
        for guest in self._guests.values():
            guest.start()

    def _injure(self, nemesis: Nemesis) -> None:
        self._wake(nemesis)
        super()._injure(nemesis)

    def _wake(self, nemesis: Nemesis) -> None:
        """Wait until every partition has woken, and copies are read."""
        self._phase = "waking"
        if not wait_until(lambda: self._history.records_read > 0, START_S) or not nemesis.wait_whole(START_S):
            self._hangs.append(f"the cluster did not become whole before the first fault: {self._arena.missing()}")
        self._calm_ms = self._wall_ms(self._history.now_s()) + AFTERMATH_MS

    def _end_guests(self) -> None:
        scene = self._scene
        scene.no_more.set()
        late = [
            name for guest in self._guests.values() for name in guest.end_senders(DELIVERY_TIMEOUT_MS / 1000 + END_S)
        ]
        self._hangs += [f"{name} did not end" for name in late]
        for name, guest in self._guests.items():
            self._phase = f"draining {name}"
            if not wait_until(lambda guest=guest: not guest.behind(), DRAIN_S):  # type: ignore[misc]
                self._hangs.append(f"{name}: {guest.behind()}")
        self._undeliverable = self._find_undeliverable()
        scene.over.set()
        for guest in self._guests.values():
            self._hangs += [f"{name} did not end" for name in guest.end_readers(2 * END_S)]
        self._hangs += scene.late
        scene.close()
        relays = ", ".join(f"{count} {end}" for end, count in sorted(self._outbox.ends.items()))
        self._remarks.append(f"relays of the outbox: {relays or 'one'}; {self._churn.lives} lives of topics ended")

    def _find_undeliverable(self) -> list[Anomaly]:
        """What could not be delivered: nothing but delayed records of topics that were deleted before their time."""
        found: list[str] = []
        try:
            with raylog.Admin(**self._arena.clients()) as admin:
                if UNDELIVERABLE not in admin.list_topics(internal=True):
                    return []
                count = len(admin.describe_topic(UNDELIVERABLE).partitions)
            places = [raylog.TopicPartition(UNDELIVERABLE, number) for number in range(count)]
            with self._consumer() as consumer:
                ends = consumer.end_offsets(places)
                consumer.assign(places)

                def is_read() -> bool:
                    for records in consumer.poll(300).values():
                        found.extend(f"{record.value!r:.80}: {record.headers!r:.300}" for record in records)
                    return all(consumer.position(place) >= ends[place] for place in places)

                if not wait_until(is_read, END_S):
                    self._hangs.append(f"{UNDELIVERABLE} could not be read to its end")
        except RaylogError as error:
            return [Anomaly("undeliverable not read", repr(error))]
        wrong = [what for what in found if f"/{churn.LATE}-" not in what]
        self._remarks.append(f"{len(found) - len(wrong)} delayed records of deleted topics were undeliverable")
        return [Anomaly("undeliverable", what) for what in wrong]

    # The end

    def _broken(self) -> Spans:
        """When faults were in effect, and a little longer; and the start, when all partitions wake at once."""
        spans = [
            (
                self._wall_ms(fault.at_s) - BEFORE_MS,
                self._wall_ms(fault.healed_s if fault.whole_s is None else fault.whole_s) + AFTERMATH_MS,
            )
            for fault in self._history.of(Fault)
        ]
        return [(0, self._calm_ms), *spans]

    def _wall_ms(self, at_s: float) -> int:
        """A time of the history, in milliseconds since 1970."""
        return int(self._base_ms + at_s * 1000)

    def _anomalies(self, inputs: Records, results: Records) -> list[Anomaly]:
        claims = find_claims(self._scene.journal.events, self._broken())
        self._claims += [str(claim) for claim in claims]
        self._doubts += [f"{claim.text}: there was no case" for claim in claims if _lacks_cases(claim)]
        died = [Anomaly("client died", error) for error in self._scene.errors]
        return [anomaly for claim in claims for anomaly in claim.wrong] + self._undeliverable + died


def _lacks_cases(claim: Claim) -> bool:
    return claim.needs_cases and not claim.count
