"""The programs of the pages work as they are written, also on what was there before.

Each block after the comment `<!-- run -->` is run with the names that its page presumes; its thread ends by the means
that the page names. Of a program with Spark the part before the session is run; test_readme runs one whole.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

import raylog
from raylog import outbox
from raylog.outbox.tables import init
from tests.unit.docs.documents import DOCUMENTS, blocks
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

COUNT = 1_000
RUN = [
    (document.name, block)
    for document in DOCUMENTS
    if document.name in ("kafka.md", "spark.md", "time-and-queues.md")
    for block in blocks(document.read_text(encoding="utf-8"))
    if block.is_run
]


def program(sentence: str) -> str:
    """The one block that has this text, as it stands on its page."""
    (found,) = [block.text for _, block in RUN if sentence in block.text]
    return found


class Program(threading.Thread):
    """A block that runs until its test has seen what it looks for."""

    def __init__(self, text: str, **names: Any) -> None:
        """`names`: what the page presumes."""
        super().__init__(daemon=True)
        self.names = {"raylog": raylog, **names}
        self.failure: BaseException | None = None
        self._text = text

    def run(self) -> None:
        """Execute it."""
        try:
            exec(compile(self._text, "<page>", "exec"), self.names)
        except BaseException as error:
            self.failure = error

    def wait(self, seen: Callable[[], bool], what: str) -> None:
        """Wait until the test has seen it. Raises what the program has raised."""

        def has_come() -> bool:
            if self.failure is not None:
                raise self.failure
            return seen()

        wait_for(has_come, what, timeout_s=60)


@pytest.fixture(scope="module")
def filled(three_brokers: raylog.Cluster) -> None:
    with raylog.Admin() as admin, raylog.Producer() as producer:
        for topic in ("orders", "events", "sales", "priced", "transfers"):
            admin.create_topic(topic, partitions=2)
        for number in range(COUNT):  # before any group exists
            producer.send("orders", b"%d" % number, key=b"%d" % (number % 7))
            producer.send("sales", b"%d" % number)


def test_every_program_of_the_pages_has_a_test() -> None:
    tested = Path(__file__).read_text(encoding="utf-8")
    for page, block in RUN:
        quoted = [(f'program("{line.strip()}")', f"program('{line.strip()}')") for line in block.text.splitlines()]
        named = [pair for pair in quoted if any(call in tested for call in pair)]
        assert len(named) == 1, f"{page}:{block.line} is run by no test here"
    assert len(RUN) == 7


def test_a_service_reads_what_was_there_before_it(filled: None) -> None:
    handled: list[bytes | None] = []
    names: dict[str, Any] = {}
    exec(compile(program("def serve(handle):"), "<page>", "exec"), names)
    service = threading.Thread(target=names["serve"], args=[lambda record: handled.append(record.value)], daemon=True)
    service.start()
    wait_for(lambda: len(handled) >= COUNT, "every order is handled", timeout_s=60)
    names["stopping"].set()
    service.join(30)
    assert sorted(handled, key=lambda value: int(value or 0)) == [b"%d" % number for number in range(COUNT)]
    with raylog.Admin() as admin:
        assert sum(each.records or 0 for each in admin.group_lag("shipping").values()) == 0


def test_the_program_on_an_event_loop_reads_what_it_sent(filled: None) -> None:
    names: dict[str, Any] = {}
    exec(compile(program("async def main():"), "<page>", "exec"), names)
    assert sorted(asyncio.run(names["main"]())) == list(range(100))


def test_a_day_becomes_a_frame_of_pandas(filled: None) -> None:
    names: dict[str, Any] = {}
    if time.gmtime().tm_hour == 23 and time.gmtime().tm_min > 50:
        pytest.skip("the day may have ended since the records were sent")
    text = program('counts = sales.groupby("partition")["value"].count()')
    exec(compile(text, "<page>", "exec"), names)
    assert names["counts"].sum() == COUNT


def test_the_pool_handles_what_was_there_before_it(filled: None) -> None:
    handled: list[bytes | None] = []
    running = Program(
        program("pool.run()  # until pool.stop(), or an error"), handle=lambda record: handled.append(record.value)
    )
    running.start()
    running.wait(lambda: len(handled) >= COUNT, "every order is handled")
    running.names["pool"].stop()
    running.join(30)
    assert len(handled) == len(set(handled)) == COUNT


def test_transactions_copy_what_was_there_before_them(filled: None) -> None:
    stopping = threading.Event()
    running = Program(program("with producer.transaction():"), priced=lambda value: b"$" + value, stopping=stopping)
    running.start()
    with raylog.Consumer("priced", isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        found: list[bytes | None] = []

        def seen() -> bool:
            found.extend(record.value for records in consumer.poll(timeout_ms=500).values() for record in records)
            return len(found) >= COUNT

        running.wait(seen, "every order has its price")
    stopping.set()
    running.join(30)
    assert running.failure is None
    assert len(found) == len(set(found)) == COUNT


def test_the_inbox_handles_events_from_before_its_group(filled: None, tmp_path: Path) -> None:
    engine, fund_engine = (outbox.make_engine(f"sqlite:///{tmp_path / name}.db") for name in ("bank", "fund"))
    for each in (engine, fund_engine):
        init(each)
    with fund_engine.begin() as db:
        db.execute(sa.text("CREATE TABLE credits (amount INTEGER)"))
    relay = outbox.OutboxRelay(engine, "bank")
    relaying = threading.Thread(target=relay.run, daemon=True)
    text = program("db.execute(credit)")
    sending, separator, reading = text.partition("inbox = ")
    names: dict[str, Any] = {"engine": engine, "debit": sa.text("SELECT 1"), "value": b"42"}
    exec(compile(sending, "<page>", "exec"), names)
    relaying.start()
    wait_for(lambda: relay.counters["finished"] == 1, "the event is in its topic", timeout_s=60)
    credit = sa.text("INSERT INTO credits VALUES (42)")
    # The program of the page reads on without an end; here it ends some seconds after the last event.
    ending = SimpleNamespace(Consumer=partial(raylog.Consumer, consumer_timeout_ms=5_000))
    running = Program(separator + reading, **{**names, "fund_engine": fund_engine, "credit": credit, "raylog": ending})
    running.start()

    def credited() -> bool:
        with fund_engine.connect() as db:
            return db.execute(sa.text("SELECT count(*) FROM credits")).scalar() == 1

    running.wait(credited, "the event from before the group is handled")
    running.join(60)
    assert running.failure is None
    relay.stop()
    relaying.join(30)


def test_the_first_program_of_the_spark_page_finds_its_topic(filled: None) -> None:
    pytest.importorskip("pyspark")
    text = program('with raylog.spark.session("tour") as spark:').replace('"orders"', '"spark-orders"')
    sending, separator, _ = text.partition("with raylog.spark.session")
    assert separator
    exec(compile(sending, "<page>", "exec"), {})
    assert raylog.read("spark-orders").num_rows == COUNT
