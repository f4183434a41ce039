"""The tables, what may be added to them, the inbox, and what an administrator sees; on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, create_engine, delete, insert, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from raylog import outbox
from raylog.base.errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    OutboxBoundElsewhere,
    OutboxLeaseLost,
    OutboxNotInitialized,
    OutboxVersionMismatch,
)
from raylog.base.ids import TopicPartition
from raylog.cli.app import cli
from raylog.client.types import Record
from raylog.outbox.model import Changes
from raylog.outbox.session import Session as RelaySession
from raylog.outbox.store import OutboxStore
from raylog.outbox.tables import FAILED, lease, meta, position_topics
from raylog.outbox.tables import outbox as events


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = outbox.make_engine(f"sqlite:///{tmp_path}/bank.db")
    outbox.init(made)
    yield made
    made.dispose()


def record(offset: int, txid: str | None = "t", partition: int = 0) -> Record:
    headers = () if txid is None else ((outbox.TXID_HEADER, txid.encode()),)
    return Record("transfers", partition, offset, 0, None, b"", headers)


def test_tables_are_made_once_and_their_shards_stay(engine: Engine) -> None:
    outbox.init(engine)
    with pytest.raises(InvalidRequest, match="1 shards"):
        outbox.init(engine, shards=2)
    with pytest.raises(InvalidRequest, match="1 to 64"):
        outbox.init(engine, shards=0)


@pytest.mark.parametrize(("version", "step"), [("2", "install the newer release"), ("0", "release notes")])
def test_tables_of_another_version_are_refused_everywhere(engine: Engine, version: str, step: str) -> None:
    with engine.begin() as db:
        db.execute(update(meta).where(meta.c.name == "version").values(value=version))
    fresh = create_engine(engine.url)
    with fresh.begin() as db, pytest.raises(OutboxVersionMismatch, match=step):
        outbox.add(db, "t", b"")
    store = OutboxStore(fresh, "me", lease_ms=100)
    for call in (lambda: outbox.init(fresh), lambda: outbox.status(fresh), lambda: store.bind("bank", "c")):
        with pytest.raises(OutboxVersionMismatch, match=step):
            call()
    with pytest.raises(OutboxVersionMismatch, match=step), outbox.Inbox(fresh, "fund").transaction(record(0)):
        pass
    fresh.dispose()


def test_a_database_without_an_outbox_says_how_to_make_one() -> None:
    engine = create_engine("sqlite://")
    with engine.begin() as db, pytest.raises(OutboxNotInitialized, match="raylog outbox init"):
        outbox.add(db, "t", b"")
    engine.dispose()


def test_a_table_of_that_name_that_is_none_of_ours_stays(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/other.db")
    with engine.begin() as db:
        db.execute(text("CREATE TABLE raylog_outbox (id INTEGER)"))
    with pytest.raises(OutboxVersionMismatch, match="rename it"):
        outbox.init(engine)
    engine.dispose()


def test_an_event_commits_and_rolls_back_with_its_transaction(engine: Engine) -> None:
    with engine.connect() as db:
        outbox.add(db, "t", b"rolled back")
        db.rollback()
    with engine.begin() as db:
        made = outbox.add(db, "t", b"kept", headers={"a": b"1"})
        assert len(made) == 32
    with Session(engine) as session:
        outbox.add(session, "t", b"by the ORM", txid="orm")
        session.commit()
    with engine.connect() as db:
        assert [bytes(value) for value in db.scalars(select(events.c.payload))] == [b"kept", b"by the ORM"]
    with engine.begin() as db, pytest.raises(IntegrityError):
        outbox.add(db, "t", b"", txid="orm")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"topic": "t", "value": "text"}, TypeError, "value must be bytes"),
        ({"topic": "", "value": b""}, ValueError, "topic"),
        ({"topic": "t", "txid": ""}, ValueError, "1 to 200"),
        ({"topic": "t", "txid": 7}, TypeError, "txid is text"),
        ({"topic": "t", "key": b"x" * 70_000}, ValueError, "too long"),
        ({"topic": "t", "deliver_at": datetime(2030, 1, 1)}, ValueError, "no zone"),
    ],
)
def test_what_cannot_be_stored_is_refused_at_once(
    engine: Engine, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with engine.begin() as db, pytest.raises(error, match=words):
        outbox.add(db, **arguments)


def test_a_time_is_kept_in_milliseconds(engine: Engine) -> None:
    with engine.begin() as db:
        outbox.add(db, "t", b"", deliver_at=datetime(2030, 1, 1, tzinfo=UTC))
        assert db.scalar(select(events.c.deliver_at)) == 1_893_456_000_000


def test_an_inbox_by_table_lets_each_txid_in_once(engine: Engine) -> None:
    inbox = outbox.Inbox(engine, "fund")
    with pytest.raises(ConnectionError), inbox.transaction(record(0)):
        raise ConnectionError("the handler fails")
    outcomes = []
    for _ in range(2):
        with inbox.transaction(record(0)) as db:
            outcomes.append(db is not None)
    with outbox.Inbox(engine, "other").transaction(record(9)) as db:
        outcomes.append(db is not None)
    assert outcomes == [True, False, True]
    with pytest.raises(InvalidRecord, match="has no header"), inbox.transaction(record(1, txid=None)):
        pass
    with inbox.transaction(record(1, txid=None), txid="given") as db:
        assert db is not None
    assert inbox.forget(-1_000) == 2
    with inbox.transaction(record(0)) as db:
        assert db is not None


def test_an_inbox_by_position_goes_on_where_it_was(engine: Engine) -> None:
    inbox = outbox.Inbox(engine, "fund", "position")

    class Reader:
        sought: dict[TopicPartition, int] = {}  # noqa: RUF012

        def assignment(self) -> list[TopicPartition]:
            return [TopicPartition("transfers", 0), TopicPartition("transfers", 1), TopicPartition("x", 0)]

        def seek(self, partition: TopicPartition, offset: int) -> None:
            self.sought[partition] = offset

        def topic_id(self, _: str) -> str:
            return ""

    outcomes = []
    for offset, partition in [(5, 0), (5, 0), (4, 0), (7, 0), (1, 1)]:
        with inbox.transaction(record(offset, None, partition)) as db:
            outcomes.append(db is not None)
    assert outcomes == [True, False, False, True, True]
    reader = Reader()
    inbox.seek(reader)
    assert reader.sought == {TopicPartition("transfers", 0): 8, TopicPartition("transfers", 1): 2}


def test_an_inbox_names_its_modes(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="table"):
        outbox.Inbox(engine, "fund", "tabel")
    with pytest.raises(InvalidRequest, match="1 to 100"):
        outbox.Inbox(engine, "")


def test_a_relay_that_has_lost_its_lease_changes_nothing(engine: Engine) -> None:
    one, two = (OutboxStore(engine, name, lease_ms=50_000) for name in ("one", "two"))
    held = one.take(0)
    assert held is not None
    assert two.take(0) is None
    with engine.begin() as db:
        db.execute(update(lease).values(until=1))
    taken = two.take(0)
    assert taken is not None
    assert taken.fence == held.fence + 1
    session = RelaySession(7)
    for call in (
        lambda: one.renew(held),
        lambda: one.turn(held, session, Changes()),
        lambda: one.mark(held, Changes()),
        lambda: one.clean(held, 0),
        lambda: one.keep_producer_id(held, 9),
        lambda: one.load(held, session),
    ):
        with pytest.raises(OutboxLeaseLost, match="shard 0"):
            call()
    one.release(held)
    two.renew(taken)
    two.release(taken)
    assert one.take(0) is not None


def test_an_outbox_that_moves_to_another_cluster_has_another_producer(engine: Engine) -> None:
    store = OutboxStore(engine, "one", lease_ms=50_000)
    store.bind("bank", "cluster-1")
    store.bind("bank", "cluster-1")
    held = store.take(0)
    assert held is not None
    store.keep_producer_id(held, 77)
    with pytest.raises(OutboxBoundElsewhere, match=r"cluster id 'cluster-1', and this relay has 'cluster-2'"):
        store.bind("bank", "cluster-2")
    store.bind("bank", "cluster-2", rebind=True)
    with pytest.raises(OutboxLeaseLost):
        store.renew(held)
    again = store.take(0)
    assert again is not None
    assert again.producer_id is None


def fail(engine: Engine) -> int:
    with engine.begin() as db:
        outbox.add(db, "t", b"1", key=b"k", txid="bad")
        outbox.add(db, "t", b"2", key=b"k", txid="behind")
        db.execute(update(events).where(events.c.txid == "bad").values(state=FAILED, last_error="RecordTooLarge: x"))
        found: int = db.execute(select(events.c.id).where(events.c.txid == "bad")).scalar_one()
        return found


def test_commands_make_an_outbox_and_show_it(engine: Engine, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/other.db"
    run = CliRunner().invoke
    assert "1 shard." in run(cli, ["outbox", "init", url], standalone_mode=False).output
    shown = run(cli, ["outbox", "status", url], standalone_mode=False)
    assert "never relayed: no events" in shown.output
    row_id = fail(engine)
    named = {"RAYLOG_OUTBOX_URL": str(engine.url)}
    shown = run(cli, ["outbox", "status"], env=named, standalone_mode=False)
    assert "1 FAILED, 1 UNFINISHED" in shown.output
    assert "holds up 1 others" in shown.output
    checked = run(cli, ["outbox", "status", "--json", "--check", "60"], env=named, standalone_mode=False)
    assert '"txid": "bad"' in checked.output
    assert isinstance(checked.exception, SystemExit)
    again = run(cli, ["outbox", "retry", str(engine.url), str(row_id)], standalone_mode=False)
    assert "1 events are sent again" in again.output
    deleted = run(cli, ["outbox", "discard", str(engine.url), str(row_id)], standalone_mode=False)
    assert "0 events were deleted" in deleted.output


def test_a_failed_event_is_deleted_on_request_alone(engine: Engine) -> None:
    row_id = fail(engine)
    assert outbox.discard(engine, [row_id + 1]) == 0
    assert outbox.discard(engine, [row_id]) == 1
    assert outbox.status(engine).counts == {"UNFINISHED": 1}


def test_finished_events_are_deleted_when_they_are_old(engine: Engine) -> None:
    with engine.begin() as db:
        for number in range(3):
            outbox.add(db, "t", b"", txid=str(number))
        db.execute(update(events).where(events.c.txid != "2").values(state="FINISHED", finished_at=1))
    store = OutboxStore(engine, "one", lease_ms=50_000)
    held = store.take(0)
    assert held is not None
    assert store.clean(held, 86_400_000) == 2
    assert outbox.status(engine).counts == {"UNFINISHED": 1}


def test_tables_changed_by_hand_are_reported(engine: Engine) -> None:
    with engine.begin() as db:
        outbox.add(db, "t", b"")
        db.execute(update(events).values(batch_no=3, sequence=9, shard=0, lane="t", partition_no=0))
        db.execute(delete(meta).where(meta.c.name == "nothing"))
        db.execute(insert(meta), [{"name": "note", "value": "unknown settings are ignored"}])
    store = OutboxStore(engine, "one", lease_ms=50_000)
    held = store.take(0)
    assert held is not None
    with pytest.raises(OutboxVersionMismatch, match="changed by hand"):
        store.load(held, RelaySession(1))


def test_headers_that_are_passed_on_name_no_other_event(engine: Engine) -> None:
    caused_by = (("trace", b"7"), (outbox.TXID_HEADER, b"order-1"), ("raylog-schedule", b"x"))
    with engine.begin() as db:
        outbox.add(db, "mails", b"", headers=caused_by, txid="mail-1")
        kept = msgspec.msgpack.decode(db.scalar(select(events.c.headers)) or b"")
    assert kept == [["trace", b"7"]]


def test_an_inbox_takes_the_last_txid_of_a_record(engine: Engine) -> None:
    inbox = outbox.Inbox(engine, "mailer")
    handled = []
    for txid in (b"mail-1", b"mail-2"):
        headers = ((outbox.TXID_HEADER, b"order-1"), (outbox.TXID_HEADER, txid))
        with inbox.transaction(Record("mails", 0, 0, 0, None, b"", headers)) as db:
            handled.append(db is not None)
    assert handled == [True, True]


def test_names_that_end_in_a_blank_are_refused(engine: Engine) -> None:
    with engine.begin() as db:
        for txid, words in (("o-1 ", "ends in a blank"), ("o\0", "NUL")):
            with pytest.raises(ValueError, match=words):
                outbox.add(db, "t", b"", txid=txid)
    with pytest.raises(InvalidRequest, match="ends in a blank"):
        outbox.Inbox(engine, "c2 ")
    for name in ("bank ", "", "b" * 401):
        with pytest.raises(InvalidConfig, match="no blank at its end"):
            outbox.OutboxRelay(engine, name, bootstrap="nowhere:1", secret="aa" * 16)


TXIDS = (b"t", b"t ", b"t  ", b"T", b"t\t", b"t\0", b"\xff", b"x" * 300, b"x" * 300 + b"y", "té".encode(), b"te")


def test_no_two_txids_are_taken_for_the_same(engine: Engine) -> None:
    inbox = outbox.Inbox(engine, "c")
    records = [Record("t", 0, 0, 0, None, b"", ((outbox.TXID_HEADER, txid),)) for txid in TXIDS]
    handled = []
    for each in [*records, *records]:
        with inbox.transaction(each) as db:
            handled.append(db is not None)
    assert handled == [True] * len(TXIDS) + [False] * len(TXIDS)


def test_a_shard_that_no_relay_holds_has_no_lease_left(engine: Engine) -> None:
    store = OutboxStore(engine, "me", lease_ms=50_000)
    assert [each.lease_left_ms for each in outbox.status(engine).shards] == [0]
    held = store.take(0)
    assert held is not None
    assert 0 < outbox.status(engine).shards[0].lease_left_ms <= 50_000
    store.release(held)
    assert [each.lease_left_ms for each in outbox.status(engine).shards] == [0]


class Reading:
    """A consumer of one partition, whose topic may be made again."""

    def __init__(self) -> None:
        self.id, self.sought = "id-1", -1

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("transfers", 0)]

    def seek(self, _: TopicPartition, offset: int) -> None:
        self.sought = offset

    def topic_id(self, _: str) -> str:
        return self.id


def handled(inbox: outbox.Inbox, *offsets: int) -> list[bool]:
    found = []
    for offset in offsets:
        with inbox.transaction(record(offset, None)) as db:
            found.append(db is not None)
    return found


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_topic_made_again_is_handled_from_its_first_record(engine: Engine, is_restarted: bool) -> None:
    inbox, reader = outbox.Inbox(engine, "fund", "position"), Reading()
    assert handled(inbox, 0) == [True]  # before any seek: by the name alone
    inbox.seek(reader)
    assert handled(inbox, 1, 2, 3, 3) == [True, True, True, False]
    reader.id = "id-2"
    assert handled(inbox, 4, 5) == [True, True]  # polled before the topic was made again
    if is_restarted:
        inbox = outbox.Inbox(engine, "fund", "position")
        inbox.seek(reader)
        assert reader.sought == 0
    with pytest.raises(ConnectionError), inbox.transaction(record(0, None)):
        raise ConnectionError("the handler fails")
    assert handled(inbox, 0, 0, 1, 1) == [True, False, True, False]
    inbox.seek(reader)
    assert reader.sought == 2


def test_an_inbox_without_the_table_of_topic_ids_names_the_command(engine: Engine) -> None:
    position_topics.drop(engine)
    inbox = outbox.Inbox(engine, "fund", "position")
    with pytest.raises(OutboxNotInitialized, match="raylog outbox init"):
        inbox.positions()
    outbox.init(engine)
    assert inbox.positions() == {}
