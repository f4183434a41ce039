"""Which rows a turn reads: a partition or a topic that stands still holds up no other, and a key keeps its order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert

from raylog import outbox
from raylog.base.errors import LeaderNotAvailable
from raylog.base.ids import TopicPartition
from raylog.client.producer.partitioner import hash_of_key, partition_for_key
from raylog.client.producer.resumed import KnownSequence
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.outbox.model import OutboxBatch, TopicView
from raylog.outbox.session import Session
from raylog.outbox.store import OutboxStore
from raylog.outbox.tables import UNFINISHED
from raylog.outbox.tables import outbox as events

MANY = 20_500
KEYS = {partition_for_key(key, 2): key for key in (b"a", b"b", b"c", b"d")}
"""A key of each of two partitions."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = outbox.make_engine(f"sqlite:///{tmp_path}/bank.db")
    outbox.init(made)
    yield made
    made.dispose()


def fill(engine: Engine, topic: str, key: bytes | None, count: int, deliver_at: int | None = None) -> None:
    """Write many events at once."""
    rows = [
        {
            "txid": f"{topic}-{key!r}-{deliver_at}-{number}",
            "topic": topic,
            "msg_key": key,
            "payload": b"x",
            "deliver_at": deliver_at,
            "state": UNFINISHED,
            "route": hash_of_key(key if key is not None else b"%d" % number),
            "created_at": 1,
            "attempts": 0,
        }
        for number in range(count)
    ]
    with engine.begin() as db:
        db.execute(insert(events), rows)


class Relay:
    """A session whose leaders answer at once, but for those of some partitions."""

    def __init__(self, engine: Engine, *dead: TopicPartition, topics: tuple[str, ...] = ("t", "u")) -> None:
        self.store = OutboxStore(engine, "me", lease_ms=500_000)
        held = self.store.take(0)
        assert held is not None
        self.held, self.dead = held, dead
        self.session = Session(7)
        for name in topics:
            self.session.learn_topic(name, TopicView(f"id-{name}", 2, 1_000_000))
        self.now_ms = 0

    def turn(self) -> list[OutboxBatch]:
        """One round; the batches that were stored."""
        self.now_ms += 10_000
        session, stored = self.session, []
        for where, _ in session.unverified(self.now_ms):
            if where in self.dead:
                session.unreachable(where, LeaderNotAvailable("none"), self.now_ms)
            else:
                session.verified(where, KnownSequence(0, -1), self.now_ms)
        self.store.turn(self.held, session, session.take_changes())
        for batch in session.sendable(self.now_ms):
            session.stored(batch, 0)
            stored.append(batch)
        return stored

    def stored_of(self, turns: int) -> dict[TopicPartition, list[int]]:
        """The rows that so many rounds store, by partition."""
        found: dict[TopicPartition, list[int]] = {}
        for _ in range(turns):
            for batch in self.turn():
                found.setdefault(batch.where, []).extend(batch.rows)
        return found


def test_a_partition_without_leader_holds_up_no_other(engine: Engine) -> None:
    fill(engine, "t", KEYS[0], MANY)
    fill(engine, "t", KEYS[1], 3)
    fill(engine, "t", None, 3)
    fill(engine, "u", KEYS[0], 3)
    relay = Relay(engine, TopicPartition("t", 0))
    found = relay.stored_of(6)
    assert {where: len(rows) for where, rows in found.items()} == {
        TopicPartition("t", 1): 6,
        TopicPartition("u", 0): 3,
    }
    assert not relay.store.has_work(relay.held, relay.session.full())


def test_a_topic_that_is_not_known_yet_holds_up_no_other(engine: Engine) -> None:
    fill(engine, "unknown", KEYS[0], MANY)
    fill(engine, "t", KEYS[1], 3)
    assert relay_finds(engine, TopicPartition("t", 1), 3, turns=3)


def relay_finds(engine: Engine, where: TopicPartition, count: int, turns: int, *topics: str) -> bool:
    """Whether so many rows reach a partition within some rounds."""
    found = Relay(engine, topics=topics or ("t", "u")).stored_of(turns)
    return len(found.get(where, ())) == count


def test_an_event_whose_time_is_past_keeps_its_place_in_its_key(engine: Engine) -> None:
    for number, at in enumerate((None, 1, None, 2)):
        with engine.begin() as db:
            outbox.add(db, "t", b"%d" % number, key=KEYS[0], deliver_at=at)
    assert Relay(engine).stored_of(3) == {TopicPartition("t", 0): [1, 2, 3, 4]}


def test_delayed_events_do_not_wait_for_the_end_of_a_backlog(engine: Engine) -> None:
    fill(engine, "t", KEYS[0], MANY)
    future_ms = int(time.time() * 1000) + 3_600_000
    fill(engine, "u", KEYS[0], 30, future_ms)
    where = TopicPartition(SCHEDULED_TOPIC, hash_of_key(b"u") % 2)
    assert relay_finds(engine, where, 30, 4, "t", "u", SCHEDULED_TOPIC)


def test_a_target_whose_delayed_events_stand_still_holds_up_no_other(engine: Engine) -> None:
    names = {hash_of_key(name.encode()) % 2: name for name in ("t", "u", "v", "w")}
    future_ms = int(time.time() * 1000) + 3_600_000
    fill(engine, names[0], KEYS[0], MANY, future_ms)
    fill(engine, names[1], KEYS[0], 30, future_ms + 1)
    relay = Relay(engine, TopicPartition(SCHEDULED_TOPIC, 0), topics=("t", "u", "v", "w", SCHEDULED_TOPIC))
    assert {where: len(rows) for where, rows in relay.stored_of(4).items()} == {TopicPartition(SCHEDULED_TOPIC, 1): 30}


def test_without_scheduled_topic_delayed_events_wait_here(engine: Engine) -> None:
    fill(engine, "t", KEYS[0], 3, int(time.time() * 1000) + 3_600_000)
    relay = Relay(engine)
    relay.session.learn_topic(SCHEDULED_TOPIC, None)
    assert relay.stored_of(3) == {}
    assert not relay.store.has_work(relay.held, relay.session.full())


def test_a_backlog_larger_than_a_page_is_relayed_in_order(engine: Engine) -> None:
    fill(engine, "t", KEYS[0], 4_500)
    rows = Relay(engine).stored_of(8)[TopicPartition("t", 0)]
    assert rows == sorted(rows)
    assert len(rows) == 4_500
